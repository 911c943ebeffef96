"""The two runners that step plans: the only place that knows the difference of colour.

A runner performs each step with a given function and sends the result back into
the plan. Only samekey's own errors are thrown into a plan, at the line that
awaited the step, so that a traceback names it. Anything else (cancellation,
KeyboardInterrupt) closes the plan and propagates. A foreign awaitable is refused by type.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from samekey.core.ops import Plan, Step
from samekey.errors import SamekeyError

T = TypeVar("T")


def run(plan: Plan[T], perform: Callable[[Step[Any]], Any]) -> T:
    """Step ``plan`` to its end, performing each step synchronously."""
    advance: Callable[[Any], Any] = plan.send
    value: Any = None
    try:
        while True:
            step = advance(value)
            _refuse_foreign(step)
            try:
                advance, value = plan.send, perform(step)
            except SamekeyError as error:
                advance, value = plan.throw, error
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        plan.close()


async def run_async(plan: Plan[T], perform: Callable[[Step[Any]], Awaitable[Any]]) -> T:
    """Step ``plan`` to its end, awaiting each step."""
    advance: Callable[[Any], Any] = plan.send
    value: Any = None
    try:
        while True:
            step = advance(value)
            _refuse_foreign(step)
            try:
                advance, value = plan.send, await perform(step)
            except SamekeyError as error:
                advance, value = plan.throw, error
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        plan.close()


def _refuse_foreign(step: object) -> None:
    if not isinstance(step, Step):
        raise TypeError(f"a plan may await only samekey's steps, not {type(step).__name__}")
