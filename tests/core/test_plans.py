"""Each plan as a dialogue: the steps it takes, in order, for every answer that a store may give."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from samekey.core import plans
from samekey.core.decide import AnswerExpired, Broken, Held, InProgress, Mismatch, Proceed, Replay
from samekey.core.model import (
    Answer,
    Claim,
    ClaimOutcome,
    Completion,
    Fingerprint,
    Granted,
    Locked,
    Record,
    State,
    Taken,
)
from samekey.core.ops import Commit, Complete, Find, Hold, Plan, Rollback, Step, TryClaim
from samekey.errors import CommitUnknown, CorruptRecord, NotCommitted, SamekeyError
from samekey.run import run

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=24)
CLAIM = Claim(b"i" * 32, b"o" * 16, Fingerprint(1, b"f"), "shop", "order-", "POST", "/orders")
ANSWER = Answer(201, (), b"{}")
COMPLETION = Completion(CLAIM.id, CLAIM.owner, 7, ANSWER, 3600)
RUNNING = Record(
    id=CLAIM.id,
    state=State.RUNNING,
    owner=b"r" * 16,
    fence=3,
    fingerprint=CLAIM.fingerprint,
    caller="shop",
    key_hint="order-",
    method="POST",
    path="/orders",
    now=NOW,
    created_at=NOW,
)
COMPLETED = replace(RUNNING, state=State.COMPLETED, completed_at=NOW, expires_at=LATER, answer=ANSWER)
HELD = replace(RUNNING, state=State.HELD)


def dialogue(plan: Plan[Any], answers: Iterable[object]) -> tuple[Any, list[Step[Any]]]:
    """The plan's value (or the error it let out) and the steps it took; an exception as answer is raised."""
    steps: list[Step[Any]] = []
    remaining = iter(answers)

    def perform(step: Step[Any]) -> object:
        steps.append(step)
        answer = next(remaining)
        if isinstance(answer, SamekeyError):
            raise answer
        return answer

    try:
        value: Any = run(plan, perform)
    except SamekeyError as error:
        value = error
    assert list(remaining) == []
    return value, steps


# look --------------------------------------------------------------------------------


def test_look_says_nothing_where_no_record_is() -> None:
    assert dialogue(plans.look(CLAIM), [None]) == (None, [Find(CLAIM.id)])


@pytest.mark.parametrize(
    ("record", "decision"),
    [
        (COMPLETED, Replay(ANSWER, LATER)),
        (HELD, Held()),
        (replace(COMPLETED, expires_at=NOW), AnswerExpired()),
        (replace(COMPLETED, fingerprint=Fingerprint(1, b"other")), Mismatch()),
    ],
)
def test_look_judges_without_a_transaction(record: Record, decision: object) -> None:
    assert dialogue(plans.look(CLAIM), [record]) == (decision, [Find(CLAIM.id)])


def test_look_holds_a_broken_record_under_its_own_owner() -> None:
    assert dialogue(plans.look(CLAIM), [RUNNING, True]) == (
        Broken(RUNNING),
        [Find(CLAIM.id), Hold(CLAIM.id, RUNNING.owner)],
    )


# begin -------------------------------------------------------------------------------


def test_begin_leaves_the_transaction_open_when_it_may_proceed() -> None:
    assert dialogue(plans.begin(CLAIM), [Granted(7)]) == (Proceed(7), [TryClaim(CLAIM)])


@pytest.mark.parametrize(
    ("outcome", "decision"),
    [
        (Locked(), InProgress(1)),
        (Taken(COMPLETED), Replay(ANSWER, LATER)),
        (Taken(HELD), Held()),
        (Taken(replace(HELD, fingerprint=Fingerprint(2, b"f"))), Mismatch()),
    ],
)
def test_begin_rolls_back_before_it_says_no_bl_52(outcome: ClaimOutcome, decision: object) -> None:
    assert dialogue(plans.begin(CLAIM), [outcome, None]) == (
        decision,
        [TryClaim(CLAIM), Rollback()],
    )


