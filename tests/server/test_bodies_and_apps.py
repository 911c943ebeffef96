"""Kinds of bodies, and ways to put an application together."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, File, Form, Request, UploadFile

from samekey import Operation, SameKey, SamekeyError, callers, current_operation
from tests.server.shop import add, commit, open_shop

Place = tuple[str, bool]


def routes(app: FastAPI, samekey: SameKey) -> None:
    @app.post("/form", status_code=201)
    async def form(to: str = Form(), operation: Operation = Depends(samekey)) -> dict[str, str]:
        return {"to": to}

    @app.post("/upload", status_code=201)
    async def upload(
        title: str = Form(), file: UploadFile = File(), operation: Operation = Depends(samekey)
    ) -> dict[str, Any]:
        return {"title": title, "bytes": len(await file.read())}

    @app.post("/stream", status_code=201)
    async def stream(request: Request, operation: Operation = Depends(samekey)) -> dict[str, int]:
        return {"bytes": sum([len(chunk) async for chunk in request.stream()])}

    @app.post("/orders", status_code=201)
    async def create(db: Any = Depends(samekey.session)) -> dict[str, Any]:
        operation = current_operation()
        assert operation is not None
        made = {"id": await add(db, "1"), "charge": operation.key_for("charge")}
        await commit(db)
        return made

    router = APIRouter(prefix="/v1")
    inner = APIRouter(prefix="/inner")

    @inner.post("/orders/{name}", status_code=201)
    def nested(name: str, operation: Operation = Depends(samekey)) -> dict[str, str]:
        return {"name": name}

    router.include_router(inner)
    app.include_router(router)


async def test_forms_count_by_pairs(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        first = await shop.post("/form", content=b"to=A&amount=1", headers=headers)
        again = await shop.post("/form", content=b"to=%41&amount=1", headers=headers)
        assert (first.json(), again.headers["idempotent-replayed"]) == ({"to": "A"}, "true")
        assert (await shop.post("/form", content=b"to=B&amount=1", headers=headers)).status_code == 422


async def test_multipart_by_parts_whatever_the_boundary_bl_03(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        parts: dict[str, Any] = {"data": {"title": "a"}, "files": {"file": ("a.bin", b"x" * 1024)}}
        first, again = [await shop.post("/upload", **parts) for _ in range(2)]
        assert (first.json(), again.headers["idempotent-replayed"]) == ({"title": "a", "bytes": 1024}, "true")
        other: dict[str, Any] = {"data": {"title": "a"}, "files": {"file": ("a.bin", b"y" * 1024)}}
        assert (await shop.post("/upload", **other)).status_code == 422


async def test_a_handler_that_reads_the_stream_itself_gets_all_of_it(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        assert (await shop.post("/stream", content=b"x" * 100_000)).json() == {"bytes": 100_000}
        assert (await shop.post("/stream", content=b"x" * 100_000)).headers["idempotent-replayed"] == "true"


async def test_plus_json_is_json_pp_07(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        headers = {"Content-Type": "application/vnd.api+json"}
        await shop.post("/stream", content=b'{"a":1,"b":2}', headers=headers)
        again = await shop.post("/stream", content=b'{ "b":2, "a":1 }', headers=headers)
        assert again.headers["idempotent-replayed"] == "true"


async def test_derived_keys_are_the_same_on_every_retry(everywhere: Place) -> None:
    async with open_shop(*everywhere, routes) as shop:
        first = (await shop.post()).json()["charge"]
        shop.write("DELETE FROM idempotency_keys")
        assert (await shop.post()).json()["charge"] == first
        assert (await shop.post(key="other")).json()["charge"] != first


async def test_nested_routers_and_mounted_applications(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        for path in ("/v1/inner/orders/a", "/v1/inner/orders/b"):
            first, again = [await shop.post(path, key=path[-1]) for _ in range(2)]
            assert (first.status_code, again.headers["idempotent-replayed"]) == (201, "true")
        outer = FastAPI()
        outer.mount("/shop", shop.app)
        transport = httpx.ASGITransport(outer)
        async with httpx.AsyncClient(transport=transport, base_url="http://outer") as client:
            headers = {"X-Account": "acme", "Idempotency-Key": "mounted"}
            answers = [await client.post("/shop/orders", headers=headers) for _ in range(2)]
            assert answers[1].headers["idempotent-replayed"] == "true"


async def test_an_override_of_the_caller_counts(on_sqlite: Place) -> None:
    async def caller() -> str:
        raise AssertionError("replaced")

    async with open_shop(*on_sqlite, routes, caller=caller) as shop:
        shop.app.dependency_overrides[caller] = lambda: "acme"
        assert (await shop.post()).status_code == 201


async def test_without_install_it_says_what_to_do(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        bare = FastAPI()
        routes(bare, shop.samekey)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(bare), base_url="http://x") as client:
            with pytest.raises(SamekeyError, match=r"samekey\.install\(app\)"):
                await client.post("/orders", headers={"X-Account": "a", "Idempotency-Key": "k"})
        await shop.post()
        with pytest.raises(SamekeyError, match="before the application serves"):
            shop.samekey.install(shop.app)


async def test_two_sets_of_options_on_one_route_are_refused(on_sqlite: Place) -> None:
    def two(app: FastAPI, samekey: SameKey) -> None:
        claims = [Depends(samekey.route(required=True)), Depends(samekey.route(mismatch_status=409))]
        app.post("/orders", dependencies=claims)(lambda: None)

    async with open_shop(*on_sqlite, two) as shop:
        assert (await shop.post()).status_code == 500


async def test_the_document_tells_header_problems_and_retention(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        schema = (await shop.client.get("/openapi.json")).json()
        assert (await shop.client.get("/openapi.json")).json() == schema
        operation = schema["paths"]["/orders"]["post"]
        (header,) = [one for one in operation["parameters"] if one["name"] == "Idempotency-Key"]
        assert (header["in"], header["required"]) == ("header", False)
        assert operation["x-idempotency-retention-seconds"] == 86400
        for status in ("400", "409", "413", "422", "503"):
            assert "application/problem+json" in operation["responses"][status]["content"]
        assert (await shop.client.get("/docs")).status_code == 200
        assert "/v1/inner/orders/{name}" in schema["paths"]


async def test_a_missing_table_stops_the_start_and_says_what_to_run(postgres_url: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(postgres_url)
    app = FastAPI()
    samekey = SameKey(engine, caller=callers.everyone, table="no_such_table")
    samekey.install(app)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"} if not sent else {"type": "lifespan.shutdown"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    await engine.dispose()
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "samekey init" in sent[0]["message"]
