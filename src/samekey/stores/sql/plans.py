"""The SQL backends' plans: each store step as statements, once for both colours.

These are plans one level below the engine's (see ``core.plans`` for how a plan
works): they await only ``Run``, one statement performed by a driver, which knows
nothing of what it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_never

from samekey.core.codec import decode_headers, encode_headers
from samekey.core.model import (
    Answer,
    Claim,
    ClaimOutcome,
    Completion,
    Fingerprint,
    Granted,
    Holder,
    Locked,
    Record,
    State,
    Taken,
)
from samekey.core.ops import (
    ClaimLeased,
    Complete,
    CompleteLeased,
    CreateSchema,
    Find,
    Forget,
    Hold,
    Plan,
    Purge,
    ReadSchemaVersion,
    Release,
    Renew,
    Search,
    Step,
    TakeOver,
    TryClaim,
)
from samekey.errors import CorruptRecord
from samekey.stores.sql.dialect import Dialect

Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Run(Step[Sequence[Row]]):
    """One statement and its named parameters; the rows it returns (none for DDL)."""

    statement: str
    parameters: Mapping[str, Any]


def plan_for(dialect: Dialect, step: Step[Any]) -> Plan[Any]:
    """The plan that performs one step of a store on ``dialect``; TypeError for a step that has none."""
    match step:
        case Find(id):
            return find(dialect, id)
        case TryClaim(claim):
            return try_claim(dialect, claim)
        case Complete(completion):
            return complete(dialect, completion)
        case Hold(id, owner):
            return hold(dialect, id, owner)
        case ClaimLeased() | CompleteLeased() | Renew() | Release() | TakeOver():
            return _leased_plan_for(dialect, step)
        case Search():
            return search(dialect, step)
        case Forget(id):
            return forget(dialect, id)
        case Purge(limit):
            return purge(dialect, limit)
        case CreateSchema():
            return create_schema(dialect)
        case ReadSchemaVersion():
            return read_schema_version(dialect)
        case _:
            raise TypeError(f"{type(step).__name__} is not a step of a store")


def _leased_plan_for(
    dialect: Dialect, step: ClaimLeased | CompleteLeased | Renew | Release | TakeOver
) -> Plan[Any]:
    match step:
        case ClaimLeased(claims):
            return claim_leased(dialect, claims)
        case CompleteLeased(completions):
            return complete_leased(dialect, completions)
        case Renew(holders, lease_seconds):
            return renew(dialect, holders, lease_seconds)
        case Release(holders):
            return release(dialect, holders)
        case TakeOver(claim, fence):
            return take_over(dialect, claim, fence)
        case _:
            assert_never(step)


async def find(dialect: Dialect, id: bytes) -> Record | None:
    rows = await Run(dialect.find, {"id": id})
    return _record(dialect, rows[0]) if rows else None


async def try_claim(dialect: Dialect, claim: Claim) -> ClaimOutcome | None:
    """Claim without waiting; None where a rival ended between the look and the insert."""
    rows = await Run(dialect.try_claim, _parameters(claim))
    if rows:
        return Granted(rows[0][0])
    ((free, *row),) = await Run(dialect.why_not, {"id": claim.id, "lock": _lock(claim.id)})
    if row[1] is not None:
        return Taken(_record(dialect, row))
    return None if free else Locked()


async def complete(dialect: Dialect, completion: Completion) -> datetime | None:
    rows = await Run(dialect.complete, _completed(completion))
    return dialect.moment(rows[0][0]) if rows else None


async def claim_leased(dialect: Dialect, claims: Sequence[Claim]) -> tuple[ClaimOutcome, ...]:
    """Claim many in one transaction. In a batch the first of an id may proceed, the others are its rivals."""
    firsts = {claim.id: claim for claim in reversed(claims)}
    claim_some = _claim_in_one_statement if dialect.claims_batches else _claim_one_by_one
    # Sorted, so that two batches never wait for each other crosswise.
    outcomes = await claim_some(dialect, [firsts[id] for id in sorted(firsts)])
    return tuple(
        Locked()
        if isinstance(outcomes[claim.id], Granted) and firsts[claim.id] is not claim
        else outcomes[claim.id]
        for claim in claims
    )


async def _claim_in_one_statement(dialect: Dialect, claims: Sequence[Claim]) -> dict[bytes, ClaimOutcome]:
    rows = await Run(dialect.claim_leased, _columns(claims))
    owners = {claim.id: claim.owner for claim in claims}
    outcomes: dict[bytes, ClaimOutcome] = {}
    for id, _, fence, *rest in rows:
        key = bytes(id)
        if fence is not None:
            outcomes[key] = Granted(fence)
        elif rest[1] is not None:
            outcomes[key] = _own_or_taken(_record(dialect, rest), owners[key])
        else:
            # Refused lock, or a rival that ended between our snapshot and our lock: it is asked again.
            outcomes[key] = Locked()
    return outcomes


async def _claim_one_by_one(dialect: Dialect, claims: Sequence[Claim]) -> dict[bytes, ClaimOutcome]:
    outcomes: dict[bytes, ClaimOutcome] = {}
    for claim in claims:
        rows = await Run(dialect.claim_leased, _parameters(claim))
        if rows:
            outcomes[claim.id] = Granted(rows[0][0])
        else:
            record = await find(dialect, claim.id)
            outcomes[claim.id] = Locked() if record is None else _own_or_taken(record, claim.owner)
    return outcomes


def _own_or_taken(record: Record, owner: bytes) -> ClaimOutcome:
    # Our own owner in a running record: the claim went through and its reply was lost.
    if record.owner == owner and record.state is State.RUNNING:
        return Granted(record.fence)
    return Taken(record)


async def complete_leased(dialect: Dialect, completions: Sequence[Completion]) -> tuple[datetime | None, ...]:
    expiries = []
    for completion in completions:
        rows = await Run(dialect.complete_leased, _completed(completion))
        expiries.append(
            dialect.moment(rows[0][0]) if rows else await _expiry_written_before(dialect, completion)
        )
    return tuple(expiries)


async def _expiry_written_before(dialect: Dialect, completion: Completion) -> datetime | None:
    """The expiry if this very completion is there already: its reply was lost."""
    record = await find(dialect, completion.id)
    if record is None or record.state is not State.COMPLETED:
        return None
    ours = (record.owner, record.fence) == (completion.owner, completion.fence)
    return record.expires_at if ours else None


async def renew(dialect: Dialect, holders: Sequence[Holder], lease_seconds: float) -> tuple[bool, ...]:
    return await _for_each(dialect.renew, holders, {"lease": lease_seconds})


async def release(dialect: Dialect, holders: Sequence[Holder]) -> tuple[bool, ...]:
    return await _for_each(dialect.release, holders, {})


async def _for_each(statement: str, holders: Sequence[Holder], more: Mapping[str, Any]) -> tuple[bool, ...]:
    done = {}
    for holder in sorted(holders, key=lambda holder: holder.id):
        parameters = {"id": holder.id, "owner": holder.owner, "fence": holder.fence, **more}
        done[holder] = bool(await Run(statement, parameters))
    return tuple(done[holder] for holder in holders)


async def take_over(dialect: Dialect, claim: Claim, fence: int) -> Granted | None:
    parameters = {
        "id": claim.id,
        "owner": claim.owner,
        "fence": fence,
        "lease": claim.lease_seconds,
        "unseen": claim.unseen_seconds,
    }
    rows = await Run(dialect.take_over, parameters)
    return Granted(rows[0][0]) if rows else None


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


def _parameters(claim: Claim) -> dict[str, Any]:
    return {
        "id": claim.id,
        "lock": _lock(claim.id),
        "owner": claim.owner,
        "fingerprint": claim.fingerprint.digest,
        "fingerprint_version": claim.fingerprint.version,
        "caller": claim.caller,
        "key_hint": claim.key_hint,
        "key": claim.key,
        "method": claim.method,
        "path": claim.path,
        "lease": claim.lease_seconds,
        "unseen": claim.unseen_seconds,
    }


def _columns(claims: Sequence[Claim]) -> dict[str, list[Any]]:
    """Many claims as one list per parameter, named in the plural."""
    rows = [_parameters(claim) for claim in claims]
    return {f"{name}s": [row[name] for row in rows] for name in rows[0]}


def _lock(id: bytes) -> int:
    return int.from_bytes(id[:8], "big", signed=True)


def _completed(completion: Completion) -> dict[str, Any]:
    return {
        "id": completion.id,
        "owner": completion.owner,
        "fence": completion.fence,
        "retention": completion.retention_seconds,
        "tombstone": completion.tombstone_seconds,
        "status": completion.answer.status,
        "headers": encode_headers(completion.answer.headers),
        "body": completion.answer.body,
    }


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
