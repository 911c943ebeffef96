"""What one SQL database brings: its texts and how it writes a moment in time.

The texts use named parameters (``:id``); the driver translates them. They are
made once per table name, which is checked here because it becomes part of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from samekey.errors import ConfigurationError

DEFAULT_TABLE = "idempotency_keys"

# The order of every row that the plans decode; ``now`` is the database's time of the read.
COLUMNS = (
    "id",
    "state",
    "owner",
    "fence",
    "fingerprint",
    "fingerprint_version",
    "caller",
    "key_hint",
    "key",
    "method",
    "path",
    "created_at",
    "lease_until",
    "completed_at",
    "expires_at",
    "status",
    "headers",
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The statements of one database for one table."""

    name: str
    table: str
    single_writer: bool
    begin_write: str | None
    find: str
    try_claim: str
    why_not: str
    claims_batches: bool
    claim_leased: str
    complete_leased: str
    renew: str
    release: str
    take_over: str
    complete: str
    hold: str
    search: str
    forget: str
    purge: str
    schema: tuple[str, ...]
    schema_lock: str
    schema_version: str
    moment: Callable[[Any], datetime | None]


def check_table(table: str) -> str:
    """``table`` if it is a plain, optionally schema-qualified SQL name."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?", table):
        raise ConfigurationError(
            f"{table!r} cannot be a table name: use letters, digits and _, optionally 'schema.table'"
        )
    return table
