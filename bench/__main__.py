"""``python -m bench``: the table, and the ratios against their budgets."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measure import KINDS, measure
from tests.servers import postgres_database, start_postgres

# Joined: latency against the bare order, at 1. Replay: throughput against an endpoint without a database.
JOINED_BUDGET = 1.5
REPLAY_BUDGET = 0.6
ASYNC_DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}


@contextmanager
def databases(chosen: list[str]) -> Iterator[dict[str, str]]:
    """A fresh database each; PostgreSQL with real commits."""
    with tempfile.TemporaryDirectory(prefix="samekey-bench-") as folder:
        urls = {"sqlite": f"sqlite:///{Path(folder) / 'bench.db'}"}
        if "postgresql" not in chosen:
            yield urls
            return
        server = start_postgres(fsync="on", synchronous_commit="on", full_page_writes="on")
        try:
            with postgres_database(server.url) as url:
                make_table(url)
                yield {**urls, "postgresql": url}
        finally:
            server.stop()


def make_table(url: str) -> None:
    from samekey.core.ops import CreateSchema  # noqa: PLC0415 - only where PostgreSQL is measured
    from samekey.stores.url import open_store  # noqa: PLC0415 - the same

    store = open_store(url)
    store.perform(CreateSchema())
    store.engine.dispose()


def ratios(results: dict[str, dict[str, Any]], at_once: int) -> dict[str, Any]:
    joined = results["joined order"]["median_ms"] / results["bare order"]["median_ms"]
    replay = results["replay"]["per_second"] / results["bare endpoint"]["per_second"]
    told = {"joined_latency": joined, "replay_throughput": replay, "replay_met": replay >= REPLAY_BUDGET}
    return {**told, "joined_met": joined <= JOINED_BUDGET} if at_once == 1 else told


def print_results(name: str, at_once: int, results: dict[str, dict[str, Any]], told: dict[str, Any]) -> None:
    print(f"\n{name}, {at_once} at once")
    titles = f"{'median ms':>10} {'(min-max)':>15} {'p95 ms':>8} {'per s':>8} {'server':>7} {'client':>7}"
    print(f"  {'':14} {titles}")
    for kind in KINDS:
        row = results[kind]
        spread = f"({row['median_ms_min']:.2f}-{row['median_ms_max']:.2f})"
        times = f"{row['median_ms']:10.2f} {spread:>15} {row['p95_ms']:8.2f} {row['per_second']:8.0f}"
        print(f"  {kind:14} {times} {row['server_cpu']:7.0%} {row['client_cpu']:7.0%}")
    met = "" if at_once != 1 else f" (budget {JOINED_BUDGET}: {'met' if told['joined_met'] else 'NOT met'})"
    print(f"  joined order / bare order, latency:        {told['joined_latency']:.2f}{met}")
    met = "met" if told["replay_met"] else "NOT met"
    replay = told["replay_throughput"]
    print(f"  replay / bare endpoint, throughput:        {replay:.2f} (budget {REPLAY_BUDGET}: {met})")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few requests: does it work at all?")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument("--database", choices=list(ASYNC_DRIVERS), action="append", help="default: both")
    parser.add_argument("--colour", choices=["async", "sync"], action="append", help="default: both")
    options = parser.parse_args()
    rounds, requests = (1, 32) if options.quick else (5, 320)
    chosen = options.database or list(ASYNC_DRIVERS)
    document = []
    with databases(chosen) as urls:
        for database in chosen:
            for colour in options.colour or ["async", "sync"]:
                scheme, _, rest = urls[database].partition("://")
                url = f"{ASYNC_DRIVERS[database] if colour == 'async' else scheme}://{rest}"
                for at_once in (1, 16):
                    measured = measure(url, colour, at_once, rounds, requests)
                    results = {kind: one.as_json() for kind, one in measured.items()}
                    told = ratios(results, at_once)
                    name = f"{database}, {colour}"
                    document.append({"name": name, "at_once": at_once, "results": results, "ratios": told})
                    if not options.json:
                        print_results(name, at_once, results, told)
    if options.json:
        json.dump(document, sys.stdout, indent=1)
        print()


if __name__ == "__main__":
    main()
