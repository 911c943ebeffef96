"""Guard the guards: each deliberately broken store is caught by the contract test that is named for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from samekey.core.model import Claim, ClaimOutcome, Completion, Fingerprint, Granted, Record, Taken
from samekey.core.ops import Rollback
from samekey.core.states import IllegalTransition
from samekey.errors import SamekeyError
from samekey.stores.memory import MemoryStore, MemoryTransaction
from samekey.stores.sql.dialect import Dialect
from tests.contract import (
    test_bytes,
    test_claim,
    test_complete,
    test_endings,
    test_held,
    test_operators,
    test_purge,
    test_race,
    test_retention,
    test_rivals,
    test_same_verdicts,
)
from tests.contract.subjects import Subject, TransactionFacade, make_subject, memory_subject

Test = Callable[[Subject], None]


def rolled_back(transaction: TransactionFacade, _: Subject) -> None:
    transaction.perform(Rollback())


class ReadThenWrite(MemoryStore):
    """Looks for a record, and if there is none, writes as if nobody else could have looked meanwhile."""

    def _try_claim(self, transaction: MemoryTransaction, claim: Claim) -> ClaimOutcome:
        existing = self._find(claim.id)
        if existing is not None:
            return Taken(existing)
        transaction.staged = self._new_record(claim)
        return Granted(transaction.staged.fence)


class CompletesForAnybody(MemoryStore):
    """Writes the answer without asking for owner and fence."""

    def _complete(self, transaction: MemoryTransaction, completion: Completion) -> Any:
        record = transaction.staged
        if record is None:
            return None
        transaction.staged, transaction.purge_at = self._completed(record, completion)
        return transaction.staged.expires_at


class PurgesTheLiving(MemoryStore):
    """Purges by age alone, whatever the record says."""

    def _purge(self, limit: int) -> int:
        ids = list(self._records)[:limit]
        for id in ids:
            del self._records[id]
            self._purge_at.pop(id, None)
        return len(ids)


class PurgesUnderTheFeet(MemoryStore):
    """Purges what somebody is just replacing."""

    def _purge(self, limit: int) -> int:
        locks, self._locks = self._locks, {}
        try:
            return super()._purge(limit)
        finally:
            self._locks = locks


class FreesTheRivalsLock(MemoryStore):
    """A loser's rollback gives back a lock that was never its own."""

    def _try_claim(self, transaction: MemoryTransaction, claim: Claim) -> ClaimOutcome:
        outcome = super()._try_claim(transaction, claim)
        if not isinstance(outcome, Granted):
            self._locks.pop(claim.id, None)
        return outcome


class CommitsOnRollback(MemoryStore):
    """Publishes at the end of a transaction, however it ends."""

    def _unlock(self, transaction: MemoryTransaction) -> None:
        self._publish(transaction)
        super()._unlock(transaction)


class ShowsUncommitted(MemoryStore):
    """Publishes at the claim, so that half an operation is seen and survives a crash."""

    def _try_claim(self, transaction: MemoryTransaction, claim: Claim) -> ClaimOutcome:
        outcome = super()._try_claim(transaction, claim)
        self._publish(transaction)
        return outcome


class ForgetsTheFingerprint(MemoryStore):
    """Stores the fingerprint but does not read it back."""

    def _find(self, id: bytes) -> Record | None:
        record = super()._find(id)
        return record and replace(record, fingerprint=Fingerprint(0, b""))


class HonoursTheExpired(MemoryStore):
    """Honours an expired record until it is purged."""

    def _over(self, id: bytes, now: Any) -> bool:
        return False


class LosesEmptyBodies(MemoryStore):
    """Takes an empty body for none."""

    def _completed(self, record: Record, completion: Completion) -> tuple[Record, Any]:
        answer = replace(completion.answer, body=completion.answer.body or None)
        return super()._completed(record, replace(completion, answer=answer))


class HoldsForAnybody(MemoryStore):
    """Holds a record without asking whose it is."""

    def _hold(self, id: bytes, owner: bytes) -> bool:
        record = self._records.get(id)
        return super()._hold(id, owner if record is None else record.owner)


class LeavesItsLockBehind(MemoryStore):
    """A refused claim keeps a lock that nobody will ever give back."""

    def _unlock(self, transaction: MemoryTransaction) -> None:
        """Forgotten."""


