"""A request to an ASGI application message by message, for what an HTTP client cannot send or hides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

App = Callable[[Any, Any, Any], Awaitable[None]]
Pairs = list[tuple[bytes, bytes]]


@dataclass
class Wire:
    """One exchange. ``body`` is sent chunk by chunk; then ``receive`` waits until ``gone`` is set.

    ``on_message`` is called with each message before it counts as sent.
    """

    path: str = "/orders"
    key: bytes | None = b"k"
    headers: Pairs = field(default_factory=list)
    body: Iterable[bytes] = (b'{"cart": "1"}',)
    method: str = "POST"
    query: bytes = b""
    spec: str = "2.3"
    extensions: dict[str, Any] | None = None
    on_message: Callable[[Any], Awaitable[None]] | None = None
    sent: list[Any] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def scope(self) -> dict[str, Any]:
        keys = [] if self.key is None else [(b"idempotency-key", self.key)]
        given = {name for name, _ in self.headers}
        usual = [(b"x-account", b"acme"), (b"content-type", b"application/json")]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": self.spec},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": [*(pair for pair in usual if pair[0] not in given), *keys, *self.headers],
            **({} if self.extensions is None else {"extensions": self.extensions}),
        }

    async def through(self, app: App) -> Wire:
        return await asyncio.wait_for(self.through_now(app), 10)

    async def through_now(self, app: App) -> Wire:
        """``through`` in the awaiting task itself, for as long as it takes."""
        chunks = list(self.body) or [b""]

        async def receive() -> Any:
            if chunks:
                chunk = chunks.pop(0)
                return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if self.on_message is not None:
                await self.on_message(message)
            self.sent.append(message)

        await app(self.scope(), receive, send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def answered(self) -> Pairs:
        """The header lines of the answer, as sent."""
        return [(bytes(name), bytes(value)) for name, value in self.sent[0]["headers"]]

    def values(self, name: bytes) -> list[bytes]:
        return [value for sent, value in self.answered if sent == name]

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def code(self) -> str:
        """The code of a problem."""
        return str(json.loads(self.content)["code"])
