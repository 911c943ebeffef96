"""``samekey forget``: free one key by hand."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from samekey.cli.options import (
    Caller,
    Json,
    Key,
    Namespace,
    SecretEnv,
    Store,
    Table,
    find_all,
    opening,
    secret_from,
)
from samekey.cli.output import Exit, complain, console, print_json, print_records
from samekey.core.ops import Forget
from samekey.stores.sql.dialect import DEFAULT_TABLE


def forget(
    key: Key,
    store: Store,
    caller: Caller = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    table: Table = DEFAULT_TABLE,
    namespace: Namespace = "",
    secret_env: SecretEnv = None,
    json: Json = False,
) -> None:
    """Delete the record of a key. A later retry with that key will RUN THE OPERATION AGAIN."""
    with opening(store, table) as opened:
        records = find_all(opened, key, caller, namespace, secret_from(secret_env))
        if not records:
            complain("no record of that key; nothing was changed")
            raise typer.Exit(Exit.WRONG)
        if len(records) > 1:
            complain(
                f"{len(records)} callers have used that key; say which with --caller. Nothing was changed"
            )
            if not json:
                print_records(records)
            raise typer.Exit(Exit.REFUSED)
        if not yes:
            _confirm(records[0].caller, f"{records[0].method} {records[0].path}", json)
        forgotten = opened.perform(Forget(records[0].id))
        if json:
            print_json({"id": records[0].id.hex(), "forgotten": forgotten})
        else:
            console.print("forgotten: the key is free" if forgotten else "it was gone already")


def _confirm(caller: str, asked: str, json: bool) -> None:
    if json or not sys.stdin.isatty():
        complain("this needs a confirmation: look at it with 'samekey show', then add --yes")
        raise typer.Exit(Exit.REFUSED)
    console.print(
        f"The record of {caller}'s {asked} will be deleted. If its client retries, the operation is "
        "done a second time. Only go on if you know that it was not done, or that nobody will retry.",
        highlight=False,
    )
    if not typer.confirm("Forget it?"):
        raise typer.Exit(Exit.REFUSED)