BROKEN_STORES: list[tuple[type[MemoryStore], Test]] = [
    (ReadThenWrite, test_rivals.test_a_rival_of_an_open_claim_is_refused_at_once_bl_19),
    (ReadThenWrite, test_race.test_of_many_claims_exactly_one_is_granted_bl_19),
    (
        CompletesForAnybody,
        partial(test_complete.test_another_owner_fence_or_id_writes_nothing, wrong="owner"),
    ),
    (
        CompletesForAnybody,
        partial(test_complete.test_another_owner_fence_or_id_writes_nothing, wrong="fence"),
    ),
    (PurgesTheLiving, test_purge.test_only_what_is_over_goes_bl_60),
    (PurgesTheLiving, test_purge.test_a_running_record_is_never_purged_bl_60),
    (PurgesUnderTheFeet, test_purge.test_a_record_that_is_being_replaced_is_skipped),
    (FreesTheRivalsLock, test_rivals.test_a_refused_rival_leaves_the_winner_alone),
    (CommitsOnRollback, partial(test_endings.test_nothing_remains_of_a_claim, end=rolled_back)),
    (ShowsUncommitted, test_claim.test_nothing_is_seen_before_the_commit),
    (ForgetsTheFingerprint, test_claim.test_every_field_comes_back_bl_07_pp_15),
    (HonoursTheExpired, test_retention.test_an_expired_answer_is_absent_bl_60),
    (HonoursTheExpired, test_held.test_a_held_record_outlives_retention_but_not_90_days),
    (LosesEmptyBodies, partial(test_bytes.test_a_body_comes_back_byte_by_byte_bl_46_bl_55, body=b"")),
    (HoldsForAnybody, test_held.test_another_owner_holds_nothing),
    (LeavesItsLockBehind, test_rivals.test_after_a_rollback_a_rival_is_granted),
]


def name_of(value: object) -> str:
    if isinstance(value, partial):
        return "-".join([name_of(value.func), *map(name_of, value.keywords.values())])
    return str(getattr(value, "__name__", value)).removeprefix("test_")


@pytest.mark.parametrize(("broken", "test"), BROKEN_STORES, ids=name_of)
def test_a_broken_store_is_caught(broken: type[MemoryStore], test: Test) -> None:
    test(memory_subject())  # so it is the break that is caught
    subject = memory_subject(broken)
    with pytest.raises((AssertionError, SamekeyError, IllegalTransition)):
        test(subject)


@pytest.mark.parametrize("broken", sorted({broken for broken, _ in BROKEN_STORES}, key=name_of), ids=name_of)
def test_a_broken_store_gives_other_verdicts_than_the_model_bl_36(broken: type[MemoryStore]) -> None:
    """BL-36: the comparison with the model finds all of them, without knowing what to look for."""
    with pytest.raises((AssertionError, SamekeyError, IllegalTransition, KeyError)):
        test_same_verdicts.compare(memory_subject(broken), seed=1, rounds=200)


@dataclass(frozen=True, slots=True)
class Break:
    """A statement of a SQL store with a condition that was forgotten."""

    text: str
    old: str
    new: str
    test: Test


BREAKS = {
    "completes without the fence": Break(
        "complete",
        "AND fence = ",
        "AND -1 != ",
        partial(test_complete.test_another_owner_fence_or_id_writes_nothing, wrong="fence"),
    ),
    "purges the living": Break(
        "purge",
        "WHERE purge_at <=",
        "WHERE true OR purge_at <=",
        test_purge.test_only_what_is_over_goes_bl_60,
    ),
    "purges without a bound": Break("purge", "LIMIT ", "LIMIT 1000 + ", test_purge.test_a_batch_is_bounded),
    "honours the expired": Break(
        "find", "(purge_at IS NULL OR", "(true OR", test_retention.test_an_expired_answer_is_absent_bl_60
    ),
    "keeps the fence": Break(
        "try_claim",
        "t.fence + 1, excluded.fence",
        "t.fence, t.fence",
        test_retention.test_the_next_claim_replaces_an_expired_answer_whole_bl_60,
    ),
    "keeps the fingerprint of the expired": Break(
        "try_claim",
        "fingerprint = excluded.fingerprint,",
        "",
        test_retention.test_the_next_claim_replaces_an_expired_answer_whole_bl_60,
    ),
    "holds what is completed": Break(
        "hold", "AND state = 'running'", "", test_held.test_what_is_completed_or_absent_is_not_held
    ),
    "forgets the tombstone": Break(
        "complete",
        ":tombstone",
        "0 * :tombstone",
        test_retention.test_a_tombstone_says_that_the_answer_is_expired,
    ),
    "searches with a pattern": Break(
        "search",
        ":key_hint",
        "'%' || :key_hint",
        test_operators.test_search_gives_the_newest_first_and_filters,
    ),
}


@pytest.mark.parametrize("name", ["sqlite", "postgresql-psycopg"])
@pytest.mark.parametrize("change", BREAKS.values(), ids=BREAKS.keys())
def test_a_broken_statement_is_caught(name: str, change: Break, sqlite_path: Path, postgres_url: str) -> None:
    with make_subject(name, sqlite_path=sqlite_path, postgres_url=postgres_url) as subject:
        dialect: Dialect = subject.inner.dialect
        right = getattr(dialect, change.text)
        assert change.old in right
        subject.inner.dialect = replace(dialect, **{change.text: right.replace(change.old, change.new)})
        with pytest.raises((AssertionError, SamekeyError)):
            change.test(subject)
