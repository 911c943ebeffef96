"""One HTTP exchange on a protected route, from its first message to its last.

The order that makes a retry safe: the caller is known, the key is claimed, the
handler runs, its answer is held back, session and record are settled, the
transaction is committed, and only then is the first byte sent. Every way out
(answer, exception, cancellation, disconnect) passes ``settle`` or ``abandon``.

The phases of the answer:

    waiting --start, kept--> holding --last chunk, limit, timer--> passing
       |                        |
       +--start, not kept-------+--refused (commit failed)--> refused
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any, Literal, assert_never

from starlette._exception_handler import wrap_app_handling_exceptions  # as FastAPI uses it
from starlette.requests import Request

from samekey.aengine import shielded
from samekey.core.decide import (
    AnswerExpired,
    AnswerNotKept,
    Broken,
    Decision,
    Held,
    InProgress,
    Mismatch,
    Proceed,
    Replay,
)
from samekey.core.fingerprint import fingerprint
from samekey.core.keys import key_hint
from samekey.core.model import OWNER_BYTES, Answer, Claim, Completion, record_id
from samekey.core.policy import Policy
from samekey.engine import Running, completion_of
from samekey.errors import (
    BodyTooLarge,
    CommitUnknown,
    CorruptRecord,
    InvalidKey,
    JoinedBroken,
    NotCommitted,
    StoreBusy,
    StoreUnavailable,
)
from samekey.http import problem as problems
from samekey.http.answer import first_answer_headers, replay_body, replay_headers
from samekey.http.header import read_key
from samekey.http.problem import Problem
from samekey.http.recorder import Complete, Overflow, Recorder
from samekey.server.body import BodyTee
from samekey.server.database import Database, JoinedSession
from samekey.server.operation import AfterCommit, Operation, enter
from samekey.stores.drivers.sqlalchemy import joined_now

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SCOPE_KEY = "samekey"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})  # RFC 9110, section 9.2.1
# Extensions that send a file past us: the answer could not be recorded.
_ZERO_COPY = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
_log = logging.getLogger("samekey")


class Stop(Exception):
    """Unwinds the application because the exchange already has its answer."""


class _Phase(Enum):
    WAITING = auto()
    HOLDING = auto()
    PASSING = auto()


Ending = Literal["keep", "roll back"]


@dataclass(frozen=True, slots=True)
class Site:
    """What all exchanges of one protected application share."""

    database: Database
    namespace: str
    secret: bytes | None
    documentation: str | None


class Exchange:
    """One request and its answer. ``run`` drives the application; the rest is called from inside it."""

    def __init__(self, site: Site, policy: Policy, scope: Scope, receive: Receive, send: Send) -> None:
        self._site = site
        self._policy = policy
        self._scope = scope
        self._send = send
        header = policy.header.lower().encode("ascii")
        self._keys = [value for name, value in scope["headers"] if name.lower() == header]
        self._keyed = bool(self._keys) and scope["method"] in policy.methods
        self._tee = BodyTee(receive, policy.body_bytes_max)
        self._receive = self._tee.receive if self._keyed else receive
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._hold_task: asyncio.Task[None] | None = None
        self._phase = _Phase.WAITING
        self._recorder: Recorder | None = None
        self._held: list[Message] = []
        self._running: Running[Any] | None = None
        self._session: JoinedSession | None = None
        self._refusal: Problem | Replay | Exception | None = None
        self._refused = False
        self._handled_outside = sys.exception()
        self._raised: Literal["no", "before the handler", "in the handler"] = "no"
        self.operation: Operation | None = None

    # The outside: drive the application, then make sure that everything is settled ------

    async def run(self, app: App) -> None:
        """Run the application and answer. Whatever happens, nothing stays claimed or open."""
        if self._keyed and self._declared_bytes() > self._policy.body_bytes_max:
            self._refusal = problems.body_too_large(self._policy.body_bytes_max)
            return await self._answer_refusal()
        self._scope[SCOPE_KEY] = self
        extensions = self._scope.get("extensions")
        if extensions and not _ZERO_COPY.isdisjoint(extensions):
            kept = {name: value for name, value in extensions.items() if name not in _ZERO_COPY}
            self._scope["extensions"] = kept
        try:
            await app(self._scope, self._receive_checked, self._on_message)
        except BaseException as error:
            await self._leave(discard=isinstance(error, asyncio.CancelledError))
            if self._refusal is None or not isinstance(error, Exception):
                raise
        else:
            # An answer that was begun and never ended (the client went away) is not an answer.
            await self._leave()
            if self._hold_task is not None:
                self._hold_task.result()
        if self._refusal is not None:
            await self._answer_refusal()

    def _declared_bytes(self) -> int:
        for name, value in self._scope["headers"]:
            if name.lower() == b"content-length" and value.isdigit():
                return int(value[:18])
        return 0

    async def _receive_checked(self) -> Message:
        try:
            return await self._receive()
        except BodyTooLarge as error:
            raise self._refuse(problems.body_too_large(error.body_bytes_max)) from error

    # The inside: what the framework's dependencies call ---------------------------------

    async def begin(self, caller: str | None) -> Operation:
        """Claim the operation, once per request. Raises Stop where the answer is already clear."""
        if self.operation is not None:
            return self.operation
        key = self._read_key()
        if key is None:
            self.operation = Operation()
        else:
            self.operation = await self._claim(key, caller)
        enter(self.operation)
        return self.operation

    def _read_key(self) -> str | None:
        if not self._keyed:
            if self._policy.required and self._scope["method"] in self._policy.methods:
                raise self._refuse(problems.missing_key(self._policy.header))
            return None
        try:
            return read_key(self._keys, self._policy)
        except InvalidKey as error:
            raise self._refuse(problems.invalid_key(error.reason)) from error

    async def _claim(self, key: str, caller: str | None) -> Operation:
        if not caller:
            raise self._refuse(problems.caller_missing())
        claim = await self._make_claim(key, caller)
        try:
            outcome = await self._site.database.engine.begin(claim, self._policy)
        except StoreUnavailable as error:
            return self._without_store(error)
        except CorruptRecord as error:
            _log.error("record %s cannot be read: %s", claim.id.hex(), error)
            raise self._refuse(problems.outcome_unknown()) from error
        if not isinstance(outcome, Running):
            raise self._refuse(_refusal(outcome, self._policy))
        self._running = outcome
        joined_now.set(outcome.transaction)
        return Operation(claim, outcome.fence)

    async def _make_claim(self, key: str, caller: str) -> Claim:
        scope, site = self._scope, self._site
        try:
            body = await self._tee.read_all()
        except BodyTooLarge as error:
            raise self._refuse(problems.body_too_large(error.body_bytes_max)) from error
        path = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
        method, path_text = scope["method"], path.decode("latin-1")
        types = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
        return Claim(
            id=record_id(site.namespace, caller, key, site.secret),
            owner=os.urandom(OWNER_BYTES),
            fingerprint=fingerprint(
                method,
                path_text,
                scope.get("query_string", b""),
                types[0].decode("latin-1") if types else None,
                body,
                self._policy.fingerprint,
            ),
            caller=caller,
            key_hint=key_hint(key),
            key=key if self._policy.keep_key else None,
            method=method,
            path=path_text,
        )

    def _without_store(self, error: StoreUnavailable) -> Operation:
        if self._policy.fail_open:
            _log.warning("a request runs unprotected, because its route fails open: %s", error)
            return Operation()
        _log.warning("a request was refused: %s", error)
        busy = isinstance(error, StoreBusy)
        raise self._refuse(problems.store_busy() if busy else problems.store_unavailable()) from error

    async def session(self) -> Any:
        """The joined session; without a key, a transaction of its own that ends with the answer."""
        if self._session is None:
            running = self._running or await self._begin_without_key()
            self._session = self._site.database.open_session(running)
        return self._session.session

    async def _begin_without_key(self) -> Running[Any]:
        write = self._scope["method"] not in SAFE_METHODS
        try:
            running = await self._site.database.engine.begin_without_key(write=write)
        except StoreUnavailable as error:
            busy = isinstance(error, StoreBusy)
            raise self._refuse(problems.store_busy() if busy else problems.store_unavailable()) from error
        self._running = running
        joined_now.set(running.transaction)
        return running

    # The answer ---------------------------------------------------------------------------

    async def _on_message(self, message: Message) -> None:
        """``send`` for the application."""
        async with self._lock:
            if self._refusal is not None:
                if self._refused or self._phase is not _Phase.WAITING:
                    raise Stop
                return  # an answer of the application's to our own refusal: ours counts
            if self._running is None or self._phase is _Phase.PASSING:
                await self._send(message)
            elif message["type"] == "http.response.start":
                await self._on_start(message)
            elif message["type"] == "http.response.body" and self._phase is _Phase.HOLDING:
                await self._on_body(message)
            elif self._phase is _Phase.HOLDING:
                self._held.append(message)
            else:
                await self._send(message)  # early hints and the like come before the start

    def _look_for_exception(self) -> None:
        """Remember whether this answer was made of an exception, and where that came from.

        Frameworks answer for an exception while they handle it, so it is the one being handled
        right here. (One that was handled around the whole request is none of this request's.)
        """
        error = sys.exception()
        if error is not None and error is not self._handled_outside:
            inside = _was_inside(error, self._scope.get("endpoint"))
            self._raised = "in the handler" if inside else "before the handler"

    async def _on_start(self, message: Message) -> None:
        self._look_for_exception()
        if self._ending(message["status"]) == "roll back":
            await self._abandon()
            self._phase = _Phase.PASSING
            return await self._send(message)
        self._phase = _Phase.HOLDING
        self._held.append(message)
        await self._settle_session(keep=message["status"] < 400 and self._raised == "no")
        if self.operation is None or not self.operation.protected:
            # Without a record there is nothing to wait for: commit, then stream as ever.
            return await self._settle(None)
        self._recorder = recorder = Recorder(
            self._policy.answer_bytes_max,
            method=self._scope["method"],
            extra_dropped=frozenset({self._policy.marker.lower().encode("ascii")}),
        )
        verdict = recorder.start(message["status"], message.get("headers", ()))
        if isinstance(verdict, Overflow):
            return await self._settle(verdict.answer)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._policy.hold_seconds, self._hold_is_over)

    async def _on_body(self, message: Message) -> None:
        recorder = self._recorder
        if recorder is None:
            raise RuntimeError("a body came before the start of the answer")
        verdict = recorder.chunk(message.get("body", b""), message.get("more_body", False))
        if isinstance(verdict, Complete):
            await self._settle(verdict.answer)
            await self._send({"type": "http.response.body", "body": recorder.release()})
        elif isinstance(verdict, Overflow):
            await self._settle(verdict.answer)
            await self._pass_on_held(recorder)
            await self._send(message)

    async def _pass_on_held(self, recorder: Recorder) -> None:
        held = recorder.release()
        if held:
            await self._send({"type": "http.response.body", "body": held, "more_body": True})

    def _ending(self, status: int) -> Ending:
        if status >= 500 or self._raised == "before the handler":
            return "roll back"
        if self.operation is not None and self.operation.kept is not None:
            return "keep" if self.operation.kept else "roll back"
        if status in self._policy.not_kept_statuses:
            return "roll back"
        if status >= 400 and self._raised == "in the handler" and self._policy.raised_4xx == "roll back":
            return "roll back"
        return "keep"

    def _hold_is_over(self) -> None:
        self._hold_task = asyncio.ensure_future(self._give_up_holding())

    async def _give_up_holding(self) -> None:
        with suppress(Stop):
            async with self._lock:
                recorder = self._recorder
                if self._phase is _Phase.HOLDING and self._refusal is None and recorder is not None:
                    verdict = recorder.give_up()
                    if isinstance(verdict, Overflow):
                        await self._settle(verdict.answer)
                        await self._pass_on_held(recorder)

    async def _leave(self, *, discard: bool = False) -> None:
        """The application has ended: let the timer's own settling end too, then undo what is still open."""
        self._stop_timer()
        task, cancelled = self._hold_task, None
        while task is not None and not task.done():
            if discard:
                task.cancel()  # a commit runs to its end, a client that does not read is given up
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                discard, cancelled = True, error
        if task is not None and not task.cancelled():
            task.exception()  # seen: where it matters, ``run`` raises it
        async with self._lock:
            await self._abandon(discard=discard)
        if cancelled is not None:
            raise cancelled

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # Settling -----------------------------------------------------------------------------

    async def _settle_session(self, keep: bool) -> None:
        session, running = self._session, self._running
        if session is None or running is None:
            return None
        if session.idle:
            return session.settle(keep)
        try:
            await self._site.database.call(running, lambda: session.settle(keep))
        except Exception as error:
            # A flush that the database refuses is the handler's own failure, found late.
            raise await self._refuse_late(error) from error

    async def _settle(self, answer: Answer | None) -> None:
        """Write the answer and commit, then send the start; the held body is the caller's to send."""
        running, operation = self._running, self.operation
        if running is None or operation is None:
            raise RuntimeError("an exchange settles what it has begun")
        self._stop_timer()
        completion = None
        if answer is not None:
            completion = completion_of(running, answer, self._policy, operation.keep_seconds)
        expires_at, cancelled = await self._commit(running, completion)
        self._running, self._phase = None, _Phase.PASSING
        if self._session is not None:
            self._session.committed()
        functions = operation.settled()
        if functions:
            _, cancelled_now = await shielded(_call_all(functions))
            cancelled = cancelled_now or cancelled
        if cancelled is not None:
            # The commit stands. What the client gets now is for whoever cancelled us to say: a time-out
            # around the application has an answer of its own.
            self._held.clear()
            raise cancelled
        for message in self._held:
            if message["type"] == "http.response.start" and expires_at is not None:
                message["headers"] = [*message.get("headers", ()), *first_answer_headers(expires_at)]
            await self._send(message)
        self._held.clear()

    async def _commit(
        self, running: Running[Any], completion: Completion | None
    ) -> tuple[datetime | None, asyncio.CancelledError | None]:
        """Commit whatever happens to us; a commit that fails refuses late and raises Stop."""
        try:
            return await shielded(self._site.database.engine.finish(running, completion))
        except NotCommitted as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            refusal = problems.not_committed() if error.retryable else cause
            raise await self._refuse_late(refusal) from error
        except CommitUnknown as error:
            raise await self._refuse_late(problems.commit_unknown()) from error
        except JoinedBroken as error:
            _log.error("record %s is held: %s", running.claim.id.hex() if running.claim else None, error)
            raise await self._refuse_late(problems.joined_broken()) from error
        except StoreUnavailable as error:
            raise await self._refuse_late(problems.not_committed()) from error
        except Exception as error:
            raise await self._refuse_late(error) from error

    async def _abandon(self, *, discard: bool = False) -> None:
        """Roll back whatever is open: nothing remains, the key is free."""
        running, self._running = self._running, None
        self._stop_timer()
        if self.operation is not None:
            self.operation.settled()
        if running is None:
            return
        self._held.clear()
        session, self._session = self._session, None
        _, cancelled = await shielded(self._abandon_now(running, session, discard))
        if cancelled is not None:
            raise cancelled

    async def _abandon_now(self, running: Running[Any], session: JoinedSession | None, discard: bool) -> None:
        if session is not None and not discard:
            with suppress(Exception):
                await self._site.database.call(running, lambda: session.settle(False))
        await self._site.database.engine.abandon(running, discard=discard)

    # Refusing -----------------------------------------------------------------------------

    def _refuse(self, refusal: Problem | Replay | Exception) -> Stop:
        self._refusal = refusal
        return Stop()

    async def _refuse_late(self, refusal: Problem | Exception) -> Stop:
        """The held answer is discarded: the operation was not committed, or nobody knows."""
        self._refusal, self._refused = refusal, True
        await self._abandon()
        return Stop()

    async def _answer_refusal(self) -> None:
        match self._refusal:
            case Replay(answer, expires_at):
                headers = replay_headers(answer, self._policy.marker, expires_at)
                await self._respond(answer.status, headers, replay_body(answer))
            case Problem() as refusal:
                told = refusal.documented(self._site.documentation)
                await self._respond(told.status, told.headers(), told.body())
            case Exception() as error:
                # The database's own refusal, found late: the application's error path, with its handlers.
                await wrap_app_handling_exceptions(_raising(error), Request(self._scope))(
                    self._scope, self._receive, self._send
                )
            case None:
                pass

    async def _respond(self, status: int, headers: Any, body: bytes) -> None:
        start = {"type": "http.response.start", "status": status, "headers": list(headers)}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


async def _call_all(functions: Sequence[AfterCommit]) -> None:
    for function in functions:
        try:
            result = function()
            if inspect.isawaitable(result):
                await result
        except Exception:  # noqa: BLE001 - the commit stands, whatever the application's code does
            _log.exception("an after_commit function failed after the commit")


def _raising(error: Exception) -> App:
    async def app(*_: Any) -> None:
        raise error

    return app


def _refusal(decision: Decision, policy: Policy) -> Problem | Replay:
    match decision:
        case Replay():
            return decision
        case InProgress(retry_after_seconds):
            return problems.in_progress(retry_after_seconds)
        case Mismatch():
            return problems.key_reused(policy.mismatch_status)
        case Held():
            return problems.outcome_unknown()
        case AnswerExpired():
            return problems.answer_expired()
        case AnswerNotKept(answer):
            return problems.answer_not_kept(answer.headers, answer.status)
        case Broken():
            return problems.joined_broken()
        case Proceed():
            raise AssertionError("a granted claim is running, not refused")
        case _:
            assert_never(decision)


def _was_inside(error: BaseException, endpoint: Any) -> bool:
    """Whether ``error`` came out of the handler: one of its frames is in the traceback.

    An error of a dependency or of validation has none; then nothing was done and the key is free.
    """
    codes, function = set(), endpoint
    while function is not None:
        function = getattr(function, "func", function)  # functools.partial
        called = function if hasattr(function, "__code__") else type(function).__call__
        codes.add(getattr(called, "__code__", None))
        function = getattr(function, "__wrapped__", None)
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False
