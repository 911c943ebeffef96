"""Records in the database of a sync SQLAlchemy engine, on PostgreSQL and SQLite.

The engine is the application's own, so that claim, business change and answer are
one transaction on one connection. SQLAlchemy lends the connection, its transaction
and its pool; samekey's own statements go straight to the driver (``statements``).
What both colours share stands here as functions on a sync ``Connection``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.engine import make_url

from samekey.core.ops import (
    Commit,
    Complete,
    CreateSchema,
    Find,
    Hold,
    Open,
    Rollback,
    Search,
    Step,
    TryClaim,
)
from samekey.core.ops import ReadSchemaVersion as ReadVersion
from samekey.errors import ConfigurationError, NotCommitted, SamekeyError, StoreBusy, StoreError
from samekey.run import run
from samekey.stores.drivers.joined_dialect import (
    FIRST_SAVEPOINT,
    commit_with,
    first_savepoint_is_made,
    fresh,
    joined_view,
)
from samekey.stores.drivers.sqlalchemy_errors import NoRow, commit_errors, is_no_row, statement_errors
from samekey.stores.drivers.sqlalchemy_reader import Reader, SqliteReader
from samekey.stores.drivers.statements import Parameters, Rows, Runner, Statement, performing, runner_on
from samekey.stores.protocols import Capabilities
from samekey.stores.sql import postgres, sqlite
from samekey.stores.sql.dialect import DEFAULT_TABLE, Dialect
from samekey.stores.sql.plans import plan_for

_DIALECTS: dict[str, Callable[[str], Dialect]] = {"postgresql": postgres.dialect, "sqlite": sqlite.dialect}
CANCEL_SECONDS_MAX = 2.0  # to reach the server; the statement ends anyhow when its client is gone
BUSY_SECONDS_MAX = 5.0
BUSY_PAUSE_SECONDS = 0.1
BUSY_TIMEOUT = "PRAGMA busy_timeout"  # milliseconds that SQLite waits for another process's writer
ENDED = "the joined transaction has ended"
OWNED = "samekey"  # in Connection.info: the transaction that may be ended by samekey only


def open_sqlalchemy_store(url: str, table: str) -> SqlAlchemyStore:
    """A store on an engine of its own; ModuleNotFoundError where the driver is missing."""
    return SqlAlchemyStore(create_engine(url), table)


# The transaction of the operation that the current task or thread is inside of.
joined_now: ContextVar[Any] = ContextVar("samekey_joined_now", default=None)


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


def capabilities(dialect: Dialect) -> Capabilities:
    return Capabilities(
        transactional=True,
        server_clock=True,
        single_writer=dialect.single_writer,
        makes_tables=dialect.single_writer,
    )


def is_read(step: Step[Any]) -> bool:
    """Whether a step needs no transaction."""
    return isinstance(step, Find | Search | ReadVersion)


def journal_statements(dialect: Dialect, step: Step[Any]) -> tuple[str, ...]:
    """What has to be said before the table is made."""
    # Readers of an SQLite database in another journal mode wait for the writer, and fail with "locked".
    wal = isinstance(step, CreateSchema) and dialect.single_writer
    return ("PRAGMA journal_mode = WAL",) if wal else ()


def busy_statement(dialect: Dialect, busy_seconds: float | None) -> str | None:
    """What sets the wait for a writer in another process; None leaves it as the engine has it."""
    if busy_seconds is None or not dialect.single_writer:
        return None
    return f"{BUSY_TIMEOUT} = {round(busy_seconds * 1000)}"


def seconds_when_busy(dialect: Dialect, step: Step[Any]) -> float:
    """How long a step that meets a busy database is tried again.

    SQLite does not wait for its turn to change the journal mode, so those who make the table at
    the same moment have to ask again. A long operation beside us is told soon all the same.
    """
    return BUSY_SECONDS_MAX if isinstance(step, CreateSchema) and dialect.single_writer else 0.0


def own(connection: Connection) -> None:
    """Begin SQLAlchemy's side of a transaction that is ours alone to end."""
    # Begun now, so that a session that is used first finds a transaction to put its savepoint in.
    connection.info[OWNED] = connection.begin()


def disown(connection: Connection) -> None:
    """From here on the transaction may be ended, to commit it.

    SQLAlchemy loses track of a transaction whose end was refused: then its commit would do nothing.
    """
    if connection.closed or connection.invalidated:
        raise NotCommitted("the connection broke before the commit; nothing remains", retryable=True)
    if connection.get_transaction() is not connection.info.get(OWNED):
        raise NotCommitted("the application tried to end the joined transaction itself", retryable=False)
    connection.info.pop(OWNED, None)


