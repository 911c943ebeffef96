"""A commit whose reply was lost is looked up by a claim, the surest look there is."""

from __future__ import annotations

from samekey.core import plans
from samekey.core.model import Claim
from samekey.core.plans import Verdict
from samekey.errors import StoreBusy
from tests.contract.moves import a_claim, claimed, committed_early, operate
from tests.contract.subjects import Subject


def verdict(store: Subject, claim: Claim) -> Verdict:
    transaction = store.transaction()
    try:
        return transaction.run(plans.verify(claim))
    except StoreBusy:
        return Verdict.UNKNOWN  # so does the engine, which asks again
    finally:
        transaction.abandon()


def test_what_was_committed_is_found(store: Subject) -> None:
    claim = a_claim()
    operate(store, claim)
    assert verdict(store, claim) is Verdict.COMMITTED


def test_what_was_not_committed_is_surely_not_there(store: Subject) -> None:
    claim = a_claim()
    transaction, _ = claimed(store, claim)
    transaction.die(store)
    assert verdict(store, claim) is Verdict.NOTHING_REMAINS


def test_verifying_takes_nothing(store: Subject) -> None:
    claim = a_claim()
    assert [verdict(store, claim) for _ in range(2)] == [Verdict.NOTHING_REMAINS] * 2
    operate(store, a_claim())


def test_while_the_transaction_may_still_commit_nothing_is_known(store: Subject) -> None:
    """The server may not have noticed yet that we are gone, and may still commit."""
    claim = a_claim()
    transaction, _ = claimed(store, claim)
    assert verdict(store, claim) is Verdict.UNKNOWN
    transaction.abandon()


def test_the_answer_of_another_is_not_ours(store: Subject) -> None:
    operate(store, a_claim())
    assert verdict(store, a_claim()) is Verdict.UNKNOWN


def test_a_record_that_still_runs_is_not_committed(store: Subject) -> None:
    claim = a_claim()
    committed_early(store, claim)
    assert verdict(store, claim) is Verdict.UNKNOWN
