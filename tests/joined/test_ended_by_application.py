"""The application ends the joined transaction itself: refused where we see it, held where we find out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from samekey import Operation
from samekey.core.fingerprint import fingerprint
from samekey.core.model import Claim, record_id
from samekey.core.ops import Open, TryClaim
from samekey.core.policy import FingerprintRule
from samekey.errors import JoinedBroken
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore
from tests.joined.shop import Place, Shop, add, on, open_shop, outcome

STATEMENTS = [
    "COMMIT",
    "  commit ;",
    "COMMIT AND CHAIN",
    "END TRANSACTION",
    "ROLLBACK",
    "ROLLBACK WORK",
    "ABORT",
    "BEGIN",
    "BEGIN IMMEDIATE",
    "START TRANSACTION",
    "PREPARE TRANSACTION 'x'",
    "-- done\n/* really */ COMMIT",
]


async def test_statements_that_would_end_it_are_refused_before_they_run(place: Place) -> None:
    """The operation is not hurt by them, and may go on where the application can."""
    refused = []

    def handler(db: Session, op: Operation) -> None:
        add(db)
        for statement in STATEMENTS:
            try:
                db.execute(text(statement))
            except JoinedBroken:
                refused.append(statement)
        with pytest.raises(JoinedBroken):
            db.connection().exec_driver_sql("COMMIT")
        assert place.rows("SELECT count(*) FROM orders") == [0]

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert refused == STATEMENTS
        assert (shop.orders, shop.records) == (["a"], ["completed"])


ENDS: dict[str, Callable[[Session], Any]] = {
    "commit": lambda db: db.connection().commit(),
    "rollback": lambda db: db.connection().rollback(),
    "transaction": lambda db: db.connection().get_transaction().commit(),  # type: ignore[union-attr]
    "bind": lambda db: db.get_bind().commit(),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_ending_it_through_the_connection_is_refused(
    end: Callable[[Session], Any], swallowed: bool, place: Place
) -> None:
    """Nothing was ended; the operation rolls back and the key is free, and no lock stays in the pool."""
    raised: list[BaseException] = []

    def handler(db: Session, op: Operation) -> None:
        add(db)
        if raised:
            return
        try:
            end(db)
        except JoinedBroken as error:
            raised.append(error)
            if not swallowed:
                raise

    async with open_shop(place, handler, engine=place.engine(pool_size=1, max_overflow=0)) as shop:
        assert outcome(await shop.post()) == (500, None)
        assert [type(error) for error in raised] == [JoinedBroken]
        assert (shop.orders, shop.records) == ([], [])
        assert outcome(await shop.post()) == (201, None)
        assert (shop.orders, shop.records) == (["a"], ["completed"])


async def test_savepoints_of_the_applications_own_are_allowed(place: Place) -> None:
    def handler(db: Session, op: Operation) -> None:
        db.execute(text("SAVEPOINT mine"))
        add(db, "undone")
        db.execute(text("ROLLBACK TO SAVEPOINT mine"))
        db.execute(text("SAVEPOINT other"))
        add(db, "kept")
        db.execute(text("RELEASE SAVEPOINT other"))
        db.commit()

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (201, None)
        assert shop.orders == ["kept"]


def on_driver(db: Session, statement: str) -> None:
    """Run ``statement`` where SQLAlchemy does not see it."""
    connection = db.connection()
    driver_connection: Any = connection.connection.driver_connection
    if statement == ".commit()" and hasattr(driver_connection, "commit"):
        done = driver_connection.commit()
    else:
        done = driver_connection.execute("COMMIT" if statement == ".commit()" else statement)
    if connection.dialect.is_async:
        await_only(done)


BEHIND: dict[str, list[str]] = {
    "commit": ["COMMIT"],
    "commit-by-the-driver": [".commit()"],
    "commit-and-begin": ["COMMIT", "BEGIN"],
}


@pytest.mark.parametrize("statements", BEHIND.values(), ids=BEHIND)
async def test_a_commit_behind_sqlalchemy_is_found_and_held(statements: list[str], place: Place) -> None:
    """The early commit cannot be undone, so the outcome is not known and nothing runs again."""
    runs = []

    def handler(db: Session, op: Operation) -> Any:
        runs.append(op.key_id)
        add(db)
        db.commit()
        for statement in statements:
            on_driver(db, statement)

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (500, "joined-broken")
        assert (shop.orders, shop.records) == (["a"], ["held"])
        assert [outcome(await shop.post()) for _ in range(2)] == [(409, "outcome-unknown")] * 2
        assert (len(runs), shop.orders) == (1, ["a"])


async def test_what_comes_after_the_early_commit_is_rolled_back(place: Place) -> None:
    def handler(db: Session, op: Operation) -> Any:
        add(db, "early")
        db.commit()
        on_driver(db, "COMMIT")
        on_driver(db, "BEGIN")
        on_driver(db, "INSERT INTO orders (cart) VALUES ('late')")

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (500, "joined-broken")
        assert (shop.orders, shop.records) == (["early"], ["held"])


async def test_a_rollback_behind_sqlalchemy_is_held_too(place: Place) -> None:
    """What came after it might have been committed; that nothing was cannot be known."""
    runs = []

    def handler(db: Session, op: Operation) -> Any:
        runs.append(op.key_id)
        add(db)
        db.commit()
        on_driver(db, "ROLLBACK")

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (500, "joined-broken")
        assert (shop.orders, shop.records) == ([], ["held"])
        assert outcome(await shop.post()) == (409, "outcome-unknown")
        assert len(runs) == 1


@on("sqlite")
async def test_after_a_rollback_sqlite_commits_each_statement_so_it_is_held(place: Place) -> None:
    def handler(db: Session, op: Operation) -> Any:
        on_driver(db, "ROLLBACK")
        on_driver(db, "INSERT INTO orders (cart) VALUES ('committed')")

    async with open_shop(place, handler, engine=place.engine(isolation_level="AUTOCOMMIT")) as shop:
        assert outcome(await shop.post()) == (500, "joined-broken")
        assert outcome(await shop.post()) == (409, "outcome-unknown")
        assert (shop.orders, shop.records) == (["committed"], ["held"])


async def test_an_early_commit_and_then_an_exception_is_held_by_the_first_retry(place: Place) -> None:
    runs = []

    def handler(db: Session, op: Operation) -> Any:
        runs.append(op.key_id)
        add(db)
        db.commit()
        on_driver(db, "COMMIT")
        raise RuntimeError("after the early commit")

    async with open_shop(place, handler) as shop:
        assert outcome(await shop.post()) == (500, None)
        await _two_retries_after_an_early_commit(shop)
        assert (len(runs), shop.orders) == (1, ["a"])


async def test_a_process_that_died_after_an_early_commit(place: Place) -> None:
    """Its claim stands there committed and running: the first retry finds it so."""

    def handler(db: Session, op: Operation) -> Any:
        raise AssertionError("never run again")

    body = b'{"cart":"a"}'
    claim = Claim(
        id=record_id("", "acme", "k", None),
        owner=bytes(16),
        fingerprint=fingerprint("POST", "/orders", b"", "application/json", body, FingerprintRule()),
        caller="acme",
        key_hint="k",
        key=None,
        method="POST",
        path="/orders",
    )
    async with open_shop(place, handler) as shop:
        transaction = SqlAlchemyStore(place.outside).transaction()
        transaction.perform(Open())
        transaction.perform(TryClaim(claim))
        driver_connection: Any = transaction.connection.connection.driver_connection
        driver_connection.execute("COMMIT")
        driver_connection.close()
        transaction.abandon(discard=True)
        await _two_retries_after_an_early_commit(shop)


async def _two_retries_after_an_early_commit(shop: Shop) -> None:
    assert shop.records == ["running"]
    assert outcome(await shop.post()) == (500, "joined-broken")
    assert shop.records == ["held"]
    assert outcome(await shop.post()) == (409, "outcome-unknown")
