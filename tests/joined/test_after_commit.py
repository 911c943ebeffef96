"""What runs after the commit: once, after the real one, never after a rollback or on a replay."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import BackgroundTasks, Depends
from fastapi.responses import JSONResponse
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from samekey import Operation
from samekey.errors import ClaimLost
from tests.joined.shop import Place, Shop, add, open_shop, outcome

Called = list[tuple[str, list[str]]]
Note = Callable[[str], None]


def noting(place: Place) -> tuple[Called, Note]:
    """Who was called, and the orders that another connection saw then."""
    called: Called = []

    def note(name: str) -> None:
        called.append((name, place.rows("SELECT cart FROM orders")))

    return called, note


async def test_a_function_is_called_once_after_the_real_commit(place: Place) -> None:
    called, note = noting(place)

    def handler(db: Session, op: Operation) -> None:
        op.after_commit(lambda: note("first"))
        add(db)
        db.commit()
        assert called == []
        op.after_commit(lambda: note("second"))

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert called == [("first", ["a"]), ("second", ["a"])]
        assert outcome(await shop.post()) == (201, "replay")
        assert len(called) == 2


async def test_an_async_function_is_awaited(place: Place) -> None:
    called, note = noting(place)

    async def after() -> None:
        note("async")

    def handler(db: Session, op: Operation) -> None:
        add(db)
        op.after_commit(after)

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert called == [("async", ["a"])]


def _raise(db: Session, op: Operation) -> None:
    raise RuntimeError("failed")


def _unavailable(db: Session, op: Operation) -> JSONResponse:
    return JSONResponse({}, 503)


def _not_kept(db: Session, op: Operation) -> None:
    op.do_not_keep()


FAILURES: dict[str, Callable[[Session, Operation], Any]] = {
    "exception": _raise,
    "503": _unavailable,
    "not-kept": _not_kept,
}


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
async def test_nothing_is_called_after_a_rollback(
    fail: Callable[[Session, Operation], Any], place: Place
) -> None:
    called, note = noting(place)

    def handler(db: Session, op: Operation) -> Any:
        event.listen(db, "after_commit", lambda _: note("listener"))
        op.after_commit(lambda: note("function"))
        add(db)
        db.commit()
        return fail(db, op)

    async with open_shop(place, handler) as shop:
        await shop.post()
        assert (shop.orders, shop.records, called) == ([], [], [])


async def test_without_a_key_it_is_called_too(place: Place) -> None:
    called, note = noting(place)

    def handler(db: Session, op: Operation) -> None:
        event.listen(db, "after_commit", lambda _: note("listener"))
        op.after_commit(lambda: note("function"))
        add(db)
        db.commit()

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post(None)) == (201, None)
        assert called == [("listener", ["a"]), ("function", ["a"])]


async def test_it_is_called_with_a_kept_4xx(place: Place) -> None:
    """The answer and what the application committed stand, so what follows the commit does too."""
    called, note = noting(place)

    def handler(db: Session, op: Operation) -> JSONResponse:
        op.after_commit(lambda: note("function"))
        add(db)
        db.commit()
        return JSONResponse({}, 402)

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (402, None)
        assert called == [("function", ["a"])]


async def test_after_the_end_it_is_refused(place: Place) -> None:
    kept: list[Operation] = []
    async with open_shop(place, lambda db, op: kept.append(op)) as shop:
        assert outcome(await shop.post()) == (201, None)
        with pytest.raises(ClaimLost):
            kept[0].after_commit(lambda: None)


# SQLAlchemy's own event ----------------------------------------------------------------------------


async def test_listeners_of_one_session_are_called_once_after_the_real_commit(place: Place) -> None:
    called, note = noting(place)

    def handler(db: Session, op: Operation) -> None:
        event.listen(db, "after_commit", lambda _: note("instance"))
        for cart in ("a", "b"):
            add(db, cart)
            db.commit()
            assert called == []

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert called == [("instance", ["a", "b"])]
        assert outcome(await shop.post()) == (201, "replay")
        assert len(called) == 1


async def test_listeners_of_a_class_are_called_once_after_the_real_commit(place: Place) -> None:
    called, note = noting(place)

    def listener(session: Session) -> None:
        note("class")

    async with open_shop(place) as shop:
        await shop.samekey.start()
        event.listen(Session, "after_commit", listener)
        try:
            assert outcome(await shop.post()) == (201, None)
            assert outcome(await shop.post()) == (201, "replay")
        finally:
            event.remove(Session, "after_commit", listener)
        assert called == [("class", ["a"])]


async def test_listeners_of_a_sessionmaker_are_called_once_after_the_real_commit(place: Place) -> None:
    called, note = noting(place)

    class ShopSession(Session):
        pass

    sessions: Any = (
        sessionmaker(class_=ShopSession)
        if place.sync
        else async_sessionmaker(sync_session_class=ShopSession, expire_on_commit=False)
    )
    async with open_shop(place, sessions=sessions) as shop:
        await shop.samekey.start()
        event.listen(sessions if place.sync else ShopSession, "after_commit", lambda _: note("sessions"))
        assert outcome(await shop.post()) == (201, None)
        assert outcome(await shop.post()) == (201, "replay")
        assert called == [("sessions", ["a"])]


async def test_a_listener_is_not_called_where_the_session_committed_nothing(place: Place) -> None:
    called, note = noting(place)

    def handler(db: Session, op: Operation) -> JSONResponse:
        event.listen(db, "after_commit", lambda _: note("listener"))
        add(db)
        return JSONResponse({}, 402)

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (402, None)
        assert called == []


async def test_other_events_of_the_session_come_as_ever(place: Place) -> None:
    called: list[str] = []

    def handler(db: Session, op: Operation) -> None:
        event.listen(db, "before_commit", lambda _: called.append("before_commit"))
        event.listen(db, "after_flush", lambda *_: called.append("after_flush"))
        event.listen(db, "after_rollback", lambda _: called.append("after_rollback"))
        add(db)
        db.commit()
        add(db)
        db.rollback()

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert called == ["after_flush", "before_commit", "after_flush", "after_rollback"]


async def test_one_that_raises_changes_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    called, note = noting(place)

    def fail(*_: Any) -> None:
        raise RuntimeError("mail server")

    async def fail_async() -> None:
        raise RuntimeError("mail server")

    def handler(db: Session, op: Operation) -> dict[str, str]:
        event.listen(db, "after_commit", fail)
        op.after_commit(fail)
        op.after_commit(fail_async)
        op.after_commit(lambda: note("last"))
        add(db)
        db.commit()
        return {"id": "1"}

    async with open_shop(place, handler) as shop:
        with caplog.at_level(logging.ERROR, "samekey"):
            first = await shop.post()
        assert (outcome(first), first.json()) == ((201, None), {"id": "1"})
        assert [record.levelname for record in caplog.records if record.name == "samekey"] == ["ERROR"] * 3
        assert called == [("last", ["a"])]
        again = await shop.post()
        assert (outcome(again), again.content) == ((201, "replay"), first.content)
        assert (shop.orders, shop.records) == (["a"], ["completed"])


# Background tasks ----------------------------------------------------------------------------------


async def test_background_tasks_run_once_after_the_real_commit(place: Place) -> None:
    called, note = noting(place)
    async with open_shop(place) as shop:
        _serve_with_background(shop, note)
        assert outcome(await shop.post(path="/background")) == (201, None)
        assert outcome(await shop.post(path="/background")) == (201, "replay")
        assert called == [("background", ["a"])]


def _serve_with_background(shop: Shop, note: Note) -> None:
    if shop.place.sync:

        @shop.app.post("/background", status_code=201)
        def handler(tasks: BackgroundTasks, db: Session = Depends(shop.samekey.session)) -> None:
            add(db)
            tasks.add_task(note, "background")

    else:

        @shop.app.post("/background", status_code=201)
        async def async_handler(
            tasks: BackgroundTasks, db: AsyncSession = Depends(shop.samekey.session)
        ) -> None:
            await db.run_sync(add)
            tasks.add_task(note, "background")
