"""The problems samekey answers with: ``application/problem+json`` (RFC 9457).

This module owns their codes, statuses and wording, and the two promises each makes
to a client. It knows nothing of frameworks or stores, and no text ever carries a raw
key, a body or another caller's data.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from samekey.core.model import Headers
from samekey.errors import ConfigurationError
from samekey.http.answer import kept_headers

# RFC 9457, section 3.1.1: a type is any URI. A URN stays the same wherever the documentation moves.
TYPE_PREFIX = "urn:samekey:problem:"

STORE_RETRY_AFTER_SECONDS = 5  # an outage seldom ends within a second
BUSY_RETRY_AFTER_SECONDS = 1  # a writer, or a broken tie, is over soon
URL = re.compile(r"[!#-;=?-\[\]_a-z~%]+")  # the characters of a URI (RFC 3986, section 2): none ends a Link


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal, ready to be sent.

    ``retryable``: sending the same request again, with the same key, is safe and may end otherwise.
    ``safe_to_use_new_key``: sending it under a fresh key cannot do it twice.
    ``documentation`` is the URL of the page that explains the application's keys.
    """

    code: str
    title: str
    status: int
    detail: str
    retryable: bool
    safe_to_use_new_key: bool
    retry_after_seconds: int | None = None
    extra_headers: Headers = ()
    documentation: str | None = None

    def __post_init__(self) -> None:
        if self.retry_after_seconds is not None and self.retry_after_seconds < 1:
            raise ValueError("retry_after_seconds must be at least 1: zero invites a tight loop")
        if self.documentation is not None and not URL.fullmatch(self.documentation):
            raise ConfigurationError("documentation must be a URL, with anything unusual percent-encoded")

    @property
    def type(self) -> str:
        """The stable URI that names this kind of problem."""
        return TYPE_PREFIX + self.code

    def documented(self, url: str | None) -> Problem:
        """The same problem with a link to the page that explains it; None leaves it as it is."""
        return self if url is None else replace(self, documentation=url)

    def body(self) -> bytes:
        """The problem as JSON, in ASCII."""
        members = {
            "type": self.type,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "retryable": self.retryable,
            "safe_to_use_new_key": self.safe_to_use_new_key,
        }
        return json.dumps(members, separators=(",", ":")).encode("ascii")

    def headers(self) -> Headers:
        """All headers of the answer; its own win over ``extra_headers`` of the same name."""
        own: list[tuple[bytes, bytes]] = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(self.body())),
            (b"cache-control", b"no-store"),
        ]
        if self.retry_after_seconds is not None:
            own.append((b"retry-after", b"%d" % self.retry_after_seconds))
        names = {name for name, _ in own}
        if self.documentation is not None:
            # The Idempotency-Key draft wants a page that explains a missing key; the form is RFC 8288,
            # section 3. Link is a list field, so a Link among the extra headers stays beside it.
            own.append((b"link", f'<{self.documentation}>; rel="describedby"'.encode("ascii")))
        return (*own, *(pair for pair in self.extra_headers if pair[0].lower() not in names))


@dataclass(frozen=True, slots=True)
class _Kind:
    code: str
    status: int
    retryable: bool
    safe_to_use_new_key: bool
    title: str


# A new key is safe only where nothing can ever have run under the old one. Everywhere else an earlier
# attempt with the same key, or a rival beside this one, may have done the work, even if this attempt
# surely did not: store-unavailable is what a retry after a lost answer gets, and a good key sent twice
# in one request is invalid-key (see ``invalid_key``).
# "commit-unknown" has the code of "outcome-unknown" and may be retried, since the joined transaction
# is either there (replayed) or not (run once). A held operation is not run again by any retry.
_KINDS: Final = {
    "missing-key": _Kind("missing-key", 400, False, True, "The idempotency key is missing"),
    "invalid-key": _Kind("invalid-key", 400, False, False, "The idempotency key is not valid"),
    "caller-missing": _Kind("caller-missing", 400, False, False, "The caller is not known"),
    "in-progress": _Kind("in-progress", 409, True, False, "The first request is still running"),
    "key-reused": _Kind("key-reused", 422, False, False, "The key was used for another request"),
    "outcome-unknown": _Kind("outcome-unknown", 409, False, False, "The outcome is not known"),
    "commit-unknown": _Kind("outcome-unknown", 503, True, False, "The outcome is not known yet"),
    "answer-expired": _Kind("answer-expired", 409, False, False, "The answer is no longer kept"),
    "answer-not-kept": _Kind("answer-not-kept", 409, False, False, "Done, but the answer was not kept"),
    "body-too-large": _Kind("body-too-large", 413, False, False, "The request body is too large"),
    "store-unavailable": _Kind("store-unavailable", 503, True, False, "Keys cannot be checked right now"),
    "store-busy": _Kind("store-busy", 503, True, False, "The store is busy"),
    "not-committed": _Kind("not-committed", 503, True, False, "The change was not committed"),
    "joined-broken": _Kind("joined-broken", 500, False, False, "The operation was committed early"),
}

# Fields that describe the body that was not kept (RFC 9110, section 8, and RFC 9530), and how to cache
# it. On the problem they would be false.
_OF_THE_BODY = frozenset(
    {
        b"cache-control",
        b"digest",
        b"etag",
        b"expires",
        b"last-modified",
        b"pragma",
        b"repr-digest",
        b"accept-ranges",
    }
)


