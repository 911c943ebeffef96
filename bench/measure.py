"""One database and colour measured: interleaved rounds, so that ratios hold on a noisy machine."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.servers import free_port

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
KINDS = {
    "bare order": "/bare-orders",
    "joined order": "/orders",
    "replay": "/orders",
    "bare endpoint": "/bare",
}
READY_SECONDS_MAX = 30


@dataclass
class Measured:
    """The rounds of one kind at one concurrency."""

    medians: list[float] = field(default_factory=list)
    p95s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    client_cpu: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "median_ms": statistics.median(self.medians),
            "median_ms_min": min(self.medians),
            "median_ms_max": max(self.medians),
            "p95_ms": statistics.median(self.p95s),
            "per_second": statistics.median(self.rates),
            "server_cpu": statistics.median(self.server_cpu),
            "client_cpu": statistics.median(self.client_cpu),
        }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


@contextmanager
def serving(url: str, colour: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The application under uvicorn, one worker."""
    port = free_port()
    environment = {**os.environ, "BENCH_URL": url, "BENCH_COLOUR": colour}
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "bench.app:app",
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    server = subprocess.Popen(command, env=environment)
    try:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json").read()
                break
            except URLError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the application did not start") from None
                time.sleep(0.05)
        yield server, port
    finally:
        server.terminate()
        server.wait(10)


@contextmanager
def loading() -> Iterator[subprocess.Popen[str]]:
    """The load generator's process."""
    load = subprocess.Popen(
        [sys.executable, "-m", "bench.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield load
    finally:
        assert load.stdin is not None
        load.stdin.close()
        load.wait(10)


def ask(load: subprocess.Popen[str], **job: Any) -> dict[str, Any]:
    assert load.stdin is not None
    assert load.stdout is not None
    load.stdin.write(json.dumps(job) + "\n")
    load.stdin.flush()
    line = load.stdout.readline()
    if not line:
        raise RuntimeError("the load generator failed; its error stands above")
    answered: dict[str, Any] = json.loads(line)
    return answered


def measure(url: str, colour: str, at_once: int, rounds: int, requests: int) -> dict[str, Measured]:
    """Every kind, ``rounds`` times in turn, ``requests`` each."""
    measured = {kind: Measured() for kind in KINDS}
    replayed = str(uuid.uuid4())
    with serving(url, colour) as (server, port), loading() as load:
        for path in set(KINDS.values()):
            ask(load, port=port, path=path, key=None, at_once=at_once, requests=max(50, at_once))
        ask(load, port=port, path="/orders", key=replayed, at_once=1, requests=1)
        for _ in range(rounds):
            for kind, path in KINDS.items():
                key = replayed if kind == "replay" else None
                before = cpu_seconds(server.pid), cpu_seconds(load.pid)
                answered = ask(load, port=port, path=path, key=key, at_once=at_once, requests=requests)
                after = cpu_seconds(server.pid), cpu_seconds(load.pid)
                latencies, seconds = sorted(answered["latencies"]), answered["seconds"]
                into = measured[kind]
                into.medians.append(statistics.median(latencies))
                into.p95s.append(latencies[int(len(latencies) * 0.95)])
                into.rates.append(len(latencies) / seconds)
                into.server_cpu.append((after[0] - before[0]) / seconds)
                into.client_cpu.append((after[1] - before[1]) / seconds)
    return measured
