"""Running one statement straight on the driver below SQLAlchemy.

samekey's own statements are few and always the same, so they need nothing of
SQLAlchemy's execution layer, which costs more than they do. This module owns the
placeholders and the fetching of each driver it knows; for any other driver it
goes through SQLAlchemy. It knows nothing of what a statement means.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from samekey.core.ops import Step
from samekey.stores.sql.plans import Run

Rows = Sequence[Sequence[Any]]
Parameters = Mapping[str, Any]
Execute = Callable[[str, Parameters], Rows]
AsyncExecute = Callable[[str, Parameters], Awaitable[Rows]]

_NAMED = re.compile(r"(?<![:\w]):([a-z_]+)")  # not a cast, and not a colon inside of a name


def driver_of(connection: AsyncConnection) -> Any:
    """The driver's own connection. It is there since the check-out, so nothing has to be awaited."""
    sync_connection = connection.sync_connection
    return None if sync_connection is None else sync_connection.connection.driver_connection


def execute_on(connection: Connection) -> Execute:
    """How to run a statement on ``connection``: on its driver if it is one that we know."""
    driver_connection = connection.connection.driver_connection
    match connection.dialect.driver:
        case "pysqlite":

            def run_sqlite(statement: str, parameters: Parameters) -> Rows:
                rows: Rows = driver_connection.execute(statement, parameters).fetchall()  # type: ignore[union-attr]
                return rows

            return run_sqlite
        case "psycopg" if not connection.dialect.is_async:

            def run_psycopg(statement: str, parameters: Parameters) -> Rows:
                cursor = driver_connection.execute(_pyformat(statement), parameters)  # type: ignore[union-attr]
                return cursor.fetchall() if _has_rows(cursor) else ()

            return run_psycopg
        case _:

            def run_any(statement: str, parameters: Parameters) -> Rows:
                result = connection.execute(_text(statement), dict(parameters))
                return result.all() if result.returns_rows else ()

            return run_any


def async_execute_on(connection: AsyncConnection, driver_connection: Any) -> AsyncExecute:
    """The async twin of ``execute_on``."""
    match connection.dialect.driver:
        case "aiosqlite":

            async def run_aiosqlite(statement: str, parameters: Parameters) -> Rows:
                rows: Rows = await driver_connection.execute_fetchall(statement, parameters)
                return rows

            return run_aiosqlite
        case "psycopg":

            async def run_psycopg(statement: str, parameters: Parameters) -> Rows:
                cursor = await driver_connection.execute(_pyformat(statement), parameters)
                return await cursor.fetchall() if _has_rows(cursor) else ()

            return run_psycopg
        case _:

            async def run_any(statement: str, parameters: Parameters) -> Rows:
                result = await connection.execute(_text(statement), dict(parameters))
                return result.all() if result.returns_rows else ()

            return run_any


def performing(execute: Execute) -> Callable[[Step[Any]], Rows]:
    """What a runner needs to step a backend's plan: ``Run`` steps, performed by ``execute``."""

    def perform(step: Step[Any]) -> Rows:
        run = _only_run(step)
        return execute(run.statement, run.parameters)

    return perform


def async_performing(execute: AsyncExecute) -> Callable[[Step[Any]], Awaitable[Rows]]:
    """The async twin of ``performing``."""

    def perform(step: Step[Any]) -> Awaitable[Rows]:
        run = _only_run(step)
        return execute(run.statement, run.parameters)

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
