"""Purge: in bounded batches, only what is over, never what somebody still works on (BL-60)."""

from __future__ import annotations

from samekey.core import plans
from samekey.core.ops import Find, Hold, Purge, Search
from tests.contract.moves import (
    DAY,
    HOUR,
    a_claim,
    claimed,
    committed_early,
    completion_of,
    found,
    operate,
)
from tests.contract.subjects import Subject, needs


def purged(store: Subject, limit: int) -> int:
    return store.perform(Purge(limit))


def test_a_batch_is_bounded(store: Subject) -> None:
    for number in range(5):
        operate(store, a_claim(f"order-{number}"), retention=HOUR)
    store.age(DAY)
    assert [purged(store, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert store.perform(Search()) == []


def test_only_what_is_over_goes_bl_60(store: Subject) -> None:
    operate(store, a_claim("over"), retention=HOUR)
    operate(store, a_claim("tombstone"), retention=HOUR, tombstone=2 * DAY)
    operate(store, a_claim("live"), retention=2 * DAY)
    committed_early(store, a_claim("running"))
    held = a_claim("held")
    committed_early(store, held)
    store.perform(Hold(held.id, held.owner))
    store.age(DAY)
    assert purged(store, 100) == 1
    left = {record.id for record in store.perform(Search())}
    assert left == {a_claim(name).id for name in ("tombstone", "live", "running", "held")}


def test_an_empty_store_has_nothing_to_purge(store: Subject) -> None:
    assert purged(store, 100) == 0


def test_a_running_record_is_never_purged_bl_60(store: Subject) -> None:
    """BL-60: however old it looks, somebody may still work on it."""
    claim = a_claim()
    committed_early(store, claim)
    store.age(1000 * DAY)
    assert purged(store, 100) == 0
    assert found(store, claim).owner == claim.owner


@needs("many_writers")
def test_a_record_that_is_being_replaced_is_skipped(store: Subject) -> None:
    operate(store, a_claim("order-1"), retention=HOUR)
    operate(store, a_claim("order-2"), retention=HOUR)
    store.age(DAY)
    claim = a_claim("order-1")
    transaction, fence = claimed(store, claim)
    assert purged(store, 100) == 1
    assert store.perform(Find(a_claim("order-2").id)) is None
    assert isinstance(transaction.run(plans.finish(completion_of(claim, fence))), plans.Committed)
    assert found(store, claim).fence == fence


@needs("table")
def test_a_thousand_go_in_batches_bl_60(store: Subject) -> None:
    operate(store, a_claim(), retention=HOUR)
    ids, from_ = COPIES["isolation" in store.can]
    rest = (
        "state, owner, fence, fingerprint, fingerprint_version, caller, key_hint, key, method, path, "
        "created_at, lease_until, completed_at, expires_at, purge_at, status, headers, body"
    )
    store.sql(
        f"{from_} INSERT INTO idempotency_keys (id, {rest}) "
        f"SELECT {ids}, {rest} FROM idempotency_keys, numbers"
    )
    store.age(DAY)
    assert [purged(store, 300) for _ in range(5)] == [300, 300, 300, 100, 0]


COPIES = {
    True: ("sha256(CAST(n AS text)::bytea)", "WITH numbers AS (SELECT generate_series(1, 999) AS n)"),
    False: (
        "randomblob(32)",
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 999)",
    ),
}
