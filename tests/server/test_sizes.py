"""Rows of the behaviour table about size, streams and hostile bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

from samekey import Operation, SameKey
from tests.server.shop import Shop, add, commit, open_shop

Place = tuple[str, bool]
MIB = 1024 * 1024


async def chunks(number: int, pause: float = 0.0) -> AsyncIterator[bytes]:
    for index in range(number):
        yield b"chunk %d\n" % index
        await asyncio.sleep(pause)


def routes(app: FastAPI, samekey: SameKey) -> None:
    @app.post("/big", status_code=201)
    async def big(mib: int = 5, db: Any = Depends(samekey.session)) -> PlainTextResponse:
        await add(db, "big")
        await commit(db)
        return PlainTextResponse("x" * (mib * MIB), 201, {"Location": "/orders/1"})

    @app.post("/stream", status_code=201)
    async def stream(
        number: int = 5, pause: float = 0.0, db: Any = Depends(samekey.session)
    ) -> StreamingResponse:
        await add(db, "stream")
        return StreamingResponse(chunks(number, pause), 201, {"Location": "/orders/2"})

    @app.post("/raw", status_code=201)
    async def raw(request: Request, operation: Operation = Depends(samekey)) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    @app.post("/any", status_code=201)
    async def anything(body: dict[str, Any], operation: Operation = Depends(samekey)) -> dict[str, int]:
        return {"members": len(body)}

    @app.post("/open", status_code=201)
    async def unprotected(request: Request) -> dict[str, int]:
        total = 0
        async for chunk in request.stream():
            total += len(chunk)
        return {"bytes": total}

    @app.get("/events")
    async def events() -> StreamingResponse:
        return StreamingResponse(chunks(5, 0.001), media_type="text/event-stream")


@pytest.mark.parametrize("path", ["/big", "/stream?number=100&pause=0.001"])
async def test_an_answer_that_is_not_kept_is_sent_and_not_repeated_bl_57_pp_04_pp_18(
    path: str, everywhere: Place
) -> None:
    """BL-57, PP-04, PP-18: over the limit, or over hold_seconds: done, sent whole, not run again."""
    async with open_shop(*everywhere, routes, hold_seconds=0.02) as shop:
        first = await shop.post(path)
        assert first.status_code == 201
        assert len(first.content) == (
            5 * MIB if path == "/big" else sum(len(b"chunk %d\n" % i) for i in range(100))
        )
        again = await shop.post(path)
        assert (again.status_code, again.json()["code"]) == (409, "answer-not-kept")
        assert again.headers["location"] == first.headers["location"]
        assert (shop.orders(), shop.records()) == (1, 1)


async def test_a_short_stream_is_replayed(everywhere: Place) -> None:
    async with open_shop(*everywhere, routes) as shop:
        first, again = await shop.post("/stream"), await shop.post("/stream")
        assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")
        assert shop.orders() == 1
        keyless = await shop.post("/stream", key=None)
        assert (keyless.content, shop.orders()) == (first.content, 2)


async def test_an_endless_stream_settles_and_its_client_may_go(everywhere: Place) -> None:
    async with open_shop(*everywhere, routes, hold_seconds=0.02) as shop:
        gone = asyncio.Event()
        got: list[Any] = []
        sent = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            if sent:
                return sent.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            got.append(message)
            if len(got) == 5:
                gone.set()

        await asyncio.wait_for(shop.app(scope("/stream", b"number=1000000&pause=0.001"), receive, send), 10)
        assert (got[0]["status"], shop.orders()) == (201, 1)
        retried = await shop.post("/stream?number=1000000&pause=0.001", content=b"")
        assert (retried.status_code, retried.json()["code"]) == (409, "answer-not-kept")


def scope(
    path: str, query: bytes = b"", spec: str = "2.3", method: str = "POST", key: bytes | None = b"k"
) -> Any:
    keys = [] if key is None else [(b"idempotency-key", key)]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": spec},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query,
        "headers": [(b"x-account", b"acme"), *keys],
    }


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
@pytest.mark.parametrize("path", ["/events", "/open"])
async def test_what_is_not_protected_is_not_touched_pp_02(
    path: str, spec: str, on_sqlite: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PP-02: the server's own ``receive`` reaches the router and no exchange is made, key or no key."""
    async with open_shop(*on_sqlite, routes) as shop:
        monkeypatch.setattr("samekey.server.fastapi.Exchange", None)  # whoever makes one fails
        seen: list[Any] = []
        router = shop.app.router
        routed = router.middleware_stack

        async def spy(scope: Any, receive: Any, send: Any) -> None:
            seen.append(receive)
            await routed(scope, receive, send)

        router.middleware_stack = spy
        got: list[Any] = []
        body = [{"type": "http.request", "body": b"x", "more_body": False}]

        async def receive() -> Any:
            return body.pop() if body else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            got.append(message)

        method = "GET" if path == "/events" else "POST"
        for key in (b"k", None):
            body[:] = [{"type": "http.request", "body": b"x", "more_body": False}]
            seen.clear()
            await shop.app(scope(path, spec=spec, method=method, key=key), receive, send)
            assert seen == [receive]
        texts = b"".join(message.get("body", b"") for message in got)
        assert texts.count(b"chunk 4") == (2 if path == "/events" else 0)


