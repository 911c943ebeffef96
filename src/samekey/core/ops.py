"""Steps: the typed operations that plans await, and nothing else.

A step is data. Awaiting one hands it to whoever runs the plan (``samekey.run``),
which performs it on a store of either colour and sends the result back. The
result's type is the parameter of ``Step``, so ``await Find(...)`` is typed.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

from samekey.core.model import Claim, ClaimOutcome, Completion, Granted, Holder, Record, State

T = TypeVar("T")


class Step(Generic[T]):
    """Base of all steps; the only thing a plan may await."""

    __slots__ = ()

    def __await__(self) -> Generator[Step[T], object, T]:
        return cast("T", (yield self))


Plan = Coroutine[Step[Any], Any, T]


@dataclass(frozen=True, slots=True)
class Find(Step[Record | None]):
    """Read a record outside of any transaction; None where none counts any more."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Open(Step[None]):
    """Begin the operation's transaction. ``write``: on a single-writer database, become the writer."""

    write: bool = True


@dataclass(frozen=True, slots=True)
class TryClaim(Step[ClaimOutcome | None]):
    """Claim in the operation's transaction, which begins here unless it is open; no rival is waited for.

    None: a rival finished between our look and our claim; claim again.
    """

    claim: Claim


@dataclass(frozen=True, slots=True)
class Complete(Step[datetime | None]):
    """Write the answer and commit: claim, business change and answer together. The answer's expiry.

    None where the record is not ours: then nothing was committed, and the transaction is to be rolled back.
    """

    completion: Completion


@dataclass(frozen=True, slots=True)
class Commit(Step[None]):
    """Commit the open transaction of a request that has no answer to keep."""


@dataclass(frozen=True, slots=True)
class Rollback(Step[None]):
    """Roll the open transaction back: nothing remains."""


@dataclass(frozen=True, slots=True)
class Hold(Step[bool]):
    """Mark a running record as held, in a transaction of its own. False: not that owner's any more."""

    id: bytes
    owner: bytes


# Steps of leased mode; each is atomic, a transaction of its own, and takes many at once -----


@dataclass(frozen=True, slots=True)
class ClaimLeased(Step[tuple[ClaimOutcome, ...]]):
    """Claim each record for its claim's ``lease_seconds``; one outcome per claim, in order.

    A claim that finds its own owner in the record recognises itself: its first reply was lost.
    """

    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class CompleteLeased(Step[tuple[datetime | None, ...]]):
    """Write each answer under its owner and fence: the expiry, or None where the record is not ours.

    A completion that finds itself written already is acknowledged again.
    """

    completions: tuple[Completion, ...]


@dataclass(frozen=True, slots=True)
class Renew(Step[tuple[bool, ...]]):
    """Extend each running lease to ``lease_seconds`` from now; False where it is not ours any more."""

    holders: tuple[Holder, ...]
    lease_seconds: float


@dataclass(frozen=True, slots=True)
class Release(Step[tuple[bool, ...]]):
    """Delete each running record under its owner and fence: the key is free."""

    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class TakeOver(Step[Granted | None]):
    """Make a lapsed record ours, if it still is as it was seen (``fence``); None: somebody was faster."""

    claim: Claim
    fence: int


# Steps of operators and start-up; each is a transaction of its own -----------------


@dataclass(frozen=True, slots=True)
class Search(Step[list[Record]]):
    """Records newest first, filtered; ``key_hint`` matches as a prefix. Bodies are not read."""

    caller: str | None = None
    state: State | None = None
    key_hint: str = ""
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Forget(Step[bool]):
    """Delete one record, whatever its state. False: there was none."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Purge(Step[int]):
    """Delete at most ``limit`` records whose time is over, skipping locked ones. How many went."""

    limit: int


@dataclass(frozen=True, slots=True)
class CreateSchema(Step[None]):
    """Create the table where it is missing; safe when run by many at once."""


@dataclass(frozen=True, slots=True)
class ReadSchemaVersion(Step[int | None]):
    """The version of the store's table, or None where there is none."""
