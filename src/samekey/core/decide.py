"""What a claim's outcome means for the request: one pure function.

(outcome, fingerprint) -> Decision. The rows are those of the behaviour
table; adapters match on the decision and only translate it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from samekey.core.model import Answer, ClaimOutcome, Fingerprint, Granted, Locked, Record, State, Taken
from samekey.errors import CorruptRecord

JOINED_RETRY_AFTER_SECONDS = 1  # a joined rival ends with its transaction: ask again soon


@dataclass(frozen=True, slots=True)
class Proceed:
    """Run the handler: the claim is ours."""

    fence: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Give the stored answer."""

    answer: Answer
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class AnswerNotKept:
    """The operation is done; only status and headers were kept."""

    answer: Answer
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class InProgress:
    """The first request still runs."""

    retry_after_seconds: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used for another request."""


@dataclass(frozen=True, slots=True)
class Held:
    """The outcome of the first request cannot be known; an operator has to look."""


@dataclass(frozen=True, slots=True)
class AnswerExpired:
    """A tombstone: the operation was done, its answer is no longer kept."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A joined claim became visible while running: its transaction was committed early."""

    record: Record


Refusal = InProgress | Mismatch | Held | AnswerExpired | AnswerNotKept | Broken
Decision = Proceed | Replay | Refusal


def decide(outcome: ClaimOutcome, fingerprint: Fingerprint) -> Decision:
    """Turn what the store answered into what the request gets.

    Raises CorruptRecord for a completed record without an answer: it is never
    replayed and never run again unasked.
    """
    match outcome:
        case Granted(fence):
            return Proceed(fence)
        case Locked():
            return InProgress(JOINED_RETRY_AFTER_SECONDS)
        case Taken(record):
            return _judge(record, fingerprint)
        case _:
            assert_never(outcome)


def _judge(record: Record, fingerprint: Fingerprint) -> Decision:
    # Expiry comes before the fingerprint: once the retention is over, the key stands for nothing.
    if record.state is State.COMPLETED and record.expired:
        return AnswerExpired()
    # Digests of different versions hold different facts, so one never proves equality with the other.
    if record.fingerprint != fingerprint:
        return Mismatch()
    match record.state:
        case State.COMPLETED:
            if record.answer is None:
                raise CorruptRecord("a completed record has no answer; look at it with 'samekey show'")
            if record.answer.body is None:
                return AnswerNotKept(record.answer, record.expires_at)
            return Replay(record.answer, record.expires_at)
        case State.HELD:
            return Held()
        case State.RUNNING:
            return _judge_running(record)
        case _:
            assert_never(record.state)


def _judge_running(record: Record) -> Decision:
    # A joined claim has no lease and lives inside its own transaction: nobody else can ever see it.
    if record.lease_until is None:
        return Broken(record)
    seconds_left = (record.lease_until - record.now).total_seconds()
    if seconds_left <= 0:
        return Held()
    return InProgress(max(1, math.ceil(seconds_left)))
