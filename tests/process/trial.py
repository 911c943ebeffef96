"""A purchase and its verdict: clients that retry, the database behind the shop's back, and the checker.

Owns what "one order for one key" means. Must not know how servers start or die (``server.py`` does).
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
from sqlalchemy import NullPool, create_engine, select, text
from sqlalchemy.orm import Session

from samekey.core.model import record_id
from samekey.core.ops import CreateSchema
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore
from tests.process.app import Base, Order

ACCOUNT = "acme"
AMOUNT = 1200
ATTEMPT_SECONDS_MAX = 15  # longer than a restart and SQLite's busy_seconds together
PURCHASE_SECONDS_MAX = 40
PAUSE_SECONDS = 0.02  # less than Retry-After says: what is retried too early must be safe as well


class Wrong(AssertionError):
    """The promise was broken; the message says how."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one attempt brought. ``status`` is None where nothing came, ``body`` where not all of it came."""

    status: int | None
    body: bytes | None
    replayed: bool = False
    code: str | None = None
    retry_after: str | None = None
    retryable: bool = True


LOST = Seen(None, None)


@dataclass(slots=True)
class Purchase:
    """One intention, its key and cart, and all that its clients saw. The lists grow from several threads."""

    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    cart: str = field(default_factory=lambda: f"cart-{uuid.uuid4().hex}")
    amount: int = AMOUNT
    seen: list[Seen] = field(default_factory=list)
    finals: list[Seen | None] = field(default_factory=list)

    @property
    def id(self) -> bytes:
        return record_id("", ACCOUNT, self.key)


class Client:
    """Sends purchases as a careful client does: same key, same bytes, until the answer is final."""

    def __init__(self) -> None:
        # A connection of its own for each attempt, so that none is lost because an old server had it.
        self._http = httpx.Client(
            timeout=ATTEMPT_SECONDS_MAX, trust_env=False, headers={"Connection": "close"}, verify=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def attempt(
        self, url: str, purchase: Purchase, *, amount: int | None = None, gate: int | None = None
    ) -> Seen:
        """Send once. ``gate``: the port of the gate at which the handler waits."""
        headers = {"X-Account": ACCOUNT, "Idempotency-Key": purchase.key}
        if gate is not None:
            headers["X-Hold"] = str(gate)
        order = {"cart": purchase.cart, "amount": purchase.amount if amount is None else amount}
        seen = self._send(f"{url}/orders", order, headers)
        purchase.seen.append(seen)
        return seen

    def _send(self, url: str, order: dict[str, Any], headers: dict[str, str]) -> Seen:
        status = None
        try:
            with self._http.stream("POST", url, json=order, headers=headers) as response:
                status = response.status_code
                body = response.read()
        except httpx.TransportError:
            return Seen(status, None)
        is_problem = response.headers["content-type"] == "application/problem+json"
        problem: dict[str, Any] = response.json() if is_problem else {"code": None, "retryable": False}
        return Seen(
            status,
            body,
            response.headers.get("Idempotent-Replayed") == "true",
            problem["code"],
            response.headers.get("Retry-After"),
            problem["retryable"],
        )

    def buy(self, url: str, purchase: Purchase) -> None:
        """Send until the answer is final; note None where time was over before that."""
        deadline = time.monotonic() + PURCHASE_SECONDS_MAX
        while time.monotonic() < deadline:
            seen = self.attempt(url, purchase)
            if not seen.retryable:
                purchase.finals.append(seen)
                return
            time.sleep(PAUSE_SECONDS)
        purchase.finals.append(None)

    def count(self, url: str, purchase: Purchase) -> int:
        """How many orders the shop itself says there are."""
        answer = self._http.get(f"{url}/orders/count", params={"cart": purchase.cart})
        number: int = answer.raise_for_status().json()
        return number


class Ledger:
    """The shop's database, looked at from outside on connections of its own."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, poolclass=NullPool)
        Base.metadata.create_all(self._engine)
        SqlAlchemyStore(self._engine).perform(CreateSchema())

    def orders(self, purchase: Purchase) -> list[Order]:
        with Session(self._engine) as db:
            return list(db.scalars(select(Order).where(Order.cart == purchase.cart)))

    def records(self, purchase: Purchase) -> list[dict[str, Any]]:
        """The key's row with all its columns; not expired and not purged are not told apart."""
        statement = text("SELECT * FROM idempotency_keys WHERE id = :id")
        with self._engine.connect() as connection:
            rows = connection.execute(statement, {"id": purchase.id}).mappings()
            return [dict(row) for row in rows]

    def counts(self, purchase: Purchase) -> tuple[int, int]:
        """Orders and records: (0, 0) where nothing remains, (1, 1) where all of it is there."""
        return len(self.orders(purchase)), len(self.records(purchase))

    def totals(self) -> tuple[int, dict[str, int]]:
        """All orders, and all records by state."""
        with self._engine.connect() as connection:
            orders: int = connection.scalar(text("SELECT count(*) FROM orders")) or 0
            states = connection.execute(text("SELECT state FROM idempotency_keys")).scalars()
            return orders, dict(Counter(states))


def check(ledger: Ledger, purchase: Purchase) -> None:
    """Raise Wrong unless the purchase ended as promised: one order, one record, one answer for everybody."""
    answers = {seen.body for seen in purchase.seen if seen.status == 201 and seen.body is not None}
    first_answers = [seen for seen in purchase.seen if seen.status == 201 and seen.body and not seen.replayed]
    orders, records = ledger.orders(purchase), ledger.records(purchase)
    if len(orders) > 1:
        raise Wrong(f"{len(orders)} orders for one key")
    if answers and not orders:
        raise Wrong("the order was acknowledged, and there is none")
    if not purchase.finals or not all(final is not None and final.status == 201 for final in purchase.finals):
        raise Wrong(f"a client was left without its answer: {purchase.finals}")
    if len(answers) != 1:
        raise Wrong(f"{len(answers)} different answers for one key")
    if len(first_answers) > 1:
        raise Wrong(f"{len(first_answers)} answers without the replay marker")
    (body,) = answers
    if orders[0].id.encode() not in body:
        raise Wrong("the answer speaks of another order than the one that is there")
    if [record["state"] for record in records] != ["completed"]:
        raise Wrong(f"the key's records are not one completed one but {records}")
    if records[0]["status"] != 201 or bytes(records[0]["body"]) != body:
        raise Wrong("the recorded answer is not the one that was given")


def check_totals(ledger: Ledger, purchases: Iterable[Purchase]) -> None:
    """Raise Wrong unless the database holds these purchases and nothing else, and no record is open."""
    expected = len(list(purchases))
    orders, states = ledger.totals()
    if orders != expected or states != {"completed": expected}:
        raise Wrong(f"{expected} keys, but {orders} orders and records {states}")


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'shop.db'}"
