"""A shop under trial: a store, its ledger, and two server processes on it, started when first wanted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.process.app import Colour, Settings, Variant
from tests.process.server import Launcher, Server
from tests.process.trial import Ledger


@dataclass(frozen=True, slots=True)
class Shop:
    """Two processes of one application; ``database`` is SQLAlchemy's name for what both stand on."""

    database: str
    ledger: Ledger
    server: Server
    other: Server

    @property
    def single_writer(self) -> bool:
        return self.database == "sqlite"

    def stop(self) -> None:
        self.server.stop()
        self.other.stop()


def open_shop(
    launcher: Launcher, folder: Path, url: str, colour: Colour, variant: Variant = "joined"
) -> Shop:
    """A shop with both servers running on an empty database."""
    ledger = Ledger(url)
    servers = []
    for name in ("server", "other"):
        faults = folder / f"faults of {name}"
        faults.mkdir()
        servers.append(Server(launcher, Settings(url, str(faults), colour, variant)))
    shop = Shop(url.partition(":")[0].partition("+")[0], ledger, *servers)
    try:
        shop.server.start()
        shop.other.start()
    except BaseException:
        shop.stop()
        raise
    return shop
