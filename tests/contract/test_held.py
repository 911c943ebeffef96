"""Held records: only a running one of that very owner is held, and it outlives retention."""

from __future__ import annotations

from samekey.core import plans
from samekey.core.decide import Broken, Held, decide
from samekey.core.model import Granted, State, Taken
from samekey.core.ops import Find, Hold, Purge
from tests.contract.moves import DAY, HOUR, SAME, a_claim, claimed, committed_early, found, operate, outcome
from tests.contract.subjects import Subject


def test_a_running_record_is_held_once(store: Subject) -> None:
    claim = a_claim()
    fence = committed_early(store, claim)
    assert store.perform(Hold(claim.id, claim.owner)) is True
    assert store.perform(Hold(claim.id, claim.owner)) is False
    record = found(store, claim)
    assert (record.state, record.owner, record.fence) == (State.HELD, claim.owner, fence)


def test_another_owner_holds_nothing(store: Subject) -> None:
    claim = a_claim()
    committed_early(store, claim)
    assert store.perform(Hold(claim.id, bytes(16))) is False
    assert found(store, claim).state is State.RUNNING


def test_what_is_completed_or_absent_is_not_held(store: Subject) -> None:
    claim = a_claim()
    assert store.perform(Hold(claim.id, claim.owner)) is False
    operate(store, claim)
    assert store.perform(Hold(claim.id, claim.owner)) is False
    assert found(store, claim).state is State.COMPLETED


def test_a_claim_whose_transaction_is_open_is_not_held(store: Subject) -> None:
    claim = a_claim()
    transaction, _ = claimed(store, claim)
    transaction.abandon()
    assert store.perform(Hold(claim.id, claim.owner)) is False


def test_begin_holds_what_was_committed_early_and_says_so_ever_after(store: Subject) -> None:
    committed_early(store, a_claim())
    decisions = []
    for _ in range(2):
        transaction = store.transaction()
        decisions.append(transaction.run(plans.begin(a_claim())))
        transaction.abandon()
    assert isinstance(decisions[0], Broken)
    assert decisions[1] == Held()


def test_look_holds_what_was_committed_early(store: Subject) -> None:
    committed_early(store, a_claim())
    assert isinstance(store.run(plans.look(a_claim())), Broken)
    assert store.run(plans.look(a_claim())) == Held()


def test_a_record_committed_early_over_an_expired_one_is_seen(store: Subject) -> None:
    """The expiry of the answer that it replaced must not hide it."""
    operate(store, a_claim(), retention=HOUR)
    store.age(DAY)
    claim = a_claim()
    committed_early(store, claim)
    assert found(store, claim).state is State.RUNNING


def test_a_held_record_outlives_retention_but_not_90_days(store: Subject) -> None:
    claim = a_claim()
    committed_early(store, claim)
    store.perform(Hold(claim.id, claim.owner))
    store.age(89 * DAY)
    taken = outcome(store, a_claim())
    assert isinstance(taken, Taken)
    assert decide(taken, SAME) == Held()
    assert store.perform(Purge(10)) == 0
    store.age(2 * DAY)
    assert store.perform(Find(claim.id)) is None
    assert isinstance(outcome(store, a_claim()), Granted)
    assert store.perform(Purge(10)) == 1
