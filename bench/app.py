"""The application under measurement: each thing with samekey beside the same thing without.

``POST /bare-orders`` and ``POST /orders`` do one INSERT; ``POST /bare`` returns the bytes of
a replay, with the same body model and caller header and no database.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header
from pydantic import BaseModel
from sqlalchemy import String, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from samekey import SameKey, callers

URL = os.environ["BENCH_URL"]
SYNC = os.environ.get("BENCH_COLOUR") == "sync"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "bench_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    cart: Mapped[str] = mapped_column(String(100))
    amount: Mapped[int]


class OrderIn(BaseModel):
    cart: str
    amount: int


def answer(order_id: int, order: OrderIn) -> dict[str, Any]:
    return {"id": order_id, "cart": order.cart, "amount": order.amount}


app = FastAPI()


def add_sync_routes() -> SameKey:
    engine = create_engine(URL)
    samekey = SameKey(engine, caller=callers.header("X-Account"))
    Base.metadata.create_all(engine)

    @app.post("/bare-orders", status_code=201)
    def bare_order(order: OrderIn, x_account: Annotated[str, Header()]) -> dict[str, Any]:
        with Session(engine) as db:
            row = Order(cart=order.cart, amount=order.amount)
            db.add(row)
            db.flush()
            made = answer(row.id, order)
            db.commit()
        return made

    @app.post("/orders", status_code=201)
    def joined_order(order: OrderIn, db: Session = Depends(samekey.session)) -> dict[str, Any]:
        row = Order(cart=order.cart, amount=order.amount)
        db.add(row)
        db.flush()
        made = answer(row.id, order)
        db.commit()
        return made

    @app.post("/bare", status_code=201)
    def bare(order: OrderIn, x_account: Annotated[str, Header()]) -> dict[str, Any]:
        return answer(1, order)

    return samekey


def add_async_routes() -> SameKey:
    engine = create_async_engine(URL)
    samekey = SameKey(engine, caller=callers.header("X-Account"))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield

    app.router.lifespan_context = lifespan

    @app.post("/bare-orders", status_code=201)
    async def bare_order(order: OrderIn, x_account: Annotated[str, Header()]) -> dict[str, Any]:
        async with AsyncSession(engine, expire_on_commit=False) as db:
            row = Order(cart=order.cart, amount=order.amount)
            db.add(row)
            await db.commit()
        return answer(row.id, order)

    @app.post("/orders", status_code=201)
    async def joined_order(order: OrderIn, db: AsyncSession = Depends(samekey.session)) -> dict[str, Any]:
        row = Order(cart=order.cart, amount=order.amount)
        db.add(row)
        await db.commit()
        return answer(row.id, order)

    @app.post("/bare", status_code=201)
    async def bare(order: OrderIn, x_account: Annotated[str, Header()]) -> dict[str, Any]:
        return answer(1, order)

    return samekey


(add_sync_routes() if SYNC else add_async_routes()).install(app)
