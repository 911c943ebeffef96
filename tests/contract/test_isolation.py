"""Isolation levels: a tie that the database breaks against a claim is a fresh try, never an error (BL-24)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from samekey.core.decide import InProgress, Replay
from samekey.core.ops import Open, Step, TryClaim
from samekey.core.policy import Policy
from samekey.engine import CONFLICT_TRIES_MAX, Running
from samekey.errors import NotCommitted, TransactionConflict
from samekey.stores.drivers.sqlalchemy_errors import statement_errors
from tests.contract.moves import ANSWER, a_claim, completion_of, operate
from tests.contract.subjects import SqlSubject, needs, together

POLICY = Policy()
RIVALS = 8
levels = pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])


class Interfering:
    """A transaction in which something happens just before the claim: ``statement``, then ``meanwhile``."""

    def __init__(self, inner: Any, statement: str, meanwhile: Callable[[], None]) -> None:
        self._inner = inner
        self._statement = statement
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def perform(self, step: Step[Any]) -> Any:
        if not isinstance(step, TryClaim):
            return self._inner.perform(step)
        opening = self._inner.perform(Open())
        if inspect.isawaitable(opening):
            return self._perform_later(opening, step)
        with statement_errors():
            self._inner.connection.exec_driver_sql(self._statement)
        self._meanwhile()
        return self._inner.perform(step)

    async def _perform_later(self, opening: Any, step: Step[Any]) -> Any:
        await opening
        with statement_errors():
            await self._inner.async_connection.exec_driver_sql(self._statement)
        self._meanwhile()
        return await self._inner.perform(step)


def interfere(
    store: SqlSubject, statement: str, meanwhile: Callable[[], None] = lambda: None, *, times: int = 1
) -> Callable[[], int]:
    """Disturb the next ``times`` transactions of ``store``; how many there were so far."""
    begin, begun = store.inner.transaction, 0

    def transaction() -> Any:
        nonlocal begun
        begun += 1
        return Interfering(begin(), statement, meanwhile) if begun <= times else begin()

    store.inner.transaction = transaction
    return lambda: begun


def breaking_a_tie(sqlstate: str) -> str:
    return f"DO $$ BEGIN RAISE EXCEPTION 'a tie' USING ERRCODE = '{sqlstate}'; END $$"


@needs("isolation")
@pytest.mark.parametrize(
    ("level", "tries"), [("REPEATABLE READ", 2), ("SERIALIZABLE", 2), ("READ COMMITTED", 1)]
)
def test_a_rival_that_ends_after_our_snapshot_is_seen_bl_24(
    store: SqlSubject, level: str, tries: int
) -> None:
    """BL-24: the snapshot is older than the rival's answer, so the database refuses the claim with 40001."""
    with store.sibling(isolation_level=level) as strict:
        begun = interfere(strict, "SELECT 1", lambda: _ignored(operate(store, a_claim())))
        decision = strict.engine().begin(a_claim(), POLICY)
        assert isinstance(decision, Replay)
        assert decision.answer == ANSWER
        assert begun() == tries
        assert strict.leftovers() == 0


def _ignored(_: object) -> None:
    return None


@needs("isolation")
@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_a_lost_tie_is_a_fresh_try_bl_24(store: SqlSubject, sqlstate: str) -> None:
    begun = interfere(store, breaking_a_tie(sqlstate), times=2)
    engine = store.engine()
    running = engine.begin(a_claim(), POLICY)
    assert isinstance(running, Running)
    assert begun() == 3
    engine.abandon(running)


@needs("isolation")
def test_ties_are_tried_a_bounded_number_of_times_bl_24(store: SqlSubject) -> None:
    begun = interfere(store, breaking_a_tie("40001"), times=100)
    with pytest.raises(TransactionConflict):
        store.engine().begin(a_claim(), POLICY)
    assert begun() == CONFLICT_TRIES_MAX == 3
    assert store.leftovers() == 0


@needs("isolation")
@levels
def test_racing_lives_leave_one_change_at_every_level_bl_24(store: SqlSubject, level: str) -> None:
    store.sql("CREATE TABLE orders (number integer)")
    with store.sibling(isolation_level=level) as strict:
        engine = strict.engine()

        def request(key: str) -> str:
            while True:
                claim = a_claim(key)
                outcome = engine.begin(claim, POLICY)
                if isinstance(outcome, Replay):
                    return "replayed"
                if not isinstance(outcome, Running):
                    assert outcome == InProgress(1)
                    continue
                engine.transaction_of(outcome).execute("INSERT INTO orders VALUES (1)")
                try:
                    engine.finish(outcome, completion_of(claim, outcome.fence))
                except NotCommitted as error:
                    if not error.retryable:
                        raise
                    # Allowed under SERIALIZABLE: nothing remains, and the client is told to retry.
                else:
                    return "ran"

        for number in range(3):
            results = together([partial(request, f"order-{number}")] * RIVALS)
            assert sorted(str(result) for result in results) == ["ran", *["replayed"] * (RIVALS - 1)]
            assert [tuple(row) for row in store.sql("SELECT count(*) FROM orders")] == [(number + 1,)]
