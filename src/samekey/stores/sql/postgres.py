"""PostgreSQL's texts: the try-lock is part of the claim.

How a rival is seen. The claim is the first statement of the outer transaction,
never inside a savepoint (a transaction-scoped lock taken there would be given
back with it). It inserts only if it gets the transaction-scoped advisory lock on
64 bits of the id. A refused lock is a rival that runs right now: nobody waits.
Session locks are not used, since they strand behind transaction poolers.

Why nothing was inserted is asked by a second statement, with a snapshot of its own: a
rival may have committed while the first one ran. The insert met its row all the same
(a unique index knows no snapshot) and left it alone. No row and a free lock means that a
rival went away in between, and the plan claims again. Under REPEATABLE READ the same
moment is a serialisation failure, which a fresh transaction settles.
"""

from __future__ import annotations

from datetime import datetime

from samekey.stores.protocols import HELD_DAYS
from samekey.stores.sql.dialect import COLUMNS, DEFAULT_TABLE, Dialect, check_table
from samekey.stores.sql.schema import statements


def dialect(table: str = DEFAULT_TABLE) -> Dialect:
    """The PostgreSQL (13 or later) statements for ``table``."""
    check_table(table)
    columns = ", ".join(COLUMNS)
    replaced = """state = 'running', owner = excluded.owner, fence = greatest(t.fence + 1, excluded.fence),
                    fingerprint = excluded.fingerprint, fingerprint_version = excluded.fingerprint_version,
                    caller = excluded.caller, key_hint = excluded.key_hint, key = excluded.key,
                    method = excluded.method, path = excluded.path, created_at = excluded.created_at,
                    completed_at = NULL, expires_at = NULL, status = NULL, headers = NULL, body = NULL"""
    completed = """state = 'completed', lease_until = NULL, completed_at = statement_timestamp(),
                expires_at = statement_timestamp() + make_interval(secs => CAST(:retention AS float8)),
                purge_at = statement_timestamp()
                    + make_interval(secs => CAST(:retention AS float8) + CAST(:tombstone AS float8)),
                status = CAST(:status AS integer), headers = CAST(:headers AS bytea),
                body = CAST(:body AS bytea)"""
    return Dialect(
        name="postgresql",
        table=table,
        single_writer=False,
        begin_write=None,
        find=f"""
            SELECT statement_timestamp() AS now, {columns}, body FROM {table}
            WHERE id = CAST(:id AS bytea) AND (purge_at IS NULL OR purge_at > statement_timestamp())
        """,
        try_claim=f"""
            INSERT INTO {table} AS t
                (id, state, owner, fence, fingerprint, fingerprint_version,
                 caller, key_hint, key, method, path, created_at)
            SELECT CAST(:id AS bytea), 'running', CAST(:owner AS bytea),
                   CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint),
                   CAST(:fingerprint AS bytea), CAST(:fingerprint_version AS integer),
                   CAST(:caller AS text), CAST(:key_hint AS text), CAST(:key AS text),
                   CAST(:method AS text), CAST(:path AS text), statement_timestamp()
            WHERE pg_try_advisory_xact_lock(CAST(:lock AS bigint))
            ON CONFLICT (id) DO UPDATE SET {replaced}, lease_until = NULL, purge_at = NULL
            WHERE t.purge_at <= statement_timestamp()
            RETURNING fence
        """,
        why_not=f"""
            SELECT pg_try_advisory_xact_lock(CAST(:lock AS bigint)), statement_timestamp(), {columns}, body
            FROM (SELECT 1) AS one LEFT JOIN {table}
                ON id = CAST(:id AS bytea) AND (purge_at IS NULL OR purge_at > statement_timestamp())
        """,
        claims_batches=True,
        claim_leased=f"""
            WITH asked AS (
                SELECT * FROM unnest(
                    CAST(:ids AS bytea[]), CAST(:locks AS bigint[]), CAST(:owners AS bytea[]),
                    CAST(:fingerprints AS bytea[]), CAST(:fingerprint_versions AS integer[]),
                    CAST(:callers AS text[]), CAST(:key_hints AS text[]), CAST(:keys AS text[]),
                    CAST(:methods AS text[]), CAST(:paths AS text[]),
                    CAST(:leases AS float8[]), CAST(:unseens AS float8[])
                ) AS a (id, lock, owner, fingerprint, fingerprint_version, caller, key_hint, key,
                        method, path, lease, unseen)
            ), found AS (
                SELECT {columns}, body FROM {table}
                WHERE id = ANY (CAST(:ids AS bytea[]))
                    AND (purge_at IS NULL OR purge_at > statement_timestamp())
            ), locked AS MATERIALIZED (
                SELECT asked.id, pg_try_advisory_xact_lock(asked.lock) AS got FROM asked
                WHERE NOT EXISTS (SELECT 1 FROM found WHERE found.id = asked.id)
            ), claimed AS (
                INSERT INTO {table} AS t
                    (id, state, owner, fence, fingerprint, fingerprint_version, caller, key_hint, key,
                     method, path, created_at, lease_until, purge_at)
                SELECT asked.id, 'running', owner,
                       CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint),
                       fingerprint, fingerprint_version, caller, key_hint, key, method, path,
                       statement_timestamp(), statement_timestamp() + make_interval(secs => lease),
                       statement_timestamp() + make_interval(secs => lease + unseen)
                FROM asked JOIN locked ON locked.id = asked.id AND locked.got
                ORDER BY asked.id
                ON CONFLICT (id) DO UPDATE SET
                    {replaced}, lease_until = excluded.lease_until, purge_at = excluded.purge_at
                WHERE t.purge_at <= statement_timestamp()
                RETURNING id, fence
            )
            SELECT asked.id, locked.got, claimed.fence, statement_timestamp(), found.*
            FROM asked LEFT JOIN locked ON locked.id = asked.id LEFT JOIN claimed ON claimed.id = asked.id
                LEFT JOIN found ON found.id = asked.id
        """,
        complete_leased=f"""
            UPDATE {table} SET {completed}
            WHERE id = CAST(:id AS bytea) AND owner = CAST(:owner AS bytea)
                AND fence = CAST(:fence AS bigint) AND state = 'running' AND lease_until IS NOT NULL
            RETURNING expires_at
        """,
        renew=f"""
            UPDATE {table} SET
                purge_at = purge_at - lease_until + statement_timestamp()
                    + make_interval(secs => CAST(:lease AS float8)),
                lease_until = statement_timestamp() + make_interval(secs => CAST(:lease AS float8))
            WHERE id = CAST(:id AS bytea) AND owner = CAST(:owner AS bytea)
                AND fence = CAST(:fence AS bigint) AND state = 'running'
            RETURNING id
        """,
        release=f"""
            DELETE FROM {table}
            WHERE id = CAST(:id AS bytea) AND owner = CAST(:owner AS bytea)
                AND fence = CAST(:fence AS bigint) AND state = 'running'
            RETURNING id
        """,
        take_over=f"""
            UPDATE {table} SET
                owner = CAST(:owner AS bytea), fence = greatest(fence + 1,
                    CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint)),
                lease_until = statement_timestamp() + make_interval(secs => CAST(:lease AS float8)),
                purge_at = statement_timestamp()
                    + make_interval(secs => CAST(:lease AS float8) + CAST(:unseen AS float8))
            WHERE id = CAST(:id AS bytea) AND fence = CAST(:fence AS bigint) AND state = 'running'
                AND lease_until <= statement_timestamp()
            RETURNING fence
        """,
        # xmin says which transaction wrote the row: another than ours means that the application
        # ended the joined transaction itself and a new one began behind our back. The COMMIT is sent
        # along with this statement, so where no row is ours it has to fail: with an error (2201G) that
        # no deferred trigger of the application would raise.
        complete=f"""
            WITH done AS (
                UPDATE {table} SET {completed}
                WHERE id = CAST(:id AS bytea) AND owner = CAST(:owner AS bytea)
                    AND fence = CAST(:fence AS bigint) AND state = 'running'
                    AND xmin = CAST(pg_current_xact_id() AS xid)
                RETURNING expires_at
            ) SELECT (SELECT expires_at FROM done),
                width_bucket(0, 0, 1, (SELECT CAST(count(*) AS integer) FROM done))
        """,
        hold=f"""
            UPDATE {table} SET state = 'held', lease_until = NULL,
                purge_at = statement_timestamp() + interval '{HELD_DAYS} days'
            WHERE id = CAST(:id AS bytea) AND owner = CAST(:owner AS bytea) AND state = 'running'
            RETURNING id
        """,
        search=f"""
            SELECT statement_timestamp() AS now, {columns}, NULL AS body FROM {table}
            WHERE (CAST(:caller AS text) IS NULL OR caller = CAST(:caller AS text))
                AND (CAST(:state AS text) IS NULL OR state = CAST(:state AS text))
                AND starts_with(key_hint, CAST(:key_hint AS text))
            ORDER BY created_at DESC, id DESC LIMIT CAST(:limit AS integer)
        """,
        forget=f"DELETE FROM {table} WHERE id = CAST(:id AS bytea) RETURNING id",
        purge=f"""
            DELETE FROM {table} WHERE id IN (
                SELECT id FROM {table} WHERE purge_at <= statement_timestamp()
                ORDER BY purge_at LIMIT CAST(:limit AS integer) FOR UPDATE SKIP LOCKED
            ) RETURNING id
        """,
        schema=tuple(statements("postgres", table)),
        # CREATE … IF NOT EXISTS still fails when two run it at once, so creators queue.
        schema_lock=f"SELECT pg_advisory_xact_lock(hashtextextended('samekey:{table}', 0))",
        schema_version="SELECT version FROM samekey_schema WHERE table_name = :table",
        moment=_moment,
    )


def _moment(value: datetime | None) -> datetime | None:
    return value
