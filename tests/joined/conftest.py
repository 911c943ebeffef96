"""The places that joined mode's traps are set on, and the look whether a connection was left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.joined.shop import Place, checked_out

DRIVERS = {
    "sqlite-sync": ("pysqlite", True),
    "sqlite-async": ("aiosqlite", False),
    "postgresql-sync": ("psycopg", True),
    "postgresql-async": ("psycopg", False),
    "postgresql-asyncpg": ("asyncpg", False),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``place``: every database and colour, or those that the test names with ``on``."""
    if "place" in metafunc.fixturenames:
        wanted = getattr(metafunc.function, "on", "")
        names = [name for name in DRIVERS if wanted in name]
        metafunc.parametrize("place", names, indirect=True)


@pytest.fixture
async def place(
    request: pytest.FixtureRequest, sqlite_path: Path, fresh_postgres: str
) -> AsyncIterator[Place]:
    driver, sync = DRIVERS[request.param]
    on_sqlite = request.param.startswith("sqlite")
    place = Place(f"sqlite:///{sqlite_path}" if on_sqlite else fresh_postgres, driver, sync)
    yield place
    left = [checked_out(engine) for engine in place.engines]
    await place.close()
    assert left == [0] * len(left), "a connection was left checked out"
