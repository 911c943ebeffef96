"""A second connection inside an operation is not joined: refused, or said; and where it is allowed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from fastapi import BackgroundTasks, Depends, Header
from fastapi.responses import StreamingResponse
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ResourceClosedError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from samekey import Operation, SameKey
from samekey.errors import UnjoinedConnection
from tests.joined.faults import sync_side
from tests.joined.shop import Order, Place, Shop, add, on, open_shop, outcome

INSERT = text("INSERT INTO orders (cart) VALUES ('unjoined')")
COUNT = text("SELECT count(*) FROM orders")


def by_engine(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(INSERT)


def by_session(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Order(cart="unjoined"))
        session.commit()


WAYS: dict[str, Callable[[Engine], None]] = {"engine": by_engine, "session": by_session}


@pytest.mark.parametrize("key", ["k", None], ids=["keyed", "no-key"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_second_connection_is_refused(
    way: Callable[[Engine], None], key: str | None, place: Place
) -> None:
    """It would be committed whatever becomes of the operation; the operation rolls back."""
    engine = place.engine()
    raised: list[Exception] = []

    def handler(db: Session, op: Operation) -> None:
        add(db)
        db.commit()
        try:
            way(sync_side(engine))
        except Exception as error:
            raised.append(error)
            raise

    async with open_shop(place, handler, engine=engine) as shop:
        assert outcome(await shop.post(key)) == (500, None)
        assert [type(error) for error in raised] == [UnjoinedConnection]
        assert "samekey.unjoined()" in str(raised[0])
        assert (shop.orders, shop.records) == ([], [])


async def test_the_operation_can_go_on_after_the_refusal(place: Place) -> None:
    engine = place.engine()

    def handler(db: Session, op: Operation) -> None:
        add(db)
        with pytest.raises(UnjoinedConnection):
            by_engine(sync_side(engine))

    async with open_shop(place, handler, engine=engine) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert (shop.orders, shop.records) == (["a"], ["completed"])


@on("async")
async def test_awaiting_the_async_engine_is_refused(place: Place) -> None:
    engine = place.engine()
    async with open_shop(place, engine=engine) as shop:

        @shop.app.post("/second", status_code=201)
        async def handler(db: AsyncSession = Depends(shop.samekey.session)) -> None:
            await db.run_sync(add)
            with pytest.raises(UnjoinedConnection):
                async with engine.connect() as connection:
                    await connection.execute(INSERT)
            with pytest.raises(UnjoinedConnection):
                async with AsyncSession(engine) as session:
                    await session.execute(INSERT)

        assert outcome(await shop.post(path="/second")) == (201, None)
        assert shop.orders == ["a"]


def insert_unjoined(engine: Any) -> Callable[[Session, Operation], None]:
    def handler(db: Session, op: Operation) -> None:
        add(db)
        by_engine(sync_side(engine))
        raise RuntimeError("after both")

    return handler


@on("postgresql")
async def test_without_strict_it_is_said_and_survives(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    engine = place.engine()
    async with open_shop(place, insert_unjoined(engine), engine=engine, strict=False) as shop:
        with caplog.at_level(logging.WARNING, "samekey"):
            assert outcome(await shop.post()) == (500, None)
        assert [record.name for record in caplog.records if "second connection" in record.message] == [
            "samekey"
        ]
        assert (shop.orders, shop.records) == (["unjoined"], [])


@on("sqlite")
async def test_on_sqlite_it_is_refused_without_strict_too(place: Place) -> None:
    """It would wait for the writer, which waits for it."""
    engine = place.engine()
    async with open_shop(place, insert_unjoined(engine), engine=engine, strict=False) as shop:
        assert outcome(await shop.post()) == (500, None)
        assert (shop.orders, shop.records) == ([], [])


@on("postgresql")
async def test_unjoined_writes_survive_the_rollback(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    engine = place.engine()

    def handler(db: Session, op: Operation) -> None:
        add(db)
        with SameKey.unjoined():
            by_engine(sync_side(engine))
        with pytest.raises(UnjoinedConnection):
            by_engine(sync_side(engine))
        raise RuntimeError("after both")

    async with open_shop(place, handler, engine=engine) as shop:
        assert outcome(await shop.post()) == (500, None)
        assert (shop.orders, shop.records) == (["unjoined"], [])
        assert "second connection" not in caplog.text


@on("sqlite")
async def test_unjoined_reads_do_not_see_the_operation(place: Place) -> None:
    engine = place.engine()

    def read(connection: Connection) -> Any:
        return connection.scalar(COUNT)

    def handler(db: Session, op: Operation) -> dict[str, Any]:
        add(db)
        with SameKey.unjoined(), sync_side(engine).connect() as connection:
            return {"seen": read(connection)}

    async with open_shop(place, handler, engine=engine) as shop:
        assert (await shop.post()).json() == {"seen": 0}
        assert shop.orders == ["a"]


async def test_before_the_claim_and_after_the_end_it_is_allowed(place: Place) -> None:
    """Authentication comes before; background tasks and streams come after."""
    engine = place.engine()
    if place.sync:

        def caller(x_account: str = Header()) -> str:
            by_engine(engine)
            return x_account

        def lines() -> Iterator[str]:
            by_engine(engine)
            yield "line"

        async with open_shop(place, engine=engine, caller=caller) as shop:

            @shop.app.post("/after", status_code=201)
            def handler(tasks: BackgroundTasks, db: Session = Depends(shop.samekey.session)) -> Any:
                add(db)
                tasks.add_task(by_engine, engine)
                return StreamingResponse(lines(), 201)

            await _three_unjoined(shop)
        return

    async def insert() -> None:
        async with engine.begin() as connection:
            await connection.execute(INSERT)

    async def async_caller(x_account: str = Header()) -> str:
        await insert()
        return x_account

    async def async_lines() -> AsyncIterator[str]:
        await insert()
        yield "line"

    async with open_shop(place, engine=engine, caller=async_caller) as shop:

        @shop.app.post("/after", status_code=201)
        async def async_handler(
            tasks: BackgroundTasks, db: AsyncSession = Depends(shop.samekey.session)
        ) -> Any:
            await db.run_sync(add)
            tasks.add_task(insert)
            return StreamingResponse(async_lines(), 201)

        await _three_unjoined(shop)


async def _three_unjoined(shop: Shop) -> None:
    # A keyed stream is held until it ends, so its lines come before the end; without a key, after it.
    assert outcome(await shop.post(None, "/after")) == (201, None)
    assert sorted(shop.orders) == ["a", "unjoined", "unjoined", "unjoined"]


# An application's own sessionmaker -----------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
async def test_a_sessionmaker_made_to_join(fails: bool, place: Place) -> None:
    engine = place.engine()
    async with open_shop(place, engine=engine) as shop:
        make = shop.samekey.joined(sessionmaker(engine) if place.sync else async_sessionmaker(engine))
        path = _serve_joined(shop, make, fails)
        assert outcome(await shop.post(path=path)) == ((500, None) if fails else (201, None))
        assert shop.orders == ([] if fails else ["repository"])
        assert shop.records == ([] if fails else ["completed"])


def _serve_joined(shop: Shop, make: Callable[..., Any], fails: bool) -> str:
    if shop.place.sync:

        @shop.app.post("/joined", status_code=201, dependencies=[Depends(shop.samekey)])
        def handler() -> None:
            with make() as session:
                add(session, "repository")
                session.commit()
            with make() as session:
                add(session, "undone")
            if fails:
                raise RuntimeError("after the commit")

    else:

        @shop.app.post("/joined", status_code=201, dependencies=[Depends(shop.samekey)])
        async def async_handler() -> None:
            async with make() as session:
                await session.run_sync(add, "repository")
                await session.commit()
            async with make() as session:
                await session.run_sync(add, "undone")
            if fails:
                raise RuntimeError("after the commit")

    return "/joined"


@on("-sync")
async def test_outside_of_an_operation_its_sessions_are_ordinary(place: Place) -> None:
    engine = place.engine()
    async with open_shop(place, engine=engine) as shop:
        make = shop.samekey.joined(sessionmaker(engine))
        with make() as session:
            add(session, "ordinary")
            session.commit()
        assert shop.orders == ["ordinary"]


@on("-sync")
async def test_its_session_kept_beyond_the_end_is_closed(place: Place) -> None:
    engine = place.engine()
    async with open_shop(place, engine=engine) as shop:
        make = shop.samekey.joined(sessionmaker(engine))
        kept = []

        @shop.app.post("/kept", status_code=201, dependencies=[Depends(shop.samekey)])
        def handler() -> None:
            kept.append(make())
            add(kept[0], "a")
            kept[0].commit()

        assert outcome(await shop.post(path="/kept")) == (201, None)
        with pytest.raises(ResourceClosedError):
            kept[0].execute(COUNT)
        assert shop.orders == ["a"]
