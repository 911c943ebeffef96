"""Rows about the answer and its replay, on the header lines and messages that are really sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from samekey import Operation, SameKey
from tests.server.shop import add, commit, open_shop
from tests.server.wire import Wire

Place = tuple[str, bool]
MARKS = (b"idempotent-replayed", b"idempotency-key-expires", b"access-control-expose-headers")
log: list[str] = []


def routes(app: FastAPI, samekey: SameKey) -> None:
    @app.post("/orders", status_code=201)
    async def create(response: Response, db: Any = Depends(samekey.session)) -> dict[str, int]:
        for name, value in (
            ("X-Name", "Zo\xeb"),
            ("Set-Cookie", "a=1; Expires=Wed, 02 Dec 2026 00:00:00 GMT"),
            ("Set-Cookie", "b=2"),
            ("Link", "</a,b>; rel=next"),
            ("Link", "</c>; rel=prev"),
            ("Retry-After", "3"),
            ("Connection", "X-Hop"),
            ("X-Hop", "1"),
            ("Access-Control-Allow-Origin", "https://a.example"),
            ("X-Last", ""),
        ):
            response.headers.append(name, value)
        made = {"id": await add(db, "1")}
        await commit(db)
        return made

    @app.post("/text")
    async def text(operation: Operation = Depends(samekey)) -> Response:
        return PlainTextResponse("done " * 100)

    @app.post("/deleted", status_code=204)
    async def deleted(tasks: BackgroundTasks, db: Any = Depends(samekey.session)) -> None:
        await add(db, "1")
        tasks.add_task(log.append, "task")

    @app.post("/after", status_code=202)
    async def after(
        tasks: BackgroundTasks, operation: Operation = Depends(samekey), db: Any = Depends(samekey.session)
    ) -> str:
        async def later() -> None:
            await asyncio.sleep(0)
            log.append("after commit")

        await add(db, "1")
        operation.after_commit(later)
        tasks.add_task(log.append, "task")
        log.append("handler")
        return "ok"

    @app.post("/pieces")
    async def pieces(operation: Operation = Depends(samekey)) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for part in (b"a", b"", b"bc", b"\x00\xff"):
                yield part

        return StreamingResponse(parts(), headers={"X-Kind": "pieces"})


async def test_the_first_answer_passes_untouched_pp_12(everywhere: Place) -> None:
    """PP-12: every line of the application's, in order and as written, and two marks of ours after them."""
    async with open_shop(*everywhere, routes) as shop:
        keyless, first = [await Wire(key=key).through(shop.app) for key in (None, b"k")]
        own = [pair for pair in first.answered if pair[0] not in MARKS]
        assert own == keyless.answered
        assert [name for name, _ in first.answered[len(own) :]] == [*MARKS[1:]]
        assert first.values(b"access-control-expose-headers") == [b"Idempotency-Key-Expires"]


async def test_the_replayed_lines_are_exactly_these_bl_39_bl_40_bl_41_pp_11(everywhere: Place) -> None:
    async with open_shop(*everywhere, routes) as shop:
        first, again = [await Wire().through(shop.app) for _ in range(2)]
        expires = first.values(b"idempotency-key-expires")
        assert again.answered == [
            (b"content-type", b"application/json"),
            (b"x-name", b"Zo\xeb"),
            (b"link", b"</a,b>; rel=next"),
            (b"link", b"</c>; rel=prev"),
            (b"x-last", b""),
            (b"content-length", b"%d" % len(first.content)),
            (b"idempotent-replayed", b"true"),
            (b"idempotency-key-expires", expires[0]),
            (b"access-control-expose-headers", b"Idempotent-Replayed, Idempotency-Key-Expires"),
        ]
        assert again.content == first.content


async def test_the_expiry_that_is_told_is_the_one_that_is_stored(everywhere: Place) -> None:
    async with open_shop(*everywhere, routes, retention_seconds=7200.0) as shop:
        first = await Wire().through(shop.app)
        told = parsedate_to_datetime(first.values(b"idempotency-key-expires")[0].decode())
        if everywhere[0].startswith("sqlite"):
            ((stored,),) = shop.rows("SELECT expires_at / 1000000 FROM idempotency_keys")
        else:
            ((stored,),) = shop.rows("SELECT floor(extract(epoch FROM expires_at)) FROM idempotency_keys")
        assert told == datetime.fromtimestamp(int(stored), told.tzinfo)


