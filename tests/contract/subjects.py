"""The stores under contract, and the one voice in which tests speak to all of them.

Owns the capability map, how each store is made, and the facade that gives an async store
(on a private event loop in a thread of its own) the words of a sync one, so that a test is
written once for both colours. Tests name capabilities, never classes.
"""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from samekey.aengine import AsyncEngine
from samekey.core.ops import CreateSchema, Plan, Step
from samekey.engine import Engine
from samekey.run import run
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore
from samekey.stores.drivers.sqlalchemy_async import AsyncSqlAlchemyStore
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from tests import servers

T = TypeVar("T")

# What each store can do. The first four are declared by the store itself, and a test compares.
# table: rows that SQL can see and age. many_writers: the opposite of single_writer.
# isolation: transactions have levels, and the database may break a tie against one of them.
MEMORY = {"transactional", "makes_tables", "many_writers"}
SQLITE = {"transactional", "server_clock", "single_writer", "makes_tables", "table"}
POSTGRES = {"transactional", "server_clock", "many_writers", "table", "isolation"}
CAPABILITIES: dict[str, set[str]] = {
    "memory": MEMORY,
    "memory-async": MEMORY,
    "sqlite": SQLITE,
    "sqlite-aiosqlite": SQLITE,
    "postgresql-psycopg": POSTGRES,
    "postgresql-psycopg-async": POSTGRES,
    "postgresql-asyncpg": POSTGRES,
}
DECLARED = {"transactional", "server_clock", "single_writer", "makes_tables"}

RIVALS_MAX = 20  # connections that one test may hold at the same time
WAIT_SECONDS_MAX = 30  # a test that waits longer hangs
POLL_SECONDS = 0.002
BUSY_SECONDS = 10.0

TABLE = "idempotency_keys"
START = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


def needs(*capabilities: str) -> Callable[[T], T]:
    """Run this test only on stores that have all of ``capabilities``."""
    assert set(capabilities) <= set().union(*CAPABILITIES.values())

    def mark(test: T) -> T:
        test.needs = set(capabilities)  # type: ignore[attr-defined]
        return test

    return mark


class Clock:
    """Time that stands still until it is moved; what the memory store judges by."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


class Loop:
    """A private event loop in a thread of its own, which sync code may hand coroutines to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def wait(self, result: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(result, self._loop)
        return future.result(WAIT_SECONDS_MAX)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS_MAX)
        self._loop.close()


class Facade:
    """An object of either colour; ``wait`` turns what an async one returns into its result."""

    def __init__(self, inner: Any, wait: Callable[[Any], Any]) -> None:
        self.inner = inner
        self._wait = wait

    def _done(self, result: Any) -> Any:
        return self._wait(result) if inspect.isawaitable(result) else result

    def perform(self, step: Step[T]) -> T:
        result: T = self._done(self.inner.perform(step))
        return result

    def run(self, plan: Plan[T]) -> T:
        """Step a plan. The runners have tests of their own, so the sync one serves both colours here."""
        return run(plan, self.perform)


class TransactionFacade(Facade):
    """A transaction of either colour."""

    def abandon(self) -> None:
        self._done(self.inner.abandon())

    def die(self, store: Subject) -> None:
        """Break the connection, and wait until the server has noticed: it learns that on its own time."""
        before = store.leftovers()
        self._done(self.inner.abandon(discard=True))
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while store.leftovers() >= before > 0:
            assert time.monotonic() < deadline, "the server still holds what the dead one had"
            time.sleep(POLL_SECONDS)

    def execute(self, statement: str) -> None:
        """Run an application's own statement on the joined connection."""
        connection = getattr(self.inner, "async_connection", None) or self.inner.connection
        self._done(connection.exec_driver_sql(statement))