def is_left_open(connection: Connection) -> bool:
    """Whether the database's transaction is open and SQLAlchemy will not roll it back.

    So it is when an end was refused or failed: closing the connection would put it into the pool as it
    is, with its locks and writes.
    """
    if connection.closed or connection.invalidated:
        return False
    owned = connection.info.pop(OWNED, None) is not None
    if connection.dialect.name == "sqlite":
        # SQLAlchemy may be told to skip the rollback of a driver in autocommit; the BEGIN was ours.
        return in_transaction(connection.connection.driver_connection)
    transaction = connection.get_transaction()
    return owned if transaction is None else not transaction.is_active


def roll_back(connection: Connection) -> None:
    connection.connection.rollback()  # the driver's own: the dialect's may be skipped


def in_transaction(driver_connection: Any) -> bool:
    """Whether an SQLite connection still has a transaction open."""
    return bool(driver_connection.in_transaction)


def ended_early(reader: SqliteReader | None, id: bytes, driver_connection: Any) -> bool:
    """Whether something other than samekey ended the transaction on SQLite (PostgreSQL asks the row's xmin).

    A new one may have begun since; but a claim that others can see has been committed.
    """
    return reader is not None and (not in_transaction(driver_connection) or reader.sees(id))


SAVEPOINT: Statement = (f"SAVEPOINT {FIRST_SAVEPOINT}", {})
# A claim that is tried again must stand outside: the session's rollback would take it along, and its row
# would carry the number of a subtransaction.
RELEASE: Statement = (f"RELEASE SAVEPOINT {FIRST_SAVEPOINT}", {})


def beginning_of(dialect: Dialect, driver_connection: Any, *, write: bool) -> list[Statement]:
    """What begins the database's own transaction, where the driver would do it late and deferred."""
    if dialect.begin_write is None:
        return []
    # An engine that begins in an event of its own has just done so.
    rollback: list[Statement] = [("ROLLBACK", {})] if in_transaction(driver_connection) else []
    return [*rollback, (dialect.begin_write if write else "BEGIN", {})]


class SqlAlchemyTransaction:
    """One joined transaction on a connection of a sync engine."""

    def __init__(self, store: SqlAlchemyStore) -> None:
        self._store = store
        self._dialect = store.dialect
        self._connection: Connection | None = None
        self._runner: Runner | None = None
        self._ended = False

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def connection(self) -> Connection:
        """The joined connection; StoreError once the operation has ended."""
        if self._connection is None:
            raise StoreError(ENDED)
        return self._connection

    def perform(self, step: Step[Any]) -> Any:
        match step:
            case Open(write):
                with statement_errors():
                    self._open()
                    self._begin(write)
            case TryClaim():
                with statement_errors():
                    perform = performing(self._claiming())
                    return run(plan_for(self._dialect, step), perform)
            case Complete(completion):
                if ended_early(self._store.file_reader, completion.id, self._driver_connection()):
                    return None
                with commit_errors():
                    return run(plan_for(self._dialect, step), performing(self._commit_with))
            case Commit():
                with commit_errors():
                    disown(self.connection)
                    self.connection.commit()
                self.abandon()
            case Rollback():
                self.abandon()
            case Find() | Hold():
                return self._store.perform(step)
            case _:
                raise TypeError(f"{type(step).__name__} is not a step of a transaction")

    def _open(self) -> None:
        if self._ended:
            raise StoreError(ENDED)
        self._connection = connection = self._store.joined_engine.connect()
        try:
            fresh(connection)
            own(connection)
            self._runner = runner_on(connection)
        except BaseException:
            self.abandon()
            raise

    def _begin(self, write: bool) -> None:
        try:
            beginning = beginning_of(self._dialect, self._driver_connection(), write=write)
            if self._store.busy_statement is not None:
                self._begin_within(self._store.busy_statement, beginning)
            elif beginning:
                self._running().run_all(beginning)
        except BaseException:
            self.abandon()
            raise

    def _begin_within(self, busy_statement: str, beginning: Sequence[Statement]) -> None:
        """Begin with a wait of our own; the application's connection keeps its own."""
        ((milliseconds,),) = self._running().run(BUSY_TIMEOUT, {})
        self._running().run(busy_statement, {})
        try:
            self._running().run_all(beginning)
        finally:
            self._running().run(f"{BUSY_TIMEOUT} = {milliseconds}", {})

    def _claiming(self) -> Callable[[str, Parameters], Rows]:
        """How to run a claim's statements; one that begins the transaction takes everything along."""
        if self.is_open:
            if fresh(self.connection):
                self._running().run(*RELEASE)
            return self._running().run
        self._open()
        runner = self._running()
        if self._store.busy_statement is not None:
            self._begin(write=True)
            return runner.run
        beginning: list[Statement] | None
        beginning = [*runner.begin(), *beginning_of(self._dialect, self._driver_connection(), write=True)]

        def run_claim(statement: str, parameters: Parameters) -> Rows:
            nonlocal beginning
            if beginning is None:
                return runner.run(statement, parameters)
            together, beginning = [*beginning, (statement, parameters), SAVEPOINT], None
            rows = runner.run_all(together)[-2]
            first_savepoint_is_made(self.connection)
            return rows

        return run_claim

    def _commit_with(self, statement: str, parameters: Parameters) -> Rows:
        """Run the last statement and commit; without a row nothing is committed."""
        connection, runner = self.connection, self._running()
        disown(connection)
        rows: Rows = ()

        def last_word() -> None:
            nonlocal rows
            rows = runner.commit(statement, parameters)
            if not rows:
                raise NoRow

        try:
            if runner.commits:
                commit_with(connection, last_word)
            else:
                last_word()
            connection.commit()
        except Exception as error:
            if is_no_row(error):
                return ()
            raise
        self.abandon()
        return rows

    def _running(self) -> Runner:
        if self._runner is None:
            raise StoreError(ENDED)
        return self._runner

    def _driver_connection(self) -> Any:
        return self.connection.connection.driver_connection

    def abandon(self, *, discard: bool = False) -> None:
        """Give the connection back rolled back; ``discard`` closes it for good. Never raises."""
        connection, self._connection, self._runner, self._ended = self._connection, None, None, True
        if connection is not None:
            give_back(connection, discard=discard)


