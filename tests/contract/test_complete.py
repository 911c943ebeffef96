"""Completing: only who holds the claim may write the answer; for anybody else nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samekey.core import plans
from samekey.core.model import Completion
from samekey.core.ops import Find, Open, Rollback
from samekey.errors import StoreError
from tests.contract.moves import (
    ANSWER,
    LATE_ANSWER,
    a_claim,
    claimed,
    committed_early,
    complete,
    completion_of,
    found,
    operate,
)
from tests.contract.subjects import Subject, needs


@pytest.mark.parametrize("wrong", ["owner", "fence", "id"])
def test_another_owner_fence_or_id_writes_nothing(store: Subject, wrong: str) -> None:
    claim = a_claim()
    transaction, fence = claimed(store, claim)
    right = completion_of(claim, fence)
    changes = {"owner": bytes(16), "fence": fence + 1, "id": a_claim("order-2").id}
    late: Completion = replace(right, answer=LATE_ANSWER, **{wrong: changes[wrong]})  # type: ignore[arg-type]
    assert complete(transaction, late) is None
    transaction.abandon()
    assert store.perform(Find(claim.id)) is None
    operate(store, claim)
    record = found(store, claim)
    assert (record.owner, record.answer) == (claim.owner, ANSWER)


def test_an_earlier_claim_of_ours_writes_nothing(store: Subject) -> None:
    early = a_claim()
    first, early_fence = claimed(store, early)
    first.perform(Rollback())
    claim = a_claim()
    second, _ = claimed(store, claim)
    assert complete(second, completion_of(early, early_fence)) is None
    second.abandon()


def test_a_completion_without_a_claim_writes_nothing(store: Subject) -> None:
    transaction = store.transaction()
    transaction.perform(Open())
    assert complete(transaction, completion_of(a_claim(), 1)) is None
    transaction.perform(Rollback())
    assert store.perform(Find(a_claim().id)) is None


def test_a_second_completion_writes_nothing(store: Subject) -> None:
    claim = a_claim()
    transaction, fence = claimed(store, claim)
    assert complete(transaction, completion_of(claim, fence)) is not None
    with pytest.raises(StoreError):  # the first one committed: there is no transaction any more
        complete(transaction, completion_of(claim, fence, LATE_ANSWER))
    assert found(store, claim).answer == ANSWER


def test_a_completed_record_of_another_is_left_alone(store: Subject) -> None:
    claim = a_claim()
    fence = operate(store, claim)
    transaction = store.transaction()
    transaction.perform(Open())
    assert complete(transaction, completion_of(claim, fence, LATE_ANSWER)) is None
    transaction.perform(Rollback())
    assert found(store, claim).answer == ANSWER


@needs("many_writers")
def test_a_claim_that_was_committed_early_cannot_be_completed_later(store: Subject) -> None:
    """The application ended our transaction and another began behind our back: the change is not joined."""
    claim = a_claim()
    fence = committed_early(store, claim)
    transaction = store.transaction()
    transaction.perform(Open())
    assert complete(transaction, completion_of(claim, fence)) is None
    transaction.abandon()


def test_the_expiry_that_is_returned_is_the_one_that_is_stored(store: Subject) -> None:
    claim = a_claim()
    transaction, fence = claimed(store, claim)
    result = transaction.run(plans.finish(completion_of(claim, fence, retention=7200.5)))
    assert isinstance(result, plans.Committed)
    record = found(store, claim)
    assert record.expires_at == result.expires_at
    assert record.completed_at is not None
    assert (result.expires_at - record.completed_at).total_seconds() == 7200.5
