"""``samekey list``: the newest records."""

from __future__ import annotations

from typing import Annotated

import typer

from samekey.cli.options import Json, Store, Table, opening
from samekey.cli.output import as_json, console, print_json, print_records
from samekey.core.model import KEY_HINT_CHARACTERS, State
from samekey.core.ops import Search
from samekey.stores.sql.dialect import DEFAULT_TABLE


def list_(
    store: Store,
    caller: Annotated[str | None, typer.Option("--caller", help="Only this caller's.")] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only records in this state.")] = None,
    key_prefix: Annotated[str, typer.Option("--key-prefix", help="Only keys that begin so.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many at most.")] = 50,
    table: Table = DEFAULT_TABLE,
    json: Json = False,
) -> None:
    """List records, newest first: who asked for what, and what became of it."""
    step = Search(caller, state, key_prefix[:KEY_HINT_CHARACTERS], limit)
    with opening(store, table) as opened:
        records = opened.perform(step)
    if json:
        print_json([as_json(record) for record in records])
    elif records:
        print_records(records)
    else:
        console.print("no records")
