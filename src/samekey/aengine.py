"""The engines under an event loop: for async stores, and for sync stores in threads.

The twin of ``engine``; read that first. Only what waits is written twice: the
gate, the pause between two looks, and the look-up after a lost commit reply.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from samekey.core import plans
from samekey.core.decide import JOINED_RETRY_AFTER_SECONDS, Decision, InProgress, Proceed
from samekey.core.model import Claim, Completion
from samekey.core.ops import Commit, CreateSchema, Find, Open, ReadSchemaVersion, Step
from samekey.core.policy import Policy
from samekey.engine import (
    BROKEN,
    BUSY_SECONDS,
    CONFLICT_TRIES_MAX,
    VERIFY_PAUSE_SECONDS,
    VERIFY_TRIES_MAX,
    WAIT_PAUSE_SECONDS,
    Engine,
    RecentIds,
    Running,
    check_version,
    judge,
)
from samekey.errors import CommitUnknown, JoinedBroken, StoreError, TransactionConflict
from samekey.run import run_async
from samekey.stores.gate import AsyncGate
from samekey.stores.protocols import AsyncStore, Capabilities
from samekey.stores.shield import shielded as shielded  # noqa: PLC0414 - the adapters have it from here
from samekey.stores.shield import uninterrupted

InThread = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
T = TypeVar("T")


class LoopEngine(ABC):
    """What both engines under an event loop share: the gate and the waiting."""

    def __init__(self, capabilities: Capabilities, busy_seconds: float) -> None:
        self.capabilities = capabilities
        self.busy_seconds = busy_seconds
        self._gate = AsyncGate() if capabilities.single_writer else None
        self._recent = RecentIds()

    async def begin(self, claim: Claim, policy: Policy) -> Decision | Running[Any]:
        """As ``Engine.begin``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + policy.wait_seconds
        while True:
            outcome = await self._begin_once(claim)
            if not isinstance(outcome, InProgress) or loop.time() >= deadline:
                return outcome
            await asyncio.sleep(WAIT_PAUSE_SECONDS)

    async def _begin_once(self, claim: Claim) -> Decision | Running[Any]:
        if self._gate is None:
            decision = await self.look(claim) if claim.id in self._recent else None
            self._recent.add(claim.id)
            return decision or await self.claim_now(claim)
        # Where there is one writer, a replay must not queue for it.
        decision = await self.look(claim)
        if decision is not None:
            return decision
        if not await self._gate.enter(claim.id, self.busy_seconds):
            return InProgress(JOINED_RETRY_AFTER_SECONDS)
        try:
            outcome = await self.claim_now(claim)
        except BaseException:
            self._gate.leave(claim.id)
            raise
        if not isinstance(outcome, Running):
            self._gate.leave(claim.id)
        return outcome

    async def begin_without_key(self, *, write: bool = True) -> Running[Any]:
        """As ``Engine.begin_without_key``."""
        if self._gate is None or not write:
            return await self.open_now(write=write)
        await self._gate.enter(None, self.busy_seconds)
        try:
            running = await self.open_now(write=write)
        except BaseException:
            self._gate.leave(None)
            raise
        running.gated = True
        return running

    async def finish(self, running: Running[Any], completion: Completion | None) -> datetime | None:
        """As ``Engine.finish``."""
        try:
            return await self.finish_now(running, completion)
        finally:
            self._leave_gate(running)

    async def abandon(self, running: Running[Any], *, discard: bool = False) -> None:
        """As ``Engine.abandon``."""
        try:
            await self.abandon_now(running, discard=discard)
        finally:
            self._leave_gate(running)

    def _leave_gate(self, running: Running[Any]) -> None:
        if running.gated and self._gate is not None:
            running.gated = False
            self._gate.leave(None if running.claim is None else running.claim.id)

    async def prepare(self) -> None:
        """As ``Engine.prepare``."""
        if self.capabilities.makes_tables:
            await self.perform(CreateSchema())
        check_version(await self.perform(ReadSchemaVersion()))

    @abstractmethod
    async def perform(self, step: Step[T]) -> T:
        """Perform a step that stands alone."""

    @abstractmethod
    async def look(self, claim: Claim) -> Decision | None: ...

    @abstractmethod
    async def claim_now(self, claim: Claim) -> Decision | Running[Any]: ...

    @abstractmethod
    async def open_now(self, *, write: bool) -> Running[Any]: ...

    @abstractmethod
    async def finish_now(self, running: Running[Any], completion: Completion | None) -> datetime | None:
        """Finish past the gate; the transaction has ended afterwards, whatever happened."""

    @abstractmethod
    async def abandon_now(self, running: Running[Any], *, discard: bool) -> None: ...


