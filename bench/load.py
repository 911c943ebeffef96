"""A load generator that costs little: prepared requests over kept-alive sockets.

Run as a process of its own; reads one JSON job per line and answers one JSON line: the
latencies in milliseconds and the wall seconds of the round.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from typing import Any

BODY = b'{"cart": "12345", "amount": 10}'


def request(path: str, key: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nX-Account: acme\r\nIdempotency-Key: {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    return head.encode() + BODY


async def answer(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    lower = head.lower()
    start = lower.index(b"content-length:") + 15
    await reader.readexactly(int(lower[start : lower.index(b"\r\n", start)]))
    return int(head[9:12])


async def client(port: int, path: str, keys: list[str], latencies: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for key in keys:
        started = time.perf_counter()
        writer.write(request(path, key))
        status = await answer(reader)
        latencies.append((time.perf_counter() - started) * 1000)
        if status != 201:
            raise RuntimeError(f"{path} answered {status}")
    writer.close()


async def run(job: dict[str, Any]) -> dict[str, Any]:
    at_once, total = job["at_once"], job["requests"]
    same = job["key"]
    latencies: list[float] = []
    started = time.perf_counter()
    await asyncio.gather(
        *(
            client(
                job["port"],
                job["path"],
                [same or str(uuid.uuid4()) for _ in range(total // at_once)],
                latencies,
            )
            for _ in range(at_once)
        )
    )
    return {"latencies": latencies, "seconds": time.perf_counter() - started}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(asyncio.run(run(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
