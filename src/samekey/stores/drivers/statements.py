"""Running statements straight on the driver below SQLAlchemy.

samekey's own statements are few and always the same, so they need nothing of
SQLAlchemy's execution layer, which costs more than they do. This module owns, for each
driver it knows, how several statements travel together: one trip to PostgreSQL
(``libpq``), one visit to aiosqlite's thread. Any other driver is asked through SQLAlchemy,
statement by statement. It knows nothing of what a statement means.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from samekey.core.ops import Step
from samekey.stores.sql.plans import Run

if TYPE_CHECKING:
    from samekey.stores.drivers.libpq import Trips

Rows = Sequence[Sequence[Any]]
Parameters = Mapping[str, Any]
Statement = tuple[str, Parameters]
COMMIT: Statement = ("COMMIT", {})
TRIPS = "samekey_trips"  # in a connection's info: what is prepared on it

_NAMED = re.compile(r"(?<![:\w]):([a-z_]+)")  # not a cast, and not a colon inside of a name


class Runner(Protocol):
    """Runs statements on one connection."""

    commits: bool
    """Whether ``commit`` commits; else the connection's own commit has to follow."""

    def begin(self) -> Sequence[Statement]:
        """What has to be sent first to begin a transaction; empty where the driver does it by itself."""
        ...

    def run(self, statement: str, parameters: Parameters) -> Rows: ...

    def run_all(self, statements: Sequence[Statement]) -> Sequence[Rows]:
        """Run them in order, together where the driver can; the first failure ends it."""
        ...

    def commit(self, statement: str, parameters: Parameters) -> Rows:
        """Run the last statement, and commit with it. Where it fails or gives no row, nothing is."""
        ...


class AsyncRunner(Protocol):
    """The async twin of Runner."""

    commits: bool

    def begin(self) -> Sequence[Statement]: ...

    async def run(self, statement: str, parameters: Parameters) -> Rows: ...

    async def run_all(self, statements: Sequence[Statement]) -> Sequence[Rows]: ...

    async def commit(self, statement: str, parameters: Parameters) -> Rows: ...


def driver_of(connection: AsyncConnection) -> Any:
    """The driver's own connection. It is there since the check-out, so nothing has to be awaited."""
    sync_connection = connection.sync_connection
    return None if sync_connection is None else sync_connection.connection.driver_connection


def runner_on(connection: Connection) -> Runner:
    """How to run statements on ``connection``: on its driver if it is one that we know."""
    driver_connection: Any = connection.connection.driver_connection
    if connection.dialect.driver == "pysqlite":
        return SqliteRunner(driver_connection)
    if connection.dialect.driver == "psycopg":
        trips = _trips_on(connection)
        if trips is not None:
            return PsycopgRunner(driver_connection, trips)
    return SqlAlchemyRunner(connection)


def async_runner_on(connection: AsyncConnection) -> AsyncRunner:
    """The async twin of ``runner_on``."""
    sync_connection, driver_connection = connection.sync_connection, driver_of(connection)
    if connection.dialect.driver == "aiosqlite" and hasattr(driver_connection, "_execute"):
        return AiosqliteRunner(driver_connection)
    if connection.dialect.driver == "psycopg" and sync_connection is not None:
        trips = _trips_on(sync_connection)
        if trips is not None:
            return AsyncPsycopgRunner(driver_connection, trips)
    return AsyncSqlAlchemyRunner(connection)


def _trips_on(connection: Connection) -> Trips | None:
    from samekey.stores.drivers import libpq  # noqa: PLC0415 - only here is psycopg known to be installed

    known: Trips | None = connection.info.get(TRIPS)
    if known is None and libpq.is_supported(connection.connection.driver_connection):
        known = connection.info[TRIPS] = libpq.Trips(connection.connection.driver_connection)
    return known


class SqliteRunner:
    """The standard library's sqlite3."""

    commits = True

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def begin(self) -> Sequence[Statement]:
        return ()

    def run(self, statement: str, parameters: Parameters) -> Rows:
        return _run_sqlite(self._connection, statement, parameters)

    def run_all(self, statements: Sequence[Statement]) -> Sequence[Rows]:
        return _run_all_sqlite(self._connection, statements)

    def commit(self, statement: str, parameters: Parameters) -> Rows:
        return _commit_sqlite(self._connection, statement, parameters)


class AiosqliteRunner:
    """aiosqlite: whatever belongs together is one visit to its thread."""

    commits = True

    def __init__(self, connection: Any) -> None:
        self._visit: Callable[..., Awaitable[Any]] = connection._execute
        self._connection: sqlite3.Connection = connection._conn

    def begin(self) -> Sequence[Statement]:
        return ()

    async def run(self, statement: str, parameters: Parameters) -> Rows:
        rows: Rows = await self._visit(_run_sqlite, self._connection, statement, parameters)
        return rows

    async def run_all(self, statements: Sequence[Statement]) -> Sequence[Rows]:
        rows: Sequence[Rows] = await self._visit(_run_all_sqlite, self._connection, statements)
        return rows

    async def commit(self, statement: str, parameters: Parameters) -> Rows:
        rows: Rows = await self._visit(_commit_sqlite, self._connection, statement, parameters)
        return rows


