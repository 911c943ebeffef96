"""A request cancelled after any number of turns of the loop: all or nothing, and nothing left open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
import pytest

from tests.joined.faults import COUNT_LOCKS, COUNT_OPEN_TRANSACTIONS
from tests.joined.shop import Place, Shop, checked_out, open_shop, outcome

Request = Callable[[], Coroutine[Any, Any, Any]]

TURNS_MIN, TURNS_MAX = 60, 400
SECONDS_MAX = 10.0


async def some_turns(turns: int) -> None:
    """Let the loop turn so often. Threads and sockets get a little time of their own at each seventh turn."""
    for turn in range(turns):
        await asyncio.sleep(0.001 if turn % 7 == 6 else 0)


async def by_the_task(request: Request, turns: int) -> None:
    """Once, as a server does it when it stops."""
    task = asyncio.ensure_future(request())
    await some_turns(turns)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def by_the_scope(request: Request, turns: int) -> None:
    """At every await until the request is out of the scope, as Starlette's middleware does it."""
    async with anyio.create_task_group() as group:
        group.start_soon(request)
        await some_turns(turns)
        group.cancel_scope.cancel()


Cancel = Callable[[Request, int], Awaitable[None]]
CANCELS: dict[str, Cancel] = {"task": by_the_task, "scope": by_the_scope}


async def returned(shop: Shop) -> None:
    """A sync driver finishes in its thread what it had begun; then its connection is back."""
    async with asyncio.timeout(SECONDS_MAX):
        while checked_out(shop.engine):  # noqa: ASYNC110 - nothing in this loop could set an event
            await asyncio.sleep(0.001)


async def retry(shop: Shop, key: str) -> tuple[int, str | None]:
    """Send it again until it is no longer said to be in progress, as a client has to."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            kind = outcome(await shop.post(key))
            if kind != (409, "in-progress"):
                return kind
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("cancel", CANCELS.values(), ids=CANCELS)
async def test_after_any_number_of_turns_a_retry_makes_one_order_bl_34(cancel: Cancel, place: Place) -> None:
    """BL-34: one connection serves all, so that one which is lost or left dirty stops the next request."""
    engine = place.engine(pool_size=1, max_overflow=0, pool_timeout=5)
    async with open_shop(place, engine=engine) as shop:
        await shop.samekey.start()
        kinds: set[tuple[int, str | None]] = set()
        turns = 0
        # On a slow machine the first commit that came before its cancellation may take more turns.
        while turns < TURNS_MIN or (turns < TURNS_MAX and (201, "replay") not in kinds):
            turns += 1
            key = f"k{turns}"
            await cancel(lambda key=key: shop.post(key), turns)  # type: ignore[misc]
            await returned(shop)
            kinds.add(await retry(shop, key))
            assert (len(shop.orders), shop.records) == (turns, ["completed"] * turns), turns
        # Some were cancelled before their commit and others after it: both sides were met.
        assert kinds == {(201, None), (201, "replay")}
        if not place.sqlite:
            assert place.rows(COUNT_OPEN_TRANSACTIONS) + place.rows(COUNT_LOCKS) == [0, 0]


@pytest.mark.parametrize("cancel", CANCELS.values(), ids=CANCELS)
async def test_without_a_key_it_is_all_or_nothing_too(cancel: Cancel, place: Place) -> None:
    engine = place.engine(pool_size=1, max_overflow=0, pool_timeout=5)
    async with open_shop(place, engine=engine) as shop:
        await shop.samekey.start()
        for turns in range(1, TURNS_MIN + 1, 3):
            before = len(shop.orders)
            await cancel(lambda: shop.post(None), turns)
            await returned(shop)
            made = len(shop.orders)
            assert made - before in (0, 1)
            assert outcome(await shop.post(None)) == (201, None)
            assert (len(shop.orders), shop.records) == (made + 1, [])
