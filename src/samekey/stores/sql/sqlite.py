"""SQLite's texts. The claim runs under BEGIN IMMEDIATE, so nobody else writes meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from samekey.errors import ConfigurationError
from samekey.stores.protocols import HELD_DAYS
from samekey.stores.sql.dialect import COLUMNS, DEFAULT_TABLE, Dialect, check_table
from samekey.stores.sql.schema import statements

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The database's own time in microseconds; SQLite keeps 'now' the same within one statement.
_NOW = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"
_DAY = 86_400_000_000


def dialect(table: str = DEFAULT_TABLE) -> Dialect:
    """The SQLite (3.35 or later) statements for ``table``."""
    check_table(table)
    if "." in table:
        raise ConfigurationError(
            "SQLite's schemas are files of their own, and a commit over two files is not one: "
            "give a table name without a schema"
        )
    columns = ", ".join(COLUMNS)
    replaced = """state = 'running', owner = excluded.owner, fence = max(t.fence + 1, excluded.fence),
                fingerprint = excluded.fingerprint, fingerprint_version = excluded.fingerprint_version,
                caller = excluded.caller, key_hint = excluded.key_hint, key = excluded.key,
                method = excluded.method, path = excluded.path, created_at = excluded.created_at,
                completed_at = NULL, expires_at = NULL, status = NULL, headers = NULL, body = NULL"""
    completed = f"""state = 'completed', lease_until = NULL, completed_at = {_NOW},
                expires_at = {_NOW} + CAST(:retention * 1000000 AS INTEGER),
                purge_at = {_NOW} + CAST((:retention + :tombstone) * 1000000 AS INTEGER),
                status = :status, headers = :headers, body = :body"""
    held_by = "WHERE id = :id AND owner = :owner AND fence = :fence AND state = 'running'"
    found = f"FROM {table} WHERE id = :id AND (purge_at IS NULL OR purge_at > {_NOW})"
    return Dialect(
        name="sqlite",
        table=table,
        single_writer=True,
        # A deferred BEGIN would fail with BUSY_SNAPSHOT when it turns into a writer later.
        begin_write="BEGIN IMMEDIATE",
        find=f"SELECT {_NOW} AS now, {columns}, body {found}",
        try_claim=f"""
            INSERT INTO {table} AS t
                (id, state, owner, fence, fingerprint, fingerprint_version,
                 caller, key_hint, key, method, path, created_at)
            VALUES (:id, 'running', :owner, {_NOW}, :fingerprint, :fingerprint_version,
                    :caller, :key_hint, :key, :method, :path, {_NOW})
            ON CONFLICT (id) DO UPDATE SET {replaced}, lease_until = NULL, purge_at = NULL
            WHERE t.purge_at <= {_NOW}
            RETURNING fence
        """,
        why_not=f"""
            SELECT 1, {_NOW}, {columns}, body
            FROM (SELECT 1) LEFT JOIN {table} ON id = :id AND (purge_at IS NULL OR purge_at > {_NOW})
        """,
        claims_batches=False,
        claim_leased=f"""
            INSERT INTO {table} AS t
                (id, state, owner, fence, fingerprint, fingerprint_version,
                 caller, key_hint, key, method, path, created_at, lease_until, purge_at)
            VALUES (:id, 'running', :owner, {_NOW}, :fingerprint, :fingerprint_version,
                    :caller, :key_hint, :key, :method, :path, {_NOW},
                    {_NOW} + CAST(:lease * 1000000 AS INTEGER),
                    {_NOW} + CAST((:lease + :unseen) * 1000000 AS INTEGER))
            ON CONFLICT (id) DO UPDATE SET
                {replaced}, lease_until = excluded.lease_until, purge_at = excluded.purge_at
            WHERE t.purge_at <= {_NOW}
            RETURNING fence
        """,
        complete_leased=f"""
            UPDATE {table} SET {completed}
            {held_by} AND lease_until IS NOT NULL
            RETURNING expires_at
        """,
        renew=f"""
            UPDATE {table} SET
                purge_at = purge_at - lease_until + {_NOW} + CAST(:lease * 1000000 AS INTEGER),
                lease_until = {_NOW} + CAST(:lease * 1000000 AS INTEGER)
            {held_by}
            RETURNING id
        """,
        release=f"DELETE FROM {table} {held_by} RETURNING id",
        take_over=f"""
            UPDATE {table} SET owner = :owner, fence = max(fence + 1, {_NOW}),
                lease_until = {_NOW} + CAST(:lease * 1000000 AS INTEGER),
                purge_at = {_NOW} + CAST((:lease + :unseen) * 1000000 AS INTEGER)
            WHERE id = :id AND fence = :fence AND state = 'running' AND lease_until <= {_NOW}
            RETURNING fence
        """,
        complete=f"""
            UPDATE {table} SET {completed}
            WHERE id = :id AND owner = :owner AND fence = :fence AND state = 'running'
            RETURNING expires_at
        """,
        hold=f"""
            UPDATE {table} SET state = 'held', lease_until = NULL, purge_at = {_NOW} + {HELD_DAYS * _DAY}
            WHERE id = :id AND owner = :owner AND state = 'running'
            RETURNING id
        """,
        search=f"""
            SELECT {_NOW} AS now, {columns}, NULL AS body FROM {table}
            WHERE (:caller IS NULL OR caller = :caller) AND (:state IS NULL OR state = :state)
                AND substr(key_hint, 1, length(:key_hint)) = :key_hint
            ORDER BY created_at DESC, id DESC LIMIT :limit
        """,
        forget=f"DELETE FROM {table} WHERE id = :id RETURNING id",
        purge=f"""
            DELETE FROM {table} WHERE id IN (
                SELECT id FROM {table} WHERE purge_at <= {_NOW} ORDER BY purge_at LIMIT :limit
            ) RETURNING id
        """,
        schema=tuple(statements("sqlite", table)),
        schema_lock="SELECT 1",
        schema_version="SELECT version FROM samekey_schema WHERE table_name = :table",
        moment=_moment,
    )


def _moment(value: int | None) -> datetime | None:
    return None if value is None else _EPOCH + timedelta(microseconds=value)
