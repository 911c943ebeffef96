"""Starting, killing and restarting the shop as processes of their own.

Owns sockets and processes. Must not know what the shop sells, nor what the tests expect of it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.process.app import POINTS, Settings

APP = Path(__file__).with_name("app.py")
LAUNCH_SECONDS_MAX = 60
START_SECONDS_MAX = 30
DEATH_SECONDS_MAX = 20
BACKLOG = 128  # the clients of one moment, waiting while the server is down


class Launcher:
    """The process that forks servers on order. Ends, and all servers with it, when this process does."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._orders, theirs = socket.socketpair()
        with theirs, log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(APP), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal is for pytest
            )
        if _line(self._orders, LAUNCH_SECONDS_MAX) != b"ready\n":
            raise RuntimeError(f"the launcher did not start:\n{self.said()}")

    def fork(self, settings: Settings, listener: socket.socket) -> tuple[socket.socket, int]:
        """Start a server on ``listener``: the socket that breaks when it dies, and its process id."""
        ours, theirs = socket.socketpair()
        with theirs:
            order = json.dumps(asdict(settings)).encode()
            socket.send_fds(self._orders, [order], [listener.fileno(), theirs.fileno()])
        said = _line(ours, START_SECONDS_MAX)
        if not said:
            ours.close()
            raise RuntimeError(f"the server did not start:\n{self.said()}")
        return ours, int(said)

    def said(self) -> str:
        """What the launcher and its servers wrote to their standard output and error."""
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        self._orders.close()
        self._process.wait(DEATH_SECONDS_MAX)


def _line(source: socket.socket, seconds: float) -> bytes:
    """One line, or b"" where the other side has gone or said nothing for ``seconds``."""
    source.settimeout(seconds)
    line = b""
    with suppress(TimeoutError, ConnectionError):
        while not line.endswith(b"\n"):
            received = source.recv(64)
            if not received:
                return b""
            line += received
        return line
    return b""


class Server:
    """One server process after another on one port.

    The listening socket is held here, so the port stays ours while the server is down: who connects then
    waits for the next one, as behind a service manager that keeps the socket.
    """

    def __init__(self, launcher: Launcher, settings: Settings) -> None:
        self.settings = settings
        self.starts = 0
        self._launcher = launcher
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._report: socket.socket | None = None
        self._pid = 0

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, **changed: Any) -> None:
        """Start, possibly with other settings, and wait until it is ready."""
        assert self._report is None, "the server runs already"
        self.settings = replace(self.settings, **changed)
        self._report, self._pid = self._launcher.fork(self.settings, self._listener)
        self.starts += 1

    def kill(self) -> None:
        """kill -9 the whole process group and wait for its end; nothing where it is dead already."""
        if self._report is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            assert self.died(DEATH_SECONDS_MAX), "the server outlived SIGKILL"

    def died(self, seconds: float) -> bool:
        """Whether the server is dead, waiting for it at most ``seconds``."""
        if self._report is None:
            return True
        readable, _, _ = select.select([self._report], [], [], seconds)
        if not readable:
            return False
        assert self._report.recv(1) == b"", "a running server has nothing more to say"
        self._report.close()
        self._report = None
        return True

    def arm(self, point: str) -> None:
        """Make the server die when a request reaches ``point``; the next one does not."""
        assert point in POINTS
        self._fault(point).touch(exist_ok=False)

    def disarm(self, point: str) -> bool:
        """Take ``arm`` back. True: the point had been reached, and the server is dead or dying."""
        try:
            self._fault(point).unlink()
        except FileNotFoundError:
            return True
        return False

    def _fault(self, point: str) -> Path:
        return Path(self.settings.faults) / point

    def mend(self) -> None:
        """Undo what a failed test left: no point is fatal, and the server runs."""
        for point in POINTS:
            self.disarm(point)
        if self.died(0):
            self.start()

    def stop(self) -> None:
        self.kill()
        self._listener.close()


class Gate:
    """Holds handlers: each connects to ``port`` and waits there until ``open``."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(DEATH_SECONDS_MAX)
        self._waiting: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]

    def wait_until_reached(self) -> None:
        """Return when one more handler stands at the gate."""
        self._waiting.append(self._listener.accept()[0])

    def open(self) -> None:
        self._listener.close()
        while self._waiting:
            self._waiting.pop().close()


@contextmanager
def gate() -> Iterator[Gate]:
    """A closed gate, open at the latest when the block ends."""
    closed = Gate()
    try:
        yield closed
    finally:
        closed.open()
