"""Rows about what fails: who may say what, and when exactly the key is free again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from samekey import Operation, SameKey
from tests.server.shop import Shop, add, commit, open_shop
from tests.server.wire import Wire

Place = tuple[str, bool]


class OrderOut(BaseModel):
    id: int


class Recovered(Exception):
    """What the application's own exception handler turns into a 200."""


class Fate:
    """What the handler does at each run; nothing special after the last."""

    def __init__(self, *does: Any) -> None:
        self.does = list(does)
        self.runs = 0
        self.left: list[str] = []

    def next(self) -> Any:
        self.runs += 1
        return self.does.pop(0) if self.does else None


def fated(fate: Fate) -> Any:
    def routes(app: FastAPI, samekey: SameKey) -> None:
        @app.exception_handler(Recovered)
        async def recover(request: Request, error: Recovered) -> JSONResponse:
            return JSONResponse({"recovered": True})

        async def resource(operation: Operation = Depends(samekey)) -> AsyncIterator[None]:
            try:
                yield
            except Exception as error:
                fate.left.append(type(error).__name__)
                raise
            fate.left.append("well")

        @app.post("/orders", status_code=201, dependencies=[Depends(resource)], response_model=OrderOut)
        async def create(operation: Operation = Depends(samekey), db: Any = Depends(samekey.session)) -> Any:
            made = {"id": await add(db, "1")}
            await commit(db)
            does = fate.next()
            if isinstance(does, BaseException):
                raise does
            if callable(does):
                does = does(operation)
            if isinstance(does, int):
                return JSONResponse({"status": does}, does)
            return made if does is None else does

    return routes


async def kept(shop: Shop) -> bool:
    """Whether the second attempt gets the first one's answer."""
    first, again = await shop.post(), await shop.post()
    replayed: bool = again.headers.get("idempotent-replayed") == "true"
    if replayed:
        assert (again.status_code, again.content) == (first.status_code, first.content)
    assert shop.records() == (1 if replayed else 0)
    return replayed


FIVES: dict[str, Any] = {
    "returned": 503,
    "raised as HTTP": HTTPException(500),
    "unhandled": RuntimeError("boom"),
    "an answer that is not what was promised": {"wrong": "shape"},
}


@pytest.mark.parametrize("name", FIVES)
async def test_the_key_is_free_when_the_500_starts_pp_08(name: str, everywhere: Place) -> None:
    """PP-08: at the moment the start message is sent nothing is left, and a retry runs and is kept."""
    fate = Fate(FIVES[name])
    async with open_shop(*everywhere, fated(fate)) as shop:
        seen: list[Any] = []

        async def look(message: Any) -> None:
            if message["type"] == "http.response.start":
                seen.append((shop.orders(), shop.records(), shop.checked_out))
                seen.append((await shop.post()).status_code)

        try:
            first = (await Wire(on_message=look).through(shop.app)).status
        except Exception:  # noqa: BLE001 - Starlette raises an unhandled one again, after its 500
            first = 500
        assert (first >= 500, seen) == (True, [(0, 0, 0), 201])
        assert (fate.runs, shop.orders(), shop.records()) == (2, 1, 1)


KEEPS: dict[str, tuple[Any, bool]] = {
    "a 4xx of its own": (404, True),
    "429": (429, False),
    "429, said to keep": (lambda op: op.keep() or 429, True),
    "429, said to keep for a while": (lambda op: op.keep_for(3600) or 429, True),
    "409, said not to keep": (lambda op: op.do_not_keep() or 409, False),
    "503, said to keep": (lambda op: op.keep() or 503, False),
    "nothing happened": (Operation.nothing_happened, False),
    "the last word counts": (lambda op: op.do_not_keep() or op.keep(), True),
}


@pytest.mark.parametrize("name", KEEPS)
async def test_what_the_handler_says_bl_49(name: str, everywhere: Place) -> None:
    """BL-49: a stated table, and the handler's word over it; nothing keeps a 5xx."""
    does, is_kept = KEEPS[name]
    fate = Fate(does, does)
    async with open_shop(*everywhere, fated(fate)) as shop:
        assert await kept(shop) is is_kept
        assert (fate.runs, shop.orders()) == ((1, 1) if is_kept else (2, 0))


