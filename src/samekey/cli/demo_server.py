"""Starts, kills and restarts the demo's server: several processes on one port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from samekey.cli.demo_shop import DATABASE_VARIABLE, FAULT_VARIABLE, import_shop
from samekey.core.ops import CreateSchema
from samekey.errors import ConfigurationError, SamekeyError
from samekey.stores.url import open_store

READY_SECONDS_MAX = 60.0
_ASYNC_SCHEMES = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}


def free_port(host: str) -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def shop_url(store: str) -> str:
    """The store's URL as the shop's async engine wants it."""
    scheme, separator, rest = store.partition("://")
    if not separator or scheme not in _ASYNC_SCHEMES:
        raise ConfigurationError("the demo runs on sqlite:///file.db or postgresql://user@host/database")
    return f"{_ASYNC_SCHEMES[scheme]}://{rest}"


def prepare(store: str) -> None:
    """Make samekey's table and the shop's, once and before several processes want them."""
    os.environ[DATABASE_VARIABLE] = shop_url(store)  # importing the shop makes its engine
    opened = open_store(store, must_exist=False)
    opened.perform(CreateSchema())
    import_shop().Base.metadata.create_all(opened.engine)
    opened.engine.dispose()


class Server:
    """The shop's processes: one process group, so that ``kill`` takes all of them at once."""

    def __init__(self, store: str, host: str, port: int, workers: int, folder: Path) -> None:
        self.url = f"http://{host}:{port}"
        self.fault = folder / "kill-after-the-next-order"
        self._log = folder / "server.log"
        self._environment = {
            **os.environ,
            DATABASE_VARIABLE: shop_url(store),
            FAULT_VARIABLE: str(self.fault),
        }
        self._command = [
            *(sys.executable, "-m", "uvicorn", "samekey.cli.demo_shop:app"),
            *("--host", host, "--port", str(port), "--workers", str(workers), "--log-level", "warning"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers; SamekeyError with the log's last line if it does not."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/openapi.json").is_success:
                    return
            time.sleep(0.05)
        self.stop()
        lines = self._log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise SamekeyError(f"the shop did not start: {lines[-1]}")

    def wait_until_dead(self, seconds: float = 10.0) -> bool:
        """Whether the server died by itself in time."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._process = None
        return True

    def wait(self) -> None:
        """Wait for as long as it runs."""
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """End all processes, at once if they do not go."""
        process, self._process = self._process, None
        if process is None:
            return
        for ending in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, ending)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
                return
