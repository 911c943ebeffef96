"""Records in the database of an async SQLAlchemy engine: the twin of ``sqlalchemy``.

An ``AsyncConnection`` is a sync one underneath, and ``run_sync`` is its public door: the
rules on SQLAlchemy's side are the shared functions, called through it. samekey's own
statements are awaited on the async driver itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.util import await_only

from samekey.core.ops import Commit, Complete, Find, Hold, Open, Rollback, Step, TryClaim
from samekey.errors import SamekeyError, StoreBusy, StoreError
from samekey.run import run_async
from samekey.stores.drivers.joined_dialect import (
    commit_with,
    first_savepoint_is_made,
    fresh,
    joined_view,
)
from samekey.stores.drivers.sqlalchemy import (
    BUSY_PAUSE_SECONDS,
    BUSY_TIMEOUT,
    ENDED,
    RELEASE,
    SAVEPOINT,
    beginning_of,
    busy_statement,
    capabilities,
    dialect_for,
    disown,
    ended_early,
    in_transaction,
    is_left_open,
    is_read,
    journal_statements,
    own,
    roll_back,
    seconds_when_busy,
)
from samekey.stores.drivers.sqlalchemy_errors import NoRow, commit_errors, is_no_row, statement_errors
from samekey.stores.drivers.sqlalchemy_reader import AsyncReader, SqliteReader
from samekey.stores.drivers.statements import (
    AsyncRunner,
    Parameters,
    Rows,
    Statement,
    async_performing,
    async_runner_on,
    driver_of,
)
from samekey.stores.shield import uninterrupted
from samekey.stores.sql.dialect import DEFAULT_TABLE
from samekey.stores.sql.plans import plan_for

T = TypeVar("T")


class AsyncSqlAlchemyTransaction:
    """One joined transaction on a connection of an async engine."""

    def __init__(self, store: AsyncSqlAlchemyStore) -> None:
        self._store = store
        self._dialect = store.dialect
        self._runner: AsyncRunner | None = None
        self._driver_connection: Any = None
        self._ended = False
        self.async_connection: AsyncConnection | None = None

    @property
    def is_open(self) -> bool:
        return self.async_connection is not None

    async def perform(self, step: Step[Any]) -> Any:
        match step:
            case Open(write):
                with statement_errors():
                    await self._open()
                    await self._begin(write)
            case TryClaim():
                with statement_errors():
                    claiming = await self._claiming()
                    return await run_async(plan_for(self._dialect, step), async_performing(claiming))
            case Complete(completion):
                driver_connection = driver_of(self._open_connection())
                if ended_early(self._store.file_reader, completion.id, driver_connection):
                    return None
                with commit_errors():
                    perform = async_performing(self._commit_with)
                    return await run_async(plan_for(self._dialect, step), perform)
            case Commit():
                with commit_errors():
                    connection = self._open_connection()
                    disown(self._sync_connection())
                    await connection.commit()
                await self._give_back()
            case Rollback():
                await self.abandon()
            case Find() | Hold():
                return await self._store.perform(step)
            case _:
                raise TypeError(f"{type(step).__name__} is not a step of a transaction")

    async def _open(self) -> None:
        if self._ended:
            raise StoreError(ENDED)
        self.async_connection = connection = await self._store.joined_engine.connect()
        try:
            sync_connection = connection.sync_connection
            if sync_connection is None or sync_connection.dispatch.begin:
                await connection.run_sync(own)  # the engine's own "begin" events may do I/O
            else:
                own(sync_connection)
            fresh(self._sync_connection())
            self._driver_connection = driver_of(connection)
            self._runner = async_runner_on(connection)
        except BaseException:
            await self.abandon(discard=True)
            raise

    async def _begin(self, write: bool) -> None:
        try:
            beginning = beginning_of(self._dialect, self._driver_connection, write=write)
            if self._store.busy_statement is not None:
                await self._begin_within(self._store.busy_statement, beginning)
            elif beginning:
                await self._running().run_all(beginning)
        except BaseException:
            await self.abandon(discard=True)
            raise

    async def _begin_within(self, busy_statement: str, beginning: Sequence[Statement]) -> None:
        """Begin with a wait of our own; the application's connection keeps its own."""
        ((milliseconds,),) = await self._running().run(BUSY_TIMEOUT, {})
        await self._running().run(busy_statement, {})
        try:
            await self._running().run_all(beginning)
        finally:
            await uninterrupted(self._restore(milliseconds))

    async def _restore(self, milliseconds: int) -> None:
        await self._running().run(f"{BUSY_TIMEOUT} = {milliseconds}", {})

    async def _claiming(self) -> Callable[[str, Parameters], Awaitable[Rows]]:
        """How to run a claim's statements; one that begins the transaction takes everything along."""
        if self.is_open:
            if fresh(self._sync_connection()):
                await self._running().run(*RELEASE)
            return self._running().run
        await self._open()
        runner = self._running()
        if self._store.busy_statement is not None:
            await self._begin(write=True)
            return runner.run
        beginning: list[Statement] | None
        beginning = [*runner.begin(), *beginning_of(self._dialect, self._driver_connection, write=True)]

        async def run_claim(statement: str, parameters: Parameters) -> Rows:
            nonlocal beginning
            if beginning is None:
                return await runner.run(statement, parameters)
            together, beginning = [*beginning, (statement, parameters), SAVEPOINT], None
            rows = (await runner.run_all(together))[-2]
            first_savepoint_is_made(self._sync_connection())
            return rows

        return run_claim

    async def _commit_with(self, statement: str, parameters: Parameters) -> Rows:
        """Run the last statement and commit; without a row nothing is committed."""
        connection, runner = self._open_connection(), self._running()
        disown(self._sync_connection())
        rows: Rows = ()

        def last_word() -> None:
            nonlocal rows
            rows = await_only(runner.commit(statement, parameters))
            if not rows:
                raise NoRow

        try:
            if runner.commits:
                commit_with(self._sync_connection(), last_word)
            else:
                await connection.run_sync(lambda _: last_word())
            await connection.commit()
        except Exception as error:
            if is_no_row(error):
                return ()
            raise
        await self._give_back()
        return rows

    async def _give_back(self) -> None:
        """After a commit, when nothing is left to undo; whoever commits is not to be interrupted anyway."""
        connection, self._ended = self._open_connection(), True
        self.async_connection = self._runner = self._driver_connection = None
        await give_back(connection, discard=False)

    def _running(self) -> AsyncRunner:
        if self._runner is None:
            raise StoreError(ENDED)
        return self._runner

    def _open_connection(self) -> AsyncConnection:
        if self.async_connection is None:
            raise StoreError(ENDED)
        return self.async_connection

    def _sync_connection(self) -> Connection:
        connection = self._open_connection().sync_connection
        if connection is None:
            raise StoreError("the joined connection is closed")
        return connection

    async def run_sync(self, function: Callable[[Connection], T]) -> T:
        """Call ``function`` with the joined connection, as ``AsyncConnection.run_sync`` does."""
        return await self._open_connection().run_sync(function)

    async def abandon(self, *, discard: bool = False) -> None:
        """Give the connection back rolled back, even if cancelled; ``discard`` closes it for good."""
        self._ended = True
        if self.async_connection is not None:
            await uninterrupted(self._abandon(discard))

    async def _abandon(self, discard: bool) -> None:
        connection, self.async_connection, self._runner = self.async_connection, None, None
        driver_connection, self._driver_connection = self._driver_connection, None
        if connection is not None:
            if self._dialect.single_writer:
                # The driver works in a thread, one call after the other: whatever was interrupted ends
                # there first, and then this. Discarding it instead could leave the write lock taken.
                with suppress(Exception):
                    await driver_connection.rollback()
                discard = False
            await give_back(connection, discard=discard)