def missing_key(header: str = "Idempotency-Key") -> Problem:
    """The route requires a key and got none."""
    return _problem(
        "missing-key",
        f"This operation needs the header {header}, so this request was not run. Make one key per operation "
        "(a UUID, say), store it, and send the same key with every retry of that operation.",
    )


def invalid_key(reason: str, *, safe_to_use_new_key: bool = False) -> Problem:
    """The key is malformed; ``reason`` says how, without the key.

    Say ``safe_to_use_new_key`` only where this key can never have been accepted. A retry that sends a
    good key twice in one request is refused as well, and its operation may have been done.
    """
    problem = _problem(
        "invalid-key",
        f"{_sentence(reason)} This request was not run. Correct the header and send the request again.",
    )
    return replace(problem, safe_to_use_new_key=safe_to_use_new_key)


def caller_missing() -> Problem:
    """Nobody knows whose key this is."""
    return _problem(
        "caller-missing",
        "A key belongs to a caller, and this request does not say who is calling. Authenticate, then send "
        "the same request with the same key.",
    )


def in_progress(retry_after_seconds: float) -> Problem:
    """A rival runs right now."""
    return _problem(
        "in-progress",
        "The first request with this key is still running. Wait as long as Retry-After says, then send the "
        "same request with the same key to get its answer.",
        retry_after_seconds,
    )


def key_reused(status: Literal[400, 409, 422] = 422) -> Problem:
    """The same key came with another fingerprint."""
    problem = _problem(
        "key-reused",
        "This key belongs to a request with another method, path, query or body, so this one was not run. "
        "To retry that request, send exactly what was sent first. For a new operation, use a new key; "
        "never change the key merely to repeat an operation, or it may be done twice.",
    )
    return replace(problem, status=status)


def outcome_unknown() -> Problem:
    """The record is held."""
    return _problem(
        "outcome-unknown",
        "The first request with this key stopped before its outcome was known, so it is not run again. "
        "Look whether the operation was done, or ask the operator of this service to settle it; do not "
        "repeat it with a new key before that is known.",
    )


def commit_unknown(retry_after_seconds: float = STORE_RETRY_AFTER_SECONDS) -> Problem:
    """A joined commit lost its connection and could not be looked up."""
    return _problem(
        "commit-unknown",
        "The connection to the database was lost during the commit, and whether the operation was done "
        "cannot be seen right now. Send the same request with the same key: if it was done you get its "
        "answer, if not it is done once.",
        retry_after_seconds,
    )


def answer_expired() -> Problem:
    """Only a tombstone is left."""
    return _problem(
        "answer-expired",
        "The operation of this key was done, and its answer is no longer kept. Read the resource to see the "
        "result. Only for a new operation, use a new key.",
    )


def answer_not_kept(headers: Headers = (), first_status: int | None = None) -> Problem:
    """Done, with the body not kept; the recorded ``headers`` (Location, say) go with the problem."""
    answered = "" if first_status is None else f" with status {first_status}"
    problem = _problem(
        "answer-not-kept",
        f"The operation of this key was done and answered{answered}, but the body of the answer was not "
        "kept. Read the resource to see the result, at Location if that header is here. Do not repeat it.",
    )
    return replace(
        problem,
        extra_headers=tuple(
            (name, value)
            for name, value in kept_headers(headers)
            if name.lower() not in _OF_THE_BODY and not name.lower().startswith(b"content-")
        ),
    )


def body_too_large(body_bytes_max: int) -> Problem:
    """The request is over the limit; it is never let through unprotected."""
    return _problem(
        "body-too-large",
        f"With a key, the body of this request may have at most {body_bytes_max} bytes. It was not run. "
        "Send a smaller body; the key can stay the same.",
    )


def store_unavailable(retry_after_seconds: float = STORE_RETRY_AFTER_SECONDS) -> Problem:
    """The claim could not be made, or was not acknowledged."""
    return _problem(
        "store-unavailable",
        "The store of idempotency keys cannot be reached, so this attempt was not run. "
        "Wait, then send the same request with the same key.",
        retry_after_seconds,
    )


def store_busy(retry_after_seconds: float = BUSY_RETRY_AFTER_SECONDS) -> Problem:
    """Another process holds the single writer."""
    return _problem(
        "store-busy",
        "Another request holds the store, so this attempt was not run. "
        "Wait, then send the same request with the same key.",
        retry_after_seconds,
    )


def not_committed(retry_after_seconds: float = BUSY_RETRY_AFTER_SECONDS) -> Problem:
    """The commit was refused and a retry may help."""
    return _problem(
        "not-committed",
        "The database refused the commit, and nothing of this attempt remains. "
        "Wait, then send the same request with the same key.",
        retry_after_seconds,
    )


def joined_broken() -> Problem:
    """The application ended the joined transaction itself."""
    return _problem(
        "joined-broken",
        "The service committed this operation before it was finished, so its outcome is not known and it is "
        "not run again. Ask the operator of this service to settle it; do not repeat it with a new key.",
    )


def _problem(kind_name: str, detail: str, retry_after_seconds: float | None = None) -> Problem:
    kind = _KINDS[kind_name]
    return Problem(
        code=kind.code,
        title=kind.title,
        status=kind.status,
        detail=detail,
        retryable=kind.retryable,
        safe_to_use_new_key=kind.safe_to_use_new_key,
        # RFC 9110, section 10.2.3: whole seconds. Rounded up, so that nobody comes too early.
        retry_after_seconds=None if retry_after_seconds is None else max(1, math.ceil(retry_after_seconds)),
    )


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
