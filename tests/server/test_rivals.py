"""Rows of the behaviour table about rivals, other requests under one key, and time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Depends, FastAPI

from samekey import FingerprintRule, SameKey
from tests.server.shop import Shop, add, commit, open_shop

Place = tuple[str, bool]


class Pace:
    """Lets a test hold the handler at a point."""

    def __init__(self) -> None:
        self.runs = 0
        self.entered, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()


def paced(pace: Pace) -> Any:
    def routes(app: FastAPI, samekey: SameKey) -> None:
        @app.post("/orders", status_code=201)
        async def create(body: dict[str, Any], db: Any = Depends(samekey.session)) -> dict[str, int]:
            pace.runs += 1
            pace.entered.set()
            await pace.go.wait()
            made = {"id": await add(db, str(body.get("cart")))}
            await commit(db)
            return made

    return routes


async def test_twenty_at_once_run_once_bl_15_bl_16_bl_18_bl_22_pp_13(everywhere: Place) -> None:
    """BL-15, BL-16, BL-18, BL-22, PP-13: one run; the others are told, and get the answer afterwards."""
    pace = Pace()
    async with open_shop(*everywhere, paced(pace)) as shop:
        answers = await asyncio.gather(*(shop.post() for _ in range(20)))
        assert {answer.status_code for answer in answers} <= {201, 409}
        assert (pace.runs, shop.orders()) == (1, 1)
        assert (await shop.post()).status_code == 201


async def test_a_rival_is_told_while_the_first_runs(everywhere: Place) -> None:
    pace = Pace()
    pace.go.clear()
    async with open_shop(*everywhere, paced(pace)) as shop:
        first = asyncio.create_task(shop.post())
        await pace.entered.wait()
        rival = await asyncio.wait_for(shop.post(), 5)
        assert (rival.status_code, rival.json()["code"]) == (409, "in-progress")
        assert (int(rival.headers["retry-after"]), rival.json()["retryable"]) == (1, True)
        # Another body cannot be told apart yet: it is in progress until the first ends, then a mismatch.
        assert (await shop.post(json={"cart": "2"})).status_code == 409
        pace.go.set()
        assert (await first).status_code == 201
        assert (await shop.post(json={"cart": "2"})).status_code == 422
        assert (pace.runs, shop.orders()) == (1, 1)


async def test_unrelated_keys_do_not_wait_for_each_other_bl_17(fresh_postgres: str) -> None:
    pace = Pace()
    pace.go.clear()
    async with open_shop(fresh_postgres, False, paced(pace)) as shop:
        first = asyncio.create_task(shop.post(key="one"))
        await pace.entered.wait()
        pace.entered.clear()
        second = asyncio.create_task(shop.post(key="two"))
        await asyncio.wait_for(pace.entered.wait(), 5)  # both are inside of the handler at the same time
        assert pace.runs == 2
        pace.go.set()
        assert [(await first).status_code, (await second).status_code] == [201, 201]


async def test_a_waiter_gets_the_answer_and_holds_no_connection(everywhere: Place) -> None:
    pace = Pace()
    pace.go.clear()
    async with open_shop(*everywhere, paced(pace), wait_seconds=10.0) as shop:
        first = asyncio.create_task(shop.post())
        await pace.entered.wait()
        waiter = asyncio.create_task(shop.post())
        seen = set()
        for _ in range(30):
            await asyncio.sleep(0.005)
            seen.add(shop.checked_out)
        assert 1 in seen  # the first one's; the waiter's only while it looks
        pace.go.set()
        assert (await waiter).headers["idempotent-replayed"] == "true"
        assert (await first).status_code == 201


async def other_requests(shop: Shop) -> list[int]:
    await shop.post(json={"a": 1, "b": [{"x": 1, "y": 2}]})
    bodies = [b'{ "b":[{"y":2,"x":1}], "a":1 }', b'{"a":1.0,"b":[{"x":1e0,"y":2}]}', b'{"a":2}', b"[]"]
    json = {"Content-Type": "application/json"}
    return [(await shop.post(content=body, headers=json)).status_code for body in bodies]


async def test_the_same_by_meaning_and_another_by_meaning_bl_01_bl_05(everywhere: Place) -> None:
    """BL-01, BL-05: member order and white space do not count; the record is untouched by a mismatch."""
    pace = Pace()
    async with open_shop(*everywhere, paced(pace)) as shop:
        assert await other_requests(shop) == [201, 201, 422, 422]
        assert (pace.runs, shop.orders()) == (1, 1)


@pytest.mark.parametrize("status", [400, 409])
async def test_another_mismatch_status(status: Any, on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, paced(Pace()), mismatch_status=status) as shop:
        await shop.post()
        answer = await shop.post(json={"cart": "2"})
        assert (answer.status_code, answer.json()["code"]) == (status, "key-reused")


async def test_fields_that_do_not_count_bl_02(on_sqlite: Place) -> None:
    rule = FingerprintRule(exclude=("id", "_meta.sent"))
    async with open_shop(*on_sqlite, paced(Pace()), fingerprint=rule) as shop:
        await shop.post(json={"cart": "1", "id": 1, "_meta": {"sent": "now"}})
        again = await shop.post(json={"cart": "1", "id": 2, "_meta": {"sent": "later"}})
        assert again.headers["idempotent-replayed"] == "true"


def over(url: str) -> str:
    return "0" if url.startswith("sqlite") else "now() - interval '1 second'"


async def test_an_expired_key_is_a_new_operation_whatever_its_body_bl_60(everywhere: Place) -> None:
    """BL-60: expired means absent, also before the purge."""
    async with open_shop(*everywhere, paced(Pace())) as shop:
        await shop.post()
        moment = over(everywhere[0])
        shop.write(f"UPDATE idempotency_keys SET expires_at = {moment}, purge_at = {moment}")
        assert (await shop.post(json={"cart": "2"})).status_code == 201
        assert (shop.orders(), shop.records()) == (2, 1)


async def test_a_tombstone_says_that_it_was_done(everywhere: Place) -> None:
    async with open_shop(*everywhere, paced(Pace()), tombstone_seconds=3600.0) as shop:
        await shop.post()
        shop.write(f"UPDATE idempotency_keys SET expires_at = {over(everywhere[0])}")
        answer = await shop.post()
        assert (answer.status_code, answer.json()["code"]) == (409, "answer-expired")
        assert shop.orders() == 1


async def test_a_record_of_another_fingerprint_version_is_no_proof_bl_08(everywhere: Place) -> None:
    async with open_shop(*everywhere, paced(Pace())) as shop:
        await shop.post()
        shop.write("UPDATE idempotency_keys SET fingerprint_version = 0")
        assert (await shop.post()).status_code == 422


async def test_a_refused_change_stays_refused_bl_10(on_sqlite: Place) -> None:
    """BL-10: a mismatch primes nothing; the honest retry still replays."""
    async with open_shop(*on_sqlite, paced(Pace())) as shop:
        await shop.post()
        for _ in range(2):
            assert (await shop.post(json={"cart": "2"})).status_code == 422
        assert (await shop.post()).headers["idempotent-replayed"] == "true"
