"""The table of states: every pair of state and verb, written out, and the picture drawn from it."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from samekey.core.model import State
from samekey.core.states import TRANSITIONS, IllegalTransition, Verb, after, diagram

PAGE = Path(__file__).parents[2] / "docs" / "states.md"

# Written out by hand, so that a change of the table is a change of this test.
LEGAL = {
    (None, Verb.CLAIM): State.RUNNING,
    (State.COMPLETED, Verb.CLAIM): State.RUNNING,
    (State.HELD, Verb.CLAIM): State.RUNNING,
    (State.RUNNING, Verb.CLAIM): State.RUNNING,
    (State.RUNNING, Verb.COMPLETE): State.COMPLETED,
    (State.RUNNING, Verb.ROLL_BACK): None,
    (State.RUNNING, Verb.RENEW): State.RUNNING,
    (State.RUNNING, Verb.RELEASE): None,
    (State.RUNNING, Verb.TAKE_OVER): State.RUNNING,
    (State.RUNNING, Verb.HOLD): State.HELD,
    (State.RUNNING, Verb.PURGE): None,
    (State.COMPLETED, Verb.PURGE): None,
    (State.HELD, Verb.PURGE): None,
    (State.RUNNING, Verb.FORGET): None,
    (State.COMPLETED, Verb.FORGET): None,
    (State.HELD, Verb.FORGET): None,
}
PAIRS = list(product([None, *State], Verb))


@pytest.mark.parametrize(("state", "verb"), [pair for pair in PAIRS if pair in LEGAL])
def test_a_legal_verb_leads_where_the_table_says(state: State | None, verb: Verb) -> None:
    assert after(state, verb) is LEGAL[state, verb]


@pytest.mark.parametrize(("state", "verb"), [pair for pair in PAIRS if pair not in LEGAL])
def test_every_other_verb_is_refused_and_names_both(state: State | None, verb: Verb) -> None:
    with pytest.raises(IllegalTransition) as caught:
        after(state, verb)
    name = "no record" if state is None else state.value
    assert str(caught.value) == f"cannot {verb.value} a record that is {name}"


def test_no_pair_has_two_rows() -> None:
    pairs = [(row.before, row.verb) for row in TRANSITIONS]
    assert len(pairs) == len(set(pairs))


def test_every_row_says_under_which_condition() -> None:
    assert [row for row in TRANSITIONS if not row.condition] == []


def test_every_state_can_be_entered_and_left() -> None:
    assert {row.after for row in TRANSITIONS} >= set(State)
    assert {row.before for row in TRANSITIONS} >= set(State)


def test_the_diagram_draws_each_row_once() -> None:
    first, *rows = diagram().splitlines()
    assert first == "stateDiagram-v2"
    assert rows[0] == "    [*] --> running: claim (no record)"
    assert len(rows) == len(TRANSITIONS)


def test_the_page_shows_the_diagram_of_the_table() -> None:
    """Drawn anew with: python -c 'from samekey.core.states import diagram; print(diagram(), end="")'."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"<!-- states: begin -->\n```mermaid\n(.*?)```\n<!-- states: end -->", text, re.DOTALL)
    assert found == [diagram()]
