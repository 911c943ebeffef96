"""The example shop as the demo serves it, with one fault that can be asked for.

Where ``SAMEKEY_DEMO_FAULT`` names a file and that file exists, the next order is written
and then every process of the server kills itself with SIGKILL: after the business change,
before the record of its key. The shop knows nothing of it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from samekey.errors import ConfigurationError

FAULT_VARIABLE = "SAMEKEY_DEMO_FAULT"
DATABASE_VARIABLE = "SHOP_DATABASE_URL"


def shop_folder() -> Path:
    """The folder that holds the package ``shop``: in an installed samekey, or in its repository."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_examples", package.parents[1] / "examples"):
        if (folder / "shop" / "app.py").exists():
            return folder
    raise ConfigurationError("the example shop is not part of this installation of samekey")


def import_shop() -> Any:
    """The module ``shop.app``."""
    folder = str(shop_folder())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import shop.app  # noqa: PLC0415 - found only now

    return shop.app


def listen_for_fault(engine: Engine, fault: Path) -> None:
    """Kill the whole server after the next order is written, if ``fault`` exists by then."""

    @event.listens_for(engine, "after_cursor_execute")
    def after_order(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("INSERT INTO shop_orders") and fault.exists():
            fault.unlink()
            os.killpg(0, signal.SIGKILL)


def __getattr__(name: str) -> Any:
    """``app``, made when the server asks for it: importing this module must not need a database."""
    if name != "app":
        raise AttributeError(name)
    shop = import_shop()
    if FAULT_VARIABLE in os.environ:
        listen_for_fault(shop.engine.sync_engine, Path(os.environ[FAULT_VARIABLE]))
    return shop.app
