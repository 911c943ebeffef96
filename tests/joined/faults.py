"""Faults of a database, put where SQLAlchemy calls its driver."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event

Commit = Callable[[], None]
Fault = Callable[[Commit, Any], None]


# The locks of this database; other tests run on the same server.
_OUR_LOCKS = (
    "FROM pg_locks JOIN pg_database ON pg_database.oid = database "
    "WHERE locktype = 'advisory' AND datname = current_database()"
)
COUNT_LOCKS = f"SELECT count(*) {_OUR_LOCKS}"
TERMINATE_CLAIMANTS = f"SELECT pg_terminate_backend(pid, 5000) {_OUR_LOCKS}"
COUNT_OPEN_TRANSACTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%' AND datname = current_database()"
)


def sync_side(engine: Any) -> Engine:
    """The engine as sync code uses it, also inside of ``run_sync``."""
    made: Engine = getattr(engine, "sync_engine", engine)
    return made


@dataclass
class Faults:
    """What goes wrong at the next commit, and how many new connections can still be made.

    To be put on an engine before samekey gets it, which copies the dialect.
    """

    engine: Any
    at_commit: Fault | None = None
    connections_left: float = math.inf
    commits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        engine = sync_side(self.engine)
        self.dialect = engine.dialect
        really_commit = self.dialect.do_commit

        def do_commit(connection: Any) -> None:
            fault, self.at_commit = self.at_commit, None
            if fault is None:
                return really_commit(connection)
            self.commits += 1
            return fault(lambda: really_commit(connection), connection)

        self.dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]

        @event.listens_for(engine, "do_connect")
        def do_connect(*_: Any) -> None:
            self.connections_left -= 1
            if self.connections_left < 0:
                raise self.error("connection refused")

    def error(self, message: str) -> Exception:
        """The driver's own error for a connection that broke; it has no SQLSTATE."""
        made: Exception = self.dialect.dbapi.OperationalError(message)  # type: ignore[union-attr]
        return made


def break_connection(connection: Any) -> None:
    """Close the driver's connection behind SQLAlchemy's back, as a broken network does."""
    driver_connection = connection.driver_connection
    if hasattr(driver_connection, "terminate"):  # asyncpg
        driver_connection.terminate()
    elif hasattr(driver_connection, "pgconn"):  # psycopg, of both colours
        driver_connection.pgconn.finish()


def sqlite_error(code: int, message: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return error
