"""A ``def`` handler goes on in its thread after its request was cancelled: nothing of it is committed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from samekey import Operation
from tests.joined import conftest as places
from tests.joined.shop import Place, Shop, add, checked_out, on, open_shop, outcome

place = places.place
pytest_generate_tests = places.pytest_generate_tests

SECONDS_MAX = 10.0
INSERT = "INSERT INTO orders (cart) VALUES ('late')"


def ordinary(place: Place) -> Engine:
    engine: Engine = place.engine()
    return engine


def autocommit(place: Place) -> Engine:
    """On SQLite the driver then commits each statement that no BEGIN precedes."""
    engine: Engine = place.engine(**({"isolation_level": "AUTOCOMMIT"} if place.sqlite else {}))
    return engine


engines = pytest.mark.parametrize("make", [ordinary, autocommit], ids=["ordinary", "autocommit"])


class Late:
    """A handler that is cancelled in the middle, and what it does afterwards."""

    def __init__(self, act: Callable[[Session, Any], Any]) -> None:
        self._act = act
        self._reached, self._go, self._ended = threading.Event(), threading.Event(), threading.Event()
        self.attempts = 0
        self.raised: list[BaseException] = []

    def handler(self, db: Session, op: Operation) -> Any:
        self.attempts += 1
        add(db)
        db.commit()
        if self.attempts == 1:
            driver_connection = db.connection().connection.driver_connection
            self._reached.set()
            self._go.wait(SECONDS_MAX)
            try:
                self._act(db, driver_connection)
            except Exception as error:  # noqa: BLE001 - whatever the driver says
                self.raised.append(error)
            self._ended.set()
        return {"attempt": self.attempts}

    async def cancel(self, shop: Shop) -> None:
        """Cancel the first request; the thread goes on when the cancellation is over."""
        task = asyncio.create_task(shop.post())
        await asyncio.to_thread(self._reached.wait, SECONDS_MAX)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, SECONDS_MAX)
        assert checked_out(shop.engine) == 0
        self._go.set()
        await asyncio.to_thread(self._ended.wait, SECONDS_MAX)


def add_and_commit(db: Session, _: Any) -> None:
    add(db, "late")
    db.commit()


ACTS: dict[str, Callable[[Session, Any], Any]] = {
    "session": add_and_commit,
    "driver": lambda _, driver_connection: driver_connection.execute(INSERT),
    "driver-commit": lambda _, driver_connection: driver_connection.commit(),
}


@engines
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@on("-sync")
async def test_a_late_statement_is_refused(
    act: Callable[[Session, Any], Any], make: Callable[[Place], Engine], place: Place
) -> None:
    late = Late(act)
    async with open_shop(place, late.handler, engine=make(place)) as shop:
        await late.cancel(shop)
        # An SQLite connection stays open for the thread, but has nothing left to commit.
        assert len(late.raised) == (0 if place.sqlite and act is ACTS["driver-commit"] else 1)
        assert (shop.orders, shop.records) == ([], [])
        assert outcome(await shop.post()) == (201, None)
        assert outcome(await shop.post()) == (201, "replay")
        assert (late.attempts, shop.orders, shop.records) == (2, ["a"], ["completed"])


@engines
@on("-sync")
async def test_a_statement_between_rollback_and_close_is_not_committed(
    make: Callable[[Place], Engine], place: Place
) -> None:
    """The connection is rolled back already and not out of reach yet."""
    late = Late(lambda _, __: None)
    refused: list[Exception] = []
    engine = make(place)
    async with open_shop(place, late.handler, engine=engine) as shop:
        await shop.samekey.start()

        @event.listens_for(engine, "detach" if place.sqlite else "invalidate")
        def act(driver_connection: Any, *_: Any) -> None:
            try:
                driver_connection.execute(INSERT)
            except Exception as error:  # noqa: BLE001 - whatever the driver says
                refused.append(error)

        await late.cancel(shop)
        # On PostgreSQL it began a transaction of its own, which ends with the connection.
        expected = ["attempt to write a readonly database"] if place.sqlite else []
        assert [str(error) for error in refused] == expected
        assert (shop.orders, shop.records) == ([], [])
        assert outcome(await shop.post()) == (201, None)
        assert (shop.orders, shop.records) == (["a"], ["completed"])


@engines
@on("-sync")
async def test_a_statement_that_runs_during_the_cancellation_is_not_committed(
    make: Callable[[Place], Engine], place: Place
) -> None:
    """The rollback has to wait for it, and the handler's next statement comes after the rollback."""
    statement = text(LONG[place.outside.dialect.name])
    started = threading.Event()
    attempts = []
    ended = threading.Event()

    def handler(db: Session, op: Operation) -> None:
        attempts.append(op.key_id)
        add(db)
        db.commit()
        if len(attempts) == 1:
            driver_connection: Any = db.connection().connection.driver_connection
            started.set()
            with suppress(Exception):
                db.execute(statement)
            with suppress(Exception):
                driver_connection.execute(INSERT)
            with suppress(Exception):
                add_and_commit(db, None)
            ended.set()

    async with open_shop(place, handler, engine=make(place)) as shop:
        task = asyncio.create_task(shop.post())
        await asyncio.to_thread(started.wait, SECONDS_MAX)
        await asyncio.sleep(0.1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, SECONDS_MAX)
        await asyncio.to_thread(ended.wait, SECONDS_MAX)
        assert (shop.orders, shop.records) == ([], [])
        assert outcome(await shop.post()) == (201, None)
        assert (shop.orders, shop.records) == (["a"], ["completed"])


LONG = {
    "postgresql": "SELECT pg_sleep(0.5)",
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500000) "
    "SELECT count(*) FROM n",
}


@engines
@on("-sync")
async def test_threads_that_never_stop_writing(
    make: Callable[[Place], Engine], rounds: int, place: Place
) -> None:
    """Cancelled anywhere in a stream of statements: nothing of it stays, and the interpreter survives."""
    started = threading.Event()

    def handler(db: Session, op: Operation) -> None:
        add(db)
        db.commit()
        if op.key_id not in retried:
            retried.add(op.key_id)
            driver_connection: Any = db.connection().connection.driver_connection
            started.set()
            with suppress(Exception):
                for _ in range(100_000):
                    driver_connection.execute(INSERT)

    retried: set[str | None] = set()
    async with open_shop(place, handler, engine=make(place)) as shop:
        for number in range(rounds):
            started.clear()
            task = asyncio.create_task(shop.post(f"k{number}"))
            await asyncio.to_thread(started.wait, SECONDS_MAX)
            await asyncio.sleep(0.0005 * number)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(task, SECONDS_MAX)
            assert checked_out(shop.engine) == 0
            assert outcome(await shop.post(f"k{number}")) == (201, None)
        assert (shop.orders, shop.records) == (["a"] * rounds, ["completed"] * rounds)
