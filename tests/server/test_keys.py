"""Rows of the behaviour table about the key and its caller."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import Depends, FastAPI

from samekey import SameKey, callers
from tests.server.shop import add, commit, open_shop

Place = tuple[str, bool]
UUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"


def routes(app: FastAPI, samekey: SameKey) -> None:
    @app.api_route("/orders", methods=["POST", "PUT", "PATCH", "DELETE", "GET"], status_code=201)
    async def create(db: Any = Depends(samekey.session)) -> dict[str, int]:
        made = {"id": await add(db, "1")}
        await commit(db)
        return made

    @app.post("/refunds", status_code=201)
    async def refund(db: Any = Depends(samekey.session)) -> dict[str, int]:
        made = {"refund": await add(db, "refund")}
        await commit(db)
        return made

    @app.post("/required", status_code=201, dependencies=[Depends(samekey.route(required=True))])
    async def required() -> dict[str, int]:
        return {"id": 1}

    @app.post("/uuid", status_code=201, dependencies=[Depends(samekey.route(key_format="uuid"))])
    async def uuid() -> dict[str, int]:
        return {"id": 1}

    @app.post("/strict", status_code=201, dependencies=[Depends(samekey.route(strict_header=True))])
    async def strict() -> dict[str, int]:
        return {"id": 1}

    @app.post("/other", status_code=201, dependencies=[Depends(samekey.route(header="X-Request-Key"))])
    async def other() -> dict[str, int]:
        return {"id": 1}


async def test_without_a_key_it_runs_and_makes_no_record_bl_09_pp_10(everywhere: Place) -> None:
    """BL-09, PP-10: no key, no record; two equal requests are two orders."""
    async with open_shop(*everywhere, routes) as shop:
        assert [(await shop.post(key=None)).status_code for _ in range(2)] == [201, 201]
        assert (shop.orders(), shop.records()) == (2, 0)


async def test_a_required_key_that_is_missing(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes, documentation="https://example.com/keys") as shop:
        answer = await shop.post("/required", key=None)
        assert (answer.status_code, answer.json()["code"]) == (400, "missing-key")
        assert answer.headers["link"] == '<https://example.com/keys>; rel="describedby"'
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("key", ["", " ", "se cret", "se\tcret", "k" * 256, '"abc', '"a\\b"'])
async def test_a_malformed_key_is_refused_and_not_echoed_bl_54(key: str, on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        answer = await shop.post(key=key)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid-key")
        assert len(key) < 5 or key not in answer.text
        assert (shop.orders(), shop.records()) == (0, 0)


async def test_a_header_sent_twice_is_refused_bl_53(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        twice = [("X-Account", "acme"), ("Idempotency-Key", "k"), ("Idempotency-Key", "k")]
        answer = await shop.client.post("/orders", headers=twice)
        assert (answer.status_code, shop.orders()) == (400, 0)


async def test_quoted_and_bare_are_one_key_in_any_case_of_the_header(everywhere: Place) -> None:
    async with open_shop(*everywhere, routes) as shop:
        first = await shop.post(key="abc")
        again = await shop.post(key=None, headers={"IDEMPOTENCY-KEY": '"abc"'})
        assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")
        assert shop.orders() == 1


async def test_options_of_the_key(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        assert (await shop.post("/uuid", key="not-a-uuid")).status_code == 400
        assert (await shop.post("/uuid", key=UUID)).status_code == 201
        assert (await shop.post("/strict", key="bare")).status_code == 400
        assert (await shop.post("/strict", key='"quoted"')).status_code == 201
        await shop.post("/other", key=None, headers={"X-Request-Key": "k"})
        again = await shop.post("/other", key=None, headers={"X-Request-Key": "k"})
        assert again.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_key_on_another_method_is_ignored(method: str, everywhere: Place) -> None:
    async with open_shop(*everywhere, routes) as shop:
        headers = {"X-Account": "acme", "Idempotency-Key": "k"}
        for _ in range(2):
            answer = await shop.client.request(method, "/orders", headers=headers)
            assert answer.status_code == 201
        assert shop.records() == 0


async def test_a_header_merely_ending_in_the_name_is_none(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        for _ in range(2):
            await shop.post(key=None, headers={"X-Idempotency-Key": "k"})
        assert shop.orders() == 2


async def test_an_unresolved_caller_is_refused_bl_12_bl_13(everywhere: Place) -> None:
    """BL-12, BL-13: never a shared bucket, and the shortest configuration is the isolated one."""
    async with open_shop(*everywhere, routes) as shop:
        answer = await shop.post(headers={"X-Account": ""})
        assert (answer.status_code, answer.json()["code"]) == (400, "caller-missing")
        assert shop.orders() == 0
    with pytest.raises(TypeError, match="caller"):
        SameKey(object())  # type: ignore[call-arg]


async def test_two_callers_never_share_a_record_bl_14(everywhere: Place) -> None:
    async with open_shop(*everywhere, routes) as shop:
        first = await shop.post()
        other = await shop.post(headers={"X-Account": "zenith"})
        assert (other.status_code, "idempotent-replayed" in other.headers) == (201, False)
        assert other.json() != first.json()
        assert shop.orders() == 2


async def test_everyone_is_one_caller_when_said_out_loud(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes, caller=callers.everyone) as shop:
        await shop.post(headers={"X-Account": "acme"})
        again = await shop.post(headers={"X-Account": "zenith"})
        assert again.headers["idempotent-replayed"] == "true"


async def test_an_api_key_is_told_apart_and_not_stored(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes, caller=callers.api_key()) as shop:
        await shop.post(headers={"X-API-Key": "s3cret-one"})
        await shop.post(headers={"X-API-Key": "s3cret-two"})
        assert shop.orders() == 2
        assert "s3cret" not in str(shop.rows("SELECT * FROM idempotency_keys"))


async def test_another_route_is_another_request_bl_11(everywhere: Place) -> None:
    async with open_shop(*everywhere, routes) as shop:
        await shop.post("/orders")
        answer = await shop.post("/refunds")
        assert (answer.status_code, answer.json()["code"]) == (422, "key-reused")
        assert (await shop.post("/orders?dry=1")).status_code == 422
        headers = {"X-Account": "acme", "Idempotency-Key": "k"}
        assert (await shop.client.patch("/orders", json={"cart": "1"}, headers=headers)).status_code == 422
        assert shop.orders() == 1
