"""The ground that other tests stand on: fresh databases are fresh, and a skipped store is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests import servers
from tests.conftest import skipped_stores

COUNT_TABLES = text("SELECT count(*) FROM information_schema.tables WHERE table_schema = current_schema()")


@pytest.mark.parametrize("turn", ["first", "second"])
async def test_a_fresh_schema_is_empty_and_takes_both_colours(fresh_postgres: str, turn: str) -> None:
    engine = create_engine(fresh_postgres)
    with engine.begin() as connection:
        assert connection.scalar(COUNT_TABLES) == 0, turn
        connection.execute(text("CREATE TABLE orders (id integer)"))
    engine.dispose()
    async_engine = create_async_engine(fresh_postgres)
    async with async_engine.connect() as async_connection:
        assert await async_connection.scalar(COUNT_TABLES) == 1
    await async_engine.dispose()


def test_another_schema_does_not_see_the_table(postgres_url: str, fresh_postgres: str) -> None:
    other = servers.postgres_schema(postgres_url)
    with servers.connect(fresh_postgres) as connection:
        connection.execute("CREATE TABLE orders (id integer)")
    with servers.connect(other) as connection:
        assert connection.execute("SELECT to_regclass('orders')").fetchone() == (None,)


def test_the_sqlite_file_does_not_exist_yet(sqlite_path: Path) -> None:
    assert not sqlite_path.exists()


class FakeReport:
    def __init__(self, reason: str) -> None:
        self.longrepr = ("tests/test_x.py", 1, f"Skipped: {reason}")


def test_skipped_stores_are_counted_with_their_reason() -> None:
    with pytest.raises(pytest.skip.Exception) as skipped:
        servers.skip_store("mysql", "SAMEKEY_TEST_MYSQL_URL is not set")
    reports = [FakeReport(str(skipped.value)), FakeReport(str(skipped.value)), FakeReport("another reason")]
    assert skipped_stores(reports) == "stores skipped: mysql: SAMEKEY_TEST_MYSQL_URL is not set (2 tests)"
    assert skipped_stores([]) == "stores skipped: none"
