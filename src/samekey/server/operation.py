"""The operation as the handler sees it."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from samekey.core.model import Claim
from samekey.core.policy import RETENTION_SECONDS_MAX
from samekey.errors import ClaimLost

AfterCommit = Callable[[], None] | Callable[[], Awaitable[None]]
_current: ContextVar[Operation | None] = ContextVar("samekey_operation", default=None)
_STEP_NAMESPACE = uuid.UUID("6f0c1f5e-6a2b-5c53-9d53-0c1d0a4f9a11")  # fixed: derived keys must never change


class Operation:
    """What one request with (or without) a key may say about itself.

    In joined mode an answer that is not kept means that nothing happened: the
    change is rolled back with it and the key is free.
    """

    def __init__(self, claim: Claim | None = None, fence: int = 0) -> None:
        self._claim = claim
        self._active = True
        self._after_commit: list[AfterCommit] = []
        self.fence = fence
        self.kept: bool | None = None
        self.keep_seconds: float | None = None

    @property
    def protected(self) -> bool:
        """Whether the request brought a key; without one it runs, and no record is made."""
        return self._claim is not None

    @property
    def key_id(self) -> str | None:
        """The record's id in hex, safe to log; None without a key."""
        return None if self._claim is None else self._claim.id.hex()

    def keep(self) -> None:
        """Store the answer whatever its status (below 500)."""
        self.kept = True

    def do_not_keep(self) -> None:
        """Do not store the answer: the change is rolled back and a retry runs again."""
        self.kept = False

    def keep_for(self, seconds: float) -> None:
        """Store the answer for ``seconds`` instead of the route's retention."""
        if not 0 < seconds <= RETENTION_SECONDS_MAX:
            raise ValueError("keep_for takes more than 0 and at most 365 days of seconds")
        self.kept, self.keep_seconds = True, seconds

    def nothing_happened(self) -> None:
        """Say that this attempt had no effect: it is undone, not stored, and the key is free."""
        self.kept = False

    def after_commit(self, function: AfterCommit) -> None:
        """Call ``function`` once after the real commit: never on a replay, never after a rollback.

        It runs in this process just after the commit. A crash between the two loses the
        call, so work that must not be lost belongs into the transaction (an outbox row).
        """
        self.check()
        self._after_commit.append(function)

    def key_for(self, step: str) -> str | None:
        """The key for a call downstream: the same for every retry of this operation; None without a key."""
        if self._claim is None:
            return None
        return str(uuid.uuid5(_STEP_NAMESPACE, f"{self._claim.id.hex()}:{step}"))

    def check(self) -> None:
        """Raise ClaimLost unless this operation still runs."""
        if not self._active:
            raise ClaimLost("this operation has been settled already")

    def settled(self) -> list[AfterCommit]:
        """Called by the adapter when the operation has ended: what to call after a commit."""
        self._active = False
        functions, self._after_commit = self._after_commit, []
        return functions


def current_operation() -> Operation | None:
    """The operation that the current task or thread is inside of; None outside of a protected route."""
    return _current.get()


def enter(operation: Operation) -> None:
    """Make ``operation`` the current one for the rest of this request's context."""
    _current.set(operation)