class AsyncEngine(LoopEngine):
    """Operations on an async store, for one event loop."""

    def __init__(self, store: AsyncStore, *, busy_seconds: float = BUSY_SECONDS) -> None:
        super().__init__(store.capabilities, busy_seconds)
        self.store = store

    async def perform(self, step: Step[T]) -> T:
        result: T = await self.store.perform(step)
        return result

    async def look(self, claim: Claim) -> Decision | None:
        return await run_async(plans.look(claim), self.store.read)

    async def claim_now(self, claim: Claim) -> Decision | Running[Any]:
        for _ in range(CONFLICT_TRIES_MAX - 1):
            try:
                return await self._claim_once(claim)
            except TransactionConflict:
                continue
        return await self._claim_once(claim)

    async def _claim_once(self, claim: Claim) -> Decision | Running[Any]:
        transaction = self.store.transaction()
        try:
            decision = await run_async(plans.begin(claim), transaction.perform)
        except BaseException:
            # Something broke off in mid-statement: do not use the connection again.
            await transaction.abandon(discard=True)
            raise
        if isinstance(decision, Proceed):
            return Running(claim, decision.fence, transaction, gated=self._gate is not None)
        await transaction.abandon()
        return decision

    async def open_now(self, *, write: bool) -> Running[Any]:
        transaction = self.store.transaction()
        await transaction.perform(Open(write))
        return Running(None, 0, transaction)

    async def finish_now(self, running: Running[Any], completion: Completion | None) -> datetime | None:
        try:
            return await self._finish(running, completion)
        finally:
            await running.transaction.abandon()

    async def _finish(self, running: Running[Any], completion: Completion | None) -> datetime | None:
        perform = running.transaction.perform
        if completion is None or running.claim is None:
            await perform(Commit())
            return None
        try:
            result = await run_async(plans.finish(completion), perform)
        except CommitUnknown as error:
            await running.transaction.abandon(discard=True)
            return await self._verified_expiry(running.claim, error)
        if isinstance(result, plans.EndedEarly):
            await self._hold_anew(running.claim)
            raise JoinedBroken(BROKEN)
        return result.expires_at

    async def _hold_anew(self, claim: Claim) -> None:
        transaction = self.store.transaction()
        try:
            await run_async(plans.hold_anew(claim), transaction.perform)
        except StoreError:
            pass  # the answer says "broken" all the same
        finally:
            await transaction.abandon()

    async def _verified_expiry(self, claim: Claim, error: CommitUnknown) -> datetime | None:
        verdict = plans.Verdict.UNKNOWN
        for _ in range(VERIFY_TRIES_MAX):
            transaction = self.store.transaction()
            try:
                verdict = await run_async(plans.verify(claim), transaction.perform)
            except StoreError:
                verdict = plans.Verdict.UNKNOWN
            finally:
                await transaction.abandon()
            if verdict is not plans.Verdict.UNKNOWN:
                break
            await asyncio.sleep(VERIFY_PAUSE_SECONDS)
        judge(verdict, error)
        try:
            record = await self.perform(Find(claim.id))
        except StoreError:
            return None  # it is committed all the same: the answer goes without its expiry
        return None if record is None else record.expires_at

    async def abandon_now(self, running: Running[Any], *, discard: bool) -> None:
        await running.transaction.abandon(discard=discard)


class ThreadedEngine(LoopEngine):
    """A sync engine under an event loop: each call in a worker thread.

    ``begin_thread`` and ``end_thread`` run a function in a thread. They must not share
    a limit on threads: beginnings wait for connections that only endings give back.
    """

    def __init__(
        self,
        engine: Engine,
        begin_thread: InThread,
        end_thread: InThread,
    ) -> None:
        super().__init__(engine.store.capabilities, engine.busy_seconds)
        self._engine = engine
        self._begin_thread = begin_thread
        self._end_thread = end_thread

    async def perform(self, step: Step[T]) -> T:
        result: T = await self._begin_thread(partial(self._engine.store.perform, step))
        return result

    async def look(self, claim: Claim) -> Decision | None:
        if self._engine.store.reads_without_waiting:
            return self._engine.look(claim)
        decision: Decision | None = await self._begin_thread(partial(self._engine.look, claim))
        return decision

    async def claim_now(self, claim: Claim) -> Decision | Running[Any]:
        outcome: Decision | Running[Any] = await self._begin(partial(self._engine.claim_now, claim))
        if isinstance(outcome, Running):
            outcome.gated = self._gate is not None
        return outcome

    async def open_now(self, *, write: bool) -> Running[Any]:
        running: Running[Any] = await self._begin(partial(self._engine.open_now, write=write))
        return running

    async def _begin(self, function: Callable[[], Any]) -> Any:
        """Begin something in a thread; if we are cancelled meanwhile, what it began is given back."""
        outcome, cancelled = await shielded(self._begin_thread(function))
        if cancelled is None:
            return outcome
        if isinstance(outcome, Running):
            await uninterrupted(self.abandon_now(outcome, discard=True))
        raise cancelled

    async def finish_now(self, running: Running[Any], completion: Completion | None) -> datetime | None:
        expires_at: datetime | None = await self._end_thread(
            partial(self._engine.finish_now, running, completion)
        )
        return expires_at

    async def abandon_now(self, running: Running[Any], *, discard: bool) -> None:
        await self._end_thread(partial(running.transaction.abandon, discard=discard))
