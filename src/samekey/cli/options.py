"""Options that several commands share, and what they open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from samekey.core.model import Record, record_id
from samekey.core.ops import Find, Search
from samekey.errors import ConfigurationError
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore
from samekey.stores.url import open_store

Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="SAMEKEY_STORE",
        help="The store's URL: sqlite:///file.db or postgresql://user@host/database.",
    ),
]
Table = Annotated[str, typer.Option("--table", help="The table's name.")]
Namespace = Annotated[
    str, typer.Option("--namespace", help="The namespace that the application gave to SameKey.")
]
SecretEnv = Annotated[
    str | None,
    typer.Option("--secret-env", help="The environment variable that holds SameKey's secret, if it has one."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs instead of text for people.")]
Key = Annotated[str, typer.Argument(help="The idempotency key as the client sent it, without quotes.")]
Caller = Annotated[
    str | None, typer.Option("--caller", help="Whose key it is; without it, every caller's is looked for.")
]

CANDIDATES_MAX = 10_000


@contextmanager
def opening(url: str, table: str, *, must_exist: bool = True) -> Iterator[SqlAlchemyStore]:
    """The store of ``url`` for the time of one command."""
    store = open_store(url, table=table, must_exist=must_exist)
    try:
        yield store
    finally:
        store.engine.dispose()


def secret_from(name: str | None) -> bytes | None:
    """The secret in environment variable ``name``."""
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise ConfigurationError(f"the environment variable {name} is empty")
    return value.encode()


def find_all(
    store: SqlAlchemyStore, key: str, caller: str | None, namespace: str, secret: bytes | None
) -> list[Record]:
    """The records of a key: one per caller. Candidates are found by the key's first characters,
    and believed only if their id is the digest of exactly this key."""
    if caller is not None:
        record = store.perform(Find(record_id(namespace, caller, key, secret)))
        return [] if record is None else [record]
    candidates: list[Record] = store.perform(Search(key_hint=key[:6], limit=CANDIDATES_MAX))
    ids = [record_id(namespace, record.caller, key, secret) for record in candidates]
    found = (store.perform(Find(id)) for id, record in zip(ids, candidates, strict=True) if id == record.id)
    return [record for record in found if record is not None]
