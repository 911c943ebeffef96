"""Holds an answer back until it is whole, or until holding on is no longer worth it.

A pure state machine, fed with the pieces of one response; each piece is answered
with what to do next. It owns the limit on held bytes and the rule of what is
recorded. It knows nothing of timers, frameworks or stores: ``hold_seconds`` is the
adapter's timer, which starts at ``start`` and calls ``give_up``.

    new --start--> holding --last chunk--> complete
     |                |
     |                +--limit passed, give_up--> passing
     +--start with a Content-Length over the limit--> passing
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from samekey.core.model import Answer, Headers
from samekey.http.answer import bodyless, kept_headers

# A longer run of digits is over any limit, and is not worth turning into a number.
LENGTH_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class Hold:
    """The piece is held: send nothing yet."""


@dataclass(frozen=True, slots=True)
class Complete:
    """The whole answer is here: record ``answer``, then send what is held as the last body bytes."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Overflow:
    """Settle as done with ``answer``, send what is held, then the piece just fed (it is not held)."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class PassThrough:
    """The answer is settled: send the piece as it is."""


Verdict = Hold | Complete | Overflow | PassThrough


class _Phase(Enum):
    NEW = auto()
    HOLDING = auto()
    COMPLETE = auto()
    PASSING = auto()


class Recorder:
    """Records one response. ``status`` and ``headers`` are the first answer's own, all of them.

    ``method`` is the request's; ``extra_dropped`` names headers that are not recorded, beside the
    usual ones. A call that does not fit the sequence raises ValueError and changes nothing.
    """

    def __init__(
        self, body_bytes_max: int, *, method: str = "POST", extra_dropped: frozenset[bytes] = frozenset()
    ) -> None:
        self.status: int | None = None
        self.headers: Headers = ()
        self._body_bytes_max = body_bytes_max
        self._method = method
        self._extra_dropped = extra_dropped
        self._phase = _Phase.NEW
        # One growing buffer: thousands of tiny chunks cost their bytes, not an object each.
        self._held = bytearray()
        self._whole: Answer | None = None

    @property
    def held_bytes(self) -> int:
        """How many body bytes are held right now."""
        return len(self._held)

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Hold | Overflow:
        """Feed the status and headers. A declared length over the limit is Overflow at once."""
        if self._phase is not _Phase.NEW:
            raise ValueError("the response has been started already")
        if not 200 <= status <= 999:
            # RFC 9110, section 15: 1xx are interim; they pass by the recorder and end nothing.
            raise ValueError(f"not the status of a final response: {status}")
        # Copied before anything is assigned: a broken iterable must leave the recorder as it was.
        copied = tuple((bytes(name), bytes(value)) for name, value in headers)
        self.status, self.headers = status, copied
        self._phase = _Phase.HOLDING
        if not bodyless(status, self._method) and self._declared_over_limit():
            return self._overflow()
        return Hold()

    def chunk(self, data: bytes | bytearray | memoryview, more: bool) -> Verdict:
        """Feed body bytes; ``more`` says whether others follow."""
        match self._phase:
            case _Phase.NEW:
                raise ValueError("a body chunk came before the start of the response")
            case _Phase.COMPLETE | _Phase.PASSING:
                return PassThrough()
            case _Phase.HOLDING:
                pass
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if len(self._held) + size > self._body_bytes_max:
            return self._overflow()
        self._held += data
        if more:
            return Hold()
        self._phase = _Phase.COMPLETE
        self._whole = self._answer(bytes(self._held))
        return Complete(self._whole)

    def give_up(self) -> Overflow | PassThrough:
        """Stop holding: the answer takes too long. Late calls do no harm: PassThrough."""
        match self._phase:
            case _Phase.NEW:
                raise ValueError("nothing to give up: the response has not been started")
            case _Phase.COMPLETE | _Phase.PASSING:
                return PassThrough()
            case _Phase.HOLDING:
                return self._overflow()

    def release(self) -> bytes:
        """Hand over the held body bytes, once. Raises ValueError before the answer is settled."""
        if self._phase not in (_Phase.COMPLETE, _Phase.PASSING):
            raise ValueError("held bytes must not be sent before the answer is complete or given up")
        held = bytes(self._held)
        self._held.clear()
        return held

    def answer(self, body_kept: bool) -> Answer:
        """What to record: kept headers, and the body if ``body_kept``.

        Raises ValueError before the start, and for the body of an answer that is not whole: a part of
        a body must never be replayed as if it were all.
        """
        if not body_kept:
            return self._answer(None)
        if self._whole is None:
            raise ValueError("the body is not whole: it cannot be kept")
        return self._whole

    def _overflow(self) -> Overflow:
        self._phase = _Phase.PASSING
        return Overflow(self._answer(None))

    def _answer(self, body: bytes | None) -> Answer:
        if self.status is None:
            raise ValueError("the response has not been started")
        # What a handler writes into a bodyless answer never reaches the client, so nothing is missing.
        recorded = b"" if bodyless(self.status, self._method) else body
        return Answer(self.status, kept_headers(self.headers, self._extra_dropped), recorded)

    def _declared_over_limit(self) -> bool:
        lengths = (
            value.strip(b" \t").lstrip(b"0")
            for name, value in self.headers
            if name.lower() == b"content-length"
        )
        return any(
            digits.isdigit() and (len(digits) > LENGTH_DIGITS_MAX or int(digits) > self._body_bytes_max)
            for digits in lengths
        )
