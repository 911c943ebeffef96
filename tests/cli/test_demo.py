"""``samekey demo --once``: the whole trial over real sockets, and a shop that is not safe."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from samekey.cli.demo_server import Server, free_port, prepare
from samekey.cli.demo_trial import Trial

RUN = "from samekey.cli import main; main()"


def once(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, "demo", "--once", "--json", "--workers", "2", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_demo_is_right_on_sqlite() -> None:
    ended = once()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    findings = json.loads(ended.stdout)["findings"]
    assert [finding["orders"] for finding in findings] == [1, 1, 1, 1, 1]


def test_the_demo_is_right_on_postgresql(fresh_postgres: str) -> None:
    ended = once("--store", fresh_postgres)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(ended.stdout)["right"] is True


@pytest.fixture
def unsafe_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The shop behind a middleware that hides every key from it."""
    (tmp_path / "unsafe.py").write_text(
        "from samekey.cli.demo_shop import app as shop\n"
        "async def app(scope, receive, send):\n"
        "    headers = [pair for pair in scope.get('headers', []) if pair[0] != b'idempotency-key']\n"
        "    await shop({**scope, 'headers': headers}, receive, send)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    store = f"sqlite:///{tmp_path}/shop.db"
    prepare(store)
    server = Server(store, "127.0.0.1", free_port("127.0.0.1"), 1, tmp_path)
    server._command[3] = "unsafe:app"
    server.start()
    yield server
    server.stop()


def test_an_unsafe_shop_is_found_out(unsafe_server: Server) -> None:
    findings = list(Trial(unsafe_server).findings())
    # The kill leaves nothing of a request without a key either: only the retries are doubled.
    assert [finding.right for finding in findings] == [False, False, False, True, False]
    assert findings[0].orders == 2
