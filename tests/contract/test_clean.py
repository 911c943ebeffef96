"""On every branch the connection comes back clean: the next request gets it from the pool (BL-52)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from samekey.core.decide import AnswerNotKept, Broken, Held, InProgress, Mismatch, Replay
from samekey.core.model import Answer
from samekey.core.policy import Policy
from samekey.engine import Running
from tests.contract.moves import (
    OTHER,
    a_claim,
    claimed,
    committed_early,
    completion_of,
    operate,
)
from tests.contract.subjects import Subject

POLICY = Policy()


def refused_by_a_replay(store: Subject) -> None:
    operate(store, a_claim())
    assert isinstance(store.engine().begin(a_claim(), POLICY), Replay)


def refused_by_a_body_not_kept(store: Subject) -> None:
    operate(store, a_claim(), Answer(200, (), None))
    assert isinstance(store.engine().begin(a_claim(), POLICY), AnswerNotKept)


def refused_by_a_mismatch(store: Subject) -> None:
    operate(store, a_claim())
    assert store.engine().begin(a_claim(fingerprint=OTHER), POLICY) == Mismatch()


def refused_by_a_broken_record(store: Subject) -> None:
    committed_early(store, a_claim())
    assert isinstance(store.engine().begin(a_claim(), POLICY), Broken)
    assert store.engine().begin(a_claim(), POLICY) == Held()


def refused_by_a_rival(store: Subject) -> None:
    engine = store.engine()
    running = engine.begin(a_claim(), POLICY)
    assert isinstance(running, Running)
    assert engine.begin(a_claim(), POLICY) == InProgress(1)
    engine.abandon(running)


def finished(store: Subject) -> None:
    engine, claim = store.engine(), a_claim()
    running = engine.begin(claim, POLICY)
    assert isinstance(running, Running)
    assert engine.finish(running, completion_of(claim, running.fence)) is not None


def abandoned(store: Subject) -> None:
    engine = store.engine()
    running = engine.begin(a_claim(), POLICY)
    assert isinstance(running, Running)
    engine.abandon(running)
    engine.abandon(running)


def died(store: Subject) -> None:
    transaction, _ = claimed(store, a_claim())
    transaction.die(store)


@pytest.mark.parametrize(
    "branch",
    [
        refused_by_a_replay,
        refused_by_a_body_not_kept,
        refused_by_a_mismatch,
        refused_by_a_broken_record,
        refused_by_a_rival,
        finished,
        abandoned,
        died,
    ],
    ids=lambda branch: branch.__name__,
)
def test_a_branch_leaves_the_store_clean_bl_52(store: Subject, branch: Callable[[Subject], None]) -> None:
    branch(store)
    assert store.leftovers() == 0
    operate(store, a_claim("unrelated"))
    assert store.leftovers() == 0
