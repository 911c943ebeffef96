"""SQLAlchemy's and the drivers' exceptions as samekey's families.

Two maps: one for statements, where nothing is committed yet, and one for the
commit itself, where "no answer" means that nobody knows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from samekey.errors import (
    CommitUnknown,
    ConfigurationError,
    NotCommitted,
    SamekeyError,
    SchemaError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
)

# SQLSTATE classes and codes: PostgreSQL documentation, appendix A.
# serialization_failure, deadlock_detected; invalid_sql_statement_name: what was prepared was deallocated.
_CONFLICTS = {"40001", "40P01", "26000"}
_LOCK_NOT_AVAILABLE = "55P03"
_UNDEFINED_TABLE = "42P01"
_UNDEFINED_COLUMN = "42703"
_READ_ONLY = "25006"
_NO_TRANSACTION = "25P01"
_INVALID_BUCKET_COUNT = "2201G"  # what a completion says that found no row; see ``postgres``
_INTEGRITY_CLASS = "23"
_RESOURCES_CLASS = "53"  # disk full, out of memory, too many connections
_SQLITE_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SQLITE_RESOURCES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM}


@contextmanager
def statement_errors() -> Iterator[None]:
    """Map what a statement of ours raises; nothing was committed."""
    try:
        yield
    except SamekeyError:
        raise
    except Exception as error:
        if not _is_database_error(error):
            raise
        raise _statement_error(error) from error


@contextmanager
def commit_errors() -> Iterator[None]:
    """Map what the commit raises: refused (nothing remains) or not acknowledged (unknown)."""
    try:
        yield
    except SamekeyError:
        raise
    except Exception as error:
        if not _is_database_error(error):
            raise
        raise _commit_error(error) from error


class NoRow(Exception):
    """Stops a commit whose last statement found no row of ours."""


def is_no_row(error: Exception) -> bool:
    """Whether a completion was stopped because no row was ours; PostgreSQL's text fails then."""
    return isinstance(error, NoRow) or _sqlstate(error) == _INVALID_BUCKET_COUNT


def _is_database_error(error: Exception) -> bool:
    return isinstance(error, exc.SQLAlchemyError | OSError) or "Error" in _kinds(error)


def _kinds(error: Exception) -> set[str]:
    """The error's classes by name: every driver has those of PEP 249, each in a module of its own."""
    return {kind.__name__ for kind in type(error).__mro__}


def _statement_error(error: Exception) -> SamekeyError:
    state, code = _sqlstate(error), _sqlite_code(error)
    if state in _CONFLICTS:
        return TransactionConflict("the database ended the transaction in favour of another; try again")
    if state == _LOCK_NOT_AVAILABLE or code in _SQLITE_BUSY:
        return StoreBusy("another process holds the database's write lock; try again soon")
    if state in (_UNDEFINED_TABLE, _UNDEFINED_COLUMN) or "no such table" in str(error):
        return SchemaError("samekey's table is missing or outdated; run 'samekey init'")
    if state == _READ_ONLY or code == sqlite3.SQLITE_READONLY:
        return ConfigurationError("the database is read-only; give samekey the primary, not a replica")
    if state == _NO_TRANSACTION:
        return ConfigurationError(
            "the engine is in AUTOCOMMIT, so every statement commits by itself and nothing can be joined; "
            "use an engine without it"
        )
    if isinstance(error, exc.TimeoutError):
        return StoreUnavailable("no free connection in the engine's pool; compare pool_size with concurrency")
    if _kinds(error) & {"OperationalError", "InterfaceError", "OSError"} or _disconnected(error):
        return StoreUnavailable("the database did not answer or refused to work")
    return StoreError(f"the database refused a statement of samekey ({type(error).__name__})")


def _commit_error(error: Exception) -> SamekeyError:
    state, code = _sqlstate(error), _sqlite_code(error)
    if state in _CONFLICTS:
        return NotCommitted(
            "the database refused the commit in favour of another transaction", retryable=True
        )
    if code in _SQLITE_BUSY or code in _SQLITE_RESOURCES or (state or "").startswith(_RESOURCES_CLASS):
        return NotCommitted("the database has no room or no turn for the commit", retryable=True)
    if "IntegrityError" in _kinds(error) or (state or "").startswith(_INTEGRITY_CLASS):
        return NotCommitted("a deferred constraint refused the commit", retryable=False)
    if state is not None and state[:2] not in ("08", "57"):
        return NotCommitted(f"the database refused the commit (SQLSTATE {state})", retryable=False)
    if isinstance(error, exc.InvalidRequestError):
        return NotCommitted("the application tried to end the joined transaction itself", retryable=False)
    # No answer, a broken connection or disk, or a server that shuts down: it may or may not have happened.
    return CommitUnknown("the connection broke during the commit")


def _disconnected(error: Exception) -> bool:
    return isinstance(error, exc.DBAPIError) and error.connection_invalidated


def _sqlstate(error: Exception) -> str | None:
    original = getattr(error, "orig", error)
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return state if isinstance(state, str) else None


def _sqlite_code(error: Exception) -> int | None:
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None  # the low byte is the primary code
