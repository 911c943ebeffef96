"""What SQLAlchemy sends on a joined connection: savepoints at the cost of a statement, and our last word.

The joined connections come from a view of the application's engine (same pool, same events) with a dialect
of its own; the application's engine is not changed.

SQLAlchemy compiles an expression for each SAVEPOINT and RELEASE, and a joined session needs one of each per
operation. The view sends a savepoint as plain text, skips the first one where it went out together with
the claim, and releases none: SQLAlchemy never uses a name twice in a transaction, and the commit ends
them all.

SQLAlchemy announces a commit to its listeners and then asks the dialect for it, which asks the driver's
connection. There the view says what was left with ``commit_with``: a last statement and the COMMIT, in
one trip.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine

FIRST_SAVEPOINT = (
    "sa_savepoint_1"  # SQLAlchemy's name for the first in a transaction; another is sent as ever
)
_MADE = "samekey_savepoint"
_COMMIT = "samekey_commit"


def joined_view(engine: Engine) -> Engine:
    """A view of ``engine`` for joined connections. The names of savepoints are SQLAlchemy's own."""
    view = engine.execution_options()
    view.dialect = copy.copy(engine.dialect)
    commit_alone = view.dialect.do_commit

    def commit(dbapi_connection: Any) -> None:
        last_word = dbapi_connection.info.pop(_COMMIT, None)
        committing: Any = dbapi_connection
        if last_word is not None:
            committing = _Committing(dbapi_connection, last_word)
        commit_alone(committing)

    view.dialect.do_commit = commit  # type: ignore[method-assign]
    view.dialect.do_savepoint = _savepoint  # type: ignore[method-assign]
    view.dialect.do_release_savepoint = _release  # type: ignore[method-assign]
    view.dialect.do_rollback_to_savepoint = _rollback_to  # type: ignore[method-assign]
    return view


def fresh(connection: Connection) -> bool:
    """Forget what was prepared on this connection; whether there was a savepoint made ahead of its time."""
    connection.info.pop(_COMMIT, None)
    return connection.info.pop(_MADE, None) is not None


def first_savepoint_is_made(connection: Connection) -> None:
    connection.info[_MADE] = FIRST_SAVEPOINT


def commit_with(connection: Connection, last_word: Callable[[], None]) -> None:
    """Let the next commit of ``connection`` be ``last_word``, called where the driver may be used."""
    connection.info[_COMMIT] = last_word


class _Committing:
    """The driver's connection, with another way to commit."""

    def __init__(self, dbapi_connection: Any, commit: Callable[[], None]) -> None:
        self._dbapi_connection = dbapi_connection
        self.commit = commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dbapi_connection, name)


def _savepoint(connection: Connection, name: str) -> None:
    if connection.info.pop(_MADE, None) != name:
        connection.exec_driver_sql(f"SAVEPOINT {name}")


def _release(connection: Connection, name: str) -> None:
    """Leave it to the commit: the work in it is kept either way."""


def _rollback_to(connection: Connection, name: str) -> None:
    connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {name}")
