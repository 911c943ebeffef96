"""What operators ask: search and forget."""

from __future__ import annotations

from dataclasses import replace

from samekey.core.model import Granted, State
from samekey.core.ops import Find, Forget, Hold, Search
from tests.contract.moves import ANSWER, a_claim, committed_early, operate, outcome
from tests.contract.subjects import Subject


def names(store: Subject, search: Search) -> list[str]:
    return [record.key_hint for record in store.perform(search)]


def test_search_gives_the_newest_first_and_filters(store: Subject) -> None:
    operate(store, a_claim("a-1", caller="shop"))
    store.age(10)
    operate(store, a_claim("a-2", caller="mall"))
    store.age(10)
    operate(store, a_claim("b-1", caller="shop"))
    store.age(10)
    running = a_claim("r-1")
    committed_early(store, running)
    store.age(10)
    held = a_claim("h-1")
    committed_early(store, held)
    store.perform(Hold(held.id, held.owner))
    assert names(store, Search()) == ["h-1", "r-1", "b-1", "a-2", "a-1"]
    assert names(store, Search(limit=2)) == ["h-1", "r-1"]
    assert names(store, Search(caller="mall")) == ["a-2"]
    assert names(store, Search(state=State.COMPLETED)) == ["b-1", "a-2", "a-1"]
    assert names(store, Search(state=State.RUNNING)) == ["r-1"]
    assert names(store, Search(state=State.HELD)) == ["h-1"]
    assert names(store, Search(key_hint="a-")) == ["a-2", "a-1"]
    assert names(store, Search(key_hint="a-", caller="shop", state=State.COMPLETED)) == ["a-1"]
    assert names(store, Search(caller="nobody")) == []


def test_a_prefix_is_taken_literally(store: Subject) -> None:
    for name in ("a_b", "axb", "a%b", "A_b", "a\\b"):
        operate(store, a_claim(name))
    assert names(store, Search(key_hint="a_")) == ["a_b"]
    assert names(store, Search(key_hint="a%")) == ["a%b"]
    assert names(store, Search(key_hint="a\\")) == ["a\\b"]
    assert names(store, Search(key_hint="%")) == []


def test_search_reads_no_bodies(store: Subject) -> None:
    operate(store, a_claim())
    (record,) = store.perform(Search())
    assert record.answer == replace(ANSWER, body=None)


def test_forgetting_frees_the_key_whatever_its_state(store: Subject) -> None:
    completed, running, held = a_claim("completed"), a_claim("running"), a_claim("held")
    operate(store, completed)
    committed_early(store, running)
    committed_early(store, held)
    store.perform(Hold(held.id, held.owner))
    for claim in (completed, running, held):
        assert store.perform(Forget(claim.id)) is True
        assert store.perform(Forget(claim.id)) is False
        assert store.perform(Find(claim.id)) is None
        assert isinstance(outcome(store, claim), Granted)
