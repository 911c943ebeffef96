"""Rows about the key that need bytes on the wire: what an HTTP client would refuse or tidy up."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException

from samekey import Operation, SameKey
from tests.server.shop import add, commit, open_shop
from tests.server.wire import Wire

Place = tuple[str, bool]


def routes(app: FastAPI, samekey: SameKey) -> None:
    @app.api_route("/orders", methods=["POST", "PUT", "PATCH", "OPTIONS", "HEAD"], status_code=201)
    async def create(db: Any = Depends(samekey.session)) -> dict[str, int]:
        made = {"id": await add(db, "1")}
        await commit(db)
        return made

    claim = samekey.route(required=True)

    @app.get("/required")
    @app.post("/required", status_code=201)
    async def required(operation: Operation = Depends(claim)) -> dict[str, Any]:
        return {"protected": operation.protected}

    @app.post("/pattern", status_code=201, dependencies=[Depends(samekey.route(key_pattern="ord-[0-9]+"))])
    async def pattern() -> dict[str, int]:
        return {"id": 1}

    private = samekey.route(refuse_personal_keys=True)

    @app.post("/private", status_code=201, dependencies=[Depends(private)])
    async def personal() -> dict[str, int]:
        return {"id": 1}


MALFORMED = {
    "NUL": b"zq\0b",
    "tab": b"zq\tb",
    "CR": b"zq\rb",
    "LF": b"zq\nb",
    "DEL": b"zq\x7fb",
    "blank": b"zq b",
    "comma": b"zq, zq",
    "quote inside": b'zq"b',
    "open quote": b'"zq',
    "two strings": b'"zq" "b"',
    "256 characters": b"zq" * 128,
    "256 quoted": b'"' + b"zq" * 128 + b'"',
    "128 emoji": "\U0001f600".encode() * 128,
    "Latin-1": b"caf\xe9",
    "empty": b"",
    "blanks": b" \t ",
    "empty string": b'""',
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_bytes_that_are_no_key_bl_54(name: str, on_sqlite: Place) -> None:
    """BL-54: a stated set and length; everything else is 400, before the handler and without an echo."""
    async with open_shop(*on_sqlite, routes) as shop:
        wire = await Wire(key=MALFORMED[name]).through(shop.app)
        assert (wire.status, wire.code, shop.orders(), shop.records()) == (400, "invalid-key", 0, 0)
        assert b"zq" not in wire.content


@pytest.mark.parametrize("key", [b"k" * 255, b"a:b", b"../x", b"%00", b"a'b", b"!", b"~", b"\\", b"0", b"'"])
async def test_visible_ascii_is_a_key_bl_54(key: bytes, everywhere: Place) -> None:
    async with open_shop(*everywhere, routes) as shop:
        first, again = [await Wire(key=key).through(shop.app) for _ in range(2)]
        assert (first.status, again.values(b"idempotent-replayed"), shop.orders()) == (201, [b"true"], 1)


async def test_escapes_and_parameters_of_a_quoted_key(on_sqlite: Place) -> None:
    """RFC 9651: an Item may carry parameters, and a backslash escapes in a String."""
    async with open_shop(*on_sqlite, routes) as shop:
        for key in (b'"a\\\\b"', b"a\\b", b' "a\\\\b" ', b'"a\\\\b";v=1'):
            assert (await Wire(key=key).through(shop.app)).status == 201
        assert shop.orders() == 1


async def test_two_lines_in_two_cases_are_twice_bl_53(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        wire = await Wire(headers=[(b"Idempotency-Key", b"k")]).through(shop.app)
        assert (wire.status, wire.code, shop.orders()) == (400, "invalid-key", 0)


@pytest.mark.parametrize("method", ["OPTIONS", "HEAD", "PUT"])
async def test_even_a_bad_key_is_ignored_on_another_method(method: str, on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        wire = await Wire(method=method, key=b"not a key").through(shop.app)
        assert (wire.status, shop.records()) == (201, 0)


async def test_methods_are_chosen_in_any_case(everywhere: Place) -> None:
    async with open_shop(*everywhere, routes, methods=frozenset({"put"})) as shop:
        put = [await Wire(method="PUT").through(shop.app) for _ in range(2)]
        assert put[1].values(b"idempotent-replayed") == [b"true"]
        for _ in range(2):
            assert (await Wire().through(shop.app)).values(b"idempotent-replayed") == []
        assert (shop.orders(), shop.records()) == (3, 1)


async def test_a_key_is_required_only_where_it_would_protect(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        assert (
            await Wire("/required", None, method="GET").through(shop.app)
        ).content == b'{"protected":false}'
        assert (await Wire("/required", None).through(shop.app)).code == "missing-key"
        assert (await Wire("/required").through(shop.app)).content == b'{"protected":true}'


async def test_a_pattern_covers_the_whole_key(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        statuses = [
            (await Wire("/pattern", key).through(shop.app)).status
            for key in (b"ord-12", b"ord-12x", b"x-ord-1")
        ]
        assert statuses == [201, 400, 400]


async def test_personal_keys_are_refused_without_saying_them(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        wire = await Wire("/private", b"ann@example.com").through(shop.app)
        assert (wire.status, wire.code, b"ann" in wire.content) == (400, "invalid-key", False)
        assert (await Wire("/private", b"order-1").through(shop.app)).status == 201


async def test_the_applications_own_refusal_of_a_caller_stands_bl_12(everywhere: Place) -> None:
    """BL-12: 401 of the caller's own dependency; and a caller of None is refused, with nothing shared."""
    known: list[Any] = []

    async def caller() -> Any:
        if not known:
            raise HTTPException(401, "who?")
        return known[0]

    async with open_shop(*everywhere, routes, caller=caller) as shop:
        assert (await Wire().through(shop.app)).status == 401
        known[:] = [None]
        assert (await Wire().through(shop.app)).code == "caller-missing"
        assert (shop.orders(), shop.records()) == (0, 0)
        for account in (0, 1):  # any stable id will do, also a number, also zero
            known[:] = [account]
            first, again = [await Wire().through(shop.app) for _ in range(2)]
            assert (first.status, again.values(b"idempotent-replayed")) == (201, [b"true"])
        assert shop.orders() == 2


async def test_a_caller_is_not_needed_without_a_key(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        wire = await Wire(key=None, headers=[(b"x-account", b"")]).through(shop.app)
        assert (wire.status, shop.orders(), shop.records()) == (201, 1, 0)


@pytest.mark.parametrize("declared", ["claim first", "session first"])
async def test_one_claim_per_request_whatever_asks_for_it(declared: str, on_sqlite: Place) -> None:
    """The claim and the session are two dependencies of one operation, in either order."""

    def both(app: FastAPI, samekey: SameKey) -> None:
        if declared == "claim first":

            @app.post("/orders", status_code=201)
            async def one(op: Operation = Depends(samekey), db: Any = Depends(samekey.session)) -> Any:
                return {"id": await add(db, str(op.protected))}

        else:

            @app.post("/orders", status_code=201)
            async def two(db: Any = Depends(samekey.session), op: Operation = Depends(samekey)) -> Any:
                return {"id": await add(db, str(op.protected))}

    async with open_shop(*on_sqlite, both) as shop:
        first, again = [await Wire().through(shop.app) for _ in range(2)]
        assert (first.status, again.values(b"idempotent-replayed")) == (201, [b"true"])
        assert shop.rows("SELECT cart FROM orders") == [("True",)]
