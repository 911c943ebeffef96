"""The demo's trial: the duplicate path of a running shop, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from samekey.cli.demo_server import Server

AT_ONCE = 20
RETRIES_MAX = 60
RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table."""

    sent: str
    came_back: str
    orders: int
    right: bool

    def as_json(self) -> dict[str, Any]:
        return {"sent": self.sent, "came_back": self.came_back, "orders": self.orders, "right": self.right}


class Trial:
    """Five scenarios against one server, each with a key and a cart of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._account = f"demo-{uuid.uuid4().hex[:8]}"
        self._client = httpx.Client(base_url=server.url, timeout=30)

    def findings(self) -> Iterator[Finding]:
        """Run the scenarios one after the other."""
        scenarios: list[Callable[[], Finding]] = [
            self._twice,
            self._at_once,
            self._other_body,
            self._killed,
            self._lost,
        ]
        with self._client:
            for scenario in scenarios:
                yield scenario()

    def _order(self, key: str, cart: str, amount: int = 10) -> httpx.Response:
        headers = {"X-Account": self._account, "Idempotency-Key": key}
        return self._client.post("/orders", json={"cart": cart, "amount": amount}, headers=headers)

    def _orders(self, cart: str) -> int:
        orders = self._client.get("/orders", headers={"X-Account": self._account}).json()
        return sum(1 for order in orders if order["cart"] == cart)

    def _until_answered(self, key: str, cart: str) -> httpx.Response:
        """What a client does: the same request with the same key, until there is an answer."""
        answer = None
        for _ in range(RETRIES_MAX):
            with contextlib.suppress(httpx.TransportError):
                answer = self._order(key, cart)
                if answer.status_code not in (409, 503):
                    return answer
            time.sleep(RETRY_SECONDS)
        if answer is None:
            raise httpx.ConnectError("the shop did not come back")
        return answer

    def _twice(self) -> Finding:
        key, cart = str(uuid.uuid4()), "twice"
        first, second = self._order(key, cart), self._order(key, cart)
        same = first.content == second.content and first.status_code == second.status_code == 201
        replayed = second.headers.get("idempotent-replayed") == "true"
        came_back = f"{first.status_code}, then {second.status_code}{' replayed' if replayed else ''}"
        return self._judge("the same order twice", came_back, cart, same and replayed)

    def _at_once(self) -> Finding:
        key, cart = str(uuid.uuid4()), "at-once"
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(lambda _: self._order(key, cart), range(AT_ONCE)))
            retried = list(pool.map(lambda _: self._until_answered(key, cart), range(AT_ONCE)))
        statuses = Counter(answer.status_code for answer in answers)
        bodies = {answer.content for answer in [*answers, *retried] if answer.status_code == 201}
        expected = set(statuses) <= {201, 409, 503} and {answer.status_code for answer in retried} == {201}
        counts = ", ".join(f"{number} x {status}" for status, number in sorted(statuses.items()))
        came_back = f"{counts}; retried: {len(retried)} x 201, {len(bodies)} answer"
        return self._judge(
            f"{AT_ONCE} of one order at the same moment", came_back, cart, expected and len(bodies) == 1
        )

    def _other_body(self) -> Finding:
        key, cart = str(uuid.uuid4()), "other-body"
        first = self._order(key, cart)
        changed = self._order(key, cart, amount=99)
        again = self._order(key, cart)
        right = (first.status_code, changed.status_code) == (201, 422) and again.content == first.content
        came_back = f"{first.status_code}, changed {changed.status_code}, first again {again.status_code}"
        return self._judge("the key with another body", came_back, cart, right)

    def _killed(self) -> Finding:
        key, cart = str(uuid.uuid4()), "killed"
        self._server.fault.touch()
        try:
            first = f"{self._order(key, cart).status_code}, alive"
        except httpx.TransportError:
            first = "no answer"
        died = self._server.wait_until_dead()
        self._server.start()
        retried = self._until_answered(key, cart)
        came_back = f"{first}; restarted, retried: {retried.status_code}"
        sent = "kill -9 between change and record"
        return self._judge(
            sent, came_back, cart, died and first == "no answer" and retried.status_code == 201
        )

    def _lost(self) -> Finding:
        key, cart = str(uuid.uuid4()), "lost"
        self._send_and_hang_up(key, cart)
        retried = self._until_answered(key, cart)
        again = self._order(key, cart)
        right = retried.status_code == 201 and again.content == retried.content
        came_back = f"hung up unread; retried: {retried.status_code}"
        return self._judge("an answer lost on the way", came_back, cart, right)

    def _send_and_hang_up(self, key: str, cart: str) -> None:
        address = urlsplit(self._server.url)
        body = f'{{"cart": "{cart}", "amount": 10}}'.encode()
        head = (
            f"POST /orders HTTP/1.1\r\nHost: {address.netloc}\r\nX-Account: {self._account}\r\n"
            f"Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection((address.hostname, address.port or 80)) as connection:
            connection.sendall(head.encode() + body)

    def _judge(self, sent: str, came_back: str, cart: str, right: bool) -> Finding:
        orders = self._orders(cart)
        return Finding(sent, came_back, orders, right and orders == 1)
