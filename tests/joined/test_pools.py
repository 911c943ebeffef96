"""Pools: waiters hold nothing, a full pool is said, and every connection comes back clean."""

from __future__ import annotations

import asyncio
import threading
from itertools import cycle, pairwise
from typing import Any

import httpx
import pytest
from fastapi import Depends, HTTPException
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from samekey import Operation
from tests.joined.faults import COUNT_LOCKS, COUNT_OPEN_TRANSACTIONS, TERMINATE_CLAIMANTS, sync_side
from tests.joined.shop import Place, Shop, add, on, open_shop, outcome

RIVALS = 20
ONE_CONNECTION: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 20}


async def test_twenty_keys_through_a_pool_of_one_connection(place: Place) -> None:
    """No deadlock: who waits for the connection takes no thread from who has it."""
    async with open_shop(place, engine=place.engine(**ONE_CONNECTION)) as shop:
        answers = await asyncio.gather(*(shop.post(f"k{number}") for number in range(RIVALS)))
        assert [outcome(answer) for answer in answers] == [(201, None)] * RIVALS
        assert (len(shop.orders), len(shop.records)) == (RIVALS, RIVALS)


async def test_twenty_rivals_of_one_key_through_a_pool_of_one_connection(place: Place) -> None:
    async with open_shop(place, engine=place.engine(**ONE_CONNECTION), wait_seconds=20.0) as shop:
        answers = await asyncio.gather(*(shop.post() for _ in range(RIVALS)))
        outcomes = [outcome(answer) for answer in answers]
        assert outcomes.count((201, None)) == 1
        assert outcomes.count((201, "replay")) == RIVALS - 1
        assert len({answer.content for answer in answers}) == 1
        assert (shop.orders, shop.records) == (["a"], ["completed"])


class Doorway:
    """A handler of either colour that says it is inside and waits to be let out."""

    def __init__(self, shop: Shop) -> None:
        self.inside = asyncio.Event()
        self.leave = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._leave_thread = threading.Event()
        if shop.place.sync:

            @shop.app.post("/doorway", status_code=201)
            def handler(db: Session = Depends(shop.samekey.session)) -> None:
                add(db)
                self._loop.call_soon_threadsafe(self.inside.set)
                assert self._leave_thread.wait(20)

        else:

            @shop.app.post("/doorway", status_code=201)
            async def async_handler(db: AsyncSession = Depends(shop.samekey.session)) -> None:
                await db.run_sync(add)
                self.inside.set()
                await self.leave.wait()

    def open(self) -> None:
        self.leave.set()
        self._leave_thread.set()


async def test_who_waits_for_a_rival_holds_no_connection(place: Place) -> None:
    """Their looks come and go; ten of them and the runner leave room in a pool of two."""
    engine = place.engine(pool_size=2, max_overflow=0, pool_timeout=20)
    async with open_shop(place, engine=engine, wait_seconds=20.0) as shop:
        doorway = Doorway(shop)
        first = asyncio.create_task(shop.post(path="/doorway"))
        await doorway.inside.wait()
        waiters = [asyncio.create_task(shop.post(path="/doorway")) for _ in range(10)]
        await asyncio.sleep(0.2)  # some rounds of their looking
        if not place.sqlite:
            assert outcome(await shop.post("other")) == (201, None)
        doorway.open()
        assert outcome(await first) == (201, None)
        assert {outcome(answer) for answer in await asyncio.gather(*waiters)} == {(201, "replay")}


async def test_a_full_pool_is_said_and_nothing_runs(place: Place) -> None:
    engine = place.engine(pool_size=1, max_overflow=0, pool_timeout=0.2)
    async with open_shop(place, engine=engine, busy_seconds=0.2) as shop:
        doorway = Doorway(shop)
        first = asyncio.create_task(shop.post(path="/doorway"))
        await doorway.inside.wait()
        refused = (503, "store-busy") if place.sqlite else (503, "store-unavailable")
        for key in ("other", None):
            answer = await shop.post(key)
            assert outcome(answer) == refused
            assert int(answer.headers["retry-after"]) >= 1
        doorway.open()
        assert outcome(await first) == (201, None)
        assert outcome(await shop.post("other")) == (201, None)
        assert shop.orders == ["a", "a"]


# Every connection comes back clean -----------------------------------------------------------------


async def fill(engine: Any, connections: int) -> None:
    """Let the pool make its connections; from then on each check-out gets the one that rested longest."""
    if isinstance(engine, AsyncEngine):
        for connection in [await engine.connect() for _ in range(connections)]:
            await connection.close()
    else:
        for made in [engine.connect() for _ in range(connections)]:
            made.close()


@on("postgresql")
async def test_behind_a_transaction_pooler_no_lock_is_left_bl_37(place: Place) -> None:
    """BL-37: each transaction has another connection; a lock of the session would be stranded on one."""
    engine = place.engine(pool_size=3, max_overflow=0)
    backends: list[int] = []
    fates = cycle([201, 402, 429, 500, 201])

    def handler(db: Session, op: Operation) -> None:
        backends.append(db.scalar(text("SELECT pg_backend_pid()")) or 0)
        add(db)
        status = next(fates)
        if status == 500:
            raise RuntimeError("failed")
        if status != 201:
            raise HTTPException(status)

    async with open_shop(place, handler, engine=engine) as shop:
        await shop.samekey.start()
        await fill(engine, 3)
        statuses = [(await shop.post(f"k{number % 40}")).status_code for number in range(100)]
        assert set(statuses) == {201, 402, 429, 500}
        assert len(set(backends)) >= 3
        assert all(one != next_one for one, next_one in pairwise(backends))
        assert place.rows(COUNT_LOCKS) == [0]
        assert place.rows(COUNT_OPEN_TRANSACTIONS) == [0]


