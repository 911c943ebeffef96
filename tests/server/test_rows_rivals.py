"""Rows about rivals and about other requests under one key: what each waiter and each difference gets."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import text

from samekey import SameKey
from tests.server.shop import add, commit, open_shop

Place = tuple[str, bool]


class Door:
    """Holds handlers until it is opened; works from threads and from the loop alike."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.runs = 0
        self.open = False

    def pass_through(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the first one fails")


def behind(door: Door, sync: bool) -> Any:
    """Handlers of the place's own colour, so that a sync engine is really served from threads."""

    def routes(app: FastAPI, samekey: SameKey) -> None:
        if sync:

            @app.api_route("/orders/{shop}", methods=["POST", "PATCH"], status_code=201)
            def create_sync(body: dict[str, Any], db: Any = Depends(samekey.session)) -> dict[str, int]:
                door.runs += 1
                while not door.open:
                    time.sleep(0.002)
                door.pass_through()
                made = db.execute(INSERT, {"cart": str(body.get("cart"))}).scalar_one()
                db.commit()
                return {"id": made}

        else:

            @app.api_route("/orders/{shop}", methods=["POST", "PATCH"], status_code=201)
            async def create(body: dict[str, Any], db: Any = Depends(samekey.session)) -> dict[str, int]:
                door.runs += 1
                while not door.open:  # noqa: ASYNC110 - one door for both colours
                    await asyncio.sleep(0.002)
                door.pass_through()
                made = {"id": await add(db, str(body.get("cart")))}
                await commit(db)
                return made

    return routes


INSERT = text("INSERT INTO orders (cart) VALUES (:cart) RETURNING id")


def kind(answer: httpx.Response) -> tuple[int, str]:
    if answer.headers.get("idempotent-replayed") == "true":
        return answer.status_code, "replay"
    return answer.status_code, answer.json().get("code", "own") if answer.status_code != 500 else "own"


async def entered(door: Door, runs: int = 1) -> None:
    async with asyncio.timeout(5):
        while door.runs < runs:  # noqa: ASYNC110 - it may be entered in a thread
            await asyncio.sleep(0.002)


async def test_twenty_at_once_bl_15_bl_16_bl_18_bl_22_pp_13(everywhere: Place) -> None:
    """BL-15, BL-16, BL-18, BL-22, PP-13: one runs, nineteen are told so and get its answer later."""
    door = Door()
    async with open_shop(*everywhere, behind(door, everywhere[1])) as shop:
        asked = [asyncio.create_task(shop.post("/orders/a")) for _ in range(20)]
        await entered(door)
        async with asyncio.timeout(10):
            while sum(task.done() for task in asked) < 19:  # noqa: ASYNC110 - rivals end by themselves
                await asyncio.sleep(0.005)
        door.open = True
        told = Counter(kind(answer) for answer in await asyncio.gather(*asked))
        assert told == {(201, "own"): 1, (409, "in-progress"): 19}
        assert (door.runs, shop.orders(), shop.records()) == (1, 1, 1)
        again = await asyncio.gather(*(shop.post("/orders/a") for _ in range(20)))
        assert Counter(kind(answer) for answer in again) == {(201, "replay"): 20}


async def test_all_who_wait_get_the_one_answer(everywhere: Place) -> None:
    door = Door()
    async with open_shop(*everywhere, behind(door, everywhere[1]), wait_seconds=20.0) as shop:
        asked = [asyncio.create_task(shop.post("/orders/a")) for _ in range(10)]
        await entered(door)
        door.open = True
        answers = await asyncio.gather(*asked)
        assert Counter(kind(answer) for answer in answers) == {(201, "own"): 1, (201, "replay"): 9}
        assert (len({answer.content for answer in answers}), shop.orders()) == (1, 1)


async def test_who_waits_in_vain_is_told(everywhere: Place) -> None:
    door = Door()
    async with open_shop(*everywhere, behind(door, everywhere[1]), wait_seconds=0.1) as shop:
        first = asyncio.create_task(shop.post("/orders/a"))
        await entered(door)
        assert kind(await shop.post("/orders/a")) == (409, "in-progress")
        door.open = True
        assert kind(await first) == (201, "own")


async def test_a_waiter_takes_over_when_the_first_one_fails_pp_14(everywhere: Place) -> None:
    """PP-14: it does not poll on for an answer that will never come."""
    door = Door(failures=1)
    async with open_shop(*everywhere, behind(door, everywhere[1]), wait_seconds=20.0) as shop:
        first = asyncio.create_task(shop.post("/orders/a"))
        await entered(door)
        waiter = asyncio.create_task(shop.post("/orders/a"))
        await asyncio.sleep(0.02)
        started = asyncio.get_running_loop().time()
        door.open = True
        assert (kind(await first), kind(await waiter)) == ((500, "own"), (201, "own"))
        assert asyncio.get_running_loop().time() - started < 10.0
        assert (door.runs, shop.orders()) == (2, 1)


async def test_a_waiter_with_another_body_is_a_mismatch_in_the_end(everywhere: Place) -> None:
    door = Door()
    async with open_shop(*everywhere, behind(door, everywhere[1]), wait_seconds=20.0) as shop:
        first = asyncio.create_task(shop.post("/orders/a"))
        await entered(door)
        waiter = asyncio.create_task(shop.post("/orders/a", json={"cart": "2"}))
        await asyncio.sleep(0.02)
        door.open = True
        assert (kind(await first), kind(await waiter)) == ((201, "own"), (422, "key-reused"))


OTHER: dict[str, Any] = {
    "body": ("POST", "/orders/a", {"cart": "2"}),
    "null is not absent": ("POST", "/orders/a", {"cart": "1", "note": None}),
    "path": ("POST", "/orders/b", {"cart": "1"}),
    "query": ("POST", "/orders/a?dry=1", {"cart": "1"}),
    "method": ("PATCH", "/orders/a", {"cart": "1"}),
}


@pytest.mark.parametrize("name", OTHER)
async def test_another_request_under_the_key_bl_08_bl_11(name: str, everywhere: Place) -> None:
    """BL-08, BL-11: told so, twice, and the record still answers the request it belongs to."""
    door = Door()
    door.open = True
    method, path, body = OTHER[name]
    headers = {"X-Account": "acme", "Idempotency-Key": "k"}
    async with open_shop(*everywhere, behind(door, everywhere[1])) as shop:
        first = await shop.post("/orders/a")
        record = shop.rows("SELECT * FROM idempotency_keys")
        for _ in range(2):
            other = await shop.client.request(method, path, json=body, headers=headers)
            assert (kind(other), other.json()["safe_to_use_new_key"]) == ((422, "key-reused"), False)
        assert shop.rows("SELECT * FROM idempotency_keys") == record
        again = await shop.post("/orders/a")
        assert (kind(again), again.content, door.runs) == ((201, "replay"), first.content, 1)


async def test_the_same_query_in_another_order_of_names(everywhere: Place) -> None:
    """Names may change places; values of one name may not."""
    door = Door()
    door.open = True
    async with open_shop(*everywhere, behind(door, everywhere[1])) as shop:
        await shop.post("/orders/a?x=1&y=1&y=2")
        assert kind(await shop.post("/orders/a?y=1&y=2&x=1")) == (201, "replay")
        assert kind(await shop.post("/orders/a?y=2&y=1&x=1")) == (422, "key-reused")


async def test_two_keys_in_one_transaction_time_do_not_mix(everywhere: Place) -> None:
    """Different keys, callers and namespaces at once: each has its own order and its own answer."""
    door = Door()
    door.open = True
    async with open_shop(*everywhere, behind(door, everywhere[1])) as shop:
        asked = [
            shop.post("/orders/a", key=f"k{n % 5}", headers={"X-Account": f"account-{n % 2}"})
            for n in range(10)
        ]
        answers = await asyncio.gather(*asked)
        assert {kind(answer) for answer in answers} == {(201, "own")}
        assert (len({answer.content for answer in answers}), shop.orders(), shop.records()) == (10, 10, 10)
