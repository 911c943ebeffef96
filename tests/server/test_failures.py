"""Rows of the behaviour table about what fails, before the handler and in it."""

from __future__ import annotations

import functools
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from samekey import Operation, SameKey
from tests.server.shop import add, commit, open_shop

Place = tuple[str, bool]


class OrderIn(BaseModel):
    cart: str


class SoldOutError(Exception):
    """A domain error that the application turns into a 409 of its own."""


class Fate:
    """What the handler does the next times; a list, so that a passing failure can heal."""

    def __init__(self, *does: Any) -> None:
        self.does = list(does)
        self.runs = 0

    def next(self) -> Any:
        self.runs += 1
        return self.does.pop(0) if self.does else None


def fated(fate: Fate) -> Any:
    def routes(app: FastAPI, samekey: SameKey) -> None:
        @app.exception_handler(SoldOutError)
        async def sold_out(request: Request, error: SoldOutError) -> JSONResponse:
            return JSONResponse({"sold": "out"}, 409)

        async def later(fail: bool = False, operation: Operation = Depends(samekey)) -> None:
            if fail:
                raise HTTPException(404, "a dependency after the claim")

        @app.post("/orders", status_code=201, dependencies=[Depends(later)])
        async def create(
            order: OrderIn, operation: Operation = Depends(samekey), db: Any = Depends(samekey.session)
        ) -> Any:
            made = {"id": await add(db, order.cart)}
            await commit(db)
            await add(db, "flushed, not committed")
            fate_now = fate.next()
            if isinstance(fate_now, Exception):
                raise fate_now
            if callable(fate_now):
                fate_now(operation)
            return JSONResponse({"status": fate_now}, fate_now) if isinstance(fate_now, int) else made

    return routes


async def test_failures_before_the_handler_leave_the_key_free_bl_06(everywhere: Place) -> None:
    """Validation, JSON syntax, a dependency; BL-06: the handler still gets the whole body afterwards."""
    fate = Fate()
    async with open_shop(*everywhere, fated(fate)) as shop:
        assert (await shop.post(json={"x": 1})).status_code == 422
        json = {"Content-Type": "application/json"}
        assert (await shop.post(content=b'{"cart": ', headers=json)).status_code == 422
        assert (await shop.post("/orders?fail=1")).status_code == 404
        assert (fate.runs, shop.orders(), shop.records()) == (0, 0, 0)
        assert (await shop.post(json={"cart": "whole"})).status_code == 201
        assert shop.rows("SELECT cart FROM orders ORDER BY id")[0] == ("whole",)
        assert (await shop.post("/nowhere")).status_code == 404


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429])
async def test_a_passing_refusal_is_rolled_back_and_not_stored_bl_49(status: int, everywhere: Place) -> None:
    async with open_shop(*everywhere, fated(Fate(status))) as shop:
        assert (await shop.post()).status_code == status
        assert (shop.orders(), shop.records()) == (0, 0)
        assert (await shop.post()).status_code == 201


@pytest.mark.parametrize(
    "fate", [500, 503, RuntimeError("boom"), HTTPException(500, "x"), HTTPException(503)]
)
async def test_a_5xx_is_rolled_back_and_the_key_is_free_bl_32_bl_48(fate: Any, everywhere: Place) -> None:
    """BL-32, BL-48: a passing failure is not pinned to the key."""
    async with open_shop(*everywhere, fated(Fate(fate))) as shop:
        assert (await shop.post()).status_code >= 500
        assert (shop.orders(), shop.records()) == (0, 0)
        assert (await shop.post()).status_code == 201
        assert shop.orders() == 2


async def test_the_key_is_free_when_the_500_is_sent_pp_08(everywhere: Place) -> None:
    """PP-08: a retry sent at the moment the 5xx arrives does not meet a dying claim."""
    async with open_shop(*everywhere, fated(Fate(503))) as shop:
        retried: list[int] = []
        app = shop.app

        async def outer(scope: Any, receive: Any, send: Any) -> None:
            async def retrying(message: Any) -> None:
                if message["type"] == "http.response.start" and message["status"] == 503:
                    retried.append((await shop.post()).status_code)
                await send(message)

            await app(scope, receive, retrying)

        client = httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://shop")
        headers = {"X-Account": "acme", "Idempotency-Key": "k"}
        answer = await client.post("/orders", json={"cart": "1"}, headers=headers)
        assert (answer.status_code, retried) == (503, [201])
        await client.aclose()


@pytest.mark.parametrize("fate", [HTTPException(409, "no"), SoldOutError()])
async def test_a_raised_4xx_keeps_what_was_committed(fate: Exception, everywhere: Place) -> None:
    async with open_shop(*everywhere, fated(Fate(fate))) as shop:
        first, again = await shop.post(), await shop.post()
        assert (first.status_code, again.status_code, again.content) == (409, 409, first.content)
        assert again.headers["idempotent-replayed"] == "true"
        assert [cart for (cart,) in shop.rows("SELECT cart FROM orders")] == ["1"]


async def test_a_raised_4xx_may_roll_back_everything(everywhere: Place) -> None:
    async with open_shop(*everywhere, fated(Fate(HTTPException(409))), raised_4xx="roll back") as shop:
        assert (await shop.post()).status_code == 409
        assert (shop.orders(), shop.records()) == (0, 0)
        assert (await shop.post()).status_code == 201


