"""A client that disconnects: the operation still settles. (Cancellations: tests/joined.)"""

from __future__ import annotations

import contextlib
from typing import Any

from fastapi import Depends, FastAPI

from samekey import SameKey
from tests.server.shop import add, commit, open_shop
from tests.server.test_sizes import scope

Place = tuple[str, bool]


def routes(app: FastAPI, samekey: SameKey) -> None:
    @app.post("/orders", status_code=201)
    async def create(db: Any = Depends(samekey.session)) -> dict[str, int]:
        made = {"id": await add(db, "1")}
        await commit(db)
        return made


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
