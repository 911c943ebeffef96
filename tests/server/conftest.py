"""The places that the scenarios run on."""

from __future__ import annotations

from pathlib import Path

import pytest

SQLITE = [
    pytest.param(("sqlite", True), id="sqlite-sync"),
    pytest.param(("sqlite", False), id="sqlite-async"),
]
POSTGRESQL = [
    pytest.param(("postgresql", True), id="postgresql-sync"),
    pytest.param(("postgresql", False), id="postgresql-async"),
]


def place(param: tuple[str, bool], sqlite_path: Path, fresh_postgres: str) -> tuple[str, bool]:
    database, sync = param
    url = f"sqlite+aiosqlite:///{sqlite_path}" if database == "sqlite" else fresh_postgres
    return url, sync


@pytest.fixture(params=[*SQLITE, *POSTGRESQL])
def everywhere(request: pytest.FixtureRequest, sqlite_path: Path, fresh_postgres: str) -> tuple[str, bool]:
    """(url, sync) on both databases in both colours: for rows that touch the store."""
    return place(request.param, sqlite_path, fresh_postgres)


@pytest.fixture(params=SQLITE)
def on_sqlite(request: pytest.FixtureRequest, sqlite_path: Path) -> tuple[str, bool]:
    """(url, sync) on SQLite in both colours: for rows that the adapter alone decides."""
    return place(request.param, sqlite_path, "")
