"""Engines that end transactions otherwise than by default: whatever they skip, nothing stays open."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from samekey import Operation
from tests.joined import conftest as places
from tests.joined.shop import Place, add, on, open_shop, outcome

place = places.place
pytest_generate_tests = places.pytest_generate_tests

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}
OPTIONS: dict[str, dict[str, Any]] = {
    "skip-autocommit-rollback": {"skip_autocommit_rollback": True, **AUTOCOMMIT},
    "no-reset": {"pool_reset_on_return": None},
    "no-reset-autocommit": {"pool_reset_on_return": None, **AUTOCOMMIT},
    "commit-on-return": {"pool_reset_on_return": "commit"},
    "commit-on-return-autocommit": {"pool_reset_on_return": "commit", **AUTOCOMMIT},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@on("sqlite")
async def test_on_sqlite_nothing_stays_open(options: dict[str, Any], place: Place) -> None:
    await _fail_then_buy(place, place.engine(pool_size=1, max_overflow=0, **options))


@pytest.mark.parametrize("reset", [None, "commit"])
@on("postgresql")
async def test_on_postgresql_nothing_stays_open(reset: Any, place: Place) -> None:
    await _fail_then_buy(place, place.engine(pool_size=1, max_overflow=0, pool_reset_on_return=reset))


async def _fail_then_buy(place: Place, engine: Any) -> None:
    attempts = []

    def handler(db: Session, op: Operation) -> dict[str, int]:
        attempts.append(op.key_id)
        made = add(db)
        if len(attempts) < 3:
            db.commit()
        if len(attempts) == 1:
            raise RuntimeError("failed")
        return {"id": made}

    async with open_shop(place, handler, engine=engine) as shop:
        await shop.samekey.start()
        assert outcome(await shop.post()) == (500, None)
        # Somebody else can write now: no lock was left on the connection, and no work.
        place.write("INSERT INTO orders (cart) VALUES ('outside')")
        assert (shop.orders, shop.records) == (["outside"], [])
        assert outcome(await shop.post()) == (201, None)
        assert outcome(await shop.post()) == (201, "replay")
        assert outcome(await shop.post(cart="b")) == (422, "key-reused")
        assert outcome(await shop.post(None)) == (201, None)
        place.write("INSERT INTO orders (cart) VALUES ('outside')")
        assert (shop.orders, shop.records) == (["outside", "a", "a", "outside"], ["completed"])
