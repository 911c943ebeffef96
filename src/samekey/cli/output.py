"""What commands share in talking: exit codes, tables, JSON, one-line complaints."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

from rich.console import Console
from rich.table import Table

from samekey.core.model import Record

console = Console()


class Exit(IntEnum):
    """The documented exit codes."""

    DONE = 0
    WRONG = 1
    USAGE = 2
    UNAVAILABLE = 3
    REFUSED = 4


def complain(message: str) -> None:
    """One line on standard error."""
    told = f"samekey: {message}"
    # No markup: "samekey[demo]" is the name of an extra, not a style.
    Console(stderr=True).print(told, style="red", highlight=False, soft_wrap=True, markup=False)


def print_json(value: Any) -> None:
    """One JSON document, or one line of a stream, on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def moment(value: datetime | None) -> str | None:
    """A time as ISO 8601 in UTC, to the millisecond."""
    return None if value is None else value.astimezone(UTC).isoformat(timespec="milliseconds")


def _minute(value: datetime | None) -> str:
    return "" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def as_json(record: Record) -> dict[str, Any]:
    """A record for programs. Never the key, the body or a credential."""
    answer = record.answer
    return {
        "id": record.id.hex(),
        "state": record.state.value,
        "caller": record.caller,
        "key_hint": record.key_hint,
        "method": record.method,
        "path": record.path,
        "status": None if answer is None else answer.status,
        "fence": record.fence,
        "created_at": moment(record.created_at),
        "lease_until": moment(record.lease_until),
        "completed_at": moment(record.completed_at),
        "expires_at": moment(record.expires_at),
    }


def print_records(records: list[Record]) -> None:
    """A table for people."""
    table = Table("key", "caller", "state", "asked", "status", "created (UTC)", "expires (UTC)", box=None)
    for record in records:
        shown = as_json(record)
        table.add_row(
            f"{record.key_hint}…",
            record.caller,
            shown["state"],
            f"{record.method} {record.path}",
            str(shown["status"] or ""),
            _minute(record.created_at),
            _minute(record.expires_at),
        )
    console.print(table)
