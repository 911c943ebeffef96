"""A fair queue in front of a database that has one writer.

Without it, waiting writers would sit inside the driver: on an event loop they would stop
the very handler that holds the lock. The gate also knows which ids this process is working
on, so a rival of the same key is told at once, while an unrelated key waits for its turn.
Two short twins, one for threads, one for an event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from samekey.errors import StoreBusy

_BUSY = "other requests of this process hold the database's single writer; try again soon"


class Gate:
    """For threads. ``enter`` and ``leave`` come in pairs; ``id`` None stands for work without a key."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._ids: set[bytes] = set()
        self._busy = False
        self._queue: deque[threading.Event] = deque()

    def enter(self, id: bytes | None, seconds: float) -> bool:
        """Become the writer, waiting at most ``seconds`` (then StoreBusy). False: a rival has this id."""
        with self._mutex:
            if id is not None and id in self._ids:
                return False
            if id is not None:
                self._ids.add(id)
            if not self._busy:
                self._busy = True
                return True
            turn = threading.Event()
            self._queue.append(turn)
        if turn.wait(seconds):
            return True
        with self._mutex:
            if turn.is_set():  # the turn came between the time-out and the lock
                return True
            self._queue.remove(turn)
            if id is not None:
                self._ids.discard(id)
        raise StoreBusy(_BUSY)

    def leave(self, id: bytes | None) -> None:
        with self._mutex:
            if id is not None:
                self._ids.discard(id)
            if self._queue:
                self._queue.popleft().set()
            else:
                self._busy = False


class AsyncGate:
    """For one event loop; the twin of Gate."""

    def __init__(self) -> None:
        self._ids: set[bytes] = set()
        self._busy = False
        self._queue: deque[asyncio.Future[None]] = deque()

    async def enter(self, id: bytes | None, seconds: float) -> bool:
        if id is not None and id in self._ids:
            return False
        if id is not None:
            self._ids.add(id)
        if not self._busy:
            self._busy = True
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            # Not wait_for, which before Python 3.12 swallows a cancellation that comes with the turn.
            await asyncio.wait([turn], timeout=seconds)
        except BaseException:
            if turn.done():
                self.leave(id)  # cancelled with the turn in hand: pass it on
            else:
                self._give_up(turn, id)
            raise
        if turn.done():
            return True
        self._give_up(turn, id)
        raise StoreBusy(_BUSY)

    def _give_up(self, turn: asyncio.Future[None], id: bytes | None) -> None:
        self._queue.remove(turn)
        if id is not None:
            self._ids.discard(id)

    def leave(self, id: bytes | None) -> None:
        if id is not None:
            self._ids.discard(id)
        if self._queue:
            self._queue.popleft().set_result(None)
        else:
            self._busy = False
