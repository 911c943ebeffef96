"""The table's definition per database, as plain SQL files beside this one."""

from __future__ import annotations

from importlib.resources import files

from samekey.stores.protocols import SCHEMA_VERSION


def statements(name: str, table: str) -> list[str]:
    """The DDL of ``name`` ("postgres", "sqlite") for ``table``, one statement each."""
    text = files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    index = table.replace(".", "_")
    text = text.replace("{table}", table).replace("{index}", index).replace("{version}", str(SCHEMA_VERSION))
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]
