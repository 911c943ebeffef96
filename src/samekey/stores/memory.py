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

from samekey.core.model import Claim, ClaimOutcome, Completion, Granted, Locked, Record, State, Taken
from samekey.core.ops import (
    Commit,
    Complete,
    CreateSchema,
    Find,
    Forget,
    Hold,
    Open,
    Purge,
    ReadSchemaVersion,
    Rollback,
    Search,
    Step,
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

    def transaction(self) -> MemoryTransaction:
        return MemoryTransaction(self)

    def perform(self, step: Step[Any]) -> Any:
        with self._mutex:
            match step:
                case Find(id):
                    return self._find(id)
                case Hold(id, owner):
                    return self._hold(id, owner)
                case Search(caller, state, key_hint, limit):
                    return self._search(caller, state, key_hint, limit)
                case Forget(id):
                    return self._forget(id)
                case Purge(limit):
                    return self._purge(limit)
                case CreateSchema():
                    return None
                case ReadSchemaVersion():
                    return SCHEMA_VERSION
                case _:
                    raise TypeError(f"{type(step).__name__} needs a transaction")

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
        over = [id for id in self._purge_at if self._over(id, now) and id not in self._locks][:limit]
        for id in over:
            after(self._records.pop(id).state, Verb.PURGE)
            del self._purge_at[id]
        return len(over)

    # What a transaction calls, with the mutex held ---------------------------------

    def _try_claim(self, transaction: MemoryTransaction, claim: Claim) -> ClaimOutcome:
        existing = self._find(claim.id)
        if existing is not None:
            return Taken(existing)
        if self._locks.setdefault(claim.id, transaction) is not transaction:
            return Locked()
        previous = self._records.get(claim.id)
        now = self._clock()
        after(None if previous is None else previous.state, Verb.CLAIM)
        self._last_fence = max(self._last_fence + 1, int(now.timestamp() * 1_000_000))
        transaction.staged = Record(
            id=claim.id,
            state=State.RUNNING,
            owner=claim.owner,
            fence=self._last_fence,
            fingerprint=claim.fingerprint,
            caller=claim.caller,
            key_hint=claim.key_hint,
            key=claim.key,
            method=claim.method,
            path=claim.path,
            now=now,
            created_at=now,
        )
        return Granted(self._last_fence)

    def _complete(self, transaction: MemoryTransaction, completion: Completion) -> datetime | None:
        record = transaction.staged
        if record is None or (record.id, record.owner, record.fence) != (
            completion.id,
            completion.owner,
            completion.fence,
        ):
            return None
        after(record.state, Verb.COMPLETE)
        now = self._clock()
        expires_at = now + timedelta(seconds=completion.retention_seconds)
        transaction.purge_at = expires_at + timedelta(seconds=completion.tombstone_seconds)
        transaction.staged = replace(
            record, state=State.COMPLETED, completed_at=now, expires_at=expires_at, answer=completion.answer
        )
        return expires_at

    def _publish(self, transaction: MemoryTransaction) -> None:
        record = transaction.staged
        if record is not None:
            self._records[record.id] = record
            if transaction.purge_at is not None:
                self._purge_at[record.id] = transaction.purge_at

    def _unlock(self, transaction: MemoryTransaction) -> None:
        for id in [id for id, holder in self._locks.items() if holder is transaction]:
            del self._locks[id]


class MemoryTransaction:
    """Staged writes of one operation; its try-lock is held until it ends."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._open = False
        self.staged: Record | None = None
        self.purge_at: datetime | None = None

    def perform(self, step: Step[Any]) -> Any:
        store = self._store
        if isinstance(step, Find | Hold):
            return store.perform(step)
        with store._mutex:
            if isinstance(step, Open):
                self._open = True
                return None
            if not self._open:
                raise StoreError("the transaction is not open")
            match step:
                case TryClaim(claim):
                    return store._try_claim(self, claim)
                case Complete(completion):
                    return store._complete(self, completion)
                case Commit():
                    store._publish(self)
                    return self._end()
                case Rollback():
                    return self._end()
                case _:
                    raise TypeError(f"{type(step).__name__} is not a step of a transaction")

    def _end(self) -> None:
        self._store._unlock(self)
        self._open, self.staged, self.purge_at = False, None, None

    def abandon(self, *, discard: bool = False) -> None:
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


class AsyncMemoryTransaction:
    """Async twin of MemoryTransaction."""

    def __init__(self, transaction: MemoryTransaction) -> None:
        self._transaction = transaction

    async def perform(self, step: Step[Any]) -> Any:
        return self._transaction.perform(step)

    async def abandon(self, *, discard: bool = False) -> None:
        self._transaction.abandon(discard=discard)
