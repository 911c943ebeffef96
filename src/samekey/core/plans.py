"""Plans: the logic of an operation's begin and finish, once for both colours.

A plan is an ``async def`` function that awaits only the steps of ``core.ops``;
no event loop is involved. ``samekey.run`` steps it: one runner performs each
step on a sync store, the other awaits an async one. To debug a plan, step into
it as into any coroutine; ``await SomeStep()`` is where the store is called.

Rules: straight-line code; no ``with``, no ``try/finally`` (the transaction's
owner cleans up), no clock, no randomness. The handler never runs inside a plan:
*begin*, then the handler in its own colour, then *finish*.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import assert_never

from samekey.core.decide import (
    JOINED_RETRY_AFTER_SECONDS,
    Broken,
    Decision,
    Held,
    InProgress,
    Mismatch,
    Proceed,
    decide,
)
from samekey.core.model import Claim, Completion, Granted, Holder, Locked, Record, State, Taken
from samekey.core.ops import (
    ClaimLeased,
    Commit,
    Complete,
    CompleteLeased,
    Find,
    Hold,
    Release,
    Renew,
    Rollback,
    TakeOver,
    TryClaim,
)

CLAIM_TRIES_MAX = 3  # each further try needs a rival that ends within one statement of ours


async def look(claim: Claim) -> Decision | None:
    """What an existing record says, read without the writer's lock; None where there is none."""
    record = await Find(claim.id)
    if record is None:
        return None
    decision = decide(Taken(record), claim.fingerprint)
    if isinstance(decision, Broken):
        await Hold(record.id, record.owner)
    return decision


async def begin(claim: Claim) -> Decision:
    """Claim in a transaction of its own. It stays open only on Proceed."""
    outcome = None
    for _ in range(CLAIM_TRIES_MAX):
        outcome = await TryClaim(claim)
        if outcome is not None:
            break
    decision = decide(outcome or Locked(), claim.fingerprint)
    if isinstance(decision, Proceed):
        return decision
    await Rollback()
    if isinstance(decision, Broken):
        await Hold(decision.record.id, decision.record.owner)
    return decision


@dataclass(frozen=True, slots=True)
class Committed:
    """Claim, change and answer are committed; the answer may be sent."""

    expires_at: datetime


@dataclass(frozen=True, slots=True)
class EndedEarly:
    """The application ended the transaction itself; the record is held now."""


async def finish(completion: Completion) -> Committed | EndedEarly:
    """Write the answer and commit. Raises what the commit raises; then nothing was sent yet."""
    expires_at = await Complete(completion)
    if expires_at is not None:
        return Committed(expires_at)
    await Rollback()
    await Hold(completion.id, completion.owner)
    return EndedEarly()


async def hold_anew(claim: Claim) -> None:
    """Hold an operation whose claim went away with the transaction that the application rolled back itself.

    What it wrote since may be committed (SQLite's driver commits each statement that no BEGIN
    precedes), so a retry must not run it again unasked.
    """
    if isinstance(await TryClaim(claim), Granted):
        # A crash in between leaves a claim that is visible while running: the next look holds it.
        await Commit()
        await Hold(claim.id, claim.owner)
    else:
        await Rollback()


# Leased mode: the claim commits first, so a record can be seen running, lapsed and held ----------


class OnUnknown(StrEnum):
    """What happens to an operation whose outcome nobody knows: its owner died, or its handler failed."""

    HOLD = "hold"
    """It is not run again unasked; an operator completes or releases it."""
    STORE = "store"
    """The failure (a 5xx) is its answer and is replayed; a dead owner's is held."""
    RERUN = "rerun"
    """The next retry runs it again: it may run twice."""
    RECOVER = "recover"
    """A hook looks whether the change happened."""


@dataclass(frozen=True, slots=True)
class Recover:
    """A dead owner's operation is ours now: the hook has to say whether its change happened."""

    fence: int


async def begin_leased(claim: Claim, on_unknown: OnUnknown) -> Decision | Recover:
    """Claim, judging a dead owner's record by ``on_unknown``."""
    for _ in range(CLAIM_TRIES_MAX):
        (outcome,) = await ClaimLeased((claim,))
        if not (isinstance(outcome, Taken) and outcome.record.lapsed):
            return decide(outcome, claim.fingerprint)
        record = outcome.record
        if record.fingerprint != claim.fingerprint:
            return Mismatch()
        if on_unknown in (OnUnknown.HOLD, OnUnknown.STORE):
            await Hold(record.id, record.owner)
            return Held()
        granted = await TakeOver(claim, record.fence)
        if granted is not None:
            return Recover(granted.fence) if on_unknown is OnUnknown.RECOVER else Proceed(granted.fence)
    return InProgress(JOINED_RETRY_AFTER_SECONDS)


async def finish_leased(completion: Completion) -> Committed | FencedOut:
    """Record the answer under owner and fence. FencedOut: somebody else's answer stands, or will."""
    (expires_at,) = await CompleteLeased((completion,))
    if expires_at is not None:
        return Committed(expires_at)
    return FencedOut(await Find(completion.id))


@dataclass(frozen=True, slots=True)
class FencedOut:
    """The lease was lost and the record is another's now (or gone): our answer must not be sent."""

    record: Record | None


async def fail_leased(holder: Holder, on_unknown: OnUnknown) -> None:
    """Give up an operation whose handler began and failed without an answer to store."""
    match on_unknown:
        case OnUnknown.HOLD | OnUnknown.STORE:
            await Hold(holder.id, holder.owner)
        case OnUnknown.RERUN:
            await Release((holder,))
        case OnUnknown.RECOVER:
            # A lease that is over at once: the next retry takes over and asks the hook.
            await Renew((holder,), 0.0)
        case _:
            assert_never(on_unknown)


class Verdict(Enum):
    """What became of a commit whose acknowledgement was lost."""

    COMMITTED = "committed"
    NOTHING_REMAINS = "nothing remains"
    UNKNOWN = "unknown"


async def verify(claim: Claim) -> Verdict:
    """Look up, on a new connection, whether a commit without acknowledgement happened.

    A claim is the surest look: it is granted only where no record exists *and* no
    transaction that could still commit one is alive. It is rolled back at once.
    """
    outcome = await TryClaim(claim)
    await Rollback()
    match outcome:
        case Granted():
            return Verdict.NOTHING_REMAINS
        case Taken(record) if record.owner == claim.owner and record.state is State.COMPLETED:
            return Verdict.COMMITTED
        case _:
            return Verdict.UNKNOWN
