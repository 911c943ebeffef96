"""``samekey show``: everything about one key, except what is secret."""

from __future__ import annotations

from typing import Annotated, Any

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
from samekey.cli.output import Exit, as_json, complain, console, print_json
from samekey.core.model import Record
from samekey.stores.sql.dialect import DEFAULT_TABLE


def show(
    key: Key,
    store: Store,
    caller: Caller = None,
    body: Annotated[bool, typer.Option("--body", help="Show the stored answer's body as well.")] = False,
    table: Table = DEFAULT_TABLE,
    namespace: Namespace = "",
    secret_env: SecretEnv = None,
    json: Json = False,
) -> None:
    """Show the record of a key: state, times, what was asked and what was answered."""
    with opening(store, table) as opened:
        records = find_all(opened, key, caller, namespace, secret_from(secret_env))
    if not records:
        complain("no record of that key; it may be another caller's, another namespace's, or expired")
        raise typer.Exit(Exit.WRONG)
    shown = [_described(record, body) for record in records]
    if json:
        print_json(shown)
        return
    for record in shown:
        for name, value in record.items():
            if value is not None:
                console.print(f"[bold]{name}[/bold]  ", end="")
                console.print(str(value), highlight=False, markup=False, soft_wrap=True)
        console.print()


def _described(record: Record, with_body: bool) -> dict[str, Any]:
    answer = record.answer
    described = as_json(record)
    if answer is not None:
        # Names only: a value may be as secret as the body.
        described["headers"] = [name.decode("latin-1") for name, _ in answer.headers]
        described["body_bytes"] = None if answer.body is None else len(answer.body)
        if with_body and answer.body is not None:
            described["body"] = answer.body.decode("utf-8", "backslashreplace")
    return described
