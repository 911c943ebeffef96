"""Behind a transaction pooler: each transaction on another server connection, and nothing is left behind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, event, text

from samekey.core.model import Answer, Claim, Completion, Fingerprint, Granted, Locked, Taken, record_id
from samekey.core.ops import Complete, CreateSchema, TryClaim
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore

CONNECTIONS = 3
OPERATIONS = 60


@pytest.fixture
def engine(fresh_postgres: str) -> Iterator[Engine]:
    # First in, first out: what a transaction-mode pooler does to a client, seen from the client.
    engine = create_engine(
        fresh_postgres, pool_size=CONNECTIONS, pool_use_lifo=False, connect_args={"prepare_threshold": None}
    )
    SqlAlchemyStore(engine).perform(CreateSchema())
    yield engine
    engine.dispose()


def a_claim(key: str) -> Claim:
    id = record_id("", "acme", key)
    return Claim(id, os.urandom(16), Fingerprint(1, b"f"), "acme", key[:6], "POST", "/orders")


def test_no_lock_strands_on_another_connection_bl_37(engine: Engine) -> None:
    """BL-37: locks end with their transaction, so it does not matter which connection had them."""
    used: Counter[int] = Counter()
    event.listen(engine, "checkout", lambda connection, *_: used.update([connection.info.backend_pid]))
    store = SqlAlchemyStore(engine)
    warm = [engine.connect() for _ in range(CONNECTIONS)]
    for connection in warm:
        connection.close()
    used.clear()
    for number in range(OPERATIONS):
        claim = a_claim(f"key-{number}")
        first, rival = store.transaction(), store.transaction()
        granted = first.perform(TryClaim(claim))
        assert isinstance(rival.perform(TryClaim(a_claim(f"key-{number}"))), Locked)
        rival.abandon()
        if number % 3:
            answer = Answer(201, (), b"done")
            completion = Completion(claim.id, claim.owner, granted.fence, answer, 3600.0)
            assert first.perform(Complete(completion)) is not None
        else:
            first.abandon()
    assert len(used) == CONNECTIONS
    assert min(used.values()) >= OPERATIONS / 2
    with engine.connect() as connection:
        locks = text(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        assert connection.execute(locks).scalar_one() == 0
        kept = connection.execute(text("SELECT count(*) FROM idempotency_keys")).scalar_one()
    assert kept == OPERATIONS - OPERATIONS // 3


def test_a_taken_key_leaves_the_transaction_usable_bl_51(engine: Engine) -> None:
    """BL-51: the claim ignores the conflict, so every later statement of the transaction still works."""
    store = SqlAlchemyStore(engine)
    claim = a_claim("taken")
    first = store.transaction()
    granted = first.perform(TryClaim(claim))
    assert isinstance(granted, Granted)
    first.perform(Complete(Completion(claim.id, claim.owner, granted.fence, Answer(201, (), b""), 3600.0)))
    second = store.transaction()
    assert isinstance(second.perform(TryClaim(a_claim("taken"))), Taken)
    assert second.connection.execute(text("SELECT 1")).scalar_one() == 1
    second.abandon()
