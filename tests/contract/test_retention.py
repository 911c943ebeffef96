"""Retention: an expired answer counts as absent, whether it was purged or not (BL-60)."""

from __future__ import annotations

from samekey.core.decide import AnswerExpired, Mismatch, Replay, decide
from samekey.core.model import Granted, Taken
from samekey.core.ops import Find, Rollback
from tests.contract.moves import (
    ANSWER,
    DAY,
    HOUR,
    LATE_ANSWER,
    OTHER,
    SAME,
    a_claim,
    claimed,
    found,
    operate,
    outcome,
)
from tests.contract.subjects import Subject


def test_an_answer_is_kept_for_its_retention(store: Subject) -> None:
    operate(store, a_claim(), retention=DAY)
    store.age(DAY - 60)
    taken = outcome(store, a_claim())
    assert isinstance(taken, Taken)
    assert isinstance(decide(taken, SAME), Replay)
    assert decide(taken, OTHER) == Mismatch()


def test_an_expired_answer_is_absent_bl_60(store: Subject) -> None:
    claim = a_claim()
    operate(store, claim, retention=DAY)
    store.age(DAY + 1)
    assert store.perform(Find(claim.id)) is None
    assert isinstance(outcome(store, a_claim(fingerprint=OTHER)), Granted)


def test_each_operation_has_a_retention_of_its_own(store: Subject) -> None:
    operate(store, a_claim("short"), retention=HOUR)
    operate(store, a_claim("long"), retention=DAY)
    store.age(2 * HOUR)
    assert isinstance(outcome(store, a_claim("short")), Granted)
    assert isinstance(outcome(store, a_claim("long")), Taken)


def test_the_next_claim_replaces_an_expired_answer_whole_bl_60(store: Subject) -> None:
    early_fence = operate(store, a_claim(key="order-1"), retention=HOUR)
    store.age(DAY)
    claim = a_claim(fingerprint=OTHER, method="PATCH", path="/elsewhere")
    fence = operate(store, claim, LATE_ANSWER)
    record = found(store, claim)
    assert fence > early_fence
    assert (record.owner, record.fence, record.fingerprint) == (claim.owner, fence, OTHER)
    assert (record.method, record.path, record.key) == ("PATCH", "/elsewhere", None)
    assert record.answer == LATE_ANSWER


def test_while_it_is_replaced_the_old_answer_is_gone(store: Subject) -> None:
    """Neither the answer that expired nor half of the next one may be replayed."""
    claim = a_claim()
    operate(store, claim, retention=HOUR)
    store.age(DAY)
    transaction, _ = claimed(store, a_claim())
    assert store.perform(Find(claim.id)) is None
    transaction.abandon()


def test_a_replacement_that_is_rolled_back_leaves_the_key_free(store: Subject) -> None:
    claim = a_claim()
    operate(store, claim, retention=HOUR)
    store.age(DAY)
    transaction, _ = claimed(store, a_claim())
    transaction.perform(Rollback())
    assert store.perform(Find(claim.id)) is None
    operate(store, a_claim(), LATE_ANSWER)
    assert found(store, claim).answer == LATE_ANSWER


def test_a_tombstone_says_that_the_answer_is_expired(store: Subject) -> None:
    operate(store, a_claim(), retention=HOUR, tombstone=DAY)
    store.age(HOUR - 60)
    taken = outcome(store, a_claim())
    assert isinstance(taken, Taken)
    assert isinstance(decide(taken, SAME), Replay)
    assert taken.record.answer == ANSWER
    store.age(DAY)
    for fingerprint in (SAME, OTHER):
        taken = outcome(store, a_claim())
        assert isinstance(taken, Taken)
        assert decide(taken, fingerprint) == AnswerExpired()


def test_after_the_tombstone_the_key_is_free(store: Subject) -> None:
    operate(store, a_claim(), retention=HOUR, tombstone=DAY)
    store.age(HOUR + DAY + 1)
    assert isinstance(outcome(store, a_claim()), Granted)
