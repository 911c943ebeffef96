"""The table: made by many at once, under any proper name, and refused in a version that is not known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from samekey.core.ops import CreateSchema, ReadSchemaVersion
from samekey.errors import ConfigurationError, SchemaError
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore
from samekey.stores.protocols import SCHEMA_VERSION
from samekey.stores.sql import postgres, sqlite
from samekey.stores.sql.dialect import check_table
from samekey.stores.sql.schema import statements
from tests.contract.moves import a_claim, found, operate
from tests.contract.subjects import SqlSubject, make_subject, together

CREATORS = 8


@pytest.fixture(params=["sqlite", "postgresql-psycopg", "postgresql-asyncpg", "sqlite-aiosqlite"])
def store(request: pytest.FixtureRequest, sqlite_path: Path, postgres_url: str) -> Iterator[SqlSubject]:
    with make_subject(request.param, sqlite_path=sqlite_path, postgres_url=postgres_url) as subject:
        assert isinstance(subject, SqlSubject)
        yield subject


def drop(store: SqlSubject) -> None:
    store.sql("DROP TABLE idempotency_keys")
    store.sql("DROP TABLE samekey_schema")


def test_eight_may_make_the_table_at_once(sqlite_path: Path, fresh_postgres: str) -> None:
    """Each with an engine of its own, as eight processes of one application have."""
    for url, options in ((f"sqlite:///{sqlite_path}", {"timeout": 20}), (fresh_postgres, {})):
        stores = [SqlAlchemyStore(create_engine(url, connect_args=options)) for _ in range(CREATORS)]

        def create(store: SqlAlchemyStore) -> Any:
            store.perform(CreateSchema())
            return store.perform(ReadSchemaVersion())

        assert together([partial(create, store) for store in stores]) == [SCHEMA_VERSION] * CREATORS
        for store in stores:
            store.engine.dispose()


def test_making_it_again_keeps_what_is_there(store: SqlSubject) -> None:
    claim = a_claim()
    operate(store, claim)
    store.perform(CreateSchema())
    assert found(store, claim).owner == claim.owner
    assert store.perform(ReadSchemaVersion()) == SCHEMA_VERSION


def test_start_up_makes_the_table_only_where_nobody_else_administers_it(store: SqlSubject) -> None:
    drop(store)
    if "makes_tables" in store.can:
        store.engine().prepare()
        operate(store, a_claim())
        return
    with pytest.raises(SchemaError) as caught:
        store.engine().prepare()
    assert "run 'samekey init'" in str(caught.value)


def test_a_table_without_a_version_is_missing_and_says_what_to_do(store: SqlSubject) -> None:
    store.sql("DELETE FROM samekey_schema")
    if "makes_tables" in store.can:
        store.engine().prepare()
        assert store.perform(ReadSchemaVersion()) == SCHEMA_VERSION
        return
    with pytest.raises(SchemaError) as caught:
        store.engine().prepare()
    assert str(caught.value) == "samekey's table is missing; run 'samekey init' with the database's URL"


def test_another_version_is_refused_and_says_what_to_do(store: SqlSubject) -> None:
    store.sql("UPDATE samekey_schema SET version = 99")
    with pytest.raises(SchemaError) as caught:
        store.engine().prepare()
    assert str(caught.value) == (
        f"samekey's table has version 99, and this release knows {SCHEMA_VERSION} only; "
        "run the release of samekey that made the table, or a later one"
    )
    assert store.leftovers() == 0


def test_a_table_of_another_name_is_a_store_of_its_own(store: SqlSubject) -> None:
    operate(store, a_claim())
    other = store.under_name("shop_keys")
    other.perform(CreateSchema())
    assert other.perform(ReadSchemaVersion()) == SCHEMA_VERSION
    operate(other, a_claim())
    assert [tuple(row) for row in store.sql("SELECT count(*) FROM shop_keys")] == [(1,)]
    assert sorted(name for (name,) in store.sql("SELECT table_name FROM samekey_schema")) == [
        "idempotency_keys",
        "shop_keys",
    ]


def test_a_name_may_name_its_schema(store: SqlSubject) -> None:
    if "single_writer" in store.can:
        with pytest.raises(ConfigurationError) as caught:
            store.under_name("main.shop_keys")
        assert str(caught.value) == (
            "SQLite's schemas are files of their own, and a commit over two files is not one: "
            "give a table name without a schema"
        )
        return
    store.sql("CREATE SCHEMA IF NOT EXISTS shop")
    other = store.under_name("shop.keys")
    other.perform(CreateSchema())
    operate(other, a_claim())
    assert [tuple(row) for row in store.sql("SELECT count(*) FROM shop.keys")] == [(1,)]
    store.sql("DROP SCHEMA shop CASCADE")


def test_the_longest_names_have_indexes_of_their_own(store: SqlSubject) -> None:
    """PostgreSQL cuts a name after 63 characters; IF NOT EXISTS would then take one index for another."""
    for last in "ab":
        store.under_name("k" * 62 + last).perform(CreateSchema())
    query = (
        "SELECT tablename FROM pg_indexes WHERE schemaname = current_schema() "
        "AND tablename LIKE 'kkk%' AND indexdef LIKE '%(purge_at)%'"
        if "isolation" in store.can
        else "SELECT tbl_name FROM sqlite_master WHERE type = 'index' AND tbl_name LIKE 'kkk%' AND sql != ''"
    )
    assert sorted(name for (name,) in store.sql(query)) == ["k" * 62 + "a", "k" * 62 + "b"]


@pytest.mark.parametrize("name", ["keys", "_k1", "Shop_Keys", "a" * 63, "shop.keys"])
def test_a_name_is_accepted(name: str) -> None:
    assert check_table(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1keys",
        "a b",
        'a"b',
        "a;b",
        "a.b.c",
        ".a",
        "a.",
        "a-b",
        "a" * 64,
        "a\n",
        "schlüssel",
        "a--b",
        "keys ",
    ],
)
def test_a_bad_name_is_refused_before_it_is_in_a_statement(name: str) -> None:
    for use in (check_table, postgres.dialect, sqlite.dialect):
        with pytest.raises(ConfigurationError) as caught:
            use(name)
        assert str(caught.value) == (
            f"{name!r} cannot be a table name: use letters, digits and _, optionally 'schema.table'"
        )


@pytest.mark.parametrize("name", ["postgres", "sqlite"])
def test_the_printed_ddl_is_whole_statements_for_that_table(name: str) -> None:
    ddl = statements(name, "shop_keys")
    assert [" ".join(statement.split()[:6]) for statement in ddl] == [
        "CREATE TABLE IF NOT EXISTS shop_keys",
        "CREATE INDEX IF NOT EXISTS shop_keys_purge_at",
        "CREATE TABLE IF NOT EXISTS samekey_schema",
        "INSERT INTO samekey_schema (table_name, version) VALUES",
    ]
    assert not [statement for statement in ddl if "{" in statement or ";" in statement or "--" in statement]
