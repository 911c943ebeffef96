"""Many at the same moment, on connections of their own: exactly one is granted (BL-15, BL-19, BL-20)."""

from __future__ import annotations

import threading
from functools import partial

from samekey.core import plans
from samekey.core.decide import InProgress, Proceed, Replay
from samekey.core.policy import Policy
from samekey.engine import Running
from samekey.errors import StoreBusy
from tests.contract.moves import ANSWER, a_claim, completion_of
from tests.contract.subjects import RIVALS_MAX, Subject, together

POLICY = Policy()


def test_of_many_claims_exactly_one_is_granted_bl_19(store: Subject) -> None:
    """BL-19: an unconditional write lets every caller win."""
    for round_ in range(5):
        transactions = [store.transaction() for _ in range(8)]
        claims = [a_claim(f"order-{round_}") for _ in transactions]
        results = together(
            [
                partial(transaction.run, plans.begin(claim))
                for transaction, claim in zip(transactions, claims, strict=True)
            ]
        )
        for transaction in transactions:
            transaction.abandon()
        assert sum(isinstance(result, Proceed) for result in results) == 1, results
        losers = [result for result in results if not isinstance(result, Proceed)]
        assert all(loser == InProgress(1) or isinstance(loser, StoreBusy) for loser in losers), losers


def test_of_many_requests_exactly_one_runs_bl_15(store: Subject) -> None:
    """BL-15: the handler runs once; who comes with it is told to wait, who comes later gets its answer."""
    engine = store.engine()
    runs: list[bytes] = []
    refused = threading.Semaphore(0)

    def request() -> str:
        claim = a_claim()
        outcome = engine.begin(claim, POLICY)
        if isinstance(outcome, Running):
            runs.append(claim.owner)
            # The others are refused while the handler still runs.
            for _ in range(RIVALS_MAX - 1):
                assert refused.acquire(timeout=20)
            engine.finish(outcome, completion_of(claim, outcome.fence))
            return "ran"
        refused.release()
        assert outcome == InProgress(1)
        return "in progress"

    assert sorted(str(result) for result in together([request] * RIVALS_MAX)) == [
        *["in progress"] * (RIVALS_MAX - 1),
        "ran",
    ]
    assert len(runs) == 1
    replay = engine.begin(a_claim(), POLICY)
    assert isinstance(replay, Replay)
    assert replay.answer == ANSWER


def test_racing_whole_lives_leave_one_answer(store: Subject) -> None:
    """Nobody waits for anybody here, so every moment of one life may meet every moment of another."""
    engine = store.engine()
    for round_ in range(5):
        runs: list[bytes] = []

        def request(key: str = f"order-{round_}", runs: list[bytes] = runs) -> str:
            claim = a_claim(key)
            while True:
                outcome = engine.begin(claim, POLICY)
                if isinstance(outcome, Running):
                    runs.append(claim.owner)
                    engine.finish(outcome, completion_of(claim, outcome.fence))
                    return "ran"
                if isinstance(outcome, Replay):
                    return "replayed"
                assert outcome == InProgress(1)

        results = together([request] * 8)
        assert sorted(str(result) for result in results) == ["ran", *["replayed"] * 7]
        assert len(runs) == 1
