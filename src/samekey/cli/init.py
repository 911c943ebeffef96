"""``samekey init``: make the table, or print what would make it."""

from __future__ import annotations

from typing import Annotated

import typer
from sqlalchemy import inspect

from samekey.cli.options import Json, Store, Table, opening
from samekey.cli.output import console, print_json
from samekey.core.ops import CreateSchema, ReadSchemaVersion
from samekey.errors import ConfigurationError
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore
from samekey.stores.sql.dialect import DEFAULT_TABLE


def init(
    store: Store,
    table: Table = DEFAULT_TABLE,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the statements, change nothing.")
    ] = False,
    alembic: Annotated[bool, typer.Option("--alembic", help="Print an Alembic migration.")] = False,
    json: Json = False,
) -> None:
    """Make samekey's table in a database. Safe to run again, and by many at once."""
    if only_print and alembic:
        raise ConfigurationError("give --print or --alembic, not both")
    with opening(store, table, must_exist=False) as opened:
        if only_print:
            typer.echo(";\n\n".join(opened.dialect.schema) + ";")
            return
        if alembic:
            typer.echo(_migration(opened.dialect.schema, table))
            return
        before = opened.perform(ReadSchemaVersion()) if _has_table(opened) else None
        opened.perform(CreateSchema())
        version = opened.perform(ReadSchemaVersion())
    if json:
        print_json({"table": table, "version": version, "created": before is None})
    else:
        done = "made" if before is None else "was there already"
        console.print(f"table {table} {done} (version {version})", highlight=False)


def _has_table(opened: SqlAlchemyStore) -> bool:
    return inspect(opened.engine).has_table("samekey_schema")


def _migration(statements: tuple[str, ...], table: str) -> str:
    ups = "\n".join(f'    op.execute("""{statement}""")' for statement in statements)
    down = f"DROP TABLE {table}"
    forget = f"DELETE FROM samekey_schema WHERE table_name = '{table}'"  # noqa: S608 - a checked name
    return (
        f'"""Make samekey\'s table."""\n\nfrom alembic import op\n\nrevision = "samekey_1"\n'
        f"down_revision = None  # the revision that this one follows\n\n\ndef upgrade():\n{ups}\n\n\n"
        f'def downgrade():\n    op.execute("{down}")\n    op.execute("{forget}")'
    )
