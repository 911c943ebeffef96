"""A shop in both colours, whose handler is written once as sync session code.

A sync engine gets a ``def`` handler; an async one gets an ``async def`` handler that gives the
same code to ``AsyncSession.run_sync``, which is how SQLAlchemy itself performs ``await commit()``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from fastapi import Depends, FastAPI
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from samekey import Operation, SameKey, callers
from samekey.core.ops import CreateSchema
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore

Handler = Callable[[Session, Operation], Any]
Test = TypeVar("Test", bound=Callable[..., Any])


def on(places: str) -> Callable[[Test], Test]:
    """Run a test only on places whose name contains ``places`` (``sqlite``, ``-sync``, …)."""

    def mark(test: Test) -> Test:
        test.on = places  # type: ignore[attr-defined]
        return test

    return mark


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    cart: Mapped[str]


@dataclass
class Place:
    """A database and a colour. Engines made here are looked at when the test ends."""

    url: str
    driver: str
    sync: bool
    engines: list[Engine | AsyncEngine] = field(default_factory=list)
    outside: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.outside = create_engine(self.url)

    @property
    def sqlite(self) -> bool:
        return self.outside.dialect.name == "sqlite"

    def engine(self, **options: Any) -> Any:
        """An engine of the application's, of this place's driver and colour."""
        url = make_url(self.url)
        if self.driver == "asyncpg":
            # asyncpg has no libpq options: the test's schema is a setting of the session.
            path = str(url.query["options"]).removeprefix("-csearch_path=")
            options.setdefault("connect_args", {})["server_settings"] = {"search_path": path}
            url = url.set(query={})
        url = url.set(drivername=f"{url.get_backend_name()}+{self.driver}")
        made = create_engine(url, **options) if self.sync else create_async_engine(url, **options)
        self.engines.append(made)
        return made

    def rows(self, statement: str) -> list[Any]:
        """What another connection sees."""
        with self.outside.connect() as connection:
            return [row[0] if len(row) == 1 else tuple(row) for row in connection.execute(text(statement))]

    def write(self, *statements: str) -> None:
        with self.outside.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def make_tables(self) -> None:
        SqlAlchemyStore(self.outside).perform(CreateSchema())
        Base.metadata.create_all(self.outside)

    async def close(self) -> None:
        for engine in self.engines:
            if isinstance(engine, AsyncEngine):
                await engine.dispose()
            else:
                engine.dispose()
        self.outside.dispose()


def checked_out(engine: Engine | AsyncEngine) -> int:
    pool = engine.sync_engine.pool if isinstance(engine, AsyncEngine) else engine.pool
    # A pool that keeps nothing (NullPool) cannot count either.
    return int(pool.checkedout()) if hasattr(pool, "checkedout") else 0


@dataclass
class Shop:
    place: Place
    engine: Any
    app: FastAPI
    samekey: SameKey
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://shop")

    async def post(self, key: str | None = "k", path: str = "/orders", cart: str = "a") -> httpx.Response:
        headers = {"X-Account": "acme"} | ({} if key is None else {"Idempotency-Key": key})
        return await self.client.post(path, headers=headers, json={"cart": cart})

    @property
    def orders(self) -> list[str]:
        return self.place.rows("SELECT cart FROM orders ORDER BY id")

    @property
    def records(self) -> list[str]:
        """The states of all records."""
        return self.place.rows("SELECT state FROM idempotency_keys ORDER BY created_at")

    def serve(self, path: str, handler: Handler) -> None:
        """POST ``path`` runs ``handler`` in the joined session."""
        if self.place.sync:

            @self.app.post(path, status_code=201)
            def serve(
                op: Operation = Depends(self.samekey), db: Session = Depends(self.samekey.session)
            ) -> Any:
                return handler(db, op)

        else:

            @self.app.post(path, status_code=201)
            async def serve_async(
                op: Operation = Depends(self.samekey), db: AsyncSession = Depends(self.samekey.session)
            ) -> Any:
                return await db.run_sync(handler, op)


def add(db: Session, cart: str = "a") -> int:
    """One order, flushed and not committed."""
    order = Order(cart=cart)
    db.add(order)
    db.flush()
    return order.id


def buy(db: Session, op: Operation) -> dict[str, int]:
    """The ordinary handler."""
    made = add(db)
    db.commit()
    return {"id": made}


@asynccontextmanager
async def open_shop(
    place: Place, handler: Handler = buy, *, engine: Any = None, **options: Any
) -> AsyncIterator[Shop]:
    place.make_tables()
    engine = place.engine() if engine is None else engine
    app = FastAPI()
    samekey = SameKey(engine, **({"caller": callers.header("X-Account")} | options))
    samekey.install(app)
    shop = Shop(place, engine, app, samekey)
    shop.serve("/orders", handler)
    async with shop.client:
        yield shop


def outcome(answer: httpx.Response) -> tuple[int, str | None]:
    """Status, and what kind of answer: a problem's code, ``replay``, or None for a first answer."""
    if "idempotent-replayed" in answer.headers:
        return answer.status_code, "replay"
    if answer.headers.get("content-type") == "application/problem+json":
        return answer.status_code, answer.json()["code"]
    return answer.status_code, None