async def test_a_4xx_of_the_handlers_own_is_stored(everywhere: Place) -> None:
    async with open_shop(*everywhere, fated(Fate(404))) as shop:
        assert [(await shop.post()).status_code for _ in range(2)] == [404, 404]
        assert [cart for (cart,) in shop.rows("SELECT cart FROM orders")] == ["1"]


async def test_what_was_flushed_is_committed_with_a_success(everywhere: Place) -> None:
    async with open_shop(*everywhere, fated(Fate())) as shop:
        await shop.post()
        assert shop.orders() == 2


@pytest.mark.parametrize("say", [Operation.do_not_keep, Operation.nothing_happened])
async def test_the_handler_says_not_to_keep(say: Any, everywhere: Place) -> None:
    async with open_shop(*everywhere, fated(Fate(say))) as shop:
        assert (await shop.post()).status_code == 201
        assert (shop.orders(), shop.records()) == (0, 0)
        assert (await shop.post()).status_code == 201


async def test_the_handler_says_to_keep_and_how_long(everywhere: Place) -> None:
    async with open_shop(*everywhere, fated(Fate(lambda op: op.keep_for(60.0)))) as shop:
        assert (await shop.post()).status_code == 201
        assert (await shop.post()).headers["idempotent-replayed"] == "true"
        if everywhere[0].startswith("sqlite"):
            ((seconds,),) = shop.rows("SELECT (expires_at - completed_at) / 1000000 FROM idempotency_keys")
        else:
            ((seconds,),) = shop.rows(
                "SELECT extract(epoch FROM expires_at - completed_at)::int FROM idempotency_keys"
            )
        assert seconds == 60


async def test_a_handler_of_any_kind_is_recognised(on_sqlite: Place) -> None:
    """Raised in the handler: stored; for partials, callable objects and wrapped functions as well."""

    def routes(app: FastAPI, samekey: SameKey) -> None:
        async def refuse(db: Any = Depends(samekey.session), status: int = 409) -> None:
            await add(db, "1")
            await commit(db)
            raise HTTPException(409)

        @functools.wraps(refuse)
        async def wrapped(*args: Any, **kwargs: Any) -> None:
            return await refuse(*args, **kwargs)

        class Object:
            async def __call__(self, db: Any = Depends(samekey.session)) -> None:
                await refuse(db)

        app.post("/wrapped")(wrapped)
        app.post("/partial")(functools.partial(refuse, status=410))
        app.post("/object")(Object())

        @app.post("/sync")
        def sync(db: Any = Depends(samekey.session)) -> None:
            raise HTTPException(409)

    async with open_shop(*on_sqlite, routes) as shop:
        for path in ("/wrapped", "/partial", "/object", "/sync"):
            assert (await shop.post(path, key=path)).status_code == 409
            again = await shop.post(path, key=path)
            assert again.headers.get("idempotent-replayed") == "true", path


async def authenticate(authorization: str = Header("")) -> None:
    if authorization != "Bearer good":
        raise HTTPException(401)


@pytest.mark.parametrize("declared", ["parameter", "route", "router", "app", "caller"])
async def test_authentication_comes_before_any_replay(declared: str, on_sqlite: Place) -> None:
    async def caller(authorization: str = Header("")) -> str:
        await authenticate(authorization)
        return "acme"

    def routes(app: FastAPI, samekey: SameKey) -> None:
        rights = [Depends(authenticate)]
        router = APIRouter(dependencies=rights if declared == "router" else [])
        if declared == "app":
            app.router.dependencies = rights

        if declared == "parameter":

            @router.post("/orders", status_code=201)
            async def create_checked(
                _: None = Depends(authenticate), db: Any = Depends(samekey.session)
            ) -> dict[str, int]:
                return {"id": await add(db, "1")}

        else:

            @router.post("/orders", status_code=201, dependencies=rights if declared == "route" else [])
            async def create(db: Any = Depends(samekey.session)) -> dict[str, int]:
                return {"id": await add(db, "1")}

        app.include_router(router)

    options: dict[str, Any] = {"caller": caller} if declared == "caller" else {}
    async with open_shop(*on_sqlite, routes, **options) as shop:
        good, revoked = {"Authorization": "Bearer good"}, {"Authorization": "Bearer revoked"}
        assert (await shop.post(headers=revoked)).status_code == 401
        assert (await shop.post(headers=good)).status_code == 201
        assert (await shop.post(headers=revoked)).status_code == 401
        assert (await shop.post(headers=good)).headers["idempotent-replayed"] == "true"


async def test_a_store_that_is_down_means_503_and_no_run_bl_56(fresh_postgres: str, caplog: Any) -> None:
    fate = Fate()
    gone = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"
    async with open_shop(fresh_postgres, False, fated(fate)) as shop:
        from sqlalchemy.ext.asyncio import create_async_engine

        from samekey.testing import override

        engine = create_async_engine(gone)
        with override(shop.app, engine=engine):
            answer = await shop.post(key="secret-key")
        await engine.dispose()
        assert (answer.status_code, answer.json()["code"], fate.runs) == (503, "store-unavailable", 0)
        assert int(answer.headers["retry-after"]) >= 1
        assert "secret-key" not in caplog.text
        assert "secret-key" not in answer.text