class EngineFacade(Facade):
    """An engine of either colour."""

    def begin(self, *arguments: Any) -> Any:
        return self._done(self.inner.begin(*arguments))

    def finish(self, *arguments: Any) -> Any:
        return self._done(self.inner.finish(*arguments))

    def abandon(self, *arguments: Any) -> None:
        self._done(self.inner.abandon(*arguments))

    def prepare(self) -> None:
        self._done(self.inner.prepare())

    def transaction_of(self, running: Any) -> TransactionFacade:
        return TransactionFacade(running.transaction, self._wait)


class Subject(Facade):
    """A store under contract, with what a test does behind its back."""

    def __init__(self, name: str, store: Any, wait: Callable[[Any], Any]) -> None:
        super().__init__(store, wait)
        self.name = name
        self.can = CAPABILITIES[name]
        self._opened: list[TransactionFacade] = []

    def transaction(self) -> TransactionFacade:
        transaction = TransactionFacade(self.inner.transaction(), self._wait)
        self._opened.append(transaction)
        return transaction

    def sweep(self) -> None:
        """Roll back what a failed test left open: its locks would fail the tests after it."""
        for transaction in self._opened:
            transaction.abandon()

    def engine(self, *, busy_seconds: float = BUSY_SECONDS) -> EngineFacade:
        make: Any = AsyncEngine if inspect.iscoroutinefunction(self.inner.perform) else Engine
        return EngineFacade(make(self.inner, busy_seconds=busy_seconds), self._wait)

    def age(self, seconds: float) -> None:
        """Let ``seconds`` pass for every record, without waiting."""
        raise NotImplementedError

    def leftovers(self) -> int:
        """What operations left behind that should have ended: locks, and connections not given back."""
        raise NotImplementedError

    def sql(self, statement: str) -> list[Any]:
        """Run a statement on a connection of the test's own. Needs ``table``."""
        raise NotImplementedError


class MemorySubject(Subject):
    def __init__(self, name: str, store: Any, wait: Callable[[Any], Any], clock: Clock) -> None:
        super().__init__(name, store, wait)
        self._clock = clock

    def age(self, seconds: float) -> None:
        self._clock.now += timedelta(seconds=seconds)

    def leftovers(self) -> int:
        return len(getattr(self.inner, "_store", self.inner)._locks)


@dataclass(frozen=True, slots=True)
class Database:
    """A database as a test reaches it behind the store's back."""

    url: URL
    connect: Callable[[], Any]
    shift: str
    """How its columns of time count ``{seconds}``."""


class SqlSubject(Subject):
    """A store in a SQL database."""

    MOMENTS = ("created_at", "lease_until", "completed_at", "expires_at", "purge_at")

    def __init__(
        self, name: str, store: Any, wait: Callable[[Any], Any], database: Database, options: dict[str, Any]
    ) -> None:
        super().__init__(name, store, wait)
        self._database = database
        self._options = options
        self.sqlalchemy: Any = getattr(store.engine, "sync_engine", store.engine)

    def sql(self, statement: str) -> list[Any]:
        connection = self._database.connect()
        try:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def age(self, seconds: float) -> None:
        shift = self._database.shift.format(seconds=seconds)
        shifts = ", ".join(f"{column} = {column} - {shift}" for column in self.MOMENTS)
        self.sql(f"UPDATE {TABLE} SET {shifts}")

    @contextmanager
    def sibling(self, **options: Any) -> Iterator[SqlSubject]:
        """Another store on the same records, with connections (and a loop) of its own."""
        with _waiting(self.name) as wait:
            yield from _sql(self.name, self._database, wait, self._options | options)

    def under_name(self, table: str) -> SqlSubject:
        """The store of another table in the same database, on the same connections."""
        store = type(self.inner)(self.inner.engine, table)
        return SqlSubject(self.name, store, self._wait, self._database, self._options)

    def leftovers(self) -> int:
        left = int(self.sqlalchemy.pool.checkedout())
        if "isolation" in self.can:
            ((locks,),) = self.sql(
                "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database "
                "WHERE locktype = 'advisory' AND datname = current_database()"
            )
            left += locks
        return left


