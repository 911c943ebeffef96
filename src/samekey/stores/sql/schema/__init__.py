"""The table's definition per database, as plain SQL files beside this one."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from samekey.stores.protocols import SCHEMA_VERSION

INDEX_CHARACTERS_MAX = 40  # PostgreSQL cuts names after 63 and would then take one index for another


def statements(name: str, table: str) -> list[str]:
    """The DDL of ``name`` ("postgres", "sqlite") for ``table``, one statement each."""
    text = files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    text = (
        text.replace("{table}", table)
        .replace("{index}", _index(table))
        .replace("{version}", str(SCHEMA_VERSION))
    )
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]


def _index(table: str) -> str:
    """How the names of the table's indexes begin; different for different tables, however long."""
    name = table.replace(".", "_")
    if len(name) <= INDEX_CHARACTERS_MAX:
        return name
    return f"{name[:INDEX_CHARACTERS_MAX]}_{hashlib.sha256(table.encode('ascii')).hexdigest()[:8]}"
