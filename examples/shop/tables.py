"""The shop's own tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(String(100), index=True)
    cart: Mapped[str] = mapped_column(String(100))
    amount: Mapped[int]
    more: Mapped[dict[str, Any]] = mapped_column(JSON)  # members the shop does not know, kept as they came

    def as_json(self) -> dict[str, Any]:
        return {**self.more, "id": self.id, "cart": self.cart, "amount": self.amount}


class Refund(Base):
    __tablename__ = "shop_refunds"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("shop_orders.id"), index=True)
    amount: Mapped[int]