def memory_subject(make: Callable[[Clock], Any] = MemoryStore, name: str = "memory") -> Subject:
    """A sync store without a database: the reference model, or one that a test has made to be wrong."""
    clock = Clock()
    return MemorySubject(name, make(clock), _not_awaited, clock)


@contextmanager
def make_subject(name: str, *, sqlite_path: Path, postgres_url: str, **options: Any) -> Iterator[Subject]:
    """A fresh, empty store called ``name``; ``options`` go to its SQLAlchemy engine."""
    kind, _, _ = name.partition("-")
    with _waiting(name) as wait:
        if name == "memory":
            yield memory_subject()
        elif kind == "memory":
            clock = Clock()
            yield MemorySubject(name, AsyncMemoryStore(clock), wait, clock)
        elif kind == "sqlite":
            yield from _sqlite(name, sqlite_path, wait, options)
        else:
            yield from _postgres(name, servers.postgres_schema(postgres_url), wait, options)


ASYNC = {"memory-async", "sqlite-aiosqlite", "postgresql-psycopg-async", "postgresql-asyncpg"}


@contextmanager
def _waiting(name: str) -> Iterator[Callable[[Any], Any]]:
    if name not in ASYNC:
        yield _not_awaited
        return
    loop = Loop()
    try:
        yield loop.wait
    finally:
        loop.close()


def _not_awaited(result: Any) -> Any:
    raise AssertionError(f"a sync store returned {result!r}")


def _sqlite(name: str, path: Path, wait: Callable[[Any], Any], options: dict[str, Any]) -> Iterator[Subject]:
    # A rival that meets another's BEGIN IMMEDIATE is told at once, as behind the gate of an engine.
    options = {"connect_args": {"timeout": 0}, "max_overflow": RIVALS_MAX, **options}
    database = Database(
        make_url(f"sqlite+aiosqlite:///{path}" if name in ASYNC else f"sqlite:///{path}"),
        lambda: sqlite3.connect(path, isolation_level=None),
        "CAST({seconds} * 1000000 AS INTEGER)",
    )
    yield from _sql(name, database, wait, options)


def _postgres(
    name: str, schema_url: str, wait: Callable[[Any], Any], options: dict[str, Any]
) -> Iterator[Subject]:
    url = make_url(schema_url)
    options = {"max_overflow": RIVALS_MAX, **options}
    if name.endswith("asyncpg"):
        search_path = str(url.query["options"]).removeprefix("-csearch_path=")
        settings = {"server_settings": {"search_path": search_path}}
        options["connect_args"] = settings | options.get("connect_args", {})
        url = url.set(drivername="postgresql+asyncpg", query={})
    database = Database(url, lambda: servers.connect(schema_url), "interval '{seconds} seconds'")
    yield from _sql(name, database, wait, options)


def _sql(
    name: str, database: Database, wait: Callable[[Any], Any], options: dict[str, Any]
) -> Iterator[SqlSubject]:
    is_async = name in ASYNC
    make_engine: Any = create_async_engine if is_async else create_engine
    engine = make_engine(database.url, **options)
    store: Any = AsyncSqlAlchemyStore(engine) if is_async else SqlAlchemyStore(engine)
    subject = SqlSubject(name, store, wait, database, options)
    try:
        subject.perform(CreateSchema())
        yield subject
    finally:
        subject.sweep()
        result = engine.dispose()
        if is_async:
            wait(result)


def together(functions: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Call all at the same moment, each in a thread of its own; what each returned or raised."""
    barrier = threading.Barrier(len(functions))
    results: list[T | Exception | None] = [None] * len(functions)

    def call(place: int, function: Callable[[], T]) -> None:
        barrier.wait(WAIT_SECONDS_MAX)
        try:
            results[place] = function()
        except Exception as error:  # noqa: BLE001 - whatever it raised is the result
            results[place] = error

    threads = [threading.Thread(target=call, args=item, daemon=True) for item in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS_MAX)
    assert None not in results, "somebody still waits"
    return [result for result in results if result is not None]
