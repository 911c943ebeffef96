"""Worker threads for a sync database under an event loop.

Each operation goes to a thread twice, so the way there and back has to be short: one queue and one
future. (``anyio.to_thread`` costs about twice as much; ``python -m bench`` shows what a thread adds.)
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
IDLE_SECONDS_MAX = 30.0


class Threads:
    """At most ``threads_max`` threads, started when they are needed and ended when they are not.

    A call runs to its end whatever becomes of the task that awaits it. Threads are daemons: a
    process that ends does not wait for them, as little as it would when it is killed.
    """

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads = 0
        self._free = 0  # threads that wait for a call; below zero, calls that wait for a thread

    async def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` in a thread, with the context variables of this task."""
        if self._pid != os.getpid():
            self._start_over()  # threads do not survive a fork
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def call() -> None:
            settle: Callable[[asyncio.Future[Any], Any], None] = _set_result
            try:
                outcome: Any = context.run(function)
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits
                settle, outcome = _set_exception, error
            with suppress(RuntimeError):  # the loop is closed: nobody awaits any more
                loop.call_soon_threadsafe(settle, future, outcome)

        self._calls.put(call)
        if self._wants_thread():
            threading.Thread(target=_work, args=(self, self._calls), name="samekey", daemon=True).start()
        return await future

    def _wants_thread(self) -> bool:
        with self._lock:
            if self._free <= 0 and self._threads < self._threads_max:
                self._threads += 1
                return True
            self._free -= 1
            return False

    def done(self) -> None:
        """A thread is free again."""
        with self._lock:
            self._free += 1

    def may_end(self) -> bool:
        """Whether a thread that waited for long may go."""
        with self._lock:
            if self._free <= 0:
                return False  # a call is on its way
            self._free -= 1
            self._threads -= 1
            return True


def _work(threads: Threads, calls: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        try:
            call = calls.get(timeout=IDLE_SECONDS_MAX)
        except Empty:
            if threads.may_end():
                return
            continue
        call()
        del call  # what it closed over may be a connection
        threads.done()


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
