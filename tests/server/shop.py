"""A protected application for the scenarios: both colours, any database, one order table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from samekey import SameKey, callers
from samekey.core.ops import CreateSchema
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore

ORDERS = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, cart TEXT)"
ORDERS_POSTGRESQL = "CREATE TABLE IF NOT EXISTS orders (id serial PRIMARY KEY, cart TEXT)"


@dataclass
class Shop:
    """The application, its keeper, a client without cookies, and a look at the database from outside."""

    app: FastAPI
    samekey: SameKey
    sync: bool
    outside: Engine
    engine: Engine | AsyncEngine
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://shop")

    async def post(self, path: str = "/orders", key: str | None = "k", **more: Any) -> httpx.Response:
        """POST as acme with a key; ``headers`` replace or add."""
        headers = {"X-Account": "acme", **({} if key is None else {"Idempotency-Key": key})}
        headers |= more.pop("headers", {})
        if not {"json", "content", "data", "files"} & set(more):
            more["json"] = {"cart": "1"}
        return await self.client.post(path, headers=headers, **more)

    def rows(self, statement: str) -> list[Any]:
        with self.outside.connect() as connection:
            return list(connection.execute(text(statement)).all())

    def orders(self) -> int:
        return int(self.rows("SELECT count(*) FROM orders")[0][0])

    def records(self) -> int:
        return int(self.rows("SELECT count(*) FROM idempotency_keys")[0][0])

    def write(self, statement: str) -> None:
        with self.outside.begin() as connection:
            connection.execute(text(statement))

    @property
    def checked_out(self) -> int:
        engine = self.engine.sync_engine if isinstance(self.engine, AsyncEngine) else self.engine
        return int(engine.pool.checkedout())  # type: ignore[attr-defined]


async def add(db: Any, cart: str) -> int:
    """One order through a joined session of either colour, uncommitted."""
    statement = text("INSERT INTO orders (cart) VALUES (:cart) RETURNING id")
    result = db.execute(statement, {"cart": cart})
    if isinstance(result, Awaitable):
        result = await result
    return int(result.scalar_one())


async def commit(db: Any) -> None:
    done = db.commit()
    if isinstance(done, Awaitable):
        await done


@asynccontextmanager
async def open_shop(
    url: str, sync: bool, routes: Callable[[FastAPI, SameKey], None], **options: Any
) -> AsyncIterator[Shop]:
    """An application on ``url`` with ``routes``; closed afterwards, with nothing checked out."""
    sync_url = url.replace("+aiosqlite", "")
    outside = create_engine(sync_url)
    if outside.dialect.name == "postgresql":
        SqlAlchemyStore(outside).perform(CreateSchema())
    with outside.begin() as connection:
        connection.execute(text(ORDERS_POSTGRESQL if outside.dialect.name == "postgresql" else ORDERS))
    engine = create_engine(sync_url) if sync else create_async_engine(url)
    app = FastAPI()
    samekey = SameKey(engine, caller=options.pop("caller", callers.header("X-Account")), **options)
    samekey.install(app)
    routes(app, samekey)
    shop = Shop(app, samekey, sync, outside, engine)
    try:
        yield shop
        assert shop.checked_out == 0
    finally:
        await shop.client.aclose()
        outside.dispose()
        if isinstance(engine, AsyncEngine):
            await engine.dispose()
        else:
            engine.dispose()
