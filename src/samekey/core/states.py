"""The states of a record and every legal change between them, as one table.

Everything that affects a state change lives here; who makes the change, and the
conditions on owner, fence and time, belong to the stores. The diagram in the
documentation is drawn from this table, so the picture cannot lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from samekey.core.model import State


class Verb(StrEnum):
    """What a store does to a record; every verb is conditional and atomic."""

    CLAIM = "claim"
    COMPLETE = "complete"
    ROLL_BACK = "roll back"
    RENEW = "renew"
    RELEASE = "release"
    TAKE_OVER = "take over"
    HOLD = "hold"
    PURGE = "purge"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table. ``before``/``after`` None means that no record exists."""

    before: State | None
    verb: Verb
    after: State | None
    condition: str


TRANSITIONS = (
    Transition(None, Verb.CLAIM, State.RUNNING, "no record"),
    Transition(State.COMPLETED, Verb.CLAIM, State.RUNNING, "retention is over"),
    Transition(State.HELD, Verb.CLAIM, State.RUNNING, "held_days are over"),
    Transition(State.RUNNING, Verb.COMPLETE, State.COMPLETED, "same owner and fence"),
    Transition(State.RUNNING, Verb.ROLL_BACK, None, "joined: handler failed or its process died"),
    Transition(State.RUNNING, Verb.RENEW, State.RUNNING, "leased: same owner and fence"),
    Transition(State.RUNNING, Verb.RELEASE, None, "leased: same owner and fence"),
    Transition(State.RUNNING, Verb.TAKE_OVER, State.RUNNING, "leased: the lease has lapsed"),
    Transition(State.RUNNING, Verb.HOLD, State.HELD, "outcome cannot be known"),
    Transition(State.RUNNING, Verb.CLAIM, State.RUNNING, "lease and retention are over"),
    Transition(State.RUNNING, Verb.PURGE, None, "lease and retention are over"),
    Transition(State.COMPLETED, Verb.PURGE, None, "retention is over"),
    Transition(State.HELD, Verb.PURGE, None, "held_days are over"),
    Transition(State.RUNNING, Verb.FORGET, None, "an operator said so"),
    Transition(State.COMPLETED, Verb.FORGET, None, "an operator said so"),
    Transition(State.HELD, Verb.FORGET, None, "an operator said so"),
)

_TABLE = {(row.before, row.verb): row.after for row in TRANSITIONS}


class IllegalTransition(ValueError):
    """A verb was applied to a state that does not have it; nothing was changed."""


def after(state: State | None, verb: Verb) -> State | None:
    """The state that ``verb`` leads to, or IllegalTransition."""
    try:
        return _TABLE[state, verb]
    except KeyError:
        name = "no record" if state is None else state
        raise IllegalTransition(f"cannot {verb} a record that is {name}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for row in TRANSITIONS:
        before, end = row.before or "[*]", row.after or "[*]"
        lines.append(f"    {before} --> {end}: {row.verb} ({row.condition})")
    return "\n".join(lines) + "\n"
