"""Rows about an exchange that is cancelled: at every await, and while the timer settles a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from fastapi import Depends, FastAPI

from samekey import Operation, SameKey
from tests.server.shop import Shop, add, commit, open_shop
from tests.server.wire import Wire

Place = tuple[str, bool]
AWAITS_MAX = 300


class CancelledAt:
    """An awaitable that runs ``coroutine`` and cancels it at its n-th suspension, as a loop would."""

    def __init__(self, coroutine: Any, n: int) -> None:
        self.coroutine = coroutine
        self.left = n
        self.completed = False

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self.coroutine.__await__()
        try:
            waiting = next(inner)
            while True:
                self.left -= 1
                if self.left == 0:
                    if waiting is not None:  # let go of what it waited for, before it hears of it
                        waiting._asyncio_future_blocking = False
                        if not asyncio.isfuture(waiting) or not waiting.done():
                            waiting.cancel()
                    waiting = inner.throw(asyncio.CancelledError())
                else:
                    try:
                        yield waiting
                    except BaseException as error:  # noqa: BLE001 - handed in where it belongs
                        waiting = inner.throw(error)
                    else:
                        waiting = inner.send(None)
        except StopIteration:
            self.completed = True
        except asyncio.CancelledError:
            pass


def orders(app: FastAPI, samekey: SameKey) -> None:
    @app.post("/orders", status_code=201)
    async def create(operation: Operation = Depends(samekey), db: Any = Depends(samekey.session)) -> Any:
        made = {"id": await add(db, "1")}
        await asyncio.sleep(0)
        await commit(db)
        return made


async def free(shop: Shop) -> None:
    """Threads and shielded tasks end by themselves; then nothing is checked out."""
    async with asyncio.timeout(10):
        while shop.checked_out:  # noqa: ASYNC110 - nothing here could set an event
            await asyncio.sleep(0.001)


async def test_cancelled_at_every_await_bl_34(everywhere: Place) -> None:
    """BL-34: whatever was under way, afterwards there is one order and one answer, or none of both."""
    async with open_shop(*everywhere, orders) as shop:
        await shop.samekey.start()
        outcomes = set()
        completed = False
        for n in range(1, AWAITS_MAX):
            key = b"k%d" % n
            attempt = CancelledAt(Wire(key=key).through_now(shop.app), n)
            await asyncio.wait_for(asyncio.ensure_future(awaited(attempt)), 10)
            await free(shop)
            done = shop.orders()
            assert (done, shop.records()) in ((0, 0), (1, 1)), n
            outcomes.add(done)
            first = await Wire(key=key).through(shop.app)
            assert (first.status, shop.orders(), shop.records()) == (201, 1, 1), n
            assert first.values(b"idempotent-replayed") == ([b"true"] if done else []), n
            shop.write("DELETE FROM orders")
            shop.write("DELETE FROM idempotency_keys")
            completed = attempt.completed
            if completed:
                break
        assert completed
        assert outcomes == {0, 1}  # some came before the commit, and some behind it


async def awaited(attempt: CancelledAt) -> None:
    await attempt
