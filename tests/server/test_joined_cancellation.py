"""A cancelled request: its connection is clean or closed, the gate is free, and a retry makes one order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from fastapi import Depends
from sqlalchemy import event, text
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from samekey import Operation
from tests.joined import conftest as places
from tests.joined.shop import Place, Shop, add, buy, checked_out, on, open_shop, outcome

place = places.place
pytest_generate_tests = places.pytest_generate_tests

SECONDS_MAX = 10.0


async def until(reached: Callable[[], bool]) -> None:
    """Wait for what another thread or the database does."""
    async with asyncio.timeout(SECONDS_MAX):
        while not reached():  # noqa: ASYNC110 - nothing in this loop could set an event
            await asyncio.sleep(0.005)


Cancel = Callable[[Shop, str, Callable[[], bool]], Any]


async def by_the_task(shop: Shop, key: str, reached: Callable[[], bool]) -> None:
    """Once, as a server does it when it stops."""
    task = asyncio.create_task(shop.post(key))
    await until(reached)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def by_the_scope(shop: Shop, key: str, reached: Callable[[], bool]) -> None:
    """At every await until the task leaves the scope, as anyio and Starlette's middleware do it."""
    with anyio.CancelScope() as scope:

        async def cancel() -> None:
            await until(reached)
            scope.cancel()

        cancelling = asyncio.create_task(cancel())
        await shop.post(key)
    await cancelling


CANCELS: dict[str, Cancel] = {"task": by_the_task, "scope": by_the_scope}
both = pytest.mark.parametrize("cancel", CANCELS.values(), ids=CANCELS)


async def one_order_after_a_retry(shop: Shop) -> None:
    # A sync driver finishes in its thread what it began before the cancellation.
    await until(lambda: checked_out(shop.engine) == 0)
    first = await shop.post()
    async with asyncio.timeout(SECONDS_MAX):
        while outcome(first) == (409, "in-progress"):  # the server has yet to notice that its client is gone
            await asyncio.sleep(0.01)
            first = await shop.post()
    again = await shop.post()
    assert first.status_code == 201
    assert (outcome(again), again.content) == ((201, "replay"), first.content)
    assert (shop.orders, shop.records) == (["a"], ["completed"])


@asynccontextmanager
async def writer_outside(place: Place) -> AsyncIterator[Callable[[], bool]]:
    """Somebody else holds what the claim needs; yields whether the claim waits for it."""
    with place.outside.connect() as connection:
        if place.sqlite:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(text("LOCK TABLE idempotency_keys IN ACCESS EXCLUSIVE MODE"))
        yield lambda: bool(
            place.sqlite
            or place.rows("SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'RowExclusiveLock'")[0]
        )
        connection.rollback()


@both
@on("sqlite")
async def test_while_it_waits_in_the_gate(cancel: Cancel, place: Place) -> None:
    go = asyncio.Event()
    entered = asyncio.Event()

    async with open_shop(place) as shop:

        @shop.app.post("/paced", status_code=201)
        async def paced(db: Any = Depends(shop.samekey.session)) -> None:
            entered.set()
            await go.wait()

        holder = asyncio.create_task(shop.post("holder", path="/paced"))
        await entered.wait()
        started = asyncio.get_running_loop().time()
        await cancel(shop, "k", lambda: asyncio.get_running_loop().time() > started + 0.05)
        go.set()
        assert outcome(await holder) == (201, None)
        shop.place.write("DELETE FROM idempotency_keys")
        await one_order_after_a_retry(shop)


@both
async def test_inside_the_claim(cancel: Cancel, place: Place) -> None:
    async with open_shop(place, busy_seconds=1.0) as shop:
        await shop.samekey.start()
        async with writer_outside(place) as waits:
            asked = asyncio.get_running_loop().time()
            # On SQLite nothing tells that somebody waits, so a moment has to do.
            later = asked + (0.1 if place.sqlite else 0)
            cancelling = asyncio.create_task(
                cancel(shop, "k", lambda: waits() and asyncio.get_running_loop().time() > later)
            )
            if place.sync:
                await asyncio.sleep(0.3)  # its thread cannot be cancelled, and ends when the lock is free
            else:
                await cancelling
        await cancelling
        await one_order_after_a_retry(shop)


@both
@on("async")
async def test_in_the_handlers_statement(cancel: Cancel, place: Place) -> None:
    reached = asyncio.Event()
    attempts = []

    def handler(db: Session, op: Operation) -> Any:
        attempts.append(op.key_id)
        made = add(db)
        db.commit()
        if len(attempts) == 1:
            asyncio.get_running_loop().call_later(0.05, reached.set)
            db.execute(text(LONG[db.get_bind().dialect.name]))
        return {"id": made}

    async with open_shop(place, handler) as shop:
        await cancel(shop, "k", reached.is_set)
        assert (shop.orders, shop.records) == ([], [])
        await one_order_after_a_retry(shop)


LONG = {
    "postgresql": "SELECT pg_sleep(1)",  # a server notices only between statements that its client is gone
    # Some 0.3 s of counting in the driver's thread, which no cancellation interrupts.
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000) "
    "SELECT count(*) FROM n",
}


@both
@on("async")
async def test_during_the_commit(cancel: Cancel, place: Place) -> None:
    """The commit is not interrupted: what was cancelled is only the sending."""
    reached, go = asyncio.Event(), asyncio.Event()
    engine = place.engine()

    async with open_shop(place, buy, engine=engine) as shop:
        await shop.samekey.start()

        @event.listens_for(engine.sync_engine, "commit")
        def hold(_: Any) -> None:
            reached.set()
            await_only(go.wait())

        cancelling = asyncio.create_task(cancel(shop, "k", reached.is_set))
        await reached.wait()
        await asyncio.sleep(0.05)
        assert (shop.orders, shop.records) == ([], [])
        go.set()
        await cancelling
        assert (shop.orders, shop.records) == (["a"], ["completed"])
        assert outcome(await shop.post()) == (201, "replay")
        await one_order_after_a_retry(shop)
