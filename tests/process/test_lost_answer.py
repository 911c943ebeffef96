"""The answer is lost: the client goes before it comes, or the network cuts it. The retry replays it."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.process.server import DEATH_SECONDS_MAX, gate
from tests.process.shop import Shop
from tests.process.trial import ACCOUNT, LOST, Client, Purchase, Seen, check

CHUNK_BYTES = 65536
RESET = struct.pack("ii", 1, 0)  # SO_LINGER with a time of zero: closing sends a reset, not an end


@dataclass(frozen=True, slots=True)
class Cut:
    """How much of an answer passes, and what its client sees of it."""

    passes: Callable[[bytes], int]
    seen: Seen


CUTS = {
    "nothing": Cut(lambda answer: 0, LOST),
    "half a status line": Cut(lambda answer: 9, LOST),
    "half a head": Cut(lambda answer: answer.index(b"\r\n\r\n") - 1, LOST),
    "the head": Cut(lambda answer: answer.index(b"\r\n\r\n") + 4, Seen(201, None)),
    "half a body": Cut(lambda answer: answer.index(b"\r\n\r\n") + 14, Seen(201, None)),
    "all but a byte": Cut(lambda answer: len(answer) - 1, Seen(201, None)),
}


class Proxy:
    """A TCP proxy that cuts the first answer and lets all later ones pass."""

    def __init__(self, port: int, cut: Cut) -> None:
        self._upstream = port
        self._cut: Cut | None = cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with client:
                request = client.recv(CHUNK_BYTES)
                if not request:
                    return  # the end: ``close`` connects and says nothing
                self._pass_on(client, request)

    def _pass_on(self, client: socket.socket, request: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self._upstream), DEATH_SECONDS_MAX) as server:
            pump = threading.Thread(target=_pump, args=(client, server))
            server.sendall(request)
            pump.start()
            answer = b"".join(iter(lambda: server.recv(CHUNK_BYTES), b""))
        cut, self._cut = self._cut, None
        client.sendall(answer if cut is None else answer[: cut.passes(answer)])
        client.shutdown(socket.SHUT_RDWR)  # closing alone ends nothing while the pump still reads
        pump.join(DEATH_SECONDS_MAX)

    def close(self) -> None:
        host, port = self._listener.getsockname()
        socket.create_connection((host, port)).close()
        self._thread.join(DEATH_SECONDS_MAX)
        self._listener.close()
        assert not self._thread.is_alive()


def _pump(client: socket.socket, server: socket.socket) -> None:
    """Pass on the rest of the request, if the client sent it in several parts."""
    try:
        for part in iter(lambda: client.recv(CHUNK_BYTES), b""):
            server.sendall(part)
    except OSError:
        return  # either side has closed, as it should once the answer is there


@contextmanager
def cutting(port: int, cut: Cut) -> Iterator[str]:
    proxy = Proxy(port, cut)
    try:
        yield proxy.url
    finally:
        proxy.close()


@pytest.mark.parametrize("cut", CUTS)
def test_an_answer_cut_by_the_network_is_replayed(shop: Shop, client: Client, cut: str) -> None:
    """PP-03: the answer was recorded before its first byte, so it does not matter where it was cut."""
    purchase = Purchase()
    with cutting(shop.server.port, CUTS[cut]) as url:
        assert client.attempt(url, purchase) == CUTS[cut].seen
        assert shop.ledger.counts(purchase) == (1, 1)
        client.buy(url, purchase)
    final = purchase.finals[0]
    assert final is not None
    assert (final.status, final.replayed) == (201, True)
    check(shop.ledger, purchase)


def request_bytes(purchase: Purchase, gate_port: int) -> bytes:
    body = json.dumps({"cart": purchase.cart, "amount": purchase.amount}).encode()
    head = (
        f"POST /orders HTTP/1.1\r\nHost: shop\r\nX-Account: {ACCOUNT}\r\nIdempotency-Key: {purchase.key}\r\n"
        f"X-Hold: {gate_port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_client_that_goes_while_the_handler_runs_gets_the_answer_later(
    shop: Shop, client: Client, reset: bool
) -> None:
    """BL-34: the disconnect was taken for the operation's end, and the retry never got through."""
    purchase = Purchase()
    with gate() as closed:
        with socket.create_connection(("127.0.0.1", shop.server.port)) as impatient:
            if reset:
                impatient.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            impatient.sendall(request_bytes(purchase, closed.port))
            closed.wait_until_reached()
        # A later request on the same loop is answered, so the loop has seen that the client went.
        assert client.count(shop.server.url, purchase) == 0
        closed.open()
    client.buy(shop.server.url, purchase)
    final = purchase.finals[0]
    assert final is not None
    assert (final.status, final.replayed) == (201, True)
    check(shop.ledger, purchase)