def give_back(connection: Connection, *, discard: bool) -> None:
    """Return a connection to its pool, or close it where that is not possible. Never raises."""
    try:
        if discard:
            throw_away(connection)
        else:
            if is_left_open(connection):
                roll_back(connection)
            connection.close()
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it must not be used again
        # The pool could not reset it: the database rolls back when the connection breaks.
        if not connection.closed:
            connection.invalidate()


def throw_away(connection: Connection) -> None:
    """Take a connection out of its pool, rolled back, so that nothing on it is ever committed.

    Somebody may still be using it: when the request of a ``def`` handler is cancelled, the handler's
    thread goes on, in the middle of a statement or before its next one.
    """
    if connection.closed or connection.invalidated:
        return connection.close()
    driver_connection: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        # In autocommit the thread's next statement would commit by itself.
        with suppress(Exception):
            driver_connection.execute("PRAGMA query_only = ON")
        with suppress(Exception):
            driver_connection.rollback()
        # CPython crashes when an SQLite connection is closed below a running statement, so this one
        # is closed when the last one who uses it lets it go.
        return connection.detach()
    # psycopg's rollback waits for a running statement, which the server is told to give up.
    if hasattr(driver_connection, "cancel_safe"):
        with suppress(Exception):
            driver_connection.cancel_safe(timeout=CANCEL_SECONDS_MAX)
    with suppress(Exception):
        driver_connection.rollback()
    connection.invalidate()
    connection.close()


class SqlAlchemyStore:
    """Records in the database of a sync engine; safe to use from several threads."""

    def __init__(
        self, engine: Engine, table: str = DEFAULT_TABLE, *, busy_seconds: float | None = None
    ) -> None:
        self.engine = engine
        self.joined_engine = joined_view(engine)
        self.dialect = dialect_for(engine, table)
        self.busy_statement = busy_statement(self.dialect, busy_seconds)
        self.capabilities = capabilities(self.dialect)
        self.file_reader = SqliteReader(engine, self.dialect) if self.dialect.single_writer else None
        self._reader = self.file_reader or Reader(engine, self.dialect)

    @property
    def reads_without_waiting(self) -> bool:
        """Whether ``read`` may be called on an event loop."""
        return self.file_reader is not None

    def read(self, step: Step[Any]) -> Any:
        """Perform a Find at the least cost; any other step as ``perform`` does."""
        if isinstance(step, Find):
            try:
                with statement_errors():
                    return self._reader.find(step.id)
            except SamekeyError:
                pass  # the usual way says what is wrong, if anything still is
        return self.perform(step)

    def perform(self, step: Step[Any]) -> Any:
        deadline = time.monotonic() + seconds_when_busy(self.dialect, step)
        while True:
            try:
                return self._perform_once(step)
            except StoreBusy:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(BUSY_PAUSE_SECONDS)

    def _perform_once(self, step: Step[Any]) -> Any:
        with statement_errors():
            connection = self.engine.connect()
            try:
                execute = runner_on(connection).run
                for statement in journal_statements(self.dialect, step):
                    execute(statement, {})
                if not is_read(step):
                    connection.begin()
                    if self.dialect.begin_write is not None and not in_transaction(
                        connection.connection.driver_connection
                    ):
                        execute(self.dialect.begin_write, {})
                result = run(plan_for(self.dialect, step), performing(execute))
                if not is_read(step):
                    connection.commit()
                return result
            finally:
                give_back(connection, discard=False)

    def transaction(self) -> SqlAlchemyTransaction:
        return SqlAlchemyTransaction(self)
