"""What contract tests do over and over: claims, completions, whole operations."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from samekey.core import plans
from samekey.core.decide import Proceed
from samekey.core.model import Answer, Claim, Completion, Fingerprint, Granted, Record, record_id
from samekey.core.ops import Commit, Complete, Find, Open, TryClaim
from samekey.errors import StoreBusy
from tests.contract.subjects import Subject, TransactionFacade

HOUR = 3600.0
DAY = 24 * HOUR
SAME = Fingerprint(1, b"the request".ljust(32, b"."))
OTHER = Fingerprint(1, b"another request".ljust(32, b"."))
ANSWER = Answer(201, ((b"location", b"/orders/1"),), b'{"id": 1}')
LATE_ANSWER = Answer(200, (), b"late")


def a_claim(name: str = "order-1", **changes: Any) -> Claim:
    claim = Claim(
        id=record_id("", "shop", name),
        owner=os.urandom(16),
        fingerprint=SAME,
        caller="shop",
        key_hint=name[:6],
        method="POST",
        path="/orders",
    )
    return replace(claim, **changes)


def completion_of(
    claim: Claim, fence: int, answer: Answer = ANSWER, *, retention: float = DAY, tombstone: float = 0.0
) -> Completion:
    return Completion(claim.id, claim.owner, fence, answer, retention, tombstone)


def claimed(store: Subject, claim: Claim) -> tuple[TransactionFacade, int]:
    """An open transaction that holds the claim, and the fence."""
    transaction = store.transaction()
    decision = transaction.run(plans.begin(claim))
    assert isinstance(decision, Proceed), decision
    return transaction, decision.fence


def operate(store: Subject, claim: Claim, answer: Answer = ANSWER, **lifetimes: float) -> int:
    """Claim, complete and commit; the fence."""
    transaction, fence = claimed(store, claim)
    result = transaction.run(plans.finish(completion_of(claim, fence, answer, **lifetimes)))
    assert isinstance(result, plans.Committed)
    return fence


def outcome(store: Subject, claim: Claim) -> Any:
    """What a claim gets right now, taking nothing: an outcome, or "busy" from a single writer."""
    transaction = store.transaction()
    try:
        transaction.perform(Open())
        return transaction.perform(TryClaim(claim))
    except StoreBusy:
        return "busy"
    finally:
        transaction.abandon()


def committed_early(store: Subject, claim: Claim) -> int:
    """Make a running record visible, as an application does that ends the joined transaction itself."""
    transaction = store.transaction()
    transaction.perform(Open())
    granted = transaction.perform(TryClaim(claim))
    assert isinstance(granted, Granted)
    transaction.perform(Commit())
    return granted.fence


def found(store: Subject, claim: Claim) -> Record:
    record = store.perform(Find(claim.id))
    assert record is not None
    return record


def complete(transaction: TransactionFacade, completion: Completion) -> Any:
    return transaction.perform(Complete(completion))
