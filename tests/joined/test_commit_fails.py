"""A commit that is refused, or whose reply is lost: the answer, 503 and retry, or 503 and unknown."""

from __future__ import annotations

import math
import sqlite3
from typing import Any

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from samekey import Operation
from tests.joined.faults import TERMINATE_CLAIMANTS, Commit, Faults, break_connection, sqlite_error, sync_side
from tests.joined.shop import Place, Shop, add, on, open_shop, outcome

LINES = "CREATE TABLE lines (order_id INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks after a lost reply."""
    monkeypatch.setattr("samekey.engine.VERIFY_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("samekey.aengine.VERIFY_PAUSE_SECONDS", 0.0)


async def one_order_after_a_retry(shop: Shop, kind: str | None) -> None:
    """The retry runs (``kind`` None) or replays; there is one order, and one record."""
    assert outcome(await shop.post()) == (201, kind)
    assert outcome(await shop.post()) == (201, "replay")
    assert (shop.orders, shop.records) == (["a"], ["completed"])


def enforce_foreign_keys(engine: Any) -> None:
    @event.listens_for(sync_side(engine), "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA foreign_keys = ON")


@pytest.mark.parametrize("key", ["k", None], ids=["keyed", "no-key"])
async def test_a_deferred_constraint_takes_the_applications_error_path(key: str | None, place: Place) -> None:
    """A retry would not help, so it is no 503; the application may answer for its own constraint."""
    engine = place.engine(pool_size=1, max_overflow=0)
    if place.sqlite:
        enforce_foreign_keys(engine)
    wrong = [True]

    def handler(db: Session, op: Operation) -> None:
        made = add(db)
        db.execute(text("INSERT INTO lines VALUES (:order)"), {"order": -1 if wrong else made})
        db.commit()

    async with open_shop(place, handler, engine=engine) as shop:
        place.write(LINES)
        assert outcome(await shop.post(key)) == (500, None)
        assert (shop.orders, shop.records) == ([], [])

        @shop.app.exception_handler(IntegrityError)
        async def conflict(request: Request, error: IntegrityError) -> JSONResponse:
            return JSONResponse({"detail": "no such order"}, 409)

        shop.app.middleware_stack = None  # built anew, with the exception handler
        answer = await shop.post(key)
        assert (answer.status_code, answer.json()) == (409, {"detail": "no such order"})
        assert (shop.orders, shop.records) == ([], [])
        wrong.clear()
        assert outcome(await shop.post(key)) == (201, None)
        assert shop.orders == ["a"]


@on("postgresql")
async def test_a_serialisation_failure_at_the_commit_may_be_retried_bl_24(place: Place) -> None:
    """BL-24: SQLSTATE 40001 at the commit. The handler is not run again by us."""
    engine = place.engine(isolation_level="SERIALIZABLE")
    faults = Faults(engine)
    runs = []

    def handler(db: Session, op: Operation) -> None:
        runs.append(db.scalar(text("SELECT count(*) FROM orders")))
        add(db)

    def rival() -> None:
        """Read what the handler wrote to and write what it read: one of both has to fail."""
        serializable = place.outside.execution_options(isolation_level="SERIALIZABLE")
        with serializable.begin() as connection:
            connection.execute(text("SELECT count(*) FROM orders"))
            connection.execute(text("INSERT INTO orders (cart) VALUES ('rival')"))

    def fault(commit: Commit, _: Any) -> None:
        rival()
        commit()

    async with open_shop(place, handler, engine=engine) as shop:
        await shop.samekey.start()
        faults.at_commit = fault
        first = await shop.post()
        assert (outcome(first), first.json()["retryable"]) == ((503, "not-committed"), True)
        assert (runs, shop.orders, shop.records) == ([0], ["rival"], [])
        assert outcome(await shop.post()) == (201, None)
        assert (runs, shop.orders, shop.records) == ([0, 1], ["rival", "a"], ["completed"])


SQLITE_FAULTS = {
    "full": sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full"),
    "busy": sqlite_error(sqlite3.SQLITE_BUSY, "database is locked"),
    "no-memory": sqlite_error(sqlite3.SQLITE_NOMEM, "out of memory"),
    "input-output": sqlite_error(sqlite3.SQLITE_IOERR, "disk I/O error"),
}


@on("sqlite")
@pytest.mark.parametrize("error", SQLITE_FAULTS.values(), ids=SQLITE_FAULTS)
async def test_a_commit_that_sqlite_refuses_leaves_nothing_open(error: Exception, place: Place) -> None:
    """SQLite keeps the transaction open after some of these, with its write lock."""

    def fault(commit: Commit, _: Any) -> None:
        raise error

    engine = place.engine(pool_size=1, max_overflow=0)
    faults = Faults(engine)
    async with open_shop(place, engine=engine) as shop:
        await shop.samekey.start()
        faults.at_commit = fault
        assert outcome(await shop.post()) == (503, "not-committed")
        assert (shop.orders, shop.records) == ([], [])
        await one_order_after_a_retry(shop, None)


@on("sqlite")
async def test_an_input_output_error_after_sqlite_committed_is_looked_up(place: Place) -> None:
    def fault(commit: Commit, _: Any) -> None:
        commit()
        raise SQLITE_FAULTS["input-output"]

    engine = place.engine()
    faults = Faults(engine)
    async with open_shop(place, engine=engine) as shop:
        await shop.samekey.start()
        faults.at_commit = fault
        first = await shop.post()
        assert (outcome(first), shop.orders) == ((201, None), ["a"])
        assert "idempotency-key-expires" in first.headers
        await one_order_after_a_retry(shop, "replay")


# The reply is lost ---------------------------------------------------------------------------------


def lost_reply(faults: Faults, *, committed: bool, connections_left: float = math.inf) -> None:
    """Let the next commit happen or not, and break the connection before its reply."""

    def fault(commit: Commit, connection: Any) -> None:
        if committed:
            commit()
        break_connection(connection)
        faults.connections_left = connections_left
        raise faults.error("the connection was lost")

    faults.at_commit = fault


@on("postgresql")
async def test_a_lost_reply_of_a_commit_that_happened_is_answered(place: Place) -> None:
    engine = place.engine()
    faults = Faults(engine)
    called: list[str] = []

    def handler(db: Session, op: Operation) -> dict[str, str]:
        op.after_commit(lambda: called.append("after"))
        add(db)
        return {"id": "1"}

    async with open_shop(place, handler, engine=engine) as shop:
        await shop.samekey.start()
        lost_reply(faults, committed=True)
        first = await shop.post()
        assert (outcome(first), first.json()) == ((201, None), {"id": "1"})
        assert "idempotency-key-expires" in first.headers
        assert (called, faults.commits) == (["after"], 1)
        await one_order_after_a_retry(shop, "replay")


@on("postgresql")
async def test_a_connection_that_breaks_before_the_commit_leaves_nothing(place: Place) -> None:
    engine = place.engine()
    faults = Faults(engine)
    async with open_shop(place, engine=engine) as shop:
        await shop.samekey.start()
        lost_reply(faults, committed=False)
        first = await shop.post()
        assert (outcome(first), first.json()["retryable"]) == ((503, "not-committed"), True)
        assert (shop.orders, shop.records, faults.commits) == ([], [], 1)
        await one_order_after_a_retry(shop, None)


@on("postgresql")
async def test_a_backend_that_is_terminated_before_the_commit_leaves_nothing(place: Place) -> None:
    """The server says why (SQLSTATE 57P01), which does not say whether it had committed."""
    engine = place.engine()
    faults = Faults(engine)

    def fault(commit: Commit, _: Any) -> None:
        assert place.rows(TERMINATE_CLAIMANTS) == [True]
        commit()

    async with open_shop(place, engine=engine) as shop:
        await shop.samekey.start()
        faults.at_commit = fault
        assert outcome(await shop.post()) == (503, "not-committed")
        assert (shop.orders, shop.records) == ([], [])
        await one_order_after_a_retry(shop, None)


@on("postgresql")
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not-committed"])
async def test_an_unreachable_database_leaves_it_unknown_until_the_retry(
    committed: bool, place: Place
) -> None:
    engine = place.engine()
    faults = Faults(engine)
    async with open_shop(place, engine=engine) as shop:
        await shop.samekey.start()
        lost_reply(faults, committed=committed, connections_left=0)
        first = await shop.post()
        assert (first.status_code, first.json()["retryable"]) == (503, True)
        assert (first.json()["code"], first.json()["safe_to_use_new_key"]) == ("outcome-unknown", False)
        assert outcome(await shop.post()) == (503, "store-unavailable")
        faults.connections_left = math.inf
        await one_order_after_a_retry(shop, "replay" if committed else None)


@on("postgresql")
async def test_a_lost_reply_without_a_key_is_unknown(place: Place) -> None:
    """Without a record there is nothing to look up."""
    engine = place.engine()
    faults = Faults(engine)
    async with open_shop(place, engine=engine) as shop:
        await shop.samekey.start()
        lost_reply(faults, committed=True)
        answer = await shop.post(None)
        assert (answer.status_code, answer.json()["safe_to_use_new_key"]) == (503, False)
        assert shop.orders == ["a"]


@on("postgresql")
async def test_an_expiry_that_cannot_be_read_holds_no_answer_back(place: Place) -> None:
    """The look said "committed", and then the database went away for good."""
    engine = place.engine(poolclass=NullPool)
    faults = Faults(engine)
    async with open_shop(place, engine=engine) as shop:
        await shop.samekey.start()
        lost_reply(faults, committed=True, connections_left=1)
        first = await shop.post()
        assert (outcome(first), "idempotency-key-expires" in first.headers) == ((201, None), False)
        faults.connections_left = math.inf
        await one_order_after_a_retry(shop, "replay")
