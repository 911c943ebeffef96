"""The shop: what it takes to protect an API with samekey, on its own database.

The database's URL comes from the environment, because several worker processes share it:
``SHOP_DATABASE_URL``, for example ``sqlite+aiosqlite:///shop.db`` or
``postgresql+psycopg://user@localhost/shop``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from samekey import SameKey
from shop.tables import Base, Order, Refund

engine = create_async_engine(os.environ.get("SHOP_DATABASE_URL", "sqlite+aiosqlite:///shop.db"))


def current_account(x_account: Annotated[str | None, Header()] = None) -> str:
    """Who is asking. A real shop authenticates here; the id must stay the same over retries."""
    if not x_account:
        raise HTTPException(401, "say who you are: X-Account: acme", {"WWW-Authenticate": "X-Account"})
    return x_account


samekey = SameKey(engine, caller=current_account)
Account = Annotated[str, Depends(current_account)]
Database = Annotated[AsyncSession, Depends(samekey.session)]


class OrderIn(BaseModel):
    model_config = ConfigDict(extra="allow")

    cart: str = Field(max_length=100)
    amount: int = Field(ge=0)


class RefundIn(BaseModel):
    amount: int = Field(gt=0)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


app = FastAPI(title="Shop", lifespan=lifespan)
samekey.install(app)


@app.post("/orders", status_code=201)
async def create_order(order: OrderIn, account: Account, db: Database, response: Response) -> dict[str, Any]:
    row = Order(account=account, cart=order.cart, amount=order.amount, more=order.model_extra or {})
    db.add(row)
    await db.commit()  # the shop's own commit; the real one follows, together with the answer
    response.headers["Location"] = f"/orders/{row.id}"
    return row.as_json()


@app.get("/orders")
async def list_orders(account: Account, db: Database) -> list[dict[str, Any]]:
    orders = await db.scalars(select(Order).where(Order.account == account).order_by(Order.id))
    return [order.as_json() for order in orders]


@app.get("/orders/{order_id}")
async def read_order(order_id: int, account: Account, db: Database) -> dict[str, Any]:
    return (await _own_order(order_id, account, db)).as_json()


@app.post("/orders/{order_id}/refunds", status_code=201)
async def refund_order(order_id: int, refund: RefundIn, account: Account, db: Database) -> dict[str, Any]:
    # Locked, so that two refunds with different keys do not both see the amount that is left.
    order = await _own_order(order_id, account, db, lock=True)
    refunded = await db.scalar(select(func.sum(Refund.amount)).where(Refund.order_id == order.id))
    if (refunded or 0) + refund.amount > order.amount:
        raise HTTPException(409, "that is more than was paid")
    row = Refund(order_id=order.id, amount=refund.amount)
    db.add(row)
    await db.commit()
    return {"id": row.id, "order": order.id, "amount": row.amount}


async def _own_order(order_id: int, account: str, db: AsyncSession, *, lock: bool = False) -> Order:
    order = await db.get(Order, order_id, with_for_update=lock)
    if order is None or order.account != account:
        raise HTTPException(404, "no such order")
    return order