async def uploaded(shop: Shop, path: str, mib: int, declared: bool) -> tuple[int, int]:
    """Status, and how many MiB were asked for, of an upload in MiB messages."""
    asked = 0

    async def receive() -> Any:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": b"x" * MIB, "more_body": asked < mib}

    statuses = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    upload = scope(path)
    if declared:
        upload["headers"].append((b"content-length", str(mib * MIB).encode()))
    await shop.app(upload, receive, send)
    return statuses[0], asked


@pytest.mark.parametrize(("declared", "asked_max"), [(True, 0), (False, 10)])
async def test_a_request_over_the_limit_is_refused_in_bounded_memory(
    declared: bool, asked_max: int, on_sqlite: Place
) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        status, asked = await uploaded(shop, "/raw", 50, declared)
        assert (status, asked <= asked_max, shop.records()) == (413, True, 0)
        assert (await uploaded(shop, "/open", 50, declared))[0] == 201


HOSTILE = {
    "nul": b'{"a": "\\u0000"}',
    "surrogate": b'{"a": "\\ud800"}',
    "utf8": b'{"a": "\xff\xfe"}',
    "nan": b'{"a": NaN}',
    "exponent": b'{"a": 1e999999999}',
    "brackets": b"[" * 100_000 + b"]" * 100_000,
    "open brackets": b"[" * 20_000,
    "twice": b'{"a": 1, "a": 900}',
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_bytes_get_an_answer_and_never_an_error_of_ours_pp_05_pp_06(
    name: str, everywhere: Place
) -> None:
    """PP-05, PP-06: the handler decides; a bare application is the measure."""
    async with open_shop(*everywhere, routes) as shop:
        headers = {"Content-Type": "application/json"}
        first = await shop.post("/raw", content=HOSTILE[name], headers=headers)
        again = await shop.post("/raw", content=HOSTILE[name], headers=headers)
        assert (first.status_code, again.headers["idempotent-replayed"]) == (201, "true")
        assert (await shop.post("/raw", content=b'{"a": 1}', headers=headers)).status_code == 422
        bare = FastAPI()

        @bare.post("/any", status_code=201)
        async def anything(body: dict[str, Any]) -> dict[str, int]:
            return {"members": len(body)}

        transport = httpx.ASGITransport(bare, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://bare") as client:
            expected = (await client.post("/any", content=HOSTILE[name], headers=headers)).status_code
        assert (
            await shop.post("/any", key="any", content=HOSTILE[name], headers=headers)
        ).status_code == expected