@pytest.mark.parametrize("order", ["gzip outside", "cors outside"])
async def test_with_gzip_and_cors_around_it_bl_38_bl_47(order: str, on_sqlite: Place) -> None:
    """BL-38, BL-47: encoded and granted for whoever asks now, whatever was asked first."""
    async with open_shop(*on_sqlite, routes) as shop:
        added: list[tuple[Any, dict[str, Any]]] = [
            (CORSMiddleware, {"allow_origins": ["https://a.example", "https://b.example"]}),
            (GZipMiddleware, {"minimum_size": 10}),
        ]
        for middleware, options in added if order == "gzip outside" else reversed(added):
            shop.app.add_middleware(middleware, **options)
        plain = await shop.post("/text", headers={"Accept-Encoding": "identity"})
        zipped = await shop.post("/text", headers={"Accept-Encoding": "gzip", "Origin": "https://b.example"})
        again = await shop.post("/text", headers={"Accept-Encoding": "identity"})
        assert plain.content == zipped.content == again.content == b"done " * 100
        assert zipped.headers["content-encoding"] == "gzip"
        assert zipped.headers["idempotent-replayed"] == "true"
        assert zipped.headers["access-control-allow-origin"] == "https://b.example"
        assert zipped.headers["content-type"] == "text/plain; charset=utf-8"
        assert ("content-encoding" in again.headers, again.headers["content-length"]) == (False, "500")


async def test_an_answer_without_a_body_has_no_length_bl_43(everywhere: Place) -> None:
    log.clear()
    async with open_shop(*everywhere, routes) as shop:
        first, again = [await Wire("/deleted").through(shop.app) for _ in range(2)]
        assert (first.status, again.status, again.content) == (204, 204, b"")
        assert again.values(b"content-length") == []
        assert (log, shop.orders()) == (["task"], 1)


async def test_what_runs_after_the_commit_sees_it_and_runs_once_bl_43(everywhere: Place) -> None:
    """BL-43: after_commit first, then the answer, then background tasks; never on a replay."""
    log.clear()
    async with open_shop(*everywhere, routes) as shop:

        async def note(message: Any) -> None:
            if message["type"] == "http.response.start":
                log.append(f"start, {shop.orders()} order")

        for _ in range(2):
            await Wire("/after", on_message=note).through(shop.app)
        assert log == ["handler", "after commit", "start, 1 order", "task", "start, 1 order"]


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
async def test_a_stream_of_pieces_comes_back_whole_bl_42_pp_02(spec: str, everywhere: Place) -> None:
    """BL-42, PP-02: held until it is whole, whichever way the framework watches for a disconnect."""
    async with open_shop(*everywhere, routes) as shop:
        first, again = [await Wire("/pieces", spec=spec).through(shop.app) for _ in range(2)]
        assert (first.content, again.content) == (b"abc\x00\xff", b"abc\x00\xff")
        assert (first.values(b"content-length"), again.values(b"content-length")) == ([], [b"5"])
        assert again.values(b"x-kind") == [b"pieces"]


async def test_early_hints_pass_at_once_and_are_not_replayed(on_sqlite: Place) -> None:
    """They come before the answer, so they are none."""
    hint = {"type": "http.response.early_hint", "links": [b"</style.css>; rel=preload"]}

    class Hinting(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send(hint)
            await super().__call__(scope, receive, send)

    def hinting(app: FastAPI, samekey: SameKey) -> None:
        @app.post("/orders")
        async def create(operation: Operation = Depends(samekey)) -> Response:
            return Hinting(b"done")

    async with open_shop(*on_sqlite, hinting) as shop:
        first, again = [await Wire().through(shop.app) for _ in range(2)]
        assert first.sent[0] == hint
        assert [message["type"] for message in again.sent] == ["http.response.start", "http.response.body"]
        assert again.content == b"done"


async def test_a_marker_of_the_applications_own_is_not_believed(on_sqlite: Place) -> None:
    """A handler that proxies another service's replay does not make its own first answer one."""

    def proxying(app: FastAPI, samekey: SameKey) -> None:
        @app.post("/orders")
        async def create(response: Response, operation: Operation = Depends(samekey)) -> str:
            response.headers["X-Replayed"] = "false"
            return "ok"

    async with open_shop(*on_sqlite, proxying, marker="X-Replayed") as shop:
        first, again = [await Wire().through(shop.app) for _ in range(2)]
        assert (first.values(b"x-replayed"), again.values(b"x-replayed")) == ([b"false"], [b"true"])
