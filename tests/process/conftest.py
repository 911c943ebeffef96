"""Fixtures of the process tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests import servers
from tests.process.app import Colour, Variant
from tests.process.server import Launcher
from tests.process.shop import Shop, open_shop
from tests.process.trial import Client, sqlite_url

DATABASES = ("sqlite", "postgresql")
COLOURS: tuple[Colour, ...] = ("sync", "async")

OpenShop = Callable[[str, Colour, Variant], Shop]

# The tests of one variant share its two servers, so they stay with one worker.
VARIANTS = [
    pytest.param((database, colour), id=f"{database}-{colour}", marks=pytest.mark.xdist_group(database))
    for database in DATABASES
    for colour in COLOURS
]


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    started = Launcher(tmp_path_factory.mktemp("launcher") / "log")
    yield started
    started.stop()
    assert started.said() == "", "a server complained"


@pytest.fixture(scope="session")
def opener(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory, postgres_url: str
) -> Iterator[OpenShop]:
    """Opens shops on empty databases of their own; they close at the end of the run."""
    with ExitStack() as stack:

        def open_one(database: str, colour: Colour, variant: Variant = "joined") -> Shop:
            folder = tmp_path_factory.mktemp("shop")
            url = sqlite_url(folder) if database == "sqlite" else servers.postgres_schema(postgres_url)
            shop = open_shop(launcher, folder, url, colour, variant)
            stack.callback(shop.stop)
            return shop

        yield open_one


@pytest.fixture(scope="session", params=VARIANTS)
def shared_shop(request: pytest.FixtureRequest, opener: OpenShop) -> Shop:
    database, colour = request.param
    return opener(database, colour, "joined")


@pytest.fixture
def shop(shared_shop: Shop) -> Iterator[Shop]:
    """The shop that all tests of one variant share; whatever a test did to it, the next finds it running."""
    yield shared_shop
    shared_shop.server.mend()
    shared_shop.other.mend()


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """One client, for any number of threads."""
    with Client() as made:
        yield made