async def give_back(connection: AsyncConnection, *, discard: bool) -> None:
    """Return a connection to its pool, or close it where that is not possible. Never raises."""
    try:
        if discard:
            await connection.invalidate()
        elif connection.sync_connection is not None and is_left_open(connection.sync_connection):
            await connection.run_sync(roll_back)
        await connection.close()
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it must not be used again
        if not connection.closed:
            await connection.invalidate()


class AsyncSqlAlchemyStore:
    """Records in the database of an async engine, for one event loop."""

    def __init__(
        self, engine: AsyncEngine, table: str = DEFAULT_TABLE, *, busy_seconds: float | None = None
    ) -> None:
        self.engine = engine
        self.joined_engine = AsyncEngine(joined_view(engine.sync_engine))
        self.dialect = dialect_for(engine.sync_engine, table)
        self.busy_statement = busy_statement(self.dialect, busy_seconds)
        self.capabilities = capabilities(self.dialect)
        self.file_reader = (
            SqliteReader(engine.sync_engine, self.dialect) if self.dialect.single_writer else None
        )
        self._reader = AsyncReader(engine, self.dialect)

    async def read(self, step: Step[Any]) -> Any:
        """Perform a Find at the least cost; any other step as ``perform`` does."""
        if isinstance(step, Find):
            try:
                with statement_errors():
                    if self.file_reader is not None:
                        return self.file_reader.find(step.id)
                    return await self._reader.find(step.id)
            except SamekeyError:
                pass  # the usual way says what is wrong, if anything still is
        return await self.perform(step)

    async def perform(self, step: Step[Any]) -> Any:
        deadline = time.monotonic() + seconds_when_busy(self.dialect, step)
        while True:
            try:
                return await self._perform_once(step)
            except StoreBusy:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(BUSY_PAUSE_SECONDS)

    async def _perform_once(self, step: Step[Any]) -> Any:
        with statement_errors():
            connection = await self.engine.connect()
            try:
                driver_connection = driver_of(connection)
                execute = async_runner_on(connection).run
                for statement in journal_statements(self.dialect, step):
                    await execute(statement, {})
                if not is_read(step):
                    _ = await connection.begin()
                    if self.dialect.begin_write is not None and not in_transaction(driver_connection):
                        await execute(self.dialect.begin_write, {})
                result = await run_async(plan_for(self.dialect, step), async_performing(execute))
                if not is_read(step):
                    await connection.commit()
                return result
            finally:
                await uninterrupted(give_back(connection, discard=False))

    def transaction(self) -> AsyncSqlAlchemyTransaction:
        return AsyncSqlAlchemyTransaction(self)
