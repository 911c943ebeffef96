"""What the memory store is besides the model that others are compared with: a store for one process."""

from __future__ import annotations

from typing import Any

import pytest

from samekey.core.ops import Commit, Complete, CreateSchema, Find, Open, ReadSchemaVersion, Rollback, TryClaim
from samekey.errors import StoreError
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.stores.protocols import SCHEMA_VERSION
from tests.contract.moves import HOUR, a_claim, claimed, completion_of, operate, outcome
from tests.contract.subjects import memory_subject


def test_a_transaction_step_needs_a_transaction() -> None:
    with pytest.raises(TypeError, match="TryClaim needs a transaction"):
        MemoryStore().perform(TryClaim(a_claim()))


def test_a_step_that_stands_alone_is_none_of_a_transaction() -> None:
    transaction = MemoryStore().transaction()
    transaction.perform(Open())
    with pytest.raises(TypeError, match="CreateSchema is not a step of a transaction"):
        transaction.perform(CreateSchema())


@pytest.mark.parametrize("step", [Complete(completion_of(a_claim(), 1)), Commit(), Rollback()])
def test_a_transaction_has_to_be_opened(step: Any) -> None:
    with pytest.raises(StoreError, match="the transaction is not open"):
        MemoryStore().transaction().perform(step)


def test_there_is_no_table_to_make_or_to_miss() -> None:
    store = MemoryStore()
    assert store.perform(CreateSchema()) is None
    assert store.perform(ReadSchemaVersion()) == SCHEMA_VERSION


def test_lifetimes_are_judged_by_the_given_clock() -> None:
    store = memory_subject()
    operate(store, a_claim(), retention=HOUR)
    store.age(HOUR - 1)
    assert store.perform(Find(a_claim().id)) is not None
    store.age(1)
    assert store.perform(Find(a_claim().id)) is None


def test_fences_grow_although_the_clock_stands_still() -> None:
    store = memory_subject()
    fences = [operate(store, a_claim(f"order-{number}")) for number in range(3)]
    assert fences[1:] == [fences[0] + 1, fences[0] + 2]


def test_locks_are_gone_with_their_transactions() -> None:
    store = memory_subject()
    for number in range(100):
        transaction, _ = claimed(store, a_claim(f"order-{number}"))
        outcome(store, a_claim(f"order-{number}"))
        transaction.abandon()
    assert store.inner._locks == {}


async def test_both_colours_are_one_model() -> None:
    store = AsyncMemoryStore()
    assert store.capabilities == MemoryStore.capabilities
    transaction = store.transaction()
    await transaction.perform(Open())
    await transaction.perform(TryClaim(a_claim()))
    await transaction.abandon()
    assert await store.perform(Find(a_claim().id)) is None
