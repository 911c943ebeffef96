"""What the surroundings do wrong: a wrong clock, a read-only replica, a table that is not there."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from samekey.core.decide import Replay
from samekey.core.ops import Find, Purge
from samekey.core.policy import Policy
from samekey.errors import ConfigurationError, SchemaError
from tests.contract.moves import DAY, HOUR, a_claim, found, operate
from tests.contract.subjects import SqlSubject, Subject, needs

POLICY = Policy()
TOLERANCE_SECONDS = 60


@needs("server_clock")
@pytest.mark.parametrize("wrong_by", [HOUR, -HOUR, 400 * DAY])
def test_a_wrong_clock_of_the_application_changes_nothing_bl_59(
    store: Subject, monkeypatch: pytest.MonkeyPatch, wrong_by: float
) -> None:
    """BL-59: a lifetime written by one clock and judged by another ends too early or too late."""
    right = datetime.now(UTC)
    real_time = time.time

    class WrongTime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.fromtimestamp(real_time() + wrong_by, tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(UTC).replace(tzinfo=None)

    monkeypatch.setattr(time, "time", lambda: real_time() + wrong_by)
    for name, module in list(sys.modules.items()):
        if name.startswith("samekey.") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", WrongTime)
    claim = a_claim()
    operate(store, claim, retention=HOUR / 2)
    record = found(store, claim)
    assert record.expires_at is not None
    for moment, expected in (
        (record.now, right),
        (record.created_at, right),
        (record.expires_at, right + timedelta(seconds=HOUR / 2)),
    ):
        assert abs((moment - expected).total_seconds()) < TOLERANCE_SECONDS
    assert isinstance(store.engine().begin(a_claim(), POLICY), Replay)
    assert store.perform(Purge(10)) == 0


@needs("table")
def test_a_read_only_database_is_a_configuration_error_bl_58(store: SqlSubject) -> None:
    """BL-58: a replica answers late, so it must never decide; the message says what to give instead."""
    statement = (
        "SET default_transaction_read_only = on" if "isolation" in store.can else "PRAGMA query_only = ON"
    )
    with store.sibling() as replica:

        def read_only(connection: Any, *_: object) -> None:
            cursor = connection.cursor()
            cursor.execute(statement)
            cursor.close()
            connection.commit()

        event.listen(replica.sqlalchemy.pool, "checkout", read_only)
        with pytest.raises(ConfigurationError) as caught:
            replica.engine().begin(a_claim(), POLICY)
        assert str(caught.value) == "the database is read-only; give samekey the primary, not a replica"
        assert replica.leftovers() == 0
    assert store.perform(Find(a_claim().id)) is None


@needs("table")
def test_a_missing_table_says_what_to_do(store: SqlSubject) -> None:
    store.sql("DROP TABLE idempotency_keys")
    with pytest.raises(SchemaError) as caught:
        store.engine().begin(a_claim(), POLICY)
    assert str(caught.value) == "samekey's table is missing or outdated; run 'samekey init'"
    assert store.leftovers() == 0
