"""Every exception samekey raises, in families by remedy.

This module owns the error tree and imports nothing. A message says what to do
next and never carries a raw key, a body or a credential.
"""

from __future__ import annotations


class SamekeyError(Exception):
    """Root of all samekey errors."""


class CallerError(SamekeyError):
    """The request is at fault: the client has to change it."""


class InvalidKey(CallerError):
    """The idempotency key is malformed; ``reason`` says how, without the key."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class BodyTooLarge(CallerError):
    """The request body is over ``body_bytes_max``; nothing ran."""

    def __init__(self, body_bytes_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        super().__init__(f"the request body is larger than {body_bytes_max} bytes")


class ConfigurationError(SamekeyError):
    """The set-up is unsafe or incomplete; samekey refuses to start with it."""


class SchemaError(ConfigurationError):
    """The store's table is missing or of another version than this release needs."""


class UnjoinedConnection(ConfigurationError):
    """Code inside a joined operation took a second connection, whose writes are not joined."""


class SessionSettled(ConfigurationError):
    """The joined session was used after its operation had been settled."""


class StoreError(SamekeyError):
    """The store could not do its part."""


class StoreUnavailable(StoreError):
    """The store did not answer, or refused work for now; retrying later may help."""


class StoreBusy(StoreUnavailable):
    """Another process holds the store's single writer; retrying soon will help."""


class TransactionConflict(StoreUnavailable):
    """The database broke a tie against us (serialisation failure, deadlock); a fresh transaction may win."""


class NotCommitted(StoreError):
    """The database refused the commit; nothing remains. ``retryable`` says whether a retry may help."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        self.retryable = retryable
        super().__init__(message)


class CommitUnknown(StoreError):
    """The connection broke during the commit: its outcome has to be looked up."""


class ClaimLost(StoreError):
    """The record is no longer ours (other owner or fence): our late result must not count."""


class JoinedBroken(StoreError):
    """The joined transaction was ended by the application; the record is held."""


class CorruptRecord(StoreError):
    """A stored record cannot be read back; it is never replayed and never run again unasked."""
