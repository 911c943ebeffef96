"""What each outcome of a claim means for the request: every row, in the order in which they win."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from samekey.core.decide import (
    AnswerExpired,
    AnswerNotKept,
    Broken,
    Decision,
    Held,
    InProgress,
    Mismatch,
    Proceed,
    Replay,
    decide,
)
from samekey.core.model import Answer, Fingerprint, Granted, Locked, Record, State, Taken
from samekey.errors import CorruptRecord

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=24)
SAME = Fingerprint(1, b"the request")
OTHER = Fingerprint(1, b"another request")
ANSWER = Answer(201, ((b"location", b"/orders/1"),), b'{"id":1}')

RUNNING = Record(
    id=b"i" * 32,
    state=State.RUNNING,
    owner=b"o" * 16,
    fence=7,
    fingerprint=SAME,
    caller="shop",
    key_hint="order-",
    method="POST",
    path="/orders",
    now=NOW,
    created_at=NOW,
)
COMPLETED = replace(RUNNING, state=State.COMPLETED, completed_at=NOW, expires_at=LATER, answer=ANSWER)
HELD = replace(RUNNING, state=State.HELD)


def leased(seconds: float) -> Record:
    return replace(RUNNING, lease_until=NOW + timedelta(seconds=seconds))


def judged(record: Record, fingerprint: Fingerprint = SAME) -> Decision:
    return decide(Taken(record), fingerprint)


def test_a_granted_claim_proceeds_with_its_fence() -> None:
    assert decide(Granted(41), SAME) == Proceed(41)


def test_a_locked_rival_is_in_progress_for_one_second() -> None:
    assert decide(Locked(), SAME) == InProgress(1)


def test_a_completed_record_is_replayed_with_its_expiry() -> None:
    assert judged(COMPLETED) == Replay(ANSWER, LATER)


def test_a_completed_record_without_expiry_is_replayed() -> None:
    assert judged(replace(COMPLETED, expires_at=None)) == Replay(ANSWER, None)


def test_an_empty_body_is_an_answer_bl_46() -> None:
    empty = replace(ANSWER, body=b"")
    assert judged(replace(COMPLETED, answer=empty)) == Replay(empty, LATER)


def test_a_body_that_was_not_kept_is_said() -> None:
    bodiless = replace(ANSWER, body=None)
    assert judged(replace(COMPLETED, answer=bodiless)) == AnswerNotKept(bodiless, LATER)


def test_another_fingerprint_is_a_mismatch_in_every_state() -> None:
    for record in (COMPLETED, HELD, RUNNING, leased(10), leased(-10)):
        assert judged(record, OTHER) == Mismatch()


def test_an_older_fingerprint_version_never_proves_equality_bl_08() -> None:
    """BL-08: the digests agree, but the older version may not have looked at all that the newer one does."""
    assert judged(COMPLETED, Fingerprint(2, SAME.digest)) == Mismatch()


def test_expiry_comes_before_the_fingerprint() -> None:
    over = replace(COMPLETED, expires_at=NOW - timedelta(seconds=1))
    assert judged(over, OTHER) == AnswerExpired()
    assert judged(over) == AnswerExpired()


def test_retention_ends_with_its_last_instant() -> None:
    assert judged(replace(COMPLETED, expires_at=NOW)) == AnswerExpired()
    last = NOW + timedelta(microseconds=1)
    assert judged(replace(COMPLETED, expires_at=last)) == Replay(ANSWER, last)


def test_an_expired_record_needs_no_answer() -> None:
    assert judged(replace(COMPLETED, expires_at=NOW, answer=None)) == AnswerExpired()


def test_a_held_record_is_held_whatever_its_times() -> None:
    assert judged(HELD) == Held()
    assert judged(replace(HELD, expires_at=NOW - timedelta(days=1))) == Held()


def test_a_visible_running_record_without_lease_is_broken() -> None:
    assert judged(RUNNING) == Broken(RUNNING)


@pytest.mark.parametrize(
    ("seconds_left", "retry_after"), [(0.000001, 1), (0.4, 1), (1, 1), (1.000001, 2), (29.5, 30), (30, 30)]
)
def test_a_live_lease_is_in_progress_until_it_ends_rounded_up(seconds_left: float, retry_after: int) -> None:
    assert judged(leased(seconds_left)) == InProgress(retry_after)


@pytest.mark.parametrize("seconds_left", [0, -0.000001, -3600])
def test_a_lapsed_lease_is_held_not_run_again(seconds_left: float) -> None:
    assert judged(leased(seconds_left)) == Held()


def test_a_completed_record_without_an_answer_is_corrupt_not_run_again() -> None:
    with pytest.raises(CorruptRecord) as caught:
        judged(replace(COMPLETED, answer=None))
    assert str(caught.value) == "a completed record has no answer; look at it with 'samekey show'"
