"""The SQL backends' plans: each store step as statements, once for both colours.

These are plans one level below the engine's (see ``core.plans`` for how a plan
works): they await only ``Run``, one statement performed by a driver, which knows
nothing of what it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from samekey.core.codec import decode_headers, encode_headers
from samekey.core.model import (
    Answer,
    Claim,
    ClaimOutcome,
    Completion,
    Fingerprint,
    Granted,
    Locked,
    Record,
    State,
    Taken,
)
from samekey.core.ops import Search, Step
from samekey.errors import CorruptRecord
from samekey.stores.sql.dialect import Dialect

Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Run(Step[Sequence[Row]]):
    """One statement and its named parameters; the rows it returns (none for DDL)."""

    statement: str
    parameters: Mapping[str, Any]


async def find(dialect: Dialect, id: bytes) -> Record | None:
    rows = await Run(dialect.find, {"id": id})
    return _record(dialect, rows[0]) if rows else None


async def try_claim(dialect: Dialect, claim: Claim) -> ClaimOutcome | None:
    """Claim without waiting; None where a rival ended between the look and the insert."""
    parameters = {
        "id": claim.id,
        "lock": int.from_bytes(claim.id[:8], "big", signed=True),
        "owner": claim.owner,
        "fingerprint": claim.fingerprint.digest,
        "fingerprint_version": claim.fingerprint.version,
        "caller": claim.caller,
        "key_hint": claim.key_hint,
        "key": claim.key,
        "method": claim.method,
        "path": claim.path,
    }
    for statement in dialect.try_claim:
        for row in await Run(statement, parameters):
            got_lock, fence, *rest = row
            if fence is not None:
                return Granted(fence)
            if rest and rest[1] is not None:
                return Taken(_record(dialect, rest))
            return None if got_lock else Locked()
    return None


async def complete(dialect: Dialect, completion: Completion) -> datetime | None:
    answer = completion.answer
    rows = await Run(
        dialect.complete,
        {
            "id": completion.id,
            "owner": completion.owner,
            "fence": completion.fence,
            "retention": completion.retention_seconds,
            "tombstone": completion.tombstone_seconds,
            "status": answer.status,
            "headers": encode_headers(answer.headers),
            "body": answer.body,
        },
    )
    return dialect.moment(rows[0][0]) if rows else None


async def hold(dialect: Dialect, id: bytes, owner: bytes) -> bool:
    return bool(await Run(dialect.hold, {"id": id, "owner": owner}))


async def search(dialect: Dialect, step: Search) -> list[Record]:
    rows = await Run(
        dialect.search,
        {"caller": step.caller, "state": step.state, "key_hint": step.key_hint, "limit": step.limit},
    )
    return [_record(dialect, row) for row in rows]


async def forget(dialect: Dialect, id: bytes) -> bool:
    return bool(await Run(dialect.forget, {"id": id}))


async def purge(dialect: Dialect, limit: int) -> int:
    return len(await Run(dialect.purge, {"limit": limit}))


async def create_schema(dialect: Dialect) -> None:
    await Run(dialect.schema_lock, {})
    for statement in dialect.schema:
        await Run(statement, {})


async def read_schema_version(dialect: Dialect) -> int | None:
    rows = await Run(dialect.schema_version, {"table": dialect.table})
    return int(rows[0][0]) if rows else None


def _record(dialect: Dialect, row: Row) -> Record:
    now, id, state, owner, fence, digest, version, caller, key_hint, key, method, path, *rest = row
    created_at, lease_until, completed_at, expires_at, status, headers, body = rest
    try:
        return Record(
            id=bytes(id),
            state=State(state),
            owner=bytes(owner),
            fence=fence,
            fingerprint=Fingerprint(version, bytes(digest)),
            caller=caller,
            key_hint=key_hint,
            key=key,
            method=method,
            path=path,
            now=_required(dialect.moment(now)),
            created_at=_required(dialect.moment(created_at)),
            lease_until=dialect.moment(lease_until),
            completed_at=dialect.moment(completed_at),
            expires_at=dialect.moment(expires_at),
            answer=None if status is None else _answer(status, headers, body),
        )
    except (TypeError, ValueError) as error:
        raise CorruptRecord("a stored record cannot be read back; was it changed by hand?") from error


def _answer(status: int, headers: bytes | None, body: bytes | None) -> Answer:
    if headers is None:
        raise CorruptRecord("a stored answer has no headers; was it changed by hand?")
    return Answer(status, decode_headers(bytes(headers)), None if body is None else bytes(body))


def _required(moment: datetime | None) -> datetime:
    if moment is None:
        raise CorruptRecord("a stored record lacks a time; was it changed by hand?")
    return moment
