"""Claiming: who is granted, what is stored, and what nobody sees before the commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samekey.core.model import Fingerprint, Granted, State, Taken, record_id
from samekey.core.ops import Find
from tests.contract.moves import ANSWER, OTHER, a_claim, claimed, found, operate, outcome
from tests.contract.subjects import CAPABILITIES, DECLARED, Subject


def test_the_store_declares_what_the_map_says(store: Subject) -> None:
    declared = {name for name in DECLARED if getattr(store.inner.capabilities, name)}
    assert declared == CAPABILITIES[store.name] & DECLARED
    assert ("many_writers" in store.can) is not ("single_writer" in store.can)


def test_a_free_key_is_granted(store: Subject) -> None:
    granted = outcome(store, a_claim())
    assert isinstance(granted, Granted)
    assert granted.fence > 0


def test_nothing_is_seen_before_the_commit(store: Subject) -> None:
    claim = a_claim()
    transaction, _ = claimed(store, claim)
    assert store.perform(Find(claim.id)) is None
    transaction.abandon()


def test_every_field_comes_back_bl_07_pp_15(store: Subject) -> None:
    """BL-07, PP-15: a fingerprint that is written but not read back refuses every true retry."""
    claim = a_claim(
        fingerprint=Fingerprint(3, bytes(range(32))), key="order-1", method="PATCH", path="/a?b=c"
    )
    fence = operate(store, claim)
    record = found(store, claim)
    assert (record.id, record.owner, record.fence) == (claim.id, claim.owner, fence)
    assert record.state is State.COMPLETED
    assert record.fingerprint == Fingerprint(3, bytes(range(32)))
    assert (record.caller, record.key_hint, record.key) == ("shop", "order-", "order-1")
    assert (record.method, record.path) == ("PATCH", "/a?b=c")
    assert record.answer == ANSWER
    assert record.lease_until is None
    assert record.completed_at is not None
    assert record.created_at <= record.completed_at <= record.now


def test_a_claim_that_is_refused_gets_the_same_record_as_a_look(store: Subject) -> None:
    claim = a_claim()
    operate(store, claim)
    taken = outcome(store, a_claim())
    assert isinstance(taken, Taken)
    record = found(store, claim)
    assert replace(taken.record, now=record.now) == record


def test_a_refused_claim_changes_nothing(store: Subject) -> None:
    claim = a_claim()
    operate(store, claim)
    before = found(store, claim)
    assert isinstance(outcome(store, a_claim(fingerprint=OTHER, path="/elsewhere")), Taken)
    assert replace(found(store, claim), now=before.now) == before


def test_a_key_is_not_kept_unless_asked(store: Subject) -> None:
    claim = a_claim()
    operate(store, claim)
    assert found(store, claim).key is None


def test_callers_and_keys_do_not_share_records(store: Subject) -> None:
    operate(store, a_claim("order-1"))
    for free in (a_claim("order-2"), a_claim("ORDER-1"), a_claim(id=record_id("", "other shop", "order-1"))):
        assert isinstance(outcome(store, free), Granted)


def test_odd_texts_are_stored_bl_55(store: Subject) -> None:
    """BL-55: no database stores U+0000 and lone surrogates in text; a claim must not fail for them."""
    for number, odd in enumerate(["", "é\N{ROCKET}'\"", "x" * 5000, "%_\\", "a\0b", "\ud800", "\r\n"]):
        claim = a_claim(f"odd-{number}", caller=odd, path=f"/{odd}")
        operate(store, claim)
        record = found(store, claim)
        stored = odd.replace("\0", "?").replace("\ud800", "?")
        assert (record.caller, record.path) == (stored, f"/{stored}")


def test_a_fence_never_falls(store: Subject) -> None:
    """Where an earlier claim was rolled back, nothing remains that could come late with the same fence."""
    fences: list[int] = []
    for _ in range(3):
        granted: Any = outcome(store, a_claim())
        fences.append(granted.fence)
    fences.append(operate(store, a_claim()))
    assert fences == sorted(fences)
