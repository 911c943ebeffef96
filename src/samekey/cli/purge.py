"""``samekey purge``: delete what is over, in batches that disturb nobody."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from samekey.cli.options import Json, Store, Table, opening
from samekey.cli.output import complain, console, moment, print_json
from samekey.core.ops import Purge
from samekey.errors import StoreUnavailable
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore
from samekey.stores.sql.dialect import DEFAULT_TABLE


def purge(
    store: Store,
    watch: Annotated[
        float | None, typer.Option("--watch", min=0.1, help="Go on for ever, every so many seconds.")
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=100_000, help="Records per transaction.")
    ] = 1000,
    table: Table = DEFAULT_TABLE,
    json: Json = False,
) -> None:
    """Delete records whose retention is over. Running and live ones are never touched."""
    try:
        with opening(store, table) as opened:
            _purge_all(opened, batch, json)
            while watch is not None:
                time.sleep(watch)
                try:
                    _purge_all(opened, batch, json)
                except StoreUnavailable as error:
                    complain(f"{error}; trying again in {watch:g} s")
    except KeyboardInterrupt:
        complain("stopped")


def _purge_all(opened: SqlAlchemyStore, batch: int, json: bool) -> None:
    purged = 0
    while True:
        gone = opened.perform(Purge(batch))
        purged += gone
        if not json and gone == batch:
            console.print(f"{purged} records purged so far")
        if gone < batch:  # the rest is not over yet, or locked by a claim that replaces it
            break
    if json:
        print_json({"at": moment(datetime.now(UTC)), "purged": purged})
    else:
        console.print(f"{purged} records purged")
