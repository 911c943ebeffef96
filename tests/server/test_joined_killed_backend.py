"""The server ends our connection in the middle of a handler: no order, no record, a free key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from samekey import Operation
from tests.joined import conftest as places
from tests.joined.shop import Place, Shop, add, on, open_shop, outcome

place = places.place
pytest_generate_tests = places.pytest_generate_tests


def kill(db: Session, place: Place) -> None:
    backend = db.execute(text("SELECT pg_backend_pid()")).scalar_one()
    place.write(f"SELECT pg_terminate_backend({backend}, 5000)")


def then_use_it(db: Session) -> None:
    add(db, "late")


def then_give_up(db: Session) -> None:
    with suppress(SQLAlchemyError):
        add(db, "late")


def then_go_on_as_if_nothing_was(db: Session) -> None:
    """A handler that swallows the error and tries again, on whatever connection the session then has."""
    for _ in range(3):
        try:
            add(db, "late")
            db.commit()
        except SQLAlchemyError:
            with suppress(SQLAlchemyError):
                db.rollback()


def then_answer(db: Session) -> None:
    """The loss is first noticed when the answer is written."""


AFTERWARDS: dict[str, tuple[Callable[[Session], None], list[int]]] = {
    "use": (then_use_it, [500]),
    "give-up": (then_give_up, [500, 503]),
    "go-on": (then_go_on_as_if_nothing_was, [500, 503]),
    "answer": (then_answer, [503]),
}


@pytest.mark.parametrize(("afterwards", "statuses"), AFTERWARDS.values(), ids=AFTERWARDS)
@on("postgresql")
async def test_a_killed_backend_leaves_nothing(
    afterwards: Callable[[Session], None], statuses: list[int], place: Place
) -> None:
    attempts = []

    def handler(db: Session, op: Operation) -> dict[str, int]:
        attempts.append(op.key_id)
        made = add(db)
        db.commit()
        if len(attempts) == 1:
            kill(db, place)
            afterwards(db)
        return {"id": made}

    async with open_shop(place, handler) as shop:
        answer = await shop.post()
        assert answer.status_code in statuses, outcome(answer)
        assert (shop.orders, shop.records) == ([], [])
        await one_order_after_a_retry(shop)
        assert len(attempts) == 2


@on("postgresql")
async def test_a_backend_killed_while_it_is_idle_costs_a_retry_at_most(place: Place) -> None:
    async with open_shop(place) as shop:
        assert outcome(await shop.post("before")) == (201, None)
        place.write(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
        answer = await shop.post()
        assert outcome(answer) in [(201, None), (503, "store-unavailable")]
        if answer.status_code == 503:
            assert answer.json()["retryable"] is True
            answer = await shop.post()
            assert outcome(answer) == (201, None)
        assert outcome(await shop.post()) == (201, "replay")
        assert (shop.orders, shop.records) == (["a", "a"], ["completed", "completed"])


async def one_order_after_a_retry(shop: Shop) -> None:
    first, again = await shop.post(), await shop.post()
    assert (outcome(first), outcome(again)) == ((201, None), (201, "replay"))
    assert (shop.orders, shop.records) == (["a"], ["completed"])
