"""What the answer does with the session's open work, and that nothing uses the session afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from fastapi import BackgroundTasks, Depends, HTTPException
from fastapi.responses import JSONResponse, StreamingResponse
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from samekey import Operation
from samekey.errors import SessionSettled
from tests.joined.shop import Order, Place, Shop, add, on, open_shop, outcome


async def test_what_was_flushed_is_kept_with_a_2xx(place: Place) -> None:
    async with open_shop(place, lambda db, op: add(db)) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert (shop.orders, shop.records) == (["a"], ["completed"])


async def test_what_is_only_pending_is_kept_with_a_2xx(place: Place) -> None:
    async with open_shop(place, lambda db, op: db.add(Order(cart="pending"))) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert (shop.orders, shop.records) == (["pending"], ["completed"])


async def test_what_was_changed_is_kept_with_a_2xx(place: Place) -> None:
    def handler(db: Session, op: Operation) -> None:
        order = Order(cart="a")
        db.add(order)
        db.commit()
        order.cart = "b"

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert shop.orders == ["b"]


async def test_what_was_rolled_back_stays_rolled_back(place: Place) -> None:
    def handler(db: Session, op: Operation) -> None:
        add(db, "kept")
        db.commit()
        add(db, "undone")
        db.rollback()
        add(db, "flushed")

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert (shop.orders, shop.records) == (["kept", "flushed"], ["completed"])


async def test_a_rollback_never_reaches_the_claim(place: Place) -> None:
    def handler(db: Session, op: Operation) -> None:
        add(db)
        db.rollback()
        db.rollback()

    async with open_shop(place, handler) as shop:
        first = await shop.post()
        again = await shop.post()
        assert (outcome(first), outcome(again)) == ((201, None), (201, "replay"))
        assert (shop.orders, shop.records) == ([], ["completed"])


@pytest.mark.parametrize("raised", [True, False], ids=["raised", "returned"])
async def test_uncommitted_work_is_undone_with_a_4xx(raised: bool, place: Place) -> None:
    def handler(db: Session, op: Operation) -> Any:
        add(db, "committed")
        db.commit()
        add(db, "flushed")
        db.add(Order(cart="pending"))
        if raised:
            raise HTTPException(402, "no money")
        return JSONResponse({"detail": "no money"}, 402)

    async with open_shop(place, handler) as shop:
        first, again = await shop.post(), await shop.post()
        assert (outcome(first), outcome(again)) == ((402, None), (402, "replay"))
        assert again.content == first.content
        assert (shop.orders, shop.records) == (["committed"], ["completed"])


async def test_a_raised_4xx_that_rolls_back_undoes_everything(place: Place) -> None:
    def handler(db: Session, op: Operation) -> Any:
        add(db, "committed")
        db.commit()
        raise HTTPException(402, "no money")

    async with open_shop(place, handler, raised_4xx="roll back") as shop:
        assert outcome(await shop.post()) == (402, None)
        assert (shop.orders, shop.records) == ([], [])


async def test_nested_transactions_and_two_commits(place: Place) -> None:
    def handler(db: Session, op: Operation) -> None:
        with db.begin_nested():
            add(db, "nested")
        db.commit()
        with suppress(LookupError), db.begin_nested():
            add(db, "undone")
            raise LookupError
        nested = db.begin_nested()
        add(db, "also undone")
        nested.rollback()
        add(db, "second")
        db.commit()

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert (shop.orders, shop.records) == (["nested", "second"], ["completed"])


async def test_a_nested_transaction_left_open_is_kept_with_a_2xx(place: Place) -> None:
    def handler(db: Session, op: Operation) -> None:
        db.begin_nested()
        add(db, "nested")

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert shop.orders == ["nested"]


async def test_a_closed_session_keeps_what_it_committed(place: Place) -> None:
    """``with session:`` in the handler closes it early: committed work stays, flushed work does not."""

    def handler(db: Session, op: Operation) -> None:
        with db:
            add(db, "committed")
            db.commit()
            add(db, "flushed")

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert (shop.orders, shop.records) == (["committed"], ["completed"])


async def test_a_flush_that_is_refused_at_the_end_is_the_handlers_failure(place: Place) -> None:
    async with open_shop(place, lambda db, op: db.add(Order(cart=None))) as shop:
        assert outcome(await shop.post()) == (500, None)
        assert (shop.orders, shop.records) == ([], [])


# After the end ------------------------------------------------------------------------------------


def _pending_flush(db: Session) -> None:
    db.add(Order(cart="late"))
    db.flush()


def _pending_commit(db: Session) -> None:
    db.add(Order(cart="late"))
    db.commit()


USES: dict[str, Callable[[Session], Any]] = {
    "execute": lambda db: db.execute(text("INSERT INTO orders (cart) VALUES ('late')")),
    "select": lambda db: db.scalars(select(Order)).all(),
    "get": lambda db: db.get(Order, 1),
    "connection": lambda db: db.connection(),
    "flush": _pending_flush,
    "commit": _pending_commit,
}


@pytest.mark.parametrize("key", ["k", None], ids=["keyed", "no-key"])
async def test_the_session_in_a_background_task_is_settled(key: str | None, place: Place) -> None:
    raised: dict[str, Exception] = {}

    def late(db: Session) -> None:
        for name, use in USES.items():
            try:
                use(db)
            except Exception as error:  # noqa: BLE001 - what is raised is what is asked
                raised[name] = error
                db.rollback()  # as an application would; a failed commit asks for it

    async with open_shop(place) as shop:
        _serve_background(shop, late)
        assert outcome(await shop.post(key, "/background")) == (201, None)
        assert {name: type(error) for name, error in raised.items()} == dict.fromkeys(USES, SessionSettled)
        assert "background task" in str(raised["execute"])
        assert shop.orders == ["a"]


def _serve_background(shop: Shop, late: Callable[[Session], None]) -> None:
    if shop.place.sync:

        @shop.app.post("/background", status_code=201)
        def handler(tasks: BackgroundTasks, db: Session = Depends(shop.samekey.session)) -> None:
            add(db)
            db.commit()
            tasks.add_task(late, db)

    else:

        @shop.app.post("/background", status_code=201)
        async def async_handler(
            tasks: BackgroundTasks, db: AsyncSession = Depends(shop.samekey.session)
        ) -> None:
            await db.run_sync(add)
            await db.commit()
            tasks.add_task(db.run_sync, late)


@on("-sync")
async def test_the_session_in_a_streaming_generator_is_settled(place: Place) -> None:
    raised: list[BaseException] = []
    async with open_shop(place) as shop:

        @shop.app.post("/stream", status_code=201)
        def handler(db: Session = Depends(shop.samekey.session)) -> StreamingResponse:
            add(db)

            def lines() -> Iterator[str]:
                yield "one\n"
                try:
                    db.scalars(select(Order)).all()
                except SessionSettled as error:
                    raised.append(error)
                yield "two\n"

            return StreamingResponse(lines(), 201)

        await _stream_twice(shop, raised)


@on("async")
async def test_the_session_in_an_async_streaming_generator_is_settled(place: Place) -> None:
    raised: list[BaseException] = []
    async with open_shop(place) as shop:

        @shop.app.post("/stream", status_code=201)
        async def handler(db: AsyncSession = Depends(shop.samekey.session)) -> StreamingResponse:
            await db.run_sync(add)

            async def lines() -> AsyncIterator[str]:
                yield "one\n"
                try:
                    await db.scalars(select(Order))
                except SessionSettled as error:
                    raised.append(error)
                yield "two\n"

            return StreamingResponse(lines(), 201)

        await _stream_twice(shop, raised)


async def _stream_twice(shop: Shop, raised: list[BaseException]) -> None:
    first, again = await shop.post(path="/stream"), await shop.post(path="/stream")
    assert (outcome(first), outcome(again)) == ((201, None), (201, "replay"))
    assert (first.text, again.text) == ("one\ntwo\n", "one\ntwo\n")
    assert len(raised) == 1
    assert (shop.orders, shop.records) == (["a"], ["completed"])
