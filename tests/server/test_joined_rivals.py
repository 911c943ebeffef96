"""Rivals in other processes: told at once on PostgreSQL, waited for on SQLite, never taken for each other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from samekey import SameKey, callers
from samekey.errors import StoreBusy
from tests.joined import conftest as places
from tests.joined.shop import Place, on, open_shop, outcome

place = places.place
pytest_generate_tests = places.pytest_generate_tests

# Another process with one operation in it: it says "claimed", waits for a line, and then ends.
OTHER_PROCESS = """
import json, sys
from sqlalchemy import create_engine, text
from samekey.core.fingerprint import fingerprint
from samekey.core.model import Answer, Claim, record_id
from samekey.core.policy import FingerprintRule, Policy
from samekey.engine import Engine, completion_of
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore

url, ending = sys.argv[1:]
asked = fingerprint("POST", "/orders", b"", "application/json", b'{"cart": "a"}', FingerprintRule())
claim = Claim(record_id("", "acme", "k"), bytes(16), asked, "acme", "k", "POST", "/orders")
engine = Engine(SqlAlchemyStore(create_engine(url)))
running = engine.begin(claim, Policy())
running.transaction.connection.execute(text("INSERT INTO orders (cart) VALUES ('other')"))
print("claimed", flush=True)
sys.stdin.readline()
if ending == "fails":
    engine.abandon(running)
else:
    body = json.dumps({"ran": "in the other process"}).encode()
    answer = Answer(201, ((b"content-type", b"application/json"),), body)
    engine.finish(running, completion_of(running, answer, Policy(), None))
print("ended", flush=True)
"""


class Other:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()


@contextmanager
def claimed_elsewhere(place: Place, ending: str = "answers") -> Iterator[Other]:
    command = [sys.executable, "-c", OTHER_PROCESS, place.url, ending]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        other = Other(process)
        try:
            assert other.read() == "claimed"
            yield other
        finally:
            process.kill()


@on("postgresql")
async def test_on_postgresql_a_rival_is_told_at_once(place: Place) -> None:
    async with open_shop(place) as shop:
        await shop.samekey.start()
        with claimed_elsewhere(place) as other:
            started = time.monotonic()
            rival = await shop.post()
            assert (outcome(rival), rival.headers["retry-after"]) == ((409, "in-progress"), "1")
            assert outcome(await shop.post("unrelated")) == (201, None)
            assert time.monotonic() - started < 1.0
            other.go()
            assert await asyncio.to_thread(other.read) == "ended"
            again = await shop.post()
            assert (outcome(again), again.json()) == ((201, "replay"), {"ran": "in the other process"})
            assert sorted(shop.orders) == ["a", "other"]


@on("sqlite")
async def test_on_sqlite_a_rival_waits_and_replays_and_an_unrelated_key_waits_and_runs(place: Place) -> None:
    """Never 409 because of another key; and the event loop serves others meanwhile."""
    async with open_shop(place) as shop:

        @shop.app.get("/unprotected")
        async def unprotected() -> str:
            return "served"

        await shop.samekey.start()
        with claimed_elsewhere(place) as other:
            rival, unrelated = [asyncio.create_task(shop.post(key)) for key in ("k", "unrelated")]
            await asyncio.sleep(0.2)
            assert (rival.done(), unrelated.done()) == (False, False)
            assert (await asyncio.wait_for(shop.client.get("/unprotected"), 1)).json() == "served"
            other.go()
            answer = await rival
            assert (outcome(answer), answer.json()) == ((201, "replay"), {"ran": "in the other process"})
            assert outcome(await unrelated) == (201, None)
            assert (sorted(shop.orders), shop.records) == (["a", "other"], ["completed"] * 2)


@on("sqlite")
async def test_on_sqlite_a_rival_runs_when_the_other_process_failed(place: Place) -> None:
    async with open_shop(place) as shop:
        await shop.samekey.start()
        with claimed_elsewhere(place, "fails") as other:
            rival = asyncio.create_task(shop.post())
            await asyncio.sleep(0.2)
            other.go()
            assert outcome(await rival) == (201, None)
            assert (shop.orders, shop.records) == (["a"], ["completed"])


@on("sqlite")
async def test_on_sqlite_busy_is_said_after_busy_seconds(place: Place) -> None:
    async with open_shop(place, busy_seconds=0.3) as shop:
        await shop.samekey.start()
        with claimed_elsewhere(place) as other:
            for key in ("k", "unrelated", None):
                started = time.monotonic()
                answer = await shop.post(key)
                assert (outcome(answer), answer.json()["retryable"]) == ((503, "store-busy"), True)
                assert 0.25 < time.monotonic() - started < 2.0
            other.go()
            assert await asyncio.to_thread(other.read) == "ended"
            assert outcome(await shop.post("k")) == (201, "replay")
            assert outcome(await shop.post("unrelated")) == (201, None)


@on("sqlite")
async def test_on_sqlite_the_engines_own_timeout_is_given_back(place: Place) -> None:
    """A wait of samekey's own does not stay on a connection that the application uses next."""
    engine = place.engine(pool_size=1, max_overflow=0, connect_args={"timeout": 7})
    async with open_shop(place, engine=engine, busy_seconds=0.3) as shop:
        assert outcome(await shop.post()) == (201, None)
        if place.sync:
            with engine.connect() as connection:
                assert connection.execute(text("PRAGMA busy_timeout")).scalar_one() == 7000
        else:
            async with engine.connect() as connection:
                assert (await connection.execute(text("PRAGMA busy_timeout"))).scalar_one() == 7000


@on("sqlite")
async def test_on_sqlite_a_start_beside_a_long_operation_gives_up_in_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samekey.stores.drivers.sqlalchemy.BUSY_SECONDS_MAX", 0.5)
    async with open_shop(place) as running:
        await running.samekey.start()
        with claimed_elsewhere(place) as other:
            engine = place.engine(connect_args={"timeout": 0.2})
            fresh = SameKey(engine, caller=callers.everyone)
            started = time.monotonic()
            with pytest.raises(StoreBusy):
                await fresh.start()
            assert time.monotonic() - started < 5
            other.go()
            assert await asyncio.to_thread(other.read) == "ended"
            await fresh.start()
