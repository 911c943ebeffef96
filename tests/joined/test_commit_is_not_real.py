"""The application's commit must not be real: start-up proves it, and refuses where it would be."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, StaticPool

from samekey import Operation, SameKey, callers
from samekey.errors import ConfigurationError
from tests.joined.shop import Place, add, on, open_shop, outcome


async def start(place: Place, engine: Any, **options: Any) -> None:
    place.make_tables()
    await SameKey(engine, caller=callers.everyone, **options).start()


@on("postgresql")
async def test_an_engine_in_autocommit_is_refused(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        await start(place, place.engine(isolation_level="AUTOCOMMIT"))
    assert place.rows("SELECT count(*) FROM idempotency_keys") == [0]


@on("sqlite")
async def test_a_driver_in_autocommit_is_joined_all_the_same(place: Place) -> None:
    """On SQLite the BEGIN is ours, whatever the driver would do."""
    async with open_shop(
        place, refuse_after_commit, engine=place.engine(isolation_level="AUTOCOMMIT")
    ) as shop:
        await shop.samekey.start()
        assert outcome(await shop.post()) == (500, None)
        assert (shop.orders, shop.records) == ([], [])


async def test_a_sessionmaker_that_ignores_bind_is_refused(place: Place) -> None:
    engine = place.engine()
    session_class = Session if place.sync else AsyncSession

    def sessions(bind: Any, **options: Any) -> Any:
        return session_class(bind=engine, **options)

    with pytest.raises(ConfigurationError, match="bind"):
        await start(place, engine, sessions=sessions)
    assert place.rows("SELECT count(*) FROM idempotency_keys") == [0]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite+aiosqlite://"])
async def test_an_in_memory_database_is_refused(url: str) -> None:
    engine = create_async_engine(url) if "aiosqlite" in url else create_engine(url)
    with pytest.raises(ConfigurationError, match="in-memory"):
        SameKey(engine, caller=callers.everyone)


@pytest.mark.parametrize("engine", [None, "sqlite:///shop.db", Session()])
async def test_what_is_no_engine_is_refused(engine: object) -> None:
    with pytest.raises(ConfigurationError, match="SQLAlchemy engine"):
        SameKey(engine, caller=callers.everyone)


def refuse_after_commit(db: Session, op: Operation) -> None:
    add(db)
    db.commit()
    db.rollback()
    raise RuntimeError("after the commit")


OPTIONS: dict[str, dict[str, Any]] = {
    "null-pool": {"poolclass": NullPool},
    "one-connection": {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.5},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_pools_of_every_size_are_accepted(options: dict[str, Any], place: Place) -> None:
    await _commit_then_fail_then_buy(place, place.engine(**options))


@on("postgresql")
@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ"])
async def test_stricter_isolation_is_accepted(level: str, place: Place) -> None:
    await _commit_then_fail_then_buy(place, place.engine(isolation_level=level))


@on("sqlite")
@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"])
async def test_sqlalchemys_own_recipe_for_sqlite_is_accepted(begin: str, place: Place) -> None:
    """SQLAlchemy's documentation, "Serializable isolation / Savepoints / Transactional DDL"."""
    engine = place.engine()
    sync_engine: Engine = engine if place.sync else engine.sync_engine

    @event.listens_for(sync_engine, "connect")
    def connect(driver_connection: Any, _: Any) -> None:
        driver_connection.isolation_level = None

    @event.listens_for(sync_engine, "begin")
    def do_begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    await _commit_then_fail_then_buy(place, engine)


@on("sqlite")
async def test_one_static_connection_on_a_file_is_accepted(place: Place) -> None:
    await _commit_then_fail_then_buy(place, place.engine(poolclass=StaticPool))


async def _commit_then_fail_then_buy(place: Place, engine: Any) -> None:
    attempts = []

    def handler(db: Session, op: Operation) -> dict[str, int]:
        attempts.append(op.key_id)
        if len(attempts) == 1:
            refuse_after_commit(db, op)
        db.commit()
        made = add(db)
        db.commit()
        return {"id": made}

    async with open_shop(place, handler, engine=engine) as shop:
        await shop.samekey.start()
        assert outcome(await shop.post()) == (500, None)
        assert (shop.orders, shop.records) == ([], [])
        first = await shop.post()
        assert outcome(first) == (201, None)
        again = await shop.post()
        assert (outcome(again), again.content) == ((201, "replay"), first.content)
        assert (shop.orders, shop.records) == (["a"], ["completed"])
        assert len(attempts) == 2


async def test_a_commit_of_the_session_is_undone_with_the_operation(place: Place) -> None:
    """Seen from outside at the moment after ``commit()``, and after the rollback."""
    seen = []

    def handler(db: Session, op: Operation) -> None:
        add(db)
        db.commit()
        seen.append(place.rows("SELECT count(*) FROM orders"))
        raise RuntimeError("after the commit")

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (500, None)
        assert seen == [[0]]
        assert (shop.orders, shop.records) == ([], [])
