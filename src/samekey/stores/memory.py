"""The reference model: what every other store must answer, in plain Python.

For development and tests only: records live in one process and go with it. A
transaction stages its writes and publishes them at commit; a try-lock per record
makes a rival visible before that, as the advisory lock does on PostgreSQL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from samekey.core.model import Claim, ClaimOutcome, Completion, Granted, Holder, Locked, Record, State, Taken
from samekey.core.ops import (
    ClaimLeased,
    Commit,
    Complete,
    CompleteLeased,
    CreateSchema,
    Find,
    Forget,
    Hold,
    Open,
    Purge,
    ReadSchemaVersion,
    Release,
    Renew,
    Rollback,
    Search,
    Step,
    TakeOver,
    TryClaim,
)
from samekey.core.states import Verb, after
from samekey.errors import StoreError
from samekey.stores.protocols import HELD_DAYS, SCHEMA_VERSION, Capabilities


def _utc_now() -> datetime:
    return datetime.now(UTC)


class MemoryStore:
    """Records in a dictionary. ``clock`` returns the aware time that all lifetimes are judged by."""

    capabilities = Capabilities(
        transactional=True, server_clock=False, single_writer=False, makes_tables=True
    )

    def __init__(self, clock: Callable[[], datetime] = _utc_now) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._records: dict[bytes, Record] = {}
        self._purge_at: dict[bytes, datetime] = {}
        self._locks: dict[bytes, MemoryTransaction] = {}
        self._last_fence = 0
        self._verbs: dict[type, Callable[[Any], Any]] = {
            Find: lambda step: self._find(step.id),
            Hold: lambda step: self._hold(step.id, step.owner),
            ClaimLeased: lambda step: self._claim_leased(step.claims),
            CompleteLeased: lambda step: tuple(map(self._complete_leased, step.completions)),
            Renew: lambda step: tuple(self._renew(holder, step.lease_seconds) for holder in step.holders),
            Release: lambda step: tuple(map(self._release, step.holders)),
            TakeOver: lambda step: self._take_over(step.claim, step.fence),
            Search: lambda step: self._search(step.caller, step.state, step.key_hint, step.limit),
            Forget: lambda step: self._forget(step.id),
            Purge: lambda step: self._purge(step.limit),
            CreateSchema: lambda _: None,
            ReadSchemaVersion: lambda _: SCHEMA_VERSION,
        }

    def transaction(self) -> MemoryTransaction:
        return MemoryTransaction(self)

    reads_without_waiting = True

    def read(self, step: Step[Any]) -> Any:
        return self.perform(step)

    def perform(self, step: Step[Any]) -> Any:
        verb = self._verbs.get(type(step))
        if verb is None:
            raise TypeError(f"{type(step).__name__} needs a transaction")
        with self._mutex:
            return verb(step)

    def _find(self, id: bytes) -> Record | None:
        record, now = self._records.get(id), self._clock()
        if record is None or self._over(id, now):
            return None
        return replace(record, now=now)

    def _over(self, id: bytes, now: datetime) -> bool:
        purge_at = self._purge_at.get(id)
        return purge_at is not None and purge_at <= now

    def _hold(self, id: bytes, owner: bytes) -> bool:
        record = self._records.get(id)
        if record is None or record.owner != owner or record.state is not State.RUNNING:
            return False
        after(record.state, Verb.HOLD)
        self._records[id] = replace(record, state=State.HELD)
        self._purge_at[id] = self._clock() + timedelta(days=HELD_DAYS)
        return True

    def _search(self, caller: str | None, state: State | None, key_hint: str, limit: int) -> list[Record]:
        found = [
            replace(record, now=self._clock(), answer=record.answer and replace(record.answer, body=None))
            for record in self._records.values()
            if caller in (None, record.caller)
            and state in (None, record.state)
            and record.key_hint.startswith(key_hint)
        ]
        return sorted(found, key=lambda record: (record.created_at, record.id), reverse=True)[:limit]

    def _forget(self, id: bytes) -> bool:
        record = self._records.pop(id, None)
        self._purge_at.pop(id, None)
        if record is not None:
            after(record.state, Verb.FORGET)
        return record is not None

    def _purge(self, limit: int) -> int:
        now = self._clock()
        over = [id for id in self._purge_at if self._over(id, now) and id not in self._locks]
        over = sorted(over, key=lambda id: self._purge_at[id])[:limit]
        for id in over:
            after(self._records.pop(id).state, Verb.PURGE)
            del self._purge_at[id]
        return len(over)

    # Leased mode, with the mutex held -------------------------------------------------

    def _claim_leased(self, claims: tuple[Claim, ...]) -> tuple[ClaimOutcome, ...]:
        granted: set[bytes] = set()
        outcomes: list[ClaimOutcome] = []
        for claim in claims:
            existing = self._find(claim.id)
            if claim.id in granted or (existing is None and claim.id in self._locks):
                outcomes.append(Locked())
                continue
            if existing is None:
                existing = self._records[claim.id] = self._new_record(claim)
                self._extend(existing, claim.lease_seconds or 0.0, claim.unseen_seconds)
            if existing.owner == claim.owner and existing.state is State.RUNNING:
                granted.add(claim.id)
                outcomes.append(Granted(existing.fence))
            else:
                outcomes.append(Taken(existing))
        return tuple(outcomes)

    def _extend(self, record: Record, lease_seconds: float, unseen_seconds: float) -> None:
        lease_until = self._clock() + timedelta(seconds=lease_seconds)
        self._records[record.id] = replace(record, lease_until=lease_until)
        self._purge_at[record.id] = lease_until + timedelta(seconds=unseen_seconds)

    def _held_by(self, holder: Holder | Completion) -> Record | None:
        record = self._records.get(holder.id)
        if record is None or (record.owner, record.fence) != (holder.owner, holder.fence):
            return None
        return record

    def _complete_leased(self, completion: Completion) -> datetime | None:
        record = self._held_by(completion)
        if record is None or record.state is State.HELD or self._over(completion.id, self._clock()):
            return None
        if record.state is State.COMPLETED:
            return record.expires_at  # written before, and the reply was lost
        if record.lease_until is None:
            return None
        record, purge_at = self._completed(record, completion)
        self._records[record.id], self._purge_at[record.id] = record, purge_at
        return record.expires_at

    def _renew(self, holder: Holder, lease_seconds: float) -> bool:
        record = self._held_by(holder)
        if record is None or record.state is not State.RUNNING or record.lease_until is None:
            return False
        after(record.state, Verb.RENEW)
        self._extend(record, lease_seconds, (self._purge_at[record.id] - record.lease_until).total_seconds())
        return True

    def _release(self, holder: Holder) -> bool:
        record = self._held_by(holder)
        if record is None or record.state is not State.RUNNING:
            return False
        after(record.state, Verb.RELEASE)
        del self._records[record.id]
        self._purge_at.pop(record.id, None)
        return True

    def _take_over(self, claim: Claim, fence: int) -> Granted | None:
        now = self._clock()
        record = self._records.get(claim.id)
        if record is None or record.fence != fence or not replace(record, now=now).lapsed:
            return None
        after(record.state, Verb.TAKE_OVER)
        record = replace(record, owner=claim.owner, fence=self._next_fence(now))
        self._extend(record, claim.lease_seconds or 0.0, claim.unseen_seconds)
        return Granted(record.fence)

    # What a transaction calls, with the mutex held ---------------------------------

    def _try_claim(self, transaction: MemoryTransaction, claim: Claim) -> ClaimOutcome:
        existing = self._find(claim.id)
        if existing is not None:
            return Taken(existing)
        if self._locks.setdefault(claim.id, transaction) is not transaction:
            return Locked()
        transaction.staged = self._new_record(claim)
        return Granted(transaction.staged.fence)

    def _new_record(self, claim: Claim) -> Record:
        previous = self._records.get(claim.id)
        now = self._clock()
        after(None if previous is None else previous.state, Verb.CLAIM)
        lease_seconds = claim.lease_seconds
        return Record(
            id=claim.id,
            state=State.RUNNING,
            owner=claim.owner,
            fence=self._next_fence(now),
            fingerprint=claim.fingerprint,
            caller=claim.caller,
            key_hint=claim.key_hint,
            key=claim.key,
            method=claim.method,
            path=claim.path,
            now=now,
            created_at=now,
            lease_until=None if lease_seconds is None else now + timedelta(seconds=lease_seconds),
        )

    def _next_fence(self, now: datetime) -> int:
        self._last_fence = max(self._last_fence + 1, int(now.timestamp() * 1_000_000))
        return self._last_fence

    def _complete(self, transaction: MemoryTransaction, completion: Completion) -> datetime | None:
        record = transaction.staged
        ours = (completion.id, completion.owner, completion.fence)
        if record is None or (record.id, record.owner, record.fence) != ours:
            return None
        if record.state is not State.RUNNING:
            return None
        transaction.staged, transaction.purge_at = self._completed(record, completion)
        return transaction.staged.expires_at

    def _completed(self, record: Record, completion: Completion) -> tuple[Record, datetime]:
        """The completed record and when it may be purged."""
        after(record.state, Verb.COMPLETE)
        now = self._clock()
        expires_at = now + timedelta(seconds=completion.retention_seconds)
        completed = replace(
            record,
            state=State.COMPLETED,
            lease_until=None,
            completed_at=now,
            expires_at=expires_at,
            answer=completion.answer,
        )
        return completed, expires_at + timedelta(seconds=completion.tombstone_seconds)

    def _publish(self, transaction: MemoryTransaction) -> None:
        record = transaction.staged
        if record is not None:
            self._records[record.id] = record
            self._purge_at.pop(record.id, None)  # of the answer that this one replaced
            if transaction.purge_at is not None:
                self._purge_at[record.id] = transaction.purge_at

    def _unlock(self, transaction: MemoryTransaction) -> None:
        for id in [id for id, holder in self._locks.items() if holder is transaction]:
            del self._locks[id]


class MemoryTransaction:
    """Staged writes of one operation; its try-lock is held until it ends."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._open = self._ended = False
        self.staged: Record | None = None
        self.purge_at: datetime | None = None

    def perform(self, step: Step[Any]) -> Any:
        store = self._store
        if isinstance(step, Find | Hold):
            return store.perform(step)
        with store._mutex:
            if isinstance(step, Open | TryClaim) and not self._ended:
                self._open = True
            if not self._open:
                raise StoreError("the transaction is not open")
            match step:
                case Open():
                    return None
                case TryClaim(claim):
                    return store._try_claim(self, claim)
                case Complete(completion):
                    expires_at = store._complete(self, completion)
                    if expires_at is not None:
                        self._commit()
                    return expires_at
                case Commit():
                    return self._commit()
                case Rollback():
                    return self._end()
                case _:
                    raise TypeError(f"{type(step).__name__} is not a step of a transaction")

    def _commit(self) -> None:
        self._store._publish(self)
        self._end()

    def _end(self) -> None:
        self._store._unlock(self)
        self._open, self._ended, self.staged, self.purge_at = False, True, None, None

    def abandon(self, *, discard: bool = False) -> None:  # noqa: ARG002 - there is no connection to close
        with self._store._mutex:
            self._end()


class AsyncMemoryStore:
    """The same model for async code; nothing in it ever waits."""

    capabilities = MemoryStore.capabilities

    def __init__(self, clock: Callable[[], datetime] = _utc_now) -> None:
        self._store = MemoryStore(clock)

    def transaction(self) -> AsyncMemoryTransaction:
        return AsyncMemoryTransaction(self._store.transaction())

    async def perform(self, step: Step[Any]) -> Any:
        return self._store.perform(step)

    async def read(self, step: Step[Any]) -> Any:
        return self._store.perform(step)


class AsyncMemoryTransaction:
    """Async twin of MemoryTransaction."""

    def __init__(self, transaction: MemoryTransaction) -> None:
        self._transaction = transaction

    async def perform(self, step: Step[Any]) -> Any:
        return self._transaction.perform(step)

    async def abandon(self, *, discard: bool = False) -> None:
        self._transaction.abandon(discard=discard)
