"""All stores give the verdicts of the memory model, whatever happens in whatever order (BL-36).

A seeded sequence of operations is played to the model and to the store under contract,
and every answer is compared; so are lifetimes, since the sequence lets hours pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from samekey.core.decide import decide
from samekey.core.model import Answer, Claim, Completion, Granted, Record, Taken
from samekey.core.ops import Commit, Complete, Find, Forget, Hold, Open, Purge, Rollback, Search, TryClaim
from tests.contract.moves import HOUR, OTHER, SAME, a_claim
from tests.contract.subjects import Subject, TransactionFacade, memory_subject
from tests.counted import COUNTED

MOVES = 40
SLOTS = 3  # transactions that may be open at the same time
KEYS = 2
OWNERS = 3
MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Move:
    """One operation of the sequence; which of its arguments count depends on ``verb``."""

    verb: str
    slot: int
    key: int
    owner: int
    other_request: bool
    wrong: str
    hours: int
    limit: int


def sequence(chance: random.Random) -> list[Move]:
    verbs = [
        *["claim"] * 8, *["complete"] * 9, *["commit"] * 3, "roll back", "abandon", *["find"] * 3,
        "hold", "forget", "purge", *["age"] * 3, "search",
    ]  # fmt: skip
    return [
        Move(
            verb=chance.choice(verbs),
            slot=chance.randrange(SLOTS),
            key=chance.randrange(KEYS),
            owner=chance.randrange(OWNERS),
            other_request=chance.random() < 0.2,
            wrong=chance.choice(["", "", "", "owner", "fence"]),
            hours=chance.choice([1, 2, 30]),
            limit=chance.choice([1, 10]),
        )
        for _ in range(MOVES)
    ]


class Side:
    """One of the two that are compared: plays moves, answers in words without fences and clock times."""

    def __init__(self, store: Subject, *, one_writer: bool) -> None:
        self.store = store
        self.one_writer = one_writer
        self.open: dict[int, tuple[TransactionFacade, Claim, int]] = {}
        self.fences: dict[bytes, int] = {}

    def play(self, move: Move) -> object:
        claim = a_claim(
            f"order-{move.key}",
            owner=bytes([move.owner]) * 16,
            fingerprint=OTHER if move.other_request else SAME,
        )
        act: Callable[[Move, Claim], object] = getattr(self, f"_{move.verb.replace(' ', '_')}")
        return act(move, claim)

    def _claim(self, move: Move, claim: Claim) -> object:
        if move.slot in self.open or (self.one_writer and self.open):
            return "not now"
        transaction = self.store.transaction()
        if move.limit == 1:  # a claim begins the transaction itself where nothing else did
            transaction.perform(Open())
        outcome = transaction.perform(TryClaim(claim))
        if isinstance(outcome, Granted):
            assert outcome.fence >= self.fences.get(claim.id, 0)
            self.fences[claim.id] = outcome.fence
            self.open[move.slot] = transaction, claim, outcome.fence
            return "granted"
        transaction.abandon()
        if isinstance(outcome, Taken):
            decision = decide(outcome, claim.fingerprint)
            return type(decision).__name__, summary(outcome.record)
        return outcome

    def _complete(self, move: Move, _: Claim) -> object:
        if move.slot not in self.open:
            return "not now"
        transaction, claim, fence = self.open[move.slot]
        completion = Completion(
            id=claim.id,
            owner=bytes(16) if move.wrong == "owner" else claim.owner,
            fence=fence + 1 if move.wrong == "fence" else fence,
            answer=Answer(200 + move.limit, ((b"x", bytes([move.hours])),), b"" if move.limit == 1 else None),
            retention_seconds=move.hours * HOUR,
            tombstone_seconds=HOUR if move.other_request else 0.0,
        )
        if transaction.perform(Complete(completion)) is None:
            transaction.abandon()
            del self.open[move.slot]
            return "not ours"
        del self.open[move.slot]
        return "completed"

    def _end(self, move: Move, end: Callable[[TransactionFacade], object]) -> object:
        if move.slot not in self.open:
            return "not now"
        transaction, _, _ = self.open.pop(move.slot)
        end(transaction)
        return "ended"

    def _commit(self, move: Move, _: Claim) -> object:
        return self._end(move, lambda transaction: transaction.perform(Commit()))

    def _roll_back(self, move: Move, _: Claim) -> object:
        return self._end(move, lambda transaction: transaction.perform(Rollback()))

    def _abandon(self, move: Move, _: Claim) -> object:
        return self._end(move, lambda transaction: transaction.abandon())

    def _find(self, _: Move, claim: Claim) -> object:
        return summary(self.store.perform(Find(claim.id)))

    def _hold(self, _: Move, claim: Claim) -> object:
        return self._alone(lambda: self.store.perform(Hold(claim.id, claim.owner)))

    def _forget(self, _: Move, claim: Claim) -> object:
        return self._alone(lambda: self.store.perform(Forget(claim.id)))

    def _purge(self, move: Move, _: Claim) -> object:
        if self.one_writer and self.open:
            return "not now"
        return self.store.perform(Purge(move.limit))  # waits for nobody: it skips what is locked

    def _age(self, move: Move, _: Claim) -> object:
        # Half an hour is added, so that no lifetime ends in the very moment of a look.
        return self._alone(lambda: self.store.age(move.hours * HOUR - HOUR / 2))

    def _search(self, _: Move, claim: Claim) -> object:
        return sorted(repr(summary(record)) for record in self.store.perform(Search(key_hint="order-")))

    def _alone(self, act: Callable[[], object]) -> object:
        """Of an open transaction's row these would wait for its end, or not get the single writer."""
        return "not now" if self.open else act()

    def clear(self) -> None:
        for transaction, _, _ in self.open.values():
            transaction.abandon()
        self.open.clear()
        for key in range(KEYS):
            self.store.perform(Forget(a_claim(f"order-{key}").id))


def summary(record: Record | None) -> object:
    """A record without what two stores cannot share: their clocks and their fences."""
    if record is None:
        return None

    def minutes(moment: datetime | None) -> int | None:
        return None if moment is None else round((record.now - moment).total_seconds() / MINUTE)

    return replace(
        record,
        fence=0,
        now=record.now.min,
        created_at=record.now.min,
        completed_at=None,
        expires_at=None,
    ), tuple(map(minutes, (record.created_at, record.completed_at, record.expires_at, record.lease_until)))


def test_every_store_answers_as_the_model_does_bl_36(
    store: Subject, seed: int, rounds: int, record_property: Callable[[str, object], None]
) -> None:
    """BL-36: two stores differed on when a lock may be taken, and the tests that they shared missed it."""
    compare(store, seed, rounds)
    record_property(COUNTED, f"{rounds} sequences of {MOVES} operations on {store.name}, as on the model")


def compare(store: Subject, seed: int, rounds: int) -> None:
    one_writer = "single_writer" in store.can
    played = 0
    for round_ in range(rounds):
        model, subject = (Side(side, one_writer=one_writer) for side in (memory_subject(), store))
        story: list[str] = []
        for move in sequence(random.Random(f"{seed}:{round_}")):
            expected = model.play(move)
            story.append(f"{move} -> {expected}")
            assert subject.play(move) == expected, "\n".join(story)
            played += expected != "not now"
        subject.clear()
    assert played > rounds * MOVES / 4
