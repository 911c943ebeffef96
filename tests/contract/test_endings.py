"""Commit keeps everything; rollback, abandonment and death keep nothing, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from samekey.core import plans
from samekey.core.model import Granted
from samekey.core.ops import Commit, Complete, Find, Open, Rollback, Step, TryClaim
from samekey.errors import StoreError
from tests.contract.moves import a_claim, claimed, complete, completion_of, found, operate, outcome
from tests.contract.subjects import Subject, TransactionFacade, needs

Ending = Callable[[TransactionFacade, Subject], object]
without_commit = pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda transaction, _: transaction.perform(Rollback()), id="rollback"),
        pytest.param(lambda transaction, _: transaction.abandon(), id="abandon"),
        pytest.param(lambda transaction, store: transaction.die(store), id="death"),
    ],
)


@without_commit
def test_nothing_remains_of_a_claim(store: Subject, end: Ending) -> None:
    claim = a_claim()
    transaction, _ = claimed(store, claim)
    end(transaction, store)
    assert store.leftovers() == 0
    assert store.perform(Find(claim.id)) is None
    assert isinstance(outcome(store, a_claim()), Granted)


@without_commit
def test_nothing_remains_of_a_refused_answer(store: Subject, end: Ending) -> None:
    claim = a_claim()
    transaction, fence = claimed(store, claim)
    assert complete(transaction, completion_of(claim, fence + 1)) is None
    end(transaction, store)
    assert store.perform(Find(claim.id)) is None
    operate(store, a_claim())


@needs("table")
@without_commit
def test_nothing_remains_of_the_business_change(store: Subject, end: Ending) -> None:
    store.sql("CREATE TABLE orders (id integer)")
    transaction, _ = claimed(store, a_claim())
    transaction.execute("INSERT INTO orders VALUES (1)")
    end(transaction, store)
    assert [tuple(row) for row in store.sql("SELECT count(*) FROM orders")] == [(0,)]


@needs("table")
def test_claim_change_and_answer_are_committed_together(store: Subject) -> None:
    store.sql("CREATE TABLE orders (id integer)")
    claim = a_claim()
    transaction, fence = claimed(store, claim)
    transaction.execute("INSERT INTO orders VALUES (1)")
    assert [tuple(row) for row in store.sql("SELECT count(*) FROM orders")] == [(0,)]
    assert isinstance(transaction.run(plans.finish(completion_of(claim, fence))), plans.Committed)
    assert [tuple(row) for row in store.sql("SELECT count(*) FROM orders")] == [(1,)]
    assert found(store, claim).owner == claim.owner


def test_an_ended_transaction_cannot_be_used(store: Subject) -> None:
    for ending in (Commit(), Rollback()):
        transaction, _ = claimed(store, a_claim(repr(ending)))
        transaction.perform(ending)
        with pytest.raises(StoreError):
            transaction.perform(TryClaim(a_claim(repr(ending))))
        transaction.abandon()


def test_a_completed_transaction_cannot_be_used(store: Subject) -> None:
    claim = a_claim()
    transaction, fence = claimed(store, claim)
    assert complete(transaction, completion_of(claim, fence)) is not None
    with pytest.raises(StoreError):
        transaction.perform(Commit())
    with pytest.raises(StoreError):
        transaction.perform(TryClaim(a_claim("order-2")))


def test_a_transaction_that_was_never_opened_has_nothing_to_end(store: Subject) -> None:
    steps: list[Step[Any]] = [Complete(completion_of(a_claim(), 1)), Commit()]
    for step in steps:
        transaction = store.transaction()
        with pytest.raises(StoreError):
            transaction.perform(step)
        transaction.abandon()


def test_abandoning_twice_or_too_late_is_harmless(store: Subject) -> None:
    claim = a_claim()
    transaction, fence = claimed(store, claim)
    transaction.run(plans.finish(completion_of(claim, fence)))
    transaction.abandon()
    transaction.die(store)
    never_opened = store.transaction()
    never_opened.abandon()
    assert found(store, claim).owner == claim.owner


def test_a_transaction_opened_without_a_claim_leaves_nothing(store: Subject) -> None:
    transaction = store.transaction()
    transaction.perform(Open(write=False))
    transaction.perform(Commit())
    assert store.leftovers() == 0