def _run_sqlite(connection: sqlite3.Connection, statement: str, parameters: Parameters) -> Rows:
    return connection.execute(statement, parameters).fetchall()


def _run_all_sqlite(connection: sqlite3.Connection, statements: Sequence[Statement]) -> Sequence[Rows]:
    return [_run_sqlite(connection, *statement) for statement in statements]


def _commit_sqlite(connection: sqlite3.Connection, statement: str, parameters: Parameters) -> Rows:
    rows = _run_sqlite(connection, statement, parameters)
    if rows:
        _run_sqlite(connection, *COMMIT)
    return rows


class PsycopgRunner:
    """psycopg: single statements through its cursors, what belongs together as one trip."""

    commits = True

    def __init__(self, connection: Any, trips: Trips) -> None:
        self._connection = connection
        self._trips = trips

    def begin(self) -> Sequence[Statement]:
        return self._trips.begin()

    def run(self, statement: str, parameters: Parameters) -> Rows:
        cursor = self._connection.execute(_pyformat(statement), parameters)
        return cursor.fetchall() if _has_rows(cursor) else ()

    def run_all(self, statements: Sequence[Statement]) -> Sequence[Rows]:
        with self._connection.lock:
            return self._trips.run(statements)

    def commit(self, statement: str, parameters: Parameters) -> Rows:
        return self.run_all([(statement, parameters), COMMIT])[0]


class AsyncPsycopgRunner:
    """The async twin of PsycopgRunner."""

    commits = True

    def __init__(self, connection: Any, trips: Trips) -> None:
        self._connection = connection
        self._trips = trips

    def begin(self) -> Sequence[Statement]:
        return self._trips.begin()

    async def run(self, statement: str, parameters: Parameters) -> Rows:
        cursor = await self._connection.execute(_pyformat(statement), parameters)
        return await cursor.fetchall() if _has_rows(cursor) else ()

    async def run_all(self, statements: Sequence[Statement]) -> Sequence[Rows]:
        async with self._connection.lock:
            return await self._trips.run_async(statements)

    async def commit(self, statement: str, parameters: Parameters) -> Rows:
        return (await self.run_all([(statement, parameters), COMMIT]))[0]


class SqlAlchemyRunner:
    """Any other driver, through SQLAlchemy, which begins and commits."""

    commits = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self) -> Sequence[Statement]:
        return ()

    def run(self, statement: str, parameters: Parameters) -> Rows:
        result = self._connection.execute(_text(statement), dict(parameters))
        return result.all() if result.returns_rows else ()

    def run_all(self, statements: Sequence[Statement]) -> Sequence[Rows]:
        return [self.run(*statement) for statement in statements]

    def commit(self, statement: str, parameters: Parameters) -> Rows:
        return self.run(statement, parameters)


class AsyncSqlAlchemyRunner:
    """The async twin of SqlAlchemyRunner."""

    commits = False

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    def begin(self) -> Sequence[Statement]:
        return ()

    async def run(self, statement: str, parameters: Parameters) -> Rows:
        result = await self._connection.execute(_text(statement), dict(parameters))
        return result.all() if result.returns_rows else ()

    async def run_all(self, statements: Sequence[Statement]) -> Sequence[Rows]:
        return [await self.run(*statement) for statement in statements]

    async def commit(self, statement: str, parameters: Parameters) -> Rows:
        return await self.run(statement, parameters)


def performing(run: Callable[[str, Parameters], Rows]) -> Callable[[Step[Any]], Rows]:
    """What a runner of plans needs to step a backend's plan: ``Run`` steps, performed by ``run``."""

    def perform(step: Step[Any]) -> Rows:
        wanted = _only_run(step)
        return run(wanted.statement, wanted.parameters)

    return perform


def async_performing(
    run: Callable[[str, Parameters], Awaitable[Rows]],
) -> Callable[[Step[Any]], Awaitable[Rows]]:
    """The async twin of ``performing``."""

    def perform(step: Step[Any]) -> Awaitable[Rows]:
        wanted = _only_run(step)
        return run(wanted.statement, wanted.parameters)

    return perform


def _only_run(step: Step[Any]) -> Run:
    if not isinstance(step, Run):
        raise TypeError(f"a driver only runs statements, not {type(step).__name__}")
    return step


def _has_rows(cursor: Any) -> bool:
    # psycopg's ``description`` builds an object per column just to be asked whether there are any.
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


@lru_cache(maxsize=256)
def _pyformat(statement: str) -> str:
    return _NAMED.sub(r"%(\1)s", statement)


@lru_cache(maxsize=256)
def _text(statement: str) -> TextClause:
    return text(statement)
