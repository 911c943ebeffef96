"""Records through SQLAlchemy engines, sync and async, on PostgreSQL and SQLite.

The engine is the application's own, so that claim, business change and answer
are one transaction on one connection. Async engines run the very same code: an
``AsyncConnection`` is a sync one underneath, and ``run_sync`` is its public door.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, TextClause, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from samekey.core.ops import (
    Commit,
    Complete,
    CreateSchema,
    Find,
    Forget,
    Hold,
    Open,
    Plan,
    Purge,
    ReadSchemaVersion,
    Rollback,
    Search,
    Step,
    TryClaim,
)
from samekey.errors import ConfigurationError, StoreError
from samekey.run import run
from samekey.stores.drivers.sqlalchemy_errors import commit_errors, statement_errors
from samekey.stores.protocols import Capabilities
from samekey.stores.sql import plans, postgres, sqlite
from samekey.stores.sql.dialect import DEFAULT_TABLE, Dialect

T = TypeVar("T")

_DIALECTS: dict[str, Callable[[str], Dialect]] = {"postgresql": postgres.dialect, "sqlite": sqlite.dialect}
OWNED = "samekey"  # in Connection.info: this transaction may be ended by samekey only

# The transaction of the operation that the current task or thread is inside of.
joined_now: ContextVar[_Base | None] = ContextVar("samekey_joined_now", default=None)


def dialect_for(engine: Engine, table: str) -> Dialect:
    """The texts for the engine's database; refuses databases and set-ups that cannot be joined."""
    make = _DIALECTS.get(engine.dialect.name)
    if make is None:
        raise ConfigurationError(
            f"joined mode works on PostgreSQL and SQLite; this engine is {engine.dialect.name}"
        )
    if engine.dialect.name == "sqlite" and make_url(engine.url).database in (None, "", ":memory:"):
        raise ConfigurationError(
            "an in-memory SQLite database has one connection for everybody, so nothing can be "
            "joined or rolled back apart; give the engine a file (a temporary one in tests)"
        )
    return make(table)


def plan_for(dialect: Dialect, step: Step[Any]) -> Plan[Any]:
    """The backend's plan that performs one step."""
    match step:
        case Find(id):
            return plans.find(dialect, id)
        case TryClaim(claim):
            return plans.try_claim(dialect, claim)
        case Complete(completion):
            return plans.complete(dialect, completion)
        case Hold(id, owner):
            return plans.hold(dialect, id, owner)
        case Search():
            return plans.search(dialect, step)
        case Forget(id):
            return plans.forget(dialect, id)
        case Purge(limit):
            return plans.purge(dialect, limit)
        case CreateSchema():
            return plans.create_schema(dialect)
        case ReadSchemaVersion():
            return plans.read_schema_version(dialect)
        case _:
            raise TypeError(f"{type(step).__name__} is not a step of a store")


@lru_cache(maxsize=256)
def _text(statement: str) -> TextClause:
    return text(statement)


def execute(connection: Connection, step: Step[Any]) -> Sequence[Any]:
    """Perform one ``Run`` step: a statement in, its rows out."""
    if not isinstance(step, plans.Run):
        raise TypeError(f"a driver only runs statements, not {type(step).__name__}")
    result = connection.execute(_text(step.statement), dict(step.parameters))
    return result.all() if result.returns_rows else ()


def begin(connection: Connection, dialect: Dialect, *, write: bool) -> None:
    """Begin a transaction that is ours alone to end.

    On SQLite the driver would begin lazily and deferred, and the application's
    ``commit()`` would be real; so the driver is put in autocommit and the
    transaction statements are sent by us.
    """
    if dialect.begin_write is not None:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.exec_driver_sql(dialect.begin_write if write else "BEGIN")
    else:
        # Said now, so that a session that is used first finds a transaction to put its savepoint in.
        connection.begin()


def end(connection: Connection, dialect: Dialect, verb: str) -> None:
    """COMMIT or ROLLBACK what ``begin`` began."""
    connection.info.pop(OWNED, None)
    if dialect.begin_write is not None:
        connection.exec_driver_sql(verb)
    elif verb == "COMMIT":
        connection.commit()
    else:
        connection.rollback()


def alone(connection: Connection, dialect: Dialect, step: Step[Any]) -> Any:
    """Perform a step that is a transaction of its own on a fresh connection."""
    with statement_errors():
        if isinstance(step, Find | Search | ReadSchemaVersion):
            connection.execution_options(isolation_level="AUTOCOMMIT")
            return run(plan_for(dialect, step), lambda inner: execute(connection, inner))
        if isinstance(step, CreateSchema) and dialect.name == "sqlite":
            # Readers of a database in another journal mode wait for the writer, and fail with "locked".
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            connection.rollback()
        begin(connection, dialect, write=True)
        result = run(plan_for(dialect, step), lambda inner: execute(connection, inner))
        end(connection, dialect, "COMMIT")
        return result


class _Base:
    """What both colours of a transaction share: the rules, on a sync connection."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._connection: Connection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def connection(self) -> Connection:
        """The joined connection; StoreError once the operation has ended."""
        if self._connection is None:
            raise StoreError("the joined transaction has ended")
        return self._connection

    def _begin(self, connection: Connection, write: bool) -> None:
        with statement_errors():
            begin(connection, self._dialect, write=write)
        connection.info[OWNED] = self
        self._connection = connection

    def _step(self, step: Step[Any]) -> Any:
        connection = self.connection
        if isinstance(step, Complete) and self._ended_by_application():
            return None
        with statement_errors():
            return run(plan_for(self._dialect, step), lambda inner: execute(connection, inner))

    def _ended_by_application(self) -> bool:
        """On SQLite, whether a raw COMMIT or ROLLBACK ended our transaction (PostgreSQL asks xmin)."""
        return self._dialect.single_writer and not _in_transaction(self.connection)

    def _commit(self) -> None:
        with commit_errors():
            end(self.connection, self._dialect, "COMMIT")

    def _release(self, discard: bool) -> Connection | None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.info.pop(OWNED, None)
                if self._dialect.single_writer and not discard and _in_transaction(connection):
                    # The pool's own reset may skip the rollback of a driver in autocommit.
                    connection.exec_driver_sql("ROLLBACK")
            except Exception:
                discard = True
            if discard:
                connection.invalidate()
        return connection


def _in_transaction(connection: Connection) -> bool:
    return bool(getattr(connection.connection.driver_connection, "in_transaction", True))


class SqlAlchemyTransaction(_Base):
    """One joined transaction on a connection of a sync engine."""

    def __init__(self, store: SqlAlchemyStore) -> None:
        super().__init__(store.dialect)
        self._store = store

    def perform(self, step: Step[Any]) -> Any:
        match step:
            case Open(write):
                with statement_errors():
                    connection = self._store.engine.connect()
                try:
                    self._begin(connection, write)
                except BaseException:
                    connection.close()
                    raise
            case Commit():
                self._commit()
                self.abandon()
            case Rollback():
                self.abandon()
            case Find() | Hold():
                return self._store.perform(step)
            case _:
                return self._step(step)

    def abandon(self, *, discard: bool = False) -> None:
        """Give the connection back rolled back; ``discard`` closes it for good. Never raises."""
        connection = self._release(discard)
        if connection is not None:
            _close(connection)

    def run_sync(self, function: Callable[[Connection], T]) -> T:
        """Call ``function`` with the joined connection."""
        return function(self.connection)


def _close(connection: Connection) -> None:
    try:
        connection.close()
    except Exception:
        # The pool could not reset it: the database rolls back when the connection breaks.
        connection.invalidate()


class SqlAlchemyStore:
    """Records in the database of a sync engine; safe to use from several threads."""

    def __init__(self, engine: Engine, table: str = DEFAULT_TABLE) -> None:
        self.engine = engine
        self.dialect = dialect_for(engine, table)
        self.capabilities = capabilities(self.dialect)

    def perform(self, step: Step[Any]) -> Any:
        with statement_errors():
            connection = self.engine.connect()
        try:
            return alone(connection, self.dialect, step)
        finally:
            _close(connection)

    def transaction(self) -> SqlAlchemyTransaction:
        return SqlAlchemyTransaction(self)


class AsyncSqlAlchemyTransaction(_Base):
    """One joined transaction on a connection of an async engine."""

    def __init__(self, store: AsyncSqlAlchemyStore) -> None:
        super().__init__(store.dialect)
        self._store = store
        self.async_connection: AsyncConnection | None = None

    async def perform(self, step: Step[Any]) -> Any:
        match step:
            case Open(write):
                with statement_errors():
                    connection = await self._store.engine.connect()
                try:
                    await connection.run_sync(self._begin, write)
                except BaseException:
                    await _close_async(connection)
                    raise
                self.async_connection = connection
            case Commit():
                await self.run_sync(lambda _: self._commit())
                await self.abandon()
            case Rollback():
                await self.abandon()
            case Find() | Hold():
                return await self._store.perform(step)
            case _:
                return await self.run_sync(lambda _: self._step(step))

    async def abandon(self, *, discard: bool = False) -> None:
        """Give the connection back rolled back; ``discard`` closes it for good. Never raises."""
        connection, self.async_connection = self.async_connection, None
        if connection is not None:
            try:
                await connection.run_sync(lambda _: self._release(discard))
            finally:
                await _close_async(connection)

    async def run_sync(self, function: Callable[[Connection], T]) -> T:
        """Call ``function`` with the joined connection, as ``AsyncConnection.run_sync`` does."""
        if self.async_connection is None:
            raise StoreError("the joined transaction has ended")
        return await self.async_connection.run_sync(function)


async def _close_async(connection: AsyncConnection) -> None:
    try:
        await connection.close()
    except Exception:
        await connection.invalidate()


class AsyncSqlAlchemyStore:
    """Records in the database of an async engine, for one event loop."""

    def __init__(self, engine: AsyncEngine, table: str = DEFAULT_TABLE) -> None:
        self.engine = engine
        self.dialect = dialect_for(engine.sync_engine, table)
        self.capabilities = capabilities(self.dialect)

    async def perform(self, step: Step[Any]) -> Any:
        with statement_errors():
            connection = await self.engine.connect()
        try:
            return await connection.run_sync(alone, self.dialect, step)
        finally:
            await _close_async(connection)

    def transaction(self) -> AsyncSqlAlchemyTransaction:
        return AsyncSqlAlchemyTransaction(self)


def capabilities(dialect: Dialect) -> Capabilities:
    return Capabilities(
        transactional=True,
        server_clock=True,
        single_writer=dialect.single_writer,
        makes_tables=dialect.single_writer,
    )
