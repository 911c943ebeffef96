"""Work that a cancellation may not interrupt: what ends an operation, and what gives a connection back.

A task can be cancelled once (``Task.cancel``) or at each of its awaits until it has left a scope
(anyio, and so Starlette's middleware); either way, clean-up that stops half-way leaks a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T]) -> tuple[T, asyncio.CancelledError | None]:
    """Run ``work`` to its end, whatever cancels us meanwhile: its result, and the cancellation to raise.

    A caller settles what the result asks for and then raises the cancellation.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            return await asyncio.shield(task), cancelled
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error  # a result that is already there is fetched by the next round


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end; a cancellation that came meanwhile is raised then."""
    result, cancelled = await shielded(work)
    if cancelled is not None:
        raise cancelled
    return result
