"""Savepoints at the cost of a statement.

SQLAlchemy compiles an expression for each SAVEPOINT and RELEASE, and a joined session needs one of
each per operation. The joined connections come from a view of the application's engine (same pool,
same events) whose dialect sends a savepoint as plain text, and releases none: SQLAlchemy never uses a
name twice in a transaction, and the commit ends them all. The application's own engine is not changed.
"""

from __future__ import annotations

import copy

from sqlalchemy import Connection, Engine


def _savepoint(connection: Connection, name: str) -> None:
    connection.exec_driver_sql(f"SAVEPOINT {name}")


def _release(connection: Connection, name: str) -> None:
    """Leave it to the commit: the work in it is kept either way."""


def _rollback_to(connection: Connection, name: str) -> None:
    connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {name}")


def with_plain_savepoints(engine: Engine) -> Engine:
    """A view of ``engine`` for joined connections. The names of savepoints are SQLAlchemy's own."""
    view = engine.execution_options()
    view.dialect = copy.copy(engine.dialect)
    view.dialect.do_savepoint = _savepoint  # type: ignore[method-assign]
    view.dialect.do_release_savepoint = _release  # type: ignore[method-assign]
    view.dialect.do_rollback_to_savepoint = _rollback_to  # type: ignore[method-assign]
    return view