async def test_on_every_branch_the_connection_comes_back_clean_bl_52(place: Place) -> None:
    """BL-52: no branch that returns early leaves its transaction open on the pool's connection."""
    engine = place.engine(pool_size=1, max_overflow=0, pool_timeout=1)
    statuses: list[int] = []

    @event.listens_for(sync_side(engine), "checkin")
    def checkin(connection: Any, record: Any) -> None:
        driver_connection = record.driver_connection
        if place.sqlite:
            statuses.append(int(driver_connection.in_transaction))
        elif place.driver == "psycopg":
            statuses.append(int(driver_connection.info.transaction_status))
        else:
            statuses.append(int(driver_connection.is_in_transaction()))

    def handler(db: Session, op: Operation) -> None:
        add(db)

    def failing(db: Session, op: Operation) -> None:
        add(db)
        raise RuntimeError("failed")

    async with open_shop(place, handler, engine=engine) as shop:
        shop.serve("/failing", failing)
        assert outcome(await shop.post("k")) == (201, None)
        assert outcome(await shop.post("k")) == (201, "replay")
        assert outcome(await shop.post("k", cart="b")) == (422, "key-reused")
        assert outcome(await shop.post("f", "/failing")) == (500, None)
        assert outcome(await shop.post(None)) == (201, None)
        assert outcome(await shop.post(None, "/failing")) == (500, None)
        assert outcome(await shop.post("l")) == (201, None)
        assert len(statuses) >= 5
        assert set(statuses) == {0}
        assert shop.orders == ["a", "a", "a"]


@on("postgresql")
async def test_a_rival_on_another_process_leaves_the_connection_clean_bl_51(place: Place) -> None:
    """BL-51: a claim that meets another is no error that spoils the transaction; here the lock is refused."""
    engine = place.engine(pool_size=1, max_overflow=0, pool_timeout=1)
    async with open_shop(place, engine=engine) as shop:
        doorway = Doorway(shop)
        other = place.engine()
        async with open_shop(place, engine=other) as process:
            elsewhere = Doorway(process)
            first = asyncio.create_task(process.post(path="/doorway"))
            await elsewhere.inside.wait()
            for _ in range(3):
                assert outcome(await shop.post(path="/doorway")) == (409, "in-progress")
            elsewhere.open()
            assert outcome(await first) == (201, None)
        assert outcome(await shop.post(path="/doorway")) == (201, "replay")
        assert outcome(await shop.post("other")) == (201, None)
        assert doorway.inside.is_set() is False


async def test_a_violation_that_the_handler_catches_spoils_nothing_bl_51(place: Place) -> None:
    """BL-51: the session's rollback reaches its savepoint, and claim and later work go on."""

    def handler(db: Session, op: Operation) -> None:
        made = add(db, "first")
        db.commit()
        with pytest.raises(IntegrityError):
            db.execute(text(f"INSERT INTO orders (id, cart) VALUES ({made}, 'twice')"))
        db.rollback()
        add(db, "second")
        db.commit()

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert outcome(await shop.post()) == (201, "replay")
        assert (shop.orders, shop.records) == (["first", "second"], ["completed"])


@on("postgresql")
async def test_a_crash_after_the_business_commit_leaves_nothing_bl_50_pp_01(place: Place) -> None:
    """BL-50, PP-01: the connection dies between the application's commit and the completion."""
    crash = [True]

    def handler(db: Session, op: Operation) -> None:
        add(db)
        db.commit()
        if crash:
            assert place.rows(TERMINATE_CLAIMANTS) == [crash.pop()]

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (503, "not-committed")
        assert (shop.orders, shop.records) == ([], [])
        assert outcome(await shop.post()) == (201, None)
        assert outcome(await shop.post()) == (201, "replay")
        assert (shop.orders, shop.records) == (["a"], ["completed"])


@on("postgresql")
async def test_twenty_serialisable_rivals_of_one_key_bl_24(place: Place) -> None:
    """BL-24: a claim that loses a tie (SQLSTATE 40001) is tried again with a fresh snapshot."""
    engine = place.engine(isolation_level="SERIALIZABLE", pool_size=10)
    async with open_shop(place, engine=engine, wait_seconds=20.0) as shop:
        answers = await asyncio.gather(*(shop.post() for _ in range(RIVALS)))
        outcomes = [outcome(answer) for answer in answers]
        assert (outcomes.count((201, None)), outcomes.count((201, "replay"))) == (1, RIVALS - 1)
        assert shop.orders == ["a"]


async def test_the_answer_is_recorded_before_its_first_byte_is_sent_pp_03(place: Place) -> None:
    seen: list[Any] = []
    async with open_shop(place) as shop:

        async def outside(scope: Any, receive: Any, send: Any) -> None:
            async def look_and_send(message: Any) -> None:
                seen.append((message["type"], shop.records, shop.orders))
                await send(message)

            await shop.app(scope, receive, look_and_send)

        transport = httpx.ASGITransport(outside)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            headers = {"X-Account": "acme", "Idempotency-Key": "k"}
            answer = await client.post("/orders", headers=headers, json={"cart": "a"})
        assert outcome(answer) == (201, None)
        assert seen == [
            ("http.response.start", ["completed"], ["a"]),
            ("http.response.body", ["completed"], ["a"]),
        ]
