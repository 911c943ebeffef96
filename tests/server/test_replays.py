"""Rows of the behaviour table about the answer and its replay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fastapi import BackgroundTasks, Depends, FastAPI, Response
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from samekey import Operation, SameKey
from tests.server.shop import add, commit, open_shop

Place = tuple[str, bool]
THIS_FILE_BYTES = Path(__file__).stat().st_size
ALL_BYTES = bytes(range(256)) * 8
ran: list[str] = []


def routes(app: FastAPI, samekey: SameKey) -> None:
    @app.post("/orders", status_code=201)
    async def create(response: Response, db: Any = Depends(samekey.session)) -> dict[str, int]:
        order = await add(db, "1")
        await commit(db)
        response.headers["Location"] = f"/orders/{order}"
        for name, value in [
            ("ETag", '"v1"'),
            ("Date", "Tue, 01 Dec 2026 00:00:00 GMT"),
            ("X-Request-Id", "r-1"),
            ("RateLimit-Remaining", "9"),
            ("Content-Disposition", 'attachment; filename="a,b.txt"'),
        ]:
            response.headers[name] = value
        response.headers.append("Link", "</a>; rel=next")
        response.headers.append("Link", "</b>; rel=prev")
        response.set_cookie("session", "s3cret-1")
        response.set_cookie("theme", "dark")
        return {"id": order}

    @app.post("/status/{status}")
    async def status(status: int, operation: Operation = Depends(samekey)) -> Response:
        return Response(b"" if status in (204, 304) else b"body", status)

    @app.post("/json/{kind}")
    async def empty(kind: str, operation: Operation = Depends(samekey)) -> Any:
        return {"object": {}, "array": [], "string": "", "zero": 0, "false": False, "null": None}[kind]

    @app.post("/bytes")
    async def binary(operation: Operation = Depends(samekey)) -> Response:
        return Response(ALL_BYTES, media_type="application/vnd.shop+octets")

    @app.post("/redirect")
    async def redirect(operation: Operation = Depends(samekey)) -> Response:
        return RedirectResponse("/orders/1", 303)

    @app.post("/html")
    async def html(operation: Operation = Depends(samekey)) -> Response:
        return HTMLResponse("<p>done</p>")

    @app.post("/file")
    async def file(operation: Operation = Depends(samekey)) -> Response:
        return FileResponse(Path(__file__))

    @app.post("/background", status_code=202)
    async def background(
        tasks: BackgroundTasks, fail: bool = False, db: Any = Depends(samekey.session)
    ) -> str:
        await add(db, "1")
        await commit(db)
        tasks.add_task(ran.append, "ran")
        if fail:
            raise RuntimeError
        return "ok"


async def test_the_duplicate_gets_status_bytes_and_kept_headers_bl_39_bl_40_bl_41(everywhere: Place) -> None:
    """BL-39, BL-40, BL-41: pairs in order, repeated lines unsplit, what belongs to one exchange left out."""
    async with open_shop(*everywhere, routes) as shop:
        first, again = await shop.post(), await shop.post()
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["idempotent-replayed"] == "true"
        for name in ("location", "etag", "content-disposition", "content-type"):
            assert again.headers[name] == first.headers[name]
        assert again.headers.get_list("link") == ["</a>; rel=next", "</b>; rel=prev"]
        for name in ("date", "x-request-id", "ratelimit-remaining", "set-cookie"):
            assert name in first.headers
            assert name not in again.headers
        assert first.headers["idempotency-key-expires"] == again.headers["idempotency-key-expires"]
        assert shop.orders() == 1


async def test_cookies_reach_the_first_and_nobody_else_pp_11_pp_12_bl_74(everywhere: Place) -> None:
    """PP-11, PP-12, BL-74: the first answer is whole; no cookie is stored or replayed."""
    async with open_shop(*everywhere, routes) as shop:
        first, again = await shop.post(), await shop.post()
        assert len(first.headers.get_list("set-cookie")) == 2
        assert again.headers.get_list("set-cookie") == []
        (headers,) = shop.rows("SELECT headers FROM idempotency_keys")[0]
        assert b"s3cret" not in bytes(headers)


async def test_every_status_is_replayed_bl_44_bl_47(on_sqlite: Place) -> None:
    """BL-44, BL-47: the status of the first, marked."""
    async with open_shop(*on_sqlite, routes) as shop:
        for status in (200, 201, 202, 204, 299, 303, 304, 404, 406, 409, 422):
            first = await shop.post(f"/status/{status}", key=f"k{status}")
            again = await shop.post(f"/status/{status}", key=f"k{status}")
            assert (again.status_code, again.content) == (first.status_code, first.content)
            assert again.headers["idempotent-replayed"] == "true"
            assert ("content-length" in again.headers) == (status not in (204, 304))


async def test_empty_values_and_bytes_come_back_bl_42_bl_46_bl_55(everywhere: Place) -> None:
    """BL-42, BL-46, BL-55: what was answered, to the byte."""
    async with open_shop(*everywhere, routes) as shop:
        for kind in ("object", "array", "string", "zero", "false", "null"):
            first, again = [await shop.post(f"/json/{kind}", key=kind) for _ in range(2)]
            assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")
        first, again = [await shop.post("/bytes", key="bytes") for _ in range(2)]
        assert again.content == ALL_BYTES
        assert again.headers["content-type"] == "application/vnd.shop+octets"


async def test_a_replay_does_not_negotiate_again_bl_45(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        await shop.post("/bytes")
        again = await shop.post("/bytes", headers={"Accept": "text/plain"})
        assert (again.status_code, again.headers["content-type"]) == (200, "application/vnd.shop+octets")


async def test_redirect_html_and_file(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        for path, status in (("/redirect", 303), ("/html", 200), ("/file", 200)):
            first, again = [await shop.post(path, key=path.strip("/")) for _ in range(2)]
            assert (again.status_code, again.content) == (status, first.content)
            assert again.headers["idempotent-replayed"] == "true"
        assert (await shop.post("/redirect", key="redirect")).headers["location"] == "/orders/1"
        assert len((await shop.post("/file", key="file")).content) == THIS_FILE_BYTES


async def test_zero_copy_sends_are_switched_off(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        sent: list[Any] = []
        messages = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            return messages.pop(0) if messages else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/file",
            "raw_path": b"/file",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"x-account", b"acme"), (b"idempotency-key", b"k")],
            "extensions": {"http.response.pathsend": {}, "http.response.debug": {}},
        }
        await shop.app(scope, receive, send)
        assert {message["type"] for message in sent} == {"http.response.start", "http.response.body"}
        assert shop.rows("SELECT length(body) FROM idempotency_keys") == [(THIS_FILE_BYTES,)]


async def test_the_answer_is_recorded_before_content_coding_bl_38(on_sqlite: Place) -> None:
    """BL-38: a client that does not offer gzip gets none, whatever the first one offered."""
    async with open_shop(*on_sqlite, routes) as shop:
        shop.app.add_middleware(GZipMiddleware, minimum_size=10)
        zipped = await shop.post("/bytes", headers={"Accept-Encoding": "gzip"})
        plain = await shop.post("/bytes", headers={"Accept-Encoding": "identity"})
        assert (zipped.headers["content-encoding"], "content-encoding" in plain.headers) == ("gzip", False)
        assert zipped.content == plain.content == ALL_BYTES
        assert plain.headers["content-length"] == str(len(ALL_BYTES))


async def test_the_marks_are_exposed_to_browsers_and_cors_is_of_the_moment_bl_47(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes) as shop:
        shop.app.add_middleware(CORSMiddleware, allow_origins=["https://a.example", "https://b.example"])
        await shop.post(headers={"Origin": "https://a.example"})
        again = await shop.post(headers={"Origin": "https://b.example"})
        assert again.headers["access-control-allow-origin"] == "https://b.example"
        assert "Idempotent-Replayed" in again.headers["access-control-expose-headers"]


async def test_background_tasks_run_once_after_the_commit_bl_43(everywhere: Place) -> None:
    """BL-43: on the first call, never on a replay, never after a rollback."""
    ran.clear()
    async with open_shop(*everywhere, routes) as shop:
        await shop.post("/background")
        again = await shop.post("/background")
        assert (again.status_code, again.json(), ran) == (202, "ok", ["ran"])
        assert (await shop.post("/background?fail=1", key="other")).status_code == 500
        assert ran == ["ran"]


async def test_another_marker(on_sqlite: Place) -> None:
    async with open_shop(*on_sqlite, routes, marker="X-Replayed") as shop:
        await shop.post()
        assert (await shop.post()).headers["x-replayed"] == "true"
