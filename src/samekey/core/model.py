"""The frozen nouns that every layer speaks: claims, records, answers.

This module owns their shapes. It knows nothing of stores, HTTP or time: every
``datetime`` here is aware and comes from the store's own clock.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

OWNER_BYTES = 16  # 128 fresh random bits per claim: two rivals never recognise each other
DAY_SECONDS = 24 * 3600.0
KEY_HINT_CHARACTERS = 6  # enough for an operator to find a key, too little to use it

Headers = tuple[tuple[bytes, bytes], ...]


class State(StrEnum):
    """What a stored record says about its operation."""

    RUNNING = "running"
    COMPLETED = "completed"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the first caller got: status, ordered header pairs, raw body bytes.

    ``body`` is None when the operation is done but its body was not kept
    (too large, or a stream still open); an empty body is ``b""``.
    """

    status: int
    headers: Headers
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A versioned digest of a request; digests of different versions never compare."""

    version: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt to become the one that runs an operation.

    ``owner`` is made once per claim and kept over retries of that one claim, so
    that a claim whose reply was lost recognises itself. ``lease_seconds`` is None
    in joined mode, where the transaction itself is the lease.
    """

    id: bytes
    owner: bytes
    fingerprint: Fingerprint
    caller: str
    key_hint: str
    method: str
    path: str
    key: str | None = None
    lease_seconds: float | None = None
    unseen_seconds: float = DAY_SECONDS
    """How long after its lease a leased record stays, so that a dead owner is still seen as dead."""

    def __post_init__(self) -> None:
        # Texts that operators read, partly of the client's making: a claim must never fail for them.
        object.__setattr__(self, "caller", _storable(self.caller))
        object.__setattr__(self, "path", _storable(self.path))


def _storable(text: str) -> str:
    """``text`` with "?" for what databases refuse in text: U+0000 and lone surrogates."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "?").encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a leased record: every write after the claim names both owner and fence."""

    id: bytes
    owner: bytes
    fence: int


@dataclass(frozen=True, slots=True)
class Record:
    """The stored row, with ``now``: the store's time when the row was read."""

    id: bytes
    state: State
    owner: bytes
    fence: int
    fingerprint: Fingerprint
    caller: str
    key_hint: str
    method: str
    path: str
    now: datetime
    created_at: datetime
    key: str | None = None
    lease_until: datetime | None = None
    completed_at: datetime | None = None
    expires_at: datetime | None = None
    answer: Answer | None = None

    @property
    def lapsed(self) -> bool:
        """Whether this is a leased record whose owner let its lease run out, by the store's clock."""
        return self.state is State.RUNNING and self.lease_until is not None and self.lease_until <= self.now

    @property
    def expired(self) -> bool:
        """Whether the answer's retention is over, by the store's clock."""
        return self.expires_at is not None and self.expires_at <= self.now


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a claimed operation: its answer and how long to keep it (seconds)."""

    id: bytes
    owner: bytes
    fence: int
    answer: Answer
    retention_seconds: float
    tombstone_seconds: float = 0.0


# What a store answers to a claim -------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """The claim is ours: run the handler. ``fence`` only grows from claim to claim."""

    fence: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A record stands in the way; ``decide`` says what it means."""

    record: Record


@dataclass(frozen=True, slots=True)
class Locked:
    """A rival runs right now and its record cannot be seen yet."""


ClaimOutcome = Granted | Taken | Locked


def record_id(namespace: str, caller: str, key: str, secret: bytes | None = None) -> bytes:
    """The 32-byte primary key of (namespace, caller, key).

    The parts are length-prefixed, so that no two triples give one input; with a
    ``secret`` the digest is an HMAC and cannot be guessed from outside. No
    collation, length or personal data ever reaches the store's index.
    """
    parts = [part.encode("utf-8", "surrogatepass") for part in (namespace, caller, key)]
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    if secret is None:
        return hashlib.sha256(framed).digest()
    return hmac.digest(secret, framed, "sha256")
