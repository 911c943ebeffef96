"""From a store's URL to the store: ``sqlite:///file.db``, ``postgresql://user@host/database``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from samekey.errors import ConfigurationError
from samekey.stores.sql.dialect import DEFAULT_TABLE

if TYPE_CHECKING:
    from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore

# What each scheme needs: the SQLAlchemy URL's scheme and the extra that brings the driver.
_SCHEMES = {
    "sqlite": ("sqlite", "cli"),
    "sqlite+pysqlite": ("sqlite", "cli"),
    "sqlite+aiosqlite": ("sqlite", "cli"),
    "postgresql": ("postgresql+psycopg", "postgresql"),
    "postgres": ("postgresql+psycopg", "postgresql"),
    "postgresql+psycopg": ("postgresql+psycopg", "postgresql"),
    "postgresql+asyncpg": ("postgresql+psycopg", "postgresql"),
}


def open_store(url: str, *, table: str = DEFAULT_TABLE, must_exist: bool = True) -> SqlAlchemyStore:
    """The sync store of ``url``. The application's own SQLAlchemy URLs are understood as well.

    ``must_exist``: refuse an SQLite file that is not there, instead of making an empty one.
    Raises ConfigurationError with what to change; nothing is connected yet.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ConfigurationError(
            "a store is named by a URL: sqlite:///file.db or postgresql://user@host/database; "
            f"this one starts with {urlsplit(url).scheme or 'nothing'!r}"
        )
    scheme, extra = _SCHEMES[scheme]
    path = Path(rest.removeprefix("/").partition("?")[0])
    if scheme == "sqlite" and must_exist and not path.exists():
        raise ConfigurationError(f"there is no SQLite file {path}; is the path right?")
    try:
        # Only here, because it needs an extra.
        from samekey.stores.drivers.sqlalchemy import open_sqlalchemy_store  # noqa: PLC0415

        return open_sqlalchemy_store(f"{scheme}://{rest}", table)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f'{scheme} needs {error.name}; install it with: pip install "samekey[{extra}]"'
        ) from error
