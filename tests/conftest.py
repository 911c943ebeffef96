"""Fixtures and options of every test: real servers, seeds and numbers of rounds.

Owns pytest's hooks. How a server is started stands in ``servers.py``; what is tested, in the folders below.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import servers
from tests.counted import counted

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

ROUNDS_DEFAULT = 20  # enough to notice a break in seconds; `make prove` runs the full number
SEED_BITS = 32

POSTGRES = pytest.StashKey[servers.PostgresServer]()

EXTERNAL_POSTGRES = [servers.POSTGRES_URL_VARIABLE] if os.environ.get(servers.POSTGRES_URL_VARIABLE) else []


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("samekey")
    group.addoption(
        "--rounds", type=int, default=ROUNDS_DEFAULT, metavar="N", help="rounds of each kill or random test"
    )
    group.addoption(
        "--seed", type=int, default=None, metavar="N", help="seed of every random choice (default: new)"
    )


@pytest.hookimpl(tryfirst=True)  # before Hypothesis and xdist look at the options changed here
def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", {})
    if config.option.seed is None and "seed" in worker:
        config.option.seed = worker["seed"]  # one seed for the whole run, the one in its header
    if config.option.seed is None:
        config.option.seed = int.from_bytes(os.urandom(SEED_BITS // 8), "big")
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = config.option.seed


def pytest_report_header(config: pytest.Config) -> str:
    seed, rounds = config.option.seed, config.option.rounds
    return f"samekey: rounds {rounds}, seed {seed} (again with --seed {seed})"


def _postgres(config: pytest.Config) -> servers.PostgresServer:
    """The run's own server, started by the first who asks: a run without workers, or the workers' parent."""
    if POSTGRES not in config.stash:
        config.stash[POSTGRES] = servers.start_postgres()
    return config.stash[POSTGRES]


@pytest.hookimpl(optionalhook=True)  # xdist's: called in the parent, before each worker starts
def pytest_configure_node(node: Any) -> None:
    node.workerinput["postgres_url"] = _postgres(node.config).url
    node.workerinput["seed"] = node.config.option.seed


def pytest_unconfigure(config: pytest.Config) -> None:
    if POSTGRES in config.stash:
        config.stash[POSTGRES].stop()


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    if POSTGRES in config.stash:
        server = config.stash[POSTGRES]
        terminalreporter.write_line(f"PostgreSQL {server.version} started in {server.start_seconds:.1f} s")
    for line in counted(terminalreporter.stats):
        terminalreporter.write_line(line)
    terminalreporter.write_line(skipped_stores(terminalreporter.stats.get("skipped", [])))


def skipped_stores(reports: list[Any]) -> str:
    """The line on stores that had no server: each with its reason and the number of tests it cost."""
    skipped = Counter[str]()
    for report in reports:
        _, _, reason = report.longrepr
        _, marker, store = reason.partition(servers.SKIPPED_STORE)
        if marker:
            skipped[store] += 1
    if not skipped:
        return "stores skipped: none"
    return "stores skipped: " + "; ".join(
        f"{store} ({tests} tests)" for store, tests in sorted(skipped.items())
    )


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def rounds(pytestconfig: pytest.Config) -> int:
    """How many rounds a kill or random test runs."""
    number: int = pytestconfig.option.rounds
    return number


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The run's seed; a test that draws from it mixes its round in: ``random.Random(f"{seed}:{round}")``."""
    number: int = pytestconfig.option.seed
    return number


@pytest.fixture(scope="session", params=["embedded", *EXTERNAL_POSTGRES])
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """``postgresql+psycopg://…`` of a database that this worker shares with no other."""
    if request.param != "embedded":
        server = os.environ[request.param]
    elif hasattr(request.config, "workerinput"):
        server = request.config.workerinput["postgres_url"]
    else:
        server = _postgres(request.config).url
    with servers.postgres_database(server) as url:
        yield url


@pytest.fixture
def fresh_postgres(postgres_url: str) -> str:
    """URL of an empty schema for this test alone; sync and async SQLAlchemy engines both take it."""
    return servers.postgres_schema(postgres_url)


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Where this test's SQLite database goes; the file does not exist yet."""
    return tmp_path / "samekey.db"
