"""The connection breaks during a commit that the server is still busy with while we look for its outcome."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import Any

import pytest
from sqlalchemy import Connection, event

from tests.joined import conftest as places
from tests.joined.faults import sync_side
from tests.joined.shop import Place, on, open_shop, outcome

place = places.place
pytest_generate_tests = places.pytest_generate_tests

BREAK_AFTER_SECONDS = 0.1
# The check of a deferred constraint is part of the commit, and this one takes its time.
SLOW_CHECK = """
    CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$
"""
DEFERRED = """
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION be_slow()
"""


def break_the_next_commit(engine: Any) -> None:
    """Cut the connection at the socket while its commit is under way. The server goes on with it."""

    done = threading.Event()

    def on_commit(connection: Connection) -> None:
        if done.is_set():
            return
        done.set()
        driver_connection: Any = connection.connection.driver_connection
        if connection.dialect.driver == "asyncpg":
            number = driver_connection._transport.get_extra_info("socket").fileno()
        else:
            number = driver_connection.fileno()
        wire = socket.socket(fileno=os.dup(number))

        def cut() -> None:
            with wire:
                wire.shutdown(socket.SHUT_RDWR)

        threading.Timer(BREAK_AFTER_SECONDS, cut).start()

    event.listen(sync_side(engine), "commit", on_commit)


def look_every(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("samekey.engine.VERIFY_PAUSE_SECONDS", seconds)
    monkeypatch.setattr("samekey.aengine.VERIFY_PAUSE_SECONDS", seconds)


@on("postgresql")
async def test_a_commit_that_ends_while_we_look_is_answered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_every(monkeypatch, 0.3)
    engine = place.engine()
    async with open_shop(place, engine=engine) as shop:
        await shop.samekey.start()
        place.write(SLOW_CHECK.format(seconds=0.6), DEFERRED)
        break_the_next_commit(engine)
        first = await shop.post()
        assert outcome(first) == (201, None)
        again = await shop.post()
        assert (outcome(again), again.content) == ((201, "replay"), first.content)
        assert (shop.orders, shop.records) == (["a"], ["completed"])


@on("postgresql")
async def test_a_commit_that_ends_after_we_gave_up_is_replayed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not known is what we say, and until the server has ended it nobody else may run."""
    look_every(monkeypatch, 0.02)
    engine = place.engine()
    async with open_shop(place, engine=engine) as shop:
        await shop.samekey.start()
        place.write(SLOW_CHECK.format(seconds=1.0), DEFERRED)
        break_the_next_commit(engine)
        first = await shop.post()
        assert (outcome(first), first.json()["safe_to_use_new_key"]) == ((503, "outcome-unknown"), False)
        assert outcome(await shop.post()) == (409, "in-progress")
        answer = await shop.post()
        async with asyncio.timeout(10):
            while answer.status_code == 409:
                await asyncio.sleep(0.02)
                answer = await shop.post()
        assert outcome(answer) == (201, "replay")
        assert (shop.orders, shop.records) == (["a"], ["completed"])
