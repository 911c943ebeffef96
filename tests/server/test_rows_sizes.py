"""Rows about size and time: where a limit lies to the byte, and what the client has when it is passed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from samekey import Operation, SameKey
from tests.server.shop import add, commit, open_shop
from tests.server.wire import Wire

Place = tuple[str, bool]
KIB = 1024


class Tap:
    """A stream that gives one piece whenever the test turns it."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    async def flow(self) -> AsyncIterator[bytes]:
        while (piece := await self.pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece


def tapped(tap: Tap) -> Any:
    def routes(app: FastAPI, samekey: SameKey) -> None:
        @app.post("/stream", status_code=201)
        async def stream(db: Any = Depends(samekey.session)) -> StreamingResponse:
            await add(db, "1")
            await commit(db)
            return StreamingResponse(tap.flow(), 201, {"Location": "/orders/1", "ETag": '"v1"'})

        @app.post("/size/{size}", status_code=201)
        async def sized(size: int, operation: Operation = Depends(samekey)) -> Response:
            return Response(b"x" * size, 201)

        @app.post("/raw", status_code=201)
        async def raw(request: Request, operation: Operation = Depends(samekey)) -> dict[str, int]:
            return {"bytes": len(await request.body())}

    return routes


async def until(reached: Any) -> None:
    async with asyncio.timeout(10):
        while not reached():  # noqa: ASYNC110 - nothing here could set an event
            await asyncio.sleep(0.002)


async def test_a_stream_is_let_go_after_hold_seconds_and_committed_by_then(everywhere: Place) -> None:
    tap = Tap()
    async with open_shop(*everywhere, tapped(tap), hold_seconds=0.05) as shop:
        wire = Wire("/stream")
        running = asyncio.create_task(wire.through(shop.app))
        tap.pieces.put_nowait(b"one ")
        await until(lambda: wire.sent)  # nothing more came, and yet the start is sent
        assert (wire.status, wire.content) == (201, b"one ")
        assert (shop.orders(), shop.records(), shop.checked_out) == (1, 1, 0)
        rival = await Wire("/stream").through(shop.app)
        assert (rival.status, rival.code) == (409, "answer-not-kept")
        assert (rival.values(b"location"), rival.values(b"etag")) == ([b"/orders/1"], [])
        for piece in (b"two ", b"three", None):
            tap.pieces.put_nowait(piece)
        await running
        assert (wire.content, shop.orders()) == (b"one two three", 1)


async def test_nothing_is_sent_before_it_is_whole_or_let_go(everywhere: Place) -> None:
    tap = Tap()
    async with open_shop(*everywhere, tapped(tap)) as shop:
        wire = Wire("/stream")
        running = asyncio.create_task(wire.through(shop.app))
        for piece in (b"one ", b"two "):
            tap.pieces.put_nowait(piece)
        await until(tap.pieces.empty)
        await asyncio.sleep(0.02)
        assert (wire.sent, shop.orders()) == ([], 0)
        tap.pieces.put_nowait(None)
        await running
        assert (wire.content, shop.orders()) == (b"one two ", 1)
        assert (await Wire("/stream").through(shop.app)).content == b"one two "


async def test_a_stream_that_fails_while_it_is_held_undoes_everything(everywhere: Place) -> None:
    """The client has seen nothing yet, so it gets the failure; the key is free."""
    tap = Tap()
    async with open_shop(*everywhere, tapped(tap)) as shop:
        for piece in (b"one ", RuntimeError("half-way")):
            tap.pieces.put_nowait(piece)
        wire = Wire("/stream")
        with pytest.raises(BaseException):  # noqa: B017, PT011 - a group of it on some versions
            await wire.through(shop.app)
        assert [message.get("status") for message in wire.sent[:1]] in ([], [500])
        assert (wire.content.count(b"one"), shop.orders(), shop.records()) == (0, 0, 0)


async def test_a_stream_that_fails_after_it_was_let_go_stays_done(everywhere: Place) -> None:
    tap = Tap()
    async with open_shop(*everywhere, tapped(tap), hold_seconds=0.02) as shop:
        wire = Wire("/stream")
        running = asyncio.create_task(wire.through(shop.app))
        tap.pieces.put_nowait(b"one ")
        await until(lambda: wire.sent)
        tap.pieces.put_nowait(RuntimeError("half-way"))
        with pytest.raises(BaseException):  # noqa: B017, PT011 - a group of it on some versions
            await running
        assert (wire.status, shop.orders()) == (201, 1)
        assert (await Wire("/stream").through(shop.app)).code == "answer-not-kept"


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
@pytest.mark.parametrize("when", ["held", "let go"])
async def test_a_client_that_leaves_a_stream(spec: str, when: str, everywhere: Place) -> None:
    """Held: nobody has seen an answer and nothing was committed, so the key is free. Let go: it is done."""
    tap = Tap()
    hold_seconds = 60.0 if when == "held" else 0.02
    async with open_shop(*everywhere, tapped(tap), hold_seconds=hold_seconds) as shop:

        async def refuse_when_gone(message: Any) -> None:
            if wire.gone.is_set():
                raise OSError("the client has gone")

        wire = Wire("/stream", spec=spec, on_message=refuse_when_gone)
        running = asyncio.create_task(wire.through(shop.app))
        tap.pieces.put_nowait(b"one ")
        await until(lambda: wire.sent if when == "let go" else tap.pieces.empty())
        await asyncio.sleep(0.02)
        wire.gone.set()
        if spec == "2.4":  # there the server tells by a failing send
            tap.pieces.put_nowait(b"two ")
            tap.pieces.put_nowait(None)
        await asyncio.wait([running])
        assert isinstance(running.exception(), ClientDisconnect | None)
        assert shop.checked_out == 0
        retried = [await Wire("/stream").through(shop.app)] if when == "let go" else []
        assert [wire.code for wire in retried] == ["answer-not-kept"] * len(retried)
        done = when == "let go" or spec == "2.4"  # 2.4: it became whole, and was recorded before its sending
        assert (shop.orders(), shop.records()) == ((1, 1) if done else (0, 0))


async def test_a_client_that_left_before_its_stream_was_let_go(everywhere: Place) -> None:
    """The timer's own sending fails then: it was done all the same, and no task dies unheard."""
    tap, unheard = Tap(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    async with open_shop(*everywhere, tapped(tap), hold_seconds=0.02) as shop:

        async def refuse(message: Any) -> None:
            tries.append(message)
            raise OSError("the client has gone")

        tries: list[Any] = []
        running = asyncio.create_task(Wire("/stream", spec="2.4", on_message=refuse).through(shop.app))
        tap.pieces.put_nowait(b"one ")
        await until(lambda: tries)
        tap.pieces.put_nowait(b"two ")
        await asyncio.wait([running])
        assert isinstance(running.exception(), ClientDisconnect)
        assert (shop.orders(), shop.records()) == (1, 1)
    del running, shop
    gc.collect()
    assert unheard == []


@pytest.mark.parametrize(("size", "is_kept"), [(KIB, True), (KIB + 1, False)])
async def test_the_limit_of_an_answer_to_the_byte_bl_57(size: int, is_kept: bool, everywhere: Place) -> None:
    async with open_shop(*everywhere, tapped(Tap()), answer_bytes_max=KIB) as shop:
        first, again = [await Wire(f"/size/{size}").through(shop.app) for _ in range(2)]
        assert (first.status, len(first.content)) == (201, size)
        assert (again.status, again.content == first.content) == (201 if is_kept else 409, is_kept)


@pytest.mark.parametrize(
    ("pieces", "status"), [([KIB], 201), ([KIB + 1], 413), ([600, 424], 201), ([600, 425], 413)]
)
@pytest.mark.parametrize("declared", [True, False])
async def test_the_limit_of_a_request_to_the_byte_pp_04(
    pieces: list[int], status: int, declared: bool, on_sqlite: Place
) -> None:
    """PP-04: over the limit is refused, declared or not; without a key there is no limit of ours."""
    async with open_shop(*on_sqlite, tapped(Tap()), body_bytes_max=KIB) as shop:
        length = [(b"content-length", b"%d" % sum(pieces))] if declared else []
        chunks = [b"x" * piece for piece in pieces]
        wire = await Wire("/raw", headers=length, body=chunks).through(shop.app)
        assert (wire.status, shop.records()) == (status, 1 if status == 201 else 0)
        assert status == 201 or wire.code == "body-too-large"
        keyless = await Wire("/raw", None, headers=length, body=chunks).through(shop.app)
        assert keyless.content == b'{"bytes":%d}' % sum(pieces)


@pytest.mark.parametrize("length", [b"9" * 400, b"-1", b"1e3", b"00000000000000000000007", b"\xff"])
async def test_a_length_that_is_none_is_not_believed(length: bytes, on_sqlite: Place) -> None:
    """A server refuses most of these; whatever comes through, the bytes themselves are counted."""
    async with open_shop(*on_sqlite, tapped(Tap()), body_bytes_max=KIB) as shop:
        for body, status in ((b"x" * 7, 413 if length.startswith(b"9") else 201), (b"x" * 2 * KIB, 413)):
            wire = await Wire("/raw", headers=[(b"content-length", length)], body=[body]).through(shop.app)
            assert wire.status == status
