"""A bounded copy of the request body, taken as it passes by."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from samekey.errors import BodyTooLarge

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


class BodyTee:
    """``receive`` for the application, with a copy kept for the fingerprint.

    What the application reads is neither delayed nor changed. Where it does not
    read the body before the claim, ``read_all`` reads ahead, and the messages are
    handed out later; after the last one ``receive`` is the server's own again, so
    a disconnect is seen only when there is one.
    """

    def __init__(self, receive: Receive, body_bytes_max: int) -> None:
        self._receive = receive
        self._body_bytes_max = body_bytes_max
        self._copy = bytearray()
        self._ahead: deque[Message] = deque()
        self._whole = False

    async def receive(self) -> Message:
        if self._ahead:
            return self._ahead.popleft()
        if self._whole:
            return await self._receive()
        return await self._read()

    async def read_all(self) -> bytes:
        """The whole body; BodyTooLarge over the limit. The copy is dropped from here on."""
        while not self._whole:
            message = await self._read()
            self._ahead.append(message)
            if message["type"] == "http.disconnect":
                break
        body = bytes(self._copy)
        self._copy.clear()
        return body

    async def _read(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._copy += message.get("body", b"")
            self._whole = not message.get("more_body", False)
            if len(self._copy) > self._body_bytes_max:
                raise BodyTooLarge(self._body_bytes_max)
        return message
