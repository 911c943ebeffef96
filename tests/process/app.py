"""The shop that the process tests kill, its fault points, and the launcher that starts it.

Owns the application, where it can be told to die, and how its process begins. Runs as a program of its own
(``python app.py SOCKET``): it must not know the tests, and imports nothing of theirs.

A process that has imported everything waits for orders and forks one server for each, so that a restart costs
a few hundredths of a second instead of an import. Each server is a new process with a loop, an engine and a
pool of its own; ``kill -9`` leaves nothing of it but what the database has.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import aiosqlite  # noqa: F401 (SQLAlchemy imports the drivers late; here they are there before the fork)
import psycopg  # noqa: F401
import uvicorn
from fastapi import Depends, FastAPI, Header
from pydantic import BaseModel
from sqlalchemy import create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from samekey import SameKey, callers

# Where a server can be told to die, in the order in which one request passes them. The steps are those of the
# operation's transaction; the rest lies around them.
STEPS = ("TryClaim", "Complete")
FLUSHED = "handler flushed"
COMMITTED = "handler committed"
UNSENT = "answer before its first byte"
HALF_SENT = "answer before its body"
BEFORE_THE_HANDLER = tuple(f"{side} {step}" for step in STEPS[:1] for side in ("before", "after"))
AFTER_THE_HANDLER = tuple(f"{side} {step}" for step in STEPS[1:] for side in ("before", "after"))
POINTS = (*BEFORE_THE_HANDLER, FLUSHED, COMMITTED, *AFTER_THE_HANDLER, UNSENT, HALF_SENT)

HOLD_SECONDS_MAX = 20
ORDER_BYTES_MAX = 10_000

Colour = Literal["sync", "async"]
# "unjoined" commits the order on a connection of its own, "unprotected" does not use samekey: both are wrong,
# and the tests' checker has to notice.
Variant = Literal["joined", "unjoined", "unprotected"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Settings:
    """Which shop to serve. ``faults``: the folder in which a file named like a point makes it fatal, once."""

    url: str
    faults: str
    colour: Colour
    variant: Variant = "joined"
    busy_seconds: float = 5.0


class Base(DeclarativeBase):
    pass


class Order(Base):
    """Nothing is unique but the id, which is new for every run of the handler: a second order would stay."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True, default=lambda: uuid.uuid4().hex)
    cart: Mapped[str]
    amount: Mapped[int]


class OrderIn(BaseModel):
    cart: str
    amount: int


Hold = Annotated[int | None, Header(alias="X-Hold")]


def answer_of(order: Order) -> dict[str, object]:
    return {"id": order.id, "cart": order.cart, "amount": order.amount}


