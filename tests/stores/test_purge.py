"""Cost, however many rows: claims touch the primary key only, and purge walks the index of expiry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from samekey.core.ops import Forget, Purge, Search
from tests.contract.moves import DAY, HOUR, a_claim, operate
from tests.contract.subjects import SqlSubject, make_subject

VALUES: dict[str, Any] = {
    "id": bytes(32),
    "lock": 1,
    "owner": bytes(16),
    "fence": 1,
    "fingerprint": b"",
    "fingerprint_version": 1,
    "caller": "",
    "key_hint": "",
    "key": None,
    "method": "",
    "path": "",
    "limit": 100,
    "status": 200,
    "headers": b"",
    "body": b"",
    "retention": 3600.0,
    "tombstone": 0.0,
}


@pytest.fixture(params=["sqlite", "postgresql-psycopg"])
def store(request: pytest.FixtureRequest, sqlite_path: Path, postgres_url: str) -> Iterator[SqlSubject]:
    with make_subject(request.param, sqlite_path=sqlite_path, postgres_url=postgres_url) as subject:
        assert isinstance(subject, SqlSubject)
        yield subject


def plan_of(store: SqlSubject, statement: str) -> str:
    """How the database would run a statement of ours, in its own words."""
    explain = "EXPLAIN" if "isolation" in store.can else "EXPLAIN QUERY PLAN"
    with store.sqlalchemy.connect() as connection:
        if "isolation" in store.can:
            # A few rows are read fastest as a whole; so a plan without an index shows only like this.
            connection.exec_driver_sql("SET enable_seqscan = off")
        names = re.findall(r"(?<![:\w]):([a-z_]+)", statement)
        rows = connection.execute(text(f"{explain} {statement}"), {name: VALUES[name] for name in names})
        return "\n".join(str(row[-1]) for row in rows)


WHOLE_TABLE = re.compile(r"Seq Scan on idempotency_keys|SCAN (idempotency_keys|t)\b(?! USING)")


@pytest.mark.parametrize("verb", ["find", "try_claim", "why_not", "complete", "hold", "forget"])
def test_a_verb_on_one_key_touches_the_primary_key_only(store: SqlSubject, verb: str) -> None:
    plan = plan_of(store, getattr(store.inner.dialect, verb))
    assert not WHOLE_TABLE.search(plan), plan
    assert "purge_at_" not in plan.replace("purge_at <=", ""), plan
    if verb != "try_claim" or "isolation" in store.can:  # SQLite's insert has no plan to show
        assert "idempotency_keys_pkey" in plan or "sqlite_autoindex_idempotency_keys_1" in plan, plan


def test_purge_walks_the_index_of_expiry(store: SqlSubject) -> None:
    plan = plan_of(store, store.inner.dialect.purge)
    assert "idempotency_keys_purge_at" in plan, plan
    assert not WHOLE_TABLE.search(plan), plan


def test_the_check_sees_a_scan_of_the_whole_table(store: SqlSubject) -> None:
    assert WHOLE_TABLE.search(plan_of(store, "SELECT * FROM idempotency_keys WHERE body = 'x'"))


def test_the_oldest_go_first(store: SqlSubject) -> None:
    for number in (2, 0, 1):
        operate(store, a_claim(f"order-{number}"), retention=HOUR * (1 + number))
    store.age(DAY)
    left = []
    for _ in range(3):
        left.append({record.id for record in store.perform(Search())})
        assert store.perform(Purge(1)) == 1
    ids = [a_claim(f"order-{number}").id for number in range(3)]
    assert left == [set(ids), set(ids[1:]), set(ids[2:])]


def test_who_forgets_a_record_that_is_being_purged_finds_nothing(store: SqlSubject) -> None:
    operate(store, a_claim(), retention=HOUR)
    store.age(DAY)
    assert store.perform(Purge(1)) == 1
    assert store.perform(Forget(a_claim().id)) is False