@pytest.mark.parametrize(("raised_4xx", "orders"), [("keep", 1), ("roll back", 0)])
async def test_a_raised_4xx_and_one_of_its_own(raised_4xx: Any, orders: int, everywhere: Place) -> None:
    """The option is about exceptions: a 4xx that the handler returned is an answer like any other."""
    async with open_shop(*everywhere, fated(Fate(HTTPException(409))), raised_4xx=raised_4xx) as shop:
        assert ((await shop.post()).status_code, shop.orders(), shop.records()) == (409, orders, orders)
    async with open_shop(*everywhere, fated(Fate(409)), raised_4xx=raised_4xx) as shop:
        shop.write("DELETE FROM idempotency_keys")
        shop.write("DELETE FROM orders")
        assert ((await shop.post()).status_code, shop.orders(), shop.records()) == (409, 1, 1)


async def test_a_status_list_of_the_applications_own(everywhere: Place) -> None:
    async with open_shop(*everywhere, fated(Fate(404, 404)), not_kept_statuses=frozenset({404})) as shop:
        assert await kept(shop) is False
        assert (await shop.post()).status_code == 201


async def test_an_exception_that_the_application_turns_into_success(everywhere: Place) -> None:
    """Raised, but answered with 200: what was committed stays, and the answer is kept."""
    async with open_shop(*everywhere, fated(Fate(Recovered()))) as shop:
        first, again = await shop.post(), await shop.post()
        assert (first.json(), first.status_code, again.content) == ({"recovered": True}, 200, first.content)
        assert (again.headers["idempotent-replayed"], shop.orders()) == ("true", 1)


async def test_dependencies_with_yield_see_how_it_went_bl_32(everywhere: Place) -> None:
    """BL-32: every exit settles; the application's own clean-up runs as ever, and never on a replay."""
    fate = Fate(RuntimeError("boom"), HTTPException(409))
    async with open_shop(*everywhere, fated(fate)) as shop:
        for _ in range(3):
            await shop.post()
        assert (fate.left, fate.runs) == (["RuntimeError", "HTTPException"], 2)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 366 * 86400.0])
async def test_a_retention_that_cannot_be_is_an_error_of_the_handler(
    seconds: float, on_sqlite: Place
) -> None:
    async with open_shop(*on_sqlite, fated(Fate(lambda op: op.keep_for(seconds)))) as shop:
        assert ((await shop.post()).status_code, shop.orders()) == (500, 0)
        assert (await shop.post()).status_code == 201


async def test_a_failure_after_the_answer_does_not_undo_it(everywhere: Place) -> None:
    """What fails in a dependency's clean-up after the commit fails alone: the answer stands."""

    def routes(app: FastAPI, samekey: SameKey) -> None:
        async def resource() -> AsyncIterator[None]:
            yield
            raise RuntimeError("while closing")

        @app.post("/orders", status_code=201, dependencies=[Depends(resource)])
        async def create(db: Any = Depends(samekey.session)) -> Any:
            made = {"id": await add(db, "1")}
            await commit(db)
            return made

    async with open_shop(*everywhere, routes) as shop:
        first, again = await shop.post(), await shop.post()
        assert (first.status_code, again.status_code, again.content) == (201, 201, first.content)
        assert (again.headers["idempotent-replayed"], shop.orders()) == ("true", 1)


async def test_an_operation_that_is_over_takes_no_more_orders(everywhere: Place) -> None:
    """BL-05: after the answer nothing can be added to what was recorded."""
    told: list[str] = []

    def routes(app: FastAPI, samekey: SameKey) -> None:
        async def late(operation: Operation = Depends(samekey), db: Any = Depends(samekey.session)) -> Any:
            yield
            for use in (lambda: operation.after_commit(lambda: None), lambda: add(db, "late")):
                try:
                    done = use()
                    if done is not None:
                        await done
                except Exception as error:  # noqa: BLE001 - which one is asserted below
                    told.append(type(error).__name__)

        @app.post("/orders", status_code=201, dependencies=[Depends(late)])
        async def create(db: Any = Depends(samekey.session)) -> Any:
            return {"id": await add(db, "1")}

    async with open_shop(*everywhere, routes) as shop:
        assert ((await shop.post()).status_code, shop.orders()) == (201, 1)
        assert told == ["ClaimLost", "SessionSettled"]