class Faults:
    """Dies at the point whose file is there. Removing the file comes first, so that it happens once."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def reach(self, point: str) -> None:
        try:
            (self._folder / point).unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, samekey: SameKey) -> None:
        """Make each step of an operation's transaction a pair of points: no public door leads there."""
        database: Any = samekey.site.database
        transaction: Any = type(database._store.transaction())
        perform = transaction.perform
        if inspect.iscoroutinefunction(perform):

            async def watched_async(own: Any, step: Any) -> Any:
                self.reach(f"before {type(step).__name__}")
                result = await perform(own, step)
                self.reach(f"after {type(step).__name__}")
                return result

            transaction.perform = watched_async
        else:

            def watched(own: Any, step: Any) -> Any:
                self.reach(f"before {type(step).__name__}")
                result = perform(own, step)
                self.reach(f"after {type(step).__name__}")
                return result

            transaction.perform = watched

    def around(self, app: App) -> App:
        """The outermost layer: the points of the answer on its way to the socket."""

        async def wrapped(scope: Any, receive: Receive, send: Send) -> None:
            async def reaching(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self.reach(UNSENT)
                elif message["type"] == "http.response.body":
                    self.reach(HALF_SENT)
                await send(message)

            await app(scope, receive, reaching)

        return wrapped


def hold(port: int | None) -> None:
    """Tell the test that the handler runs, and wait until it lets go. None: go on at once."""
    if port is not None:
        with socket.create_connection(("127.0.0.1", port), HOLD_SECONDS_MAX) as gate:
            gate.recv(1)


def build(settings: Settings, faults: Faults) -> App:
    app = FastAPI()
    if settings.colour == "sync":
        _add_sync(app, settings, faults)
    else:
        _add_async(app, settings, faults)
    return faults.around(app)


def _add_sync(app: FastAPI, settings: Settings, faults: Faults) -> None:
    engine = create_engine(settings.url)
    samekey = SameKey(engine, caller=callers.header("X-Account"), busy_seconds=settings.busy_seconds)
    samekey.install(app)
    faults.watch(samekey)

    def place(db: Session, new: OrderIn, gate: int | None) -> dict[str, object]:
        order = Order(cart=new.cart, amount=new.amount)
        db.add(order)
        db.flush()
        faults.reach(FLUSHED)
        hold(gate)
        answer = answer_of(order)
        db.commit()
        faults.reach(COMMITTED)
        return answer

    def joined(new: OrderIn, gate: Hold = None, db: Session = Depends(samekey.session)) -> dict[str, object]:
        return place(db, new, gate)

    def unjoined(new: OrderIn, gate: Hold = None, _: object = Depends(samekey)) -> dict[str, object]:
        with samekey.unjoined(), Session(engine) as own:
            return place(own, new, gate)

    def unprotected(new: OrderIn, gate: Hold = None) -> dict[str, object]:
        with Session(engine) as own:
            return place(own, new, gate)

    handlers = {"joined": joined, "unjoined": unjoined, "unprotected": unprotected}
    app.post("/orders", status_code=201)(handlers[settings.variant])

    @app.get("/orders/count")
    def count(cart: str) -> int:
        with Session(engine) as db:
            return db.scalar(select(func.count()).where(Order.cart == cart)) or 0


def _add_async(app: FastAPI, settings: Settings, faults: Faults) -> None:
    engine = create_async_engine(settings.url.replace("sqlite:", "sqlite+aiosqlite:", 1))
    samekey = SameKey(engine, caller=callers.header("X-Account"), busy_seconds=settings.busy_seconds)
    samekey.install(app)
    faults.watch(samekey)
    assert settings.variant == "joined", "the wrong variants have sync handlers"

    @app.post("/orders", status_code=201)
    async def joined(
        new: OrderIn, gate: Hold = None, db: AsyncSession = Depends(samekey.session)
    ) -> dict[str, object]:
        order = Order(cart=new.cart, amount=new.amount)
        db.add(order)
        await db.flush()
        faults.reach(FLUSHED)
        await asyncio.to_thread(hold, gate)
        await db.commit()
        faults.reach(COMMITTED)
        return answer_of(order)

    @app.get("/orders/count")
    async def count(cart: str) -> int:
        async with AsyncSession(engine) as db:
            return await db.scalar(select(func.count()).where(Order.cart == cart)) or 0


class _Server(uvicorn.Server):
    """uvicorn, which says when it is ready."""

    def __init__(self, config: uvicorn.Config, report: socket.socket) -> None:
        super().__init__(config)
        self._report = report

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._report.sendall(b"%d\n" % os.getpid())


def _serve(settings: Settings, listener: socket.socket, report: socket.socket) -> None:
    """One server's whole life. ``report`` breaks when either side has gone: that is how both notice."""
    os.setsid()  # a process group of its own, to be killed as a whole
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    threading.Thread(target=lambda: report.recv(1) or os._exit(1), daemon=True).start()
    # Refusals are what the tests provoke; whatever else is said on standard error is a failure.
    logging.getLogger("samekey").setLevel(logging.ERROR)
    faults = Faults(settings.faults)
    # asyncio's own loop writes to the socket at once, so that a point between two writes lies between them.
    config = uvicorn.Config(build(settings, faults), loop="asyncio", log_level="warning", access_log=False)
    _Server(config, report).run([listener])


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead servers leave no zombies
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        orders.sendall(b"ready\n")
        while True:
            order, descriptors, _, _ = socket.recv_fds(orders, ORDER_BYTES_MAX, 2)
            if not order:
                return  # whoever gave the orders has gone
            listener, report = (socket.socket(fileno=number) for number in descriptors)
            if os.fork() == 0:
                orders.close()
                _serve(Settings(**json.loads(order)), listener, report)
                os._exit(0)
            listener.close()
            report.close()


if __name__ == "__main__":
    main()
