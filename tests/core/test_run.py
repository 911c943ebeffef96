"""The two runners: what they do with steps, errors, foreign awaitables and interruptions."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from samekey.core import plans
from samekey.core.model import Claim, Fingerprint
from samekey.core.ops import Find, Hold, Open, Plan, Step
from samekey.errors import StoreBusy, StoreUnavailable
from samekey.run import run, run_async

T = TypeVar("T")
CLAIM = Claim(b"i" * 32, b"o" * 16, Fingerprint(1, b""), "shop", "order-", "POST", "/orders")


def in_sync(plan: Plan[T], perform: Callable[[Step[Any]], Any]) -> T:
    return run(plan, perform)


def in_async(plan: Plan[T], perform: Callable[[Step[Any]], Any]) -> T:
    async def perform_later(step: Step[Any]) -> Any:
        await asyncio.sleep(0)  # a real store suspends: the runner must hand that to the loop
        return perform(step)

    return asyncio.run(run_async(plan, perform_later))


Runner = Callable[[Plan[Any], Callable[[Step[Any]], Any]], Any]
both = pytest.mark.parametrize("runner", [in_sync, in_async])


def closed(plan: Plan[Any]) -> bool:
    """Whether the plan cannot be entered any more: a closed coroutine says so when it is sent to."""
    try:
        _ = plan.send(None)
    except RuntimeError as error:
        return str(error) == "cannot reuse already awaited coroutine"
    return False


@both
def test_results_go_back_into_the_plan_and_its_value_comes_out(runner: Runner) -> None:
    async def plan() -> list[object]:
        return [await Find(b"a"), await Find(b"b"), await Hold(b"b", b"o")]

    seen: list[Step[Any]] = []

    def perform(step: Step[Any]) -> Any:
        seen.append(step)
        return len(seen)

    assert runner(plan(), perform) == [1, 2, 3]
    assert seen == [Find(b"a"), Find(b"b"), Hold(b"b", b"o")]


@both
def test_a_plan_without_steps_just_returns(runner: Runner) -> None:
    async def plan() -> str:
        return "nothing to do"

    assert runner(plan(), lambda _: None) == "nothing to do"


@both
def test_a_foreign_awaitable_is_refused(runner: Runner) -> None:
    async def plan() -> None:
        await asyncio.sleep(0)

    started = plan()
    with pytest.raises(TypeError, match="a plan may await only samekey's steps, not NoneType"):
        runner(started, lambda _: None)
    assert closed(started)


def test_a_foreign_future_is_refused_under_a_loop() -> None:
    async def plan() -> None:
        await asyncio.sleep(60)

    async def perform(step: Step[Any]) -> Any:
        raise AssertionError(step)

    with pytest.raises(TypeError, match="a plan may await only samekey's steps, not Future"):
        asyncio.run(run_async(plan(), perform))


@both
def test_an_error_is_thrown_at_the_line_that_awaited(runner: Runner) -> None:
    def perform(step: Step[Any]) -> Any:
        raise StoreUnavailable("gone")

    with pytest.raises(StoreUnavailable) as caught:
        runner(plans.begin(CLAIM), perform)
    lines = [frame.line for frame in traceback.extract_tb(caught.tb) if frame.filename == plans.__file__]
    assert lines == ["outcome = await TryClaim(claim)"]


@both
def test_a_plan_may_catch_our_errors_and_go_on(runner: Runner) -> None:
    async def plan() -> str:
        try:
            await Open()
        except StoreBusy:
            return str(await Find(b"i"))
        return "not busy"

    def perform(step: Step[Any]) -> Any:
        if isinstance(step, Open):
            raise StoreBusy("try again")
        return "found"

    assert runner(plan(), perform) == "found"


@both
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, ValueError])
def test_an_interruption_closes_the_plan_and_is_not_seen_by_it(
    runner: Runner, interruption: type[BaseException]
) -> None:
    seen: list[BaseException] = []

    async def plan() -> None:
        try:
            await Open()
        except (GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError) as error:
            seen.append(error)
            raise
        except ValueError as error:
            seen.append(error)

    def perform(step: Step[Any]) -> Any:
        raise interruption

    started = plan()
    with pytest.raises(interruption):
        runner(started, perform)
    assert [type(error) for error in seen] == [GeneratorExit]
    assert closed(started)


def test_cancelling_the_task_closes_the_plan() -> None:
    async def story() -> Plan[Any]:
        waiting = asyncio.Event()

        async def perform(step: Step[Any]) -> Any:
            waiting.set()
            await asyncio.Event().wait()

        plan = plans.begin(CLAIM)
        task = asyncio.ensure_future(_awaited(run_async(plan, perform)))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return plan

    assert closed(asyncio.run(story()))


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable
