"""Disconnects and cancellations: the operation still settles, whatever the moment."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from fastapi import Depends, FastAPI

from samekey import SameKey
from tests.server.shop import add, commit, open_shop
from tests.server.test_sizes import scope

Place = tuple[str, bool]
TURNS_MAX = 400


def routes(app: FastAPI, samekey: SameKey) -> None:
    @app.post("/orders", status_code=201)
    async def create(db: Any = Depends(samekey.session)) -> dict[str, int]:
        made = {"id": await add(db, "1")}
        await asyncio.sleep(0)
        await commit(db)
        return made


async def test_a_task_cancelled_at_any_turn_leaves_all_or_nothing_bl_34(everywhere: Place) -> None:
    """BL-34: the cancellation is no ordinary exception; whatever it interrupts, a retry makes one order."""
    async with open_shop(*everywhere, routes) as shop:
        assert (await shop.post(key="first")).status_code == 201
        finished = 0
        turns = 0
        while finished < 2 and turns < TURNS_MAX:
            turns += 1
            key = f"turn-{turns}"
            before = shop.orders()
            finished += await cancelled_after(turns, shop.app, key.encode())
            assert shop.checked_out == 0
            answer = await asyncio.wait_for(shop.post(path="/orders", key=key, content=b""), 10)
            assert answer.status_code == 201, (turns, answer.text)
            assert shop.orders() == before + 1
        assert finished == 2


async def cancelled_after(turns: int, app: Any, key: bytes) -> bool:
    """Cancel the request after so many turns of the loop; whether it had finished by itself before."""
    body = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return body.pop() if body else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    task = asyncio.create_task(app(scope("/orders", key=key), receive, send))
    for _ in range(turns):
        await asyncio.sleep(0)
        if task.done():
            await task
            return True
    # Database I/O needs real time, not only turns.
    await asyncio.sleep(0.0005 * (turns % 7))
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


async def test_a_client_that_goes_away_changes_nothing(everywhere: Place) -> None:
    async with open_shop(*everywhere, routes) as shop:
        messages = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise OSError("the client has gone")

        with contextlib.suppress(OSError):
            await shop.app(scope("/orders"), receive, send)
        assert shop.orders() == 1
        assert (await shop.post(content=b"")).headers["idempotent-replayed"] == "true"
