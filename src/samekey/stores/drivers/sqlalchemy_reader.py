"""A read of one record, as cheap as it can be: most retries need nothing else.

A connection of the application's engine is set aside for reading (detached from the pool, in
autocommit), so that a replay costs neither a check-out nor a transaction. SQLite is read by a
connection of our own on the same file: in WAL mode a reader never waits for the writer, so the
read may happen on the event loop. Whenever the reader fails, the caller reads the usual way.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Awaitable, Callable

from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from samekey.core.model import Record
from samekey.run import run, run_async
from samekey.stores.drivers.statements import (
    Parameters,
    Rows,
    async_performing,
    async_runner_on,
    performing,
    runner_on,
)
from samekey.stores.shield import uninterrupted
from samekey.stores.sql import plans
from samekey.stores.sql.dialect import Dialect

Execute = Callable[[str, Parameters], Rows]
AsyncExecute = Callable[[str, Parameters], Awaitable[Rows]]


class SqliteReader:
    """Reads an SQLite file; never waits for a lock. ``find`` raises sqlite3.Error where it cannot."""

    def __init__(self, engine: Engine, dialect: Dialect) -> None:
        self._path = str(engine.url.database)
        self._dialect = dialect
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        event.listen(engine, "engine_disposed", lambda _: self.close())

    def find(self, id: bytes) -> Record | None:
        with self._lock:
            if self._connection is None:
                # Only the application makes its database: a missing file must not appear by reading it.
                uri = f"file:{_quoted(self._path)}?mode=ro"
                self._connection = sqlite3.connect(
                    uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False
                )
            connection = self._connection

            def execute(statement: str, parameters: Parameters) -> Rows:
                return connection.execute(statement, parameters).fetchall()

            return run(plans.find(self._dialect, id), performing(execute))

    def sees(self, id: bytes) -> bool:
        """Whether a record is committed, as far as can be told without waiting."""
        with contextlib.suppress(sqlite3.Error):
            return self.find(id) is not None
        return False

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


class Reader:
    """Reads through a connection of a sync engine; one read at a time."""

    def __init__(self, engine: Engine, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._execute: Execute | None = None
        event.listen(engine, "engine_disposed", lambda _: self.close())

    def find(self, id: bytes) -> Record | None:
        with self._lock:
            try:
                execute = self._execute or self._open()
                return run(plans.find(self._dialect, id), performing(execute))
            except BaseException:
                self._drop()
                raise

    def _open(self) -> Execute:
        self._connection = self._engine.connect()
        self._connection.execution_options(isolation_level="AUTOCOMMIT")
        self._execute = runner_on(self._connection).run  # a detached connection does not tell its driver's
        self._connection.detach()
        return self._execute

    def _drop(self) -> None:
        connection, self._connection, self._execute = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def close(self) -> None:
        with self._lock:
            self._drop()


class AsyncReader:
    """Reads through a connection of an async engine; one read at a time."""

    def __init__(self, engine: AsyncEngine, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect
        self._lock = asyncio.Lock()
        self._connection: AsyncConnection | None = None
        self._execute: AsyncExecute | None = None
        event.listen(engine.sync_engine, "engine_disposed", self._close_in_greenlet)

    async def find(self, id: bytes) -> Record | None:
        async with self._lock:
            try:
                execute = self._execute or await self._open()
                return await run_async(plans.find(self._dialect, id), async_performing(execute))
            except BaseException:
                # Also after a cancellation: the connection may be in the middle of an answer.
                await uninterrupted(self._drop())
                raise

    async def _open(self) -> AsyncExecute:
        self._connection = await self._engine.connect()
        _ = await self._connection.execution_options(isolation_level="AUTOCOMMIT")
        self._execute = async_runner_on(self._connection).run
        await self._connection.run_sync(Connection.detach)
        return self._execute

    async def _drop(self) -> None:
        connection, self._connection, self._execute = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.run_sync(_close_detached)

    def _close_in_greenlet(self, _: Engine) -> None:
        # AsyncEngine.dispose() calls this where SQLAlchemy can await, so the sync call is the right one.
        connection, self._connection, self._execute = self._connection, None, None
        if connection is not None and connection.sync_connection is not None:
            with contextlib.suppress(Exception):
                _close_detached(connection.sync_connection)


def _close_detached(connection: Connection) -> None:
    pooled = connection.connection
    if not pooled.is_detached:  # interrupted on the way there: the pool still counts it
        connection.invalidate()
        connection.close()
    elif pooled.dbapi_connection is not None:
        # Connection.close() leaves a detached connection open where an async driver has no terminate().
        pooled.dbapi_connection.close()
