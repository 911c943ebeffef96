"""Every schedule of rivals on one key and every crash point, through the real plans: never two runs.

The explorer (``samekey.testing.explore``) is itself proved here: wrong plans must be caught, with a story.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from samekey.core.decide import Decision, Proceed, decide
from samekey.core.model import Claim, Completion, Fingerprint, Granted, Taken
from samekey.core.ops import Commit, Complete, CreateSchema, Find, Open, Plan, Rollback, TryClaim
from samekey.core.plans import Committed, EndedEarly
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore, SqlAlchemyTransaction
from samekey.stores.memory import MemoryStore
from samekey.testing.explore import JoinedWorld, Report, StagedEffects, explore
from tests.counted import COUNTED

Record = Callable[[str, object], None]


def memory(**options: Any) -> JoinedWorld:
    return JoinedWorld(MemoryStore(), StagedEffects(), **options)


class Table:
    """The business change as a row in the joined database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, transaction: SqlAlchemyTransaction) -> None:
        transaction.connection.exec_driver_sql("INSERT INTO effects DEFAULT VALUES")

    def committed(self, transaction: SqlAlchemyTransaction) -> None:
        """The database did it."""

    def count(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT count(*) FROM effects").scalar_one())


@pytest.fixture
def sqlite(sqlite_path: Path) -> Iterator[Callable[..., JoinedWorld]]:
    # A rival that meets another's BEGIN IMMEDIATE is told at once: waiting would stop the only thread.
    engine = create_engine(f"sqlite:///{sqlite_path}", connect_args={"timeout": 0})
    store = SqlAlchemyStore(engine)
    store.perform(CreateSchema())
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE effects (id INTEGER PRIMARY KEY)")

    def make_world(**options: Any) -> JoinedWorld:
        with engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM effects")
            connection.exec_driver_sql("DELETE FROM idempotency_keys")
        return JoinedWorld(store, Table(engine), **options)

    yield make_world
    engine.dispose()


def prove(report: Report, story: str, record_property: Record) -> int:
    assert report.failures == ()
    record_property(COUNTED, f"{report.schedules} schedules of {story}")
    return report.schedules


@pytest.mark.parametrize(("rivals", "crashes", "schedules"), [(2, 2, 32), (3, 3, 498), (4, 2, 5990)])
def test_memory_never_runs_twice(rivals: int, crashes: int, schedules: int, record_property: Record) -> None:
    report = explore(memory, rivals, crashes=crashes)
    # The number is literal, so that a schedule which silently falls away is noticed.
    story = f"{rivals} rivals of whom up to {crashes} die, on memory"
    assert prove(report, story, record_property) == schedules


@pytest.mark.parametrize(("rivals", "crashes", "schedules"), [(2, 2, 95), (3, 3, 3701)])
def test_sqlite_never_runs_twice(
    sqlite: Callable[..., JoinedWorld],
    rivals: int,
    crashes: int,
    schedules: int,
    record_property: Record,
) -> None:
    report = explore(sqlite, rivals, crashes=crashes)
    story = f"{rivals} rivals of whom up to {crashes} die, on SQLite"
    assert prove(report, story, record_property) == schedules


# Guard the guard: wrong plans are caught, with a story ---------------------------------------

SAME = Fingerprint(1, b"same")
NEVER = datetime.max.replace(tzinfo=UTC)


async def look_then_run(claim: Claim) -> Decision:
    """The claim of many a home-made middleware: look first, and if there is nothing, run."""
    await Open()
    record = await Find(claim.id)
    if record is None:
        return Proceed(0)
    await Rollback()
    return decide(Taken(record), claim.fingerprint)


async def write_unasked(completion: Completion) -> Committed | EndedEarly:
    """Its other half: the record is written when the handler is done, whatever stands there by then."""
    claim = Claim(completion.id, completion.owner, SAME, "caller", "key", "POST", "/orders")
    outcome = await TryClaim(claim)
    if isinstance(outcome, Granted):
        await Complete(replace(completion, fence=outcome.fence))
    else:
        await Commit()
    return Committed(NEVER)


async def commit_without_answer(completion: Completion) -> Committed | EndedEarly:
    """The change is committed, and the answer is left to another transaction."""
    await Commit()
    await Find(completion.id)
    return Committed(NEVER)


async def answer_without_commit(_: Completion) -> Committed | EndedEarly:
    """The answer is sent before the commit, which then never happens."""
    await Rollback()
    return Committed(NEVER)


def test_a_look_before_the_write_is_caught_on_memory_bl_15() -> None:
    """BL-15: two simultaneous requests both miss, and both run."""
    report = explore(partial(memory, begin=look_then_run, finish=write_unasked), 2)
    assert report.failed > 0
    assert report.failures[0].splitlines() == [
        "rival 1: Open",
        "rival 1: Find",
        "rival 1: handler",
        "rival 1: TryClaim",
        "rival 2: Open",
        "rival 2: Find",
        "rival 1: Complete -> committed",
        "rival 2: handler",
        "rival 2: TryClaim",
        "rival 2: Commit -> committed",
        "wrong: the handler's change was committed 2 times",
    ]


def test_a_commit_without_the_answer_is_caught_on_sqlite(sqlite: Callable[..., JoinedWorld]) -> None:
    """When all went well, and by a crash behind the commit."""
    make_world = partial(sqlite, finish=commit_without_answer)
    assert (
        explore(make_world, 1)
        .failures[0]
        .endswith(
            "wrong: an answer was given, but the record does not hold it\n"
            "wrong: with 1 changes committed a retry got 'Broken'"
        )
    )
    report = explore(make_world, 1, crashes=1)
    assert report.failures[0] == (
        "rival 1: Find\n"
        "rival 1: TryClaim\n"
        "rival 1: handler\n"
        "rival 1: Commit\n"
        "rival 1 dies before: Find\n"
        "wrong: with 1 changes committed a retry got 'Broken'"
    )


@pytest.mark.parametrize("finish", [commit_without_answer, answer_without_commit])
def test_a_wrong_finish_is_caught_on_memory(finish: Callable[[Completion], Plan[Any]]) -> None:
    report = explore(partial(memory, finish=finish), 2, crashes=1)
    assert report.failed > 0
    assert "wrong: " in report.failures[0]


def test_the_shortest_story_comes_first_and_few_are_kept() -> None:
    report = explore(partial(memory, finish=answer_without_commit), 2, crashes=1)
    lengths = [len(story.splitlines()) for story in report.failures]
    assert lengths == sorted(lengths)
    assert len(lengths) == 5 < report.failed
