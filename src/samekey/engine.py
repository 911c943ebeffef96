"""The engine for sync stores: a thin shell that steps the plans.

It owns what is concurrent and therefore not a plan: the writers' gate, waiting
for a rival, retrying a lost tie, and looking up a commit whose reply was lost.
A handler runs between ``begin`` and ``finish``, in its own colour, never in here.

What is atomic: everything between ``begin`` and the commit inside ``finish`` is
one transaction. A crash anywhere before that commit leaves nothing; a crash after
it leaves claim, change and answer together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from samekey.core import plans
from samekey.core.decide import JOINED_RETRY_AFTER_SECONDS, Decision, InProgress, Proceed
from samekey.core.model import Answer, Claim, Completion, Record
from samekey.core.ops import Commit, CreateSchema, Find, Open, ReadSchemaVersion
from samekey.core.policy import Policy
from samekey.errors import (
    CommitUnknown,
    JoinedBroken,
    NotCommitted,
    SchemaError,
    StoreError,
    TransactionConflict,
)
from samekey.run import run
from samekey.stores.gate import Gate
from samekey.stores.protocols import SCHEMA_VERSION, AsyncTransaction, Store, Transaction

BUSY_SECONDS = 5.0
CONFLICT_TRIES_MAX = 3
VERIFY_TRIES_MAX = 5
VERIFY_PAUSE_SECONDS = 0.2
WAIT_PAUSE_SECONDS = 0.05

T = TypeVar("T", Transaction, AsyncTransaction)


@dataclass(slots=True)
class Running(Generic[T]):
    """An operation between ``begin`` and its end; ``claim`` is None where the request had no key."""

    claim: Claim | None
    fence: int
    transaction: T
    gated: bool = False


def completion_of(
    running: Running[Any], answer: Answer, policy: Policy, keep_seconds: float | None
) -> Completion:
    claim = running.claim
    if claim is None:
        raise ValueError("an operation without a key keeps no answer")
    return Completion(
        id=claim.id,
        owner=claim.owner,
        fence=running.fence,
        answer=answer,
        retention_seconds=policy.retention_seconds if keep_seconds is None else keep_seconds,
        tombstone_seconds=policy.tombstone_seconds,
    )


def judge(verdict: plans.Verdict, error: CommitUnknown) -> None:
    """Raise unless the commit in question happened."""
    if verdict is plans.Verdict.NOTHING_REMAINS:
        raise NotCommitted(
            "the connection broke before the commit; nothing remains", retryable=True
        ) from error
    if verdict is plans.Verdict.UNKNOWN:
        raise CommitUnknown(
            "the connection broke during the commit; its record cannot be looked up"
        ) from error


def check_version(version: int | None) -> None:
    if version is None:
        raise SchemaError("samekey's table is missing; run 'samekey init' with the database's URL")
    if version != SCHEMA_VERSION:
        raise SchemaError(
            f"samekey's table has version {version}, and this release knows {SCHEMA_VERSION} only; "
            "run the release of samekey that made the table, or a later one"
        )


class RecentIds:
    """Ids whose records were met lately: a hint where a look before the claim is worth its round trip.

    Most keyed requests are the first of their key and would look in vain; most repeats come to a
    process that has met the key. A wrong hint costs a statement, never an answer.
    """

    def __init__(self, ids_max: int = 10_000) -> None:
        self._ids_max = ids_max
        self._ids: dict[bytes, None] = {}

    def add(self, id: bytes) -> None:
        if len(self._ids) >= self._ids_max:
            self._ids.clear()
        self._ids[id] = None

    def __contains__(self, id: bytes) -> bool:
        return id in self._ids


BROKEN = "the application ended the joined transaction itself (a raw COMMIT or ROLLBACK); the record is held"


class Engine:
    """Operations on a sync store; safe to use from several threads.

    ``busy_seconds``: how long a request waits for its turn at a single-writer database.
    """

    def __init__(self, store: Store, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.store = store
        self.busy_seconds = busy_seconds
        self._gate = Gate() if store.capabilities.single_writer else None
        self._recent = RecentIds()

    def prepare(self) -> None:
        """Make the table where nobody else would, else check it. SchemaError says what to do."""
        if self.store.capabilities.makes_tables:
            self.store.perform(CreateSchema())
        check_version(self.store.perform(ReadSchemaVersion()))

    def begin(self, claim: Claim, policy: Policy) -> Decision | Running[Transaction]:
        """Claim an operation: the running operation, or what the request gets instead.

        Waits for a rival up to ``policy.wait_seconds``, holding no connection. Raises
        StoreUnavailable (StoreBusy) when nothing could be claimed; then nothing remains.
        """
        deadline = time.monotonic() + policy.wait_seconds
        while True:
            outcome = self._begin_once(claim)
            if not isinstance(outcome, InProgress) or time.monotonic() >= deadline:
                return outcome
            time.sleep(WAIT_PAUSE_SECONDS)

    def _begin_once(self, claim: Claim) -> Decision | Running[Transaction]:
        if self._gate is None:
            decision = self.look(claim) if claim.id in self._recent else None
            self._recent.add(claim.id)
            return decision or self.claim_now(claim)
        # Where there is one writer, a replay must not queue for it.
        decision = self.look(claim)
        if decision is not None:
            return decision
        if not self._gate.enter(claim.id, self.busy_seconds):
            return InProgress(JOINED_RETRY_AFTER_SECONDS)
        try:
            outcome = self.claim_now(claim)
        except BaseException:
            self._gate.leave(claim.id)
            raise
        if not isinstance(outcome, Running):
            self._gate.leave(claim.id)
        return outcome

    def begin_without_key(self, *, write: bool = True) -> Running[Transaction]:
        """Open a joined transaction for a request that has no key: no claim, no record."""
        if self._gate is None or not write:
            return self.open_now(write=write)
        self._gate.enter(None, self.busy_seconds)
        try:
            running = self.open_now(write=write)
        except BaseException:
            self._gate.leave(None)
            raise
        running.gated = True
        return running

    def finish(self, running: Running[Transaction], completion: Completion | None) -> datetime | None:
        """Write the answer and commit: its expiry, or None without a key (``completion`` None).

        Raises NotCommitted (nothing remains), CommitUnknown (it cannot be known) or
        JoinedBroken. Whatever happens, the operation has ended afterwards.
        """
        try:
            return self.finish_now(running, completion)
        finally:
            self._leave_gate(running)

    def abandon(self, running: Running[Transaction], *, discard: bool = False) -> None:
        """Roll back whatever is still open: nothing remains, the key is free. Never raises."""
        try:
            running.transaction.abandon(discard=discard)
        finally:
            self._leave_gate(running)

    def _leave_gate(self, running: Running[Transaction]) -> None:
        if running.gated and self._gate is not None:
            running.gated = False
            self._gate.leave(None if running.claim is None else running.claim.id)

    # Without gate and waiting: what the shell for sync stores under an event loop calls in threads.

    def look(self, claim: Claim) -> Decision | None:
        """What an existing record says; None where there is none."""
        return run(plans.look(claim), self.store.read)

    def claim_now(self, claim: Claim) -> Decision | Running[Transaction]:
        """Claim past the gate, giving a lost tie a fresh transaction."""
        for _ in range(CONFLICT_TRIES_MAX - 1):
            try:
                return self._claim_once(claim)
            except TransactionConflict:
                continue
        return self._claim_once(claim)

    def _claim_once(self, claim: Claim) -> Decision | Running[Transaction]:
        transaction = self.store.transaction()
        try:
            decision = run(plans.begin(claim), transaction.perform)
        except BaseException:
            transaction.abandon()
            raise
        if isinstance(decision, Proceed):
            return Running(claim, decision.fence, transaction, gated=self._gate is not None)
        transaction.abandon()
        return decision

    def open_now(self, *, write: bool) -> Running[Transaction]:
        transaction = self.store.transaction()
        transaction.perform(Open(write))
        return Running(None, 0, transaction)

    def finish_now(self, running: Running[Transaction], completion: Completion | None) -> datetime | None:
        """Finish past the gate; the transaction has ended afterwards, whatever happened."""
        try:
            return self._finish(running, completion)
        finally:
            running.transaction.abandon()

    def _finish(self, running: Running[Transaction], completion: Completion | None) -> datetime | None:
        perform = running.transaction.perform
        if completion is None or running.claim is None:
            perform(Commit())
            return None
        try:
            result = run(plans.finish(completion), perform)
        except CommitUnknown as error:
            running.transaction.abandon(discard=True)
            return self._verified_expiry(running.claim, error)
        if isinstance(result, plans.EndedEarly):
            self._hold_anew(running.claim)
            raise JoinedBroken(BROKEN)
        return result.expires_at

    def _hold_anew(self, claim: Claim) -> None:
        transaction = self.store.transaction()
        try:
            run(plans.hold_anew(claim), transaction.perform)
        except StoreError:
            pass  # the answer says "broken" all the same
        finally:
            transaction.abandon()

    def _verified_expiry(self, claim: Claim, error: CommitUnknown) -> datetime | None:
        verdict = plans.Verdict.UNKNOWN
        for _ in range(VERIFY_TRIES_MAX):
            transaction = self.store.transaction()
            try:
                verdict = run(plans.verify(claim), transaction.perform)
            except StoreError:
                verdict = plans.Verdict.UNKNOWN
            finally:
                transaction.abandon()
            if verdict is not plans.Verdict.UNKNOWN:
                break
            time.sleep(VERIFY_PAUSE_SECONDS)
        judge(verdict, error)
        try:
            record: Record | None = self.store.perform(Find(claim.id))
        except StoreError:
            return None  # it is committed all the same: the answer goes without its expiry
        return None if record is None else record.expires_at
