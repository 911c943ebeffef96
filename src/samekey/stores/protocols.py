"""What the engine asks of a store: two small protocols in two colours.

A store performs the steps that stand alone (find, hold, search, forget, purge,
schema); a transaction performs open, try-claim, complete, commit and roll back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from samekey.core.ops import Step

SCHEMA_VERSION = 1
HELD_DAYS = 90  # a held record does not lapse with retention: somebody has to look at it first


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store declares of itself; a declared capability that fails is a failure."""

    transactional: bool
    """Claim, business change and answer can be one transaction."""
    server_clock: bool
    """Times are judged by the store's own clock, not by the application's."""
    single_writer: bool
    """Only one transaction writes at a time, so writers queue in a gate before they begin."""
    makes_tables: bool
    """The table may be created without being asked, because nobody else administers the database."""


class Transaction(Protocol):
    """One operation's transaction. Nothing is visible to others until Commit."""

    def perform(self, step: Step[Any]) -> Any: ...

    def abandon(self, *, discard: bool = False) -> None:
        """Roll back if still open and give the connection back clean. Never raises.

        ``discard`` closes the connection instead, for when its state cannot be trusted.
        """


class Store(Protocol):
    """A store for sync code; safe to use from several threads."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def reads_without_waiting(self) -> bool:
        """Whether ``read`` never waits, so that it may be called on an event loop."""
        ...

    def perform(self, step: Step[Any]) -> Any: ...

    def read(self, step: Step[Any]) -> Any:
        """As ``perform``, at the least cost for a Find: what most retries need is one read."""

    def transaction(self) -> Transaction: ...


class AsyncTransaction(Protocol):
    """As Transaction, for one event loop."""

    async def perform(self, step: Step[Any]) -> Any: ...

    async def abandon(self, *, discard: bool = False) -> None:
        """As Transaction.abandon."""


class AsyncStore(Protocol):
    """As Store, for one event loop."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def perform(self, step: Step[Any]) -> Any: ...

    async def read(self, step: Step[Any]) -> Any:
        """As Store.read."""

    def transaction(self) -> AsyncTransaction: ...
