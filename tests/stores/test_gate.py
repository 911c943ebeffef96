"""The writers' gate: fair, told at once about rivals, and empty when everybody has left (BL-25)."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from samekey.core.policy import Policy
from samekey.engine import Engine, Running
from samekey.errors import StoreBusy
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore
from samekey.stores.gate import AsyncGate, Gate
from tests.contract.moves import a_claim, completion_of

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
BUSY = "other requests of this process hold the database's single writer; try again soon"
SOON = 20.0  # seconds; only a hang takes that long


def assert_empty(gate: Gate | AsyncGate) -> None:
    assert not gate._ids
    assert not gate._queue
    assert not gate._busy


# Threads ------------------------------------------------------------------------------


def in_thread(gate: Gate, id: bytes | None, entered: list[object]) -> threading.Thread:
    """A thread that queues for the gate and notes how that ended; it has queued when this returns."""

    def enter() -> None:
        try:
            entered.append((id, gate.enter(id, SOON)))
        except StoreBusy as error:
            entered.append(error)

    length = len(gate._queue)
    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    while len(gate._queue) == length and thread.is_alive():
        pass  # a few microseconds
    return thread


def test_a_rival_of_the_same_id_is_told_at_once() -> None:
    gate = Gate()
    assert gate.enter(A, 0) is True
    assert gate.enter(A, SOON) is False
    gate.leave(A)
    assert gate.enter(A, 0) is True
    gate.leave(A)
    assert_empty(gate)


def test_a_rival_of_one_that_still_waits_is_told_at_once() -> None:
    gate, entered = Gate(), list[object]()
    assert gate.enter(A, 0)
    waiting = in_thread(gate, B, entered)
    assert gate.enter(B, SOON) is False
    gate.leave(A)
    waiting.join(SOON)
    assert entered == [(B, True)]
    gate.leave(B)
    assert_empty(gate)


def test_work_without_a_key_has_no_rivals_but_waits_for_its_turn() -> None:
    gate = Gate()
    assert gate.enter(None, 0)
    with pytest.raises(StoreBusy, match=BUSY):
        gate.enter(None, 0)
    gate.leave(None)
    assert_empty(gate)


def test_turns_are_given_in_the_order_of_asking() -> None:
    gate, entered = Gate(), list[object]()
    assert gate.enter(A, 0)
    threads = [in_thread(gate, id, entered) for id in (B, None, C)]
    for left, thread in zip((A, B, None), threads, strict=True):
        gate.leave(left)
        thread.join(SOON)
    gate.leave(C)
    assert entered == [(B, True), (None, True), (C, True)]
    assert_empty(gate)


def test_who_gives_up_leaves_nothing_behind() -> None:
    gate = Gate()
    assert gate.enter(A, 0)
    with pytest.raises(StoreBusy, match=BUSY):
        gate.enter(B, 0.001)
    gate.leave(A)
    assert_empty(gate)
    assert gate.enter(B, 0)
    gate.leave(B)


def test_a_thousand_tasks_over_ten_keys_neither_hang_nor_overlap_bl_25() -> None:
    """BL-25: callers hung in a per-key lock. Here each of ten keys is asked for by a hundred turns."""
    gate = Gate()
    inside, most, turns = 0, 0, Counter[bool]()

    def work(number: int) -> None:
        nonlocal inside, most
        for turn in range(50):
            id = bytes([(number + turn) % 10]) * 32
            entered = gate.enter(id, SOON)
            if entered:
                inside += 1
                most = max(most, inside)
                inside -= 1
                gate.leave(id)
            turns[entered] += 1

    threads = [threading.Thread(target=work, args=[number], daemon=True) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert turns.total() == 1000
    assert turns[True] > 0
    assert most == 1
    assert_empty(gate)


def test_ten_thousand_keys_leave_the_gate_empty_bl_25() -> None:
    gate = Gate()
    for number in range(10_000):
        id = number.to_bytes(32, "big")
        assert gate.enter(id, 0)
        gate.leave(id)
    assert_empty(gate)


# An event loop ------------------------------------------------------------------------


async def test_the_loops_gate_tells_a_rival_at_once() -> None:
    gate = AsyncGate()
    assert await gate.enter(A, 0) is True
    waiting = asyncio.create_task(gate.enter(B, SOON))
    await asyncio.sleep(0)
    assert await gate.enter(A, SOON) is False
    assert await gate.enter(B, SOON) is False
    gate.leave(A)
    assert await waiting is True
    gate.leave(B)
    assert_empty(gate)


async def test_the_loops_gate_is_fair() -> None:
    gate, entered = AsyncGate(), list[bytes | None]()

    async def enter(id: bytes | None) -> None:
        assert await gate.enter(id, SOON)
        entered.append(id)

    assert await gate.enter(A, 0)
    tasks = [asyncio.create_task(enter(id)) for id in (B, None, C)]
    await asyncio.sleep(0)
    for left, task in zip((A, B, None), tasks, strict=True):
        gate.leave(left)
        await task
    gate.leave(C)
    assert entered == [B, None, C]
    assert_empty(gate)


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    gate = AsyncGate()
    assert await gate.enter(A, 0)
    with pytest.raises(StoreBusy, match=BUSY):
        await gate.enter(B, 0.001)
    gate.leave(A)
    assert_empty(gate)


async def test_who_is_cancelled_while_waiting_leaves_nothing_behind() -> None:
    gate = AsyncGate()
    assert await gate.enter(A, 0)
    task = asyncio.create_task(gate.enter(B, SOON))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gate.enter(A, 0) is False
    gate.leave(A)
    assert_empty(gate)


async def test_who_is_cancelled_with_the_turn_in_hand_passes_it_on() -> None:
    gate = AsyncGate()
    assert await gate.enter(A, 0)
    unlucky = asyncio.create_task(gate.enter(B, SOON))
    next_one = asyncio.create_task(gate.enter(C, SOON))
    await asyncio.sleep(0)
    gate.leave(A)  # the turn is B's now, who has not woken up yet
    unlucky.cancel()
    with pytest.raises(asyncio.CancelledError):
        await unlucky
    assert await asyncio.wait_for(next_one, SOON) is True
    gate.leave(C)
    assert_empty(gate)


async def test_a_thousand_tasks_over_ten_keys_neither_hang_nor_overlap_on_a_loop_bl_25() -> None:
    gate = AsyncGate()
    inside, turns = 0, Counter[bool]()

    async def work(number: int) -> None:
        nonlocal inside
        id = bytes([number % 10]) * 32
        entered = await gate.enter(id, SOON)
        if entered:
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1
            gate.leave(id)
        turns[entered] += 1

    await asyncio.wait_for(asyncio.gather(*(work(number) for number in range(1000))), SOON)
    assert turns == {True: 10, False: 990}
    assert_empty(gate)


async def test_ten_thousand_keys_leave_the_loops_gate_empty_bl_25() -> None:
    gate = AsyncGate()
    for number in range(10_000):
        id = number.to_bytes(32, "big")
        assert await gate.enter(id, 0)
        gate.leave(id)
    assert_empty(gate)


async def test_random_cancellations_never_lose_the_turn(seed: int, rounds: int) -> None:
    """Whoever is cancelled at whichever moment, the gate serves the rest and is empty in the end."""
    for round_ in range(rounds):
        chance = random.Random(f"{seed}:{round_}")
        gate = AsyncGate()

        async def work(id: bytes | None, pauses: int, gate: AsyncGate = gate) -> None:
            if await gate.enter(id, SOON):
                try:
                    for _ in range(pauses):
                        await asyncio.sleep(0)
                finally:
                    gate.leave(id)

        tasks = [
            asyncio.create_task(work(chance.choice([A, B, C, None]), chance.randrange(3))) for _ in range(20)
        ]
        while not all(task.done() for task in tasks):
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert_empty(gate)


# Behind an engine ---------------------------------------------------------------------


def test_a_thousand_requests_through_an_engine_leave_its_gate_empty_bl_25(sqlite_path: Path) -> None:
    engine = create_engine(f"sqlite:///{sqlite_path}")
    shell = Engine(SqlAlchemyStore(engine))
    shell.prepare()
    for number in range(200):
        for _ in range(5):  # the first runs or is given up, the others replay or run
            claim = a_claim(f"order-{number}")
            running = shell.begin(claim, Policy())
            if isinstance(running, Running):
                if number % 3:
                    shell.finish(running, completion_of(claim, running.fence))
                else:
                    shell.abandon(running)
    assert shell._gate is not None
    assert_empty(shell._gate)
    engine.dispose()
