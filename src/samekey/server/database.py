"""The application's database as the adapters use it: engine, sessions, start-up proof.

Two short twins. A sync engine is served from worker threads; beginnings and
endings have separate limits on threads, because beginnings wait for connections
that only endings give back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import Engine as SyncSqlEngine
from sqlalchemy.ext.asyncio import AsyncEngine as AsyncSqlEngine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from samekey.aengine import AsyncEngine, LoopEngine, ThreadedEngine, shielded
from samekey.core.ops import Find, Open
from samekey.engine import BUSY_SECONDS, Engine, Running
from samekey.errors import ConfigurationError
from samekey.server.threads import Threads
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore
from samekey.stores.drivers.sqlalchemy_async import AsyncSqlAlchemyStore
from samekey.stores.drivers.sqlalchemy_session import (
    JOIN_MODE,
    PROBE_FAILED,
    SessionCommit,
    guard_engine,
    poison,
    probe,
    settle,
)

BEGIN_THREADS_MAX = 40
END_THREADS_MAX = 40
SessionFactory = Callable[..., Any]


def _own_wait(busy_seconds: float) -> float | None:
    # The driver's own default is the same: then its connections need not be told.
    return None if busy_seconds == BUSY_SECONDS else busy_seconds


class JoinedSession:
    """The session handed to the handler, and how it ends."""

    def __init__(self, session: Any, sync: Session) -> None:
        self.session = session
        self.sync = sync
        self._commit = SessionCommit(sync)

    @property
    def idle(self) -> bool:
        """Whether ending it needs no database: nothing is flushed and not committed, nothing pending."""
        sync = self.sync
        return not (sync.in_transaction() or sync.new or sync.dirty or sync.deleted)

    def settle(self, keep: bool) -> None:
        if self.idle:
            poison(self.sync)
        else:
            settle(self.sync, keep=keep)

    def committed(self) -> None:
        self._commit.release()


class Database(ABC):
    """What an exchange needs of the application's database."""

    engine: LoopEngine
    _sessions: SessionFactory

    @abstractmethod
    def open_session(self, running: Running[Any]) -> JoinedSession:
        """A session on the joined connection."""

    @abstractmethod
    async def call(self, running: Running[Any], function: Callable[[], None]) -> None:
        """Call sync session code where this database's I/O belongs."""

    @abstractmethod
    async def _probe(self) -> bytes: ...

    async def start(self) -> None:
        """Make or check the table, and prove that a session's commit is not real."""
        await self.engine.prepare()
        if await self.engine.perform(Find(await self._probe())) is not None:
            raise ConfigurationError(PROBE_FAILED)


class SyncDatabase(Database):
    """A sync engine; sessions are ``sqlalchemy.orm.Session``."""

    def __init__(
        self, engine: SyncSqlEngine, table: str, sessions: SessionFactory | None, strict: bool, busy: float
    ) -> None:
        self._store = SqlAlchemyStore(engine, table, busy_seconds=_own_wait(busy))
        self._begin = Threads(BEGIN_THREADS_MAX)
        self._end = Threads(END_THREADS_MAX)
        self.engine = ThreadedEngine(Engine(self._store, busy_seconds=busy), self._begin.run, self._end.run)
        self._sessions = sessions or Session
        guard_engine(engine, strict=strict)

    def open_session(self, running: Running[Any]) -> JoinedSession:
        session = self._sessions(bind=running.transaction.connection, join_transaction_mode=JOIN_MODE)
        return JoinedSession(session, session)

    async def call(self, running: Running[Any], function: Callable[[], None]) -> None:  # noqa: ARG002
        # The thread goes on whatever becomes of us, so nobody else may touch the session meanwhile.
        _, cancelled = await shielded(self._end.run(function))
        if cancelled is not None:
            raise cancelled

    async def _probe(self) -> bytes:
        return await self._begin.run(self._probe_now)

    def _probe_now(self) -> bytes:
        transaction = self._store.transaction()
        transaction.perform(Open())
        try:
            session = self._sessions(bind=transaction.connection, join_transaction_mode=JOIN_MODE)
            return probe(transaction.connection, self._store.dialect.table, session)
        finally:
            transaction.abandon()


class AsyncDatabase(Database):
    """An async engine; sessions are ``AsyncSession``."""

    def __init__(
        self, engine: AsyncSqlEngine, table: str, sessions: SessionFactory | None, strict: bool, busy: float
    ) -> None:
        self._store = AsyncSqlAlchemyStore(engine, table, busy_seconds=_own_wait(busy))
        self.engine = AsyncEngine(self._store, busy_seconds=busy)
        # Reading an expired attribute after commit() would need I/O where no await can be.
        self._sessions = sessions or partial(AsyncSession, expire_on_commit=False)
        guard_engine(engine.sync_engine, strict=strict)

    def open_session(self, running: Running[Any]) -> JoinedSession:
        session = self._sessions(bind=running.transaction.async_connection, join_transaction_mode=JOIN_MODE)
        return JoinedSession(session, session.sync_session)

    async def call(self, running: Running[Any], function: Callable[[], None]) -> None:
        await running.transaction.run_sync(lambda _: function())

    async def _probe(self) -> bytes:
        transaction = self._store.transaction()
        await transaction.perform(Open())
        try:
            session = self._sessions(bind=transaction.async_connection, join_transaction_mode=JOIN_MODE)

            def prove(connection: Connection) -> bytes:
                return probe(connection, self._store.dialect.table, session.sync_session)

            return await transaction.run_sync(prove)
        finally:
            await transaction.abandon()


def database_for(
    engine: object, *, table: str, sessions: SessionFactory | None, strict: bool, busy_seconds: float
) -> Database:
    """The database of a SQLAlchemy engine of either colour; ConfigurationError for anything else."""
    if isinstance(engine, AsyncSqlEngine):
        return AsyncDatabase(engine, table, sessions, strict, busy_seconds)
    if isinstance(engine, SyncSqlEngine):
        return SyncDatabase(engine, table, sessions, strict, busy_seconds)
    raise ConfigurationError(
        "joined mode needs the application's own SQLAlchemy engine (create_engine or "
        f"create_async_engine), not {type(engine).__name__}"
    )