def test_begin_holds_a_broken_record_after_its_own_rollback() -> None:
    """Inside its transaction it would wait for nobody, but the hold must outlive the rollback."""
    assert dialogue(plans.begin(CLAIM), [Taken(RUNNING), None, True]) == (
        Broken(RUNNING),
        [TryClaim(CLAIM), Rollback(), Hold(CLAIM.id, RUNNING.owner)],
    )


def test_begin_claims_again_when_a_rival_ended_in_between() -> None:
    assert dialogue(plans.begin(CLAIM), [None, None, Taken(COMPLETED), None]) == (
        Replay(ANSWER, LATER),
        [TryClaim(CLAIM), TryClaim(CLAIM), TryClaim(CLAIM), Rollback()],
    )


def test_begin_gives_up_after_three_such_moments_and_asks_for_a_retry() -> None:
    assert dialogue(plans.begin(CLAIM), [None, None, None, None]) == (
        InProgress(1),
        [TryClaim(CLAIM), TryClaim(CLAIM), TryClaim(CLAIM), Rollback()],
    )


def test_a_corrupt_record_stops_begin() -> None:
    error, steps = dialogue(plans.begin(CLAIM), [Taken(replace(COMPLETED, answer=None))])
    assert type(error) is CorruptRecord
    assert steps == [TryClaim(CLAIM)]


# finish ------------------------------------------------------------------------------


def test_finish_commits_the_answer_with_the_change() -> None:
    assert dialogue(plans.finish(COMPLETION), [LATER]) == (
        plans.Committed(LATER),
        [Complete(COMPLETION)],
    )


def test_finish_never_commits_a_record_that_is_not_ours() -> None:
    assert dialogue(plans.finish(COMPLETION), [None, None, True]) == (
        plans.EndedEarly(),
        [Complete(COMPLETION), Rollback(), Hold(CLAIM.id, CLAIM.owner)],
    )


@pytest.mark.parametrize("error", [NotCommitted("full", retryable=True), CommitUnknown("no reply")])
def test_finish_lets_out_what_the_commit_says(error: SamekeyError) -> None:
    assert dialogue(plans.finish(COMPLETION), [error]) == (error, [Complete(COMPLETION)])


@pytest.mark.parametrize(
    ("outcome", "steps"),
    [
        (Granted(8), [TryClaim(CLAIM), Commit(), Hold(CLAIM.id, CLAIM.owner)]),
        (Taken(HELD), [TryClaim(CLAIM), Rollback()]),
        (Locked(), [TryClaim(CLAIM), Rollback()]),
        (None, [TryClaim(CLAIM), Rollback()]),
    ],
)
def test_a_claim_that_the_application_rolled_back_is_held_anew(
    outcome: ClaimOutcome | None, steps: list[Step[Any]]
) -> None:
    answers = [outcome, *[None] * (len(steps) - 1)]
    assert dialogue(plans.hold_anew(CLAIM), answers) == (None, steps)


# verify ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Granted(8), plans.Verdict.NOTHING_REMAINS),
        (Taken(replace(COMPLETED, owner=CLAIM.owner)), plans.Verdict.COMMITTED),
        (Taken(COMPLETED), plans.Verdict.UNKNOWN),
        (Taken(replace(RUNNING, owner=CLAIM.owner)), plans.Verdict.UNKNOWN),
        (Taken(replace(HELD, owner=CLAIM.owner)), plans.Verdict.UNKNOWN),
        (Locked(), plans.Verdict.UNKNOWN),
        (None, plans.Verdict.UNKNOWN),
    ],
)
def test_verify_looks_by_claiming_and_always_rolls_back(
    outcome: ClaimOutcome | None, verdict: plans.Verdict
) -> None:
    assert dialogue(plans.verify(CLAIM), [outcome, None]) == (
        verdict,
        [TryClaim(CLAIM), Rollback()],
    )
