"""Rivals of one key: nobody waits, nobody runs twice, and a loser never frees the winner's key."""

from __future__ import annotations

from functools import partial

from samekey.core import plans
from samekey.core.model import Granted, Locked, State, Taken
from samekey.core.ops import Rollback, TryClaim
from samekey.core.policy import Policy
from samekey.engine import Running
from tests.contract.moves import (
    DAY,
    HOUR,
    a_claim,
    claimed,
    committed_early,
    completion_of,
    found,
    operate,
    outcome,
)  # fmt: skip
from tests.contract.subjects import Subject, needs, together

POLICY = Policy()


def refused(store: Subject) -> bool:
    """Whether a rival is told at once that the key is in use."""
    return outcome(store, a_claim()) in (Locked(), "busy")


def test_a_rival_of_an_open_claim_is_refused_at_once_bl_19(store: Subject) -> None:
    transaction, _ = claimed(store, a_claim())
    assert refused(store)
    transaction.abandon()


@needs("many_writers")
def test_a_rival_among_many_writers_is_locked(store: Subject) -> None:
    transaction, _ = claimed(store, a_claim())
    assert outcome(store, a_claim()) == Locked()
    transaction.abandon()


@needs("many_writers")
def test_a_claim_that_is_tried_again_in_its_transaction_is_as_good(store: Subject) -> None:
    """What was sent along with the first try must not stand before the second."""
    rival, _ = claimed(store, a_claim())
    transaction = store.transaction()
    claim = a_claim()
    assert transaction.perform(TryClaim(claim)) == Locked()
    rival.abandon()
    granted = transaction.perform(TryClaim(claim))
    assert isinstance(granted, Granted)
    assert isinstance(transaction.run(plans.finish(completion_of(claim, granted.fence))), plans.Committed)


@needs("single_writer")
def test_a_rival_of_a_single_writer_is_told_that_it_is_busy(store: Subject) -> None:
    transaction, _ = claimed(store, a_claim())
    assert outcome(store, a_claim()) == "busy"
    transaction.abandon()


def test_a_refused_rival_leaves_the_winner_alone(store: Subject) -> None:
    """However the loser ends, the winner keeps its key and can finish."""
    claim = a_claim()
    transaction, fence = claimed(store, claim)
    assert [refused(store) for _ in range(3)] == [True, True, True]
    assert isinstance(transaction.run(plans.finish(completion_of(claim, fence))), plans.Committed)
    assert found(store, claim).owner == claim.owner


def test_after_the_commit_a_rival_sees_the_record(store: Subject) -> None:
    claim = a_claim()
    fence = operate(store, claim)
    taken = outcome(store, a_claim())
    assert isinstance(taken, Taken)
    assert (taken.record.state, taken.record.owner, taken.record.fence) == (
        State.COMPLETED,
        claim.owner,
        fence,
    )


def test_after_a_rollback_a_rival_is_granted(store: Subject) -> None:
    transaction, _ = claimed(store, a_claim())
    transaction.perform(Rollback())
    assert isinstance(outcome(store, a_claim()), Granted)


def test_after_the_winners_death_a_rival_is_granted(store: Subject) -> None:
    transaction, _ = claimed(store, a_claim())
    transaction.die(store)
    assert isinstance(outcome(store, a_claim()), Granted)


def test_a_claim_whose_reply_was_lost_is_granted_again_bl_20(store: Subject) -> None:
    """BL-20: in joined mode a claim without a reply is a broken connection, and nothing remains of it."""
    claim = a_claim()
    transaction, _ = claimed(store, claim)
    transaction.die(store)
    again, _ = claimed(store, claim)
    again.abandon()


def test_a_rival_of_the_one_that_replaces_an_expired_record_is_refused(store: Subject) -> None:
    operate(store, a_claim(), retention=HOUR)
    store.age(DAY)
    transaction, _ = claimed(store, a_claim())
    assert refused(store)
    transaction.abandon()


@needs("many_writers")
def test_different_keys_never_wait_for_each_other_bl_17(store: Subject) -> None:
    """BL-17: one lock for all keys makes strangers queue. Everything here runs while the first is open."""
    first, _ = claimed(store, a_claim("order-1"))
    operate(store, a_claim("order-2"))
    second, _ = claimed(store, a_claim("order-3"))
    assert outcome(store, a_claim("order-4", id=b"\xff" * 32)) != Locked()
    for transaction in (second, first):
        transaction.abandon()


@needs("single_writer")
def test_different_keys_take_turns_and_are_never_in_progress_bl_17(store: Subject) -> None:
    engine = store.engine()

    def whole_life(key: str) -> str:
        claim = a_claim(key)
        running = engine.begin(claim, POLICY)
        assert isinstance(running, Running), running
        engine.finish(running, completion_of(claim, running.fence))
        return key

    keys = [f"order-{number}" for number in range(8)]
    assert together([partial(whole_life, key) for key in keys]) == keys


def test_a_visible_running_record_is_shown_not_granted(store: Subject) -> None:
    claim = a_claim()
    committed_early(store, claim)
    taken = outcome(store, a_claim())
    assert isinstance(taken, Taken)
    assert taken.record.state is State.RUNNING
