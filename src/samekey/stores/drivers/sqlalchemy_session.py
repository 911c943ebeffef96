"""The joined session and the guards around it.

The application's session works on the joined connection, inside a savepoint that
is opened after the claim: its ``commit()`` ends a savepoint, its ``rollback()``
never reaches the claim. The real commit comes later, together with the answer.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.orm import Session

from samekey.core.model import Claim, Fingerprint
from samekey.errors import ConfigurationError, JoinedBroken, SessionSettled, UnjoinedConnection
from samekey.run import run
from samekey.stores.drivers.sqlalchemy import OWNED, dialect_for, joined_now
from samekey.stores.drivers.sqlalchemy_errors import statement_errors
from samekey.stores.drivers.statements import Parameters, Rows, performing
from samekey.stores.sql import plans

_log = logging.getLogger("samekey")
_unjoined: ContextVar[bool] = ContextVar("samekey_unjoined", default=False)
JOIN_MODE = "create_savepoint"
# Statements that would end the joined transaction or begin another; savepoints are the session's own.
_ENDS = re.compile(
    r"(\s|;|--[^\n]*|/\*.*?\*/)*"
    r"(BEGIN|START|COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(WORK\s+|TRANSACTION\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)


class HeldBack:
    """Stands in for a session's ``after_commit`` listeners: notes the call, and takes on new ones."""

    def __init__(self, dispatch: Any) -> None:
        self._dispatch = dispatch
        self.called = False

    def __call__(self, _: Session) -> None:
        self.called = True

    def for_modify(self, _: Any) -> Any:
        """What ``event.listen`` adds a listener of this one session to."""
        return self._dispatch.after_commit.for_modify(self._dispatch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatch.after_commit, name)


class SessionCommit:
    """Holds back a session's ``after_commit`` event until the real commit."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._dispatch = session.dispatch
        self.after_commit = HeldBack(self._dispatch)
        # SQLAlchemy looks listeners up through this attribute, also those of the class.
        session.__dict__["dispatch"] = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatch, name)

    def release(self) -> None:
        """The real commit happened: call the listeners once, if the session committed at all."""
        self._session.__dict__["dispatch"] = self._dispatch
        if not self.after_commit.called:
            return
        for listener in list(self._dispatch.after_commit):
            try:
                listener(self._session)
            except Exception:  # noqa: BLE001
                # The answer is committed and must be sent; a listener cannot take that back.
                _log.exception("an after_commit listener failed after the commit")


def settle(session: Session, *, keep: bool) -> None:
    """End the session's savepoint and let nothing use the session any more.

    ``keep``: flush and keep what was not committed yet; else undo it. What the
    application committed itself stays either way, inside the joined transaction.
    """
    try:
        if keep:
            session.commit()
        else:
            session.rollback()
    finally:
        poison(session)


def poison(session: Session) -> None:
    """Make every later use of the session an error that says what to open instead."""

    def refuse(*_: Any, **__: Any) -> Connection:
        raise SessionSettled(
            "this session was settled together with the answer; in a background task or a "
            "streaming generator open a session of your own"
        )

    session.expire_on_commit = False
    session.close()
    # Every statement and flush asks for its connection here.
    session.get_bind = refuse  # type: ignore[method-assign]
    session.bind = None


@contextmanager
def unjoined() -> Iterator[None]:
    """Inside, a second connection is on purpose: its writes are not part of the operation."""
    token = _unjoined.set(True)
    try:
        yield
    finally:
        _unjoined.reset(token)


def guard_engine(engine: Engine, *, strict: bool) -> None:
    """Watch the application's engine: only samekey ends a joined transaction, and a second
    connection inside a joined operation is refused (``strict``, and always on SQLite, where
    it would wait for itself) or logged."""
    refuse = strict or engine.dialect.name == "sqlite"

    def on_end(connection: Connection) -> None:
        if not connection.invalidated and OWNED in connection.info:
            raise JoinedBroken(
                "this connection belongs to a joined operation, which commits together with the "
                "answer; use commit() and rollback() of the session instead"
            )

    def on_statement(connection: Connection, _: Any, statement: str, *__: Any) -> None:
        if _ENDS.match(statement) and OWNED in connection.info:
            on_end(connection)

    def on_checkout(*_: Any) -> None:
        transaction = joined_now.get()
        if transaction is None or not transaction.is_open or _unjoined.get():
            return
        message = (
            "a second connection was taken inside a joined operation: what it writes is not "
            "joined, and survives when the operation rolls back. Use samekey.session, or "
            "samekey.unjoined() where you mean it"
        )
        if refuse:
            raise UnjoinedConnection(message)
        _log.warning(message)

    def on_invalidate(dbapi_connection: Any, *_: Any) -> None:
        # SQLite closes a connection with an open cursor only when that is collected, and until then its
        # transaction keeps the write lock. A cancelled task leaves such cursors in its traceback.
        with suppress(Exception):
            dbapi_connection.rollback()

    if engine.dialect.name == "sqlite":
        event.listen(engine.pool, "invalidate", on_invalidate)
    event.listen(engine, "commit", on_end)
    event.listen(engine, "rollback", on_end)
    event.listen(engine, "before_cursor_execute", on_statement)
    event.listen(engine.pool, "checkout", on_checkout)


def probe(connection: Connection, table: str, session: Session) -> bytes:
    """Write a record through ``session`` and commit it there; the id it would leave.

    The caller rolls the outer transaction back and looks: if the record is still
    there, the session's commit was real and the engine cannot be joined.
    """
    if session.get_bind() is not connection:
        # Not tried out: on SQLite the session would wait for the writer that is us.
        raise ConfigurationError(UNBOUND)
    dialect = dialect_for(connection.engine, table)
    claim = Claim(os.urandom(32), bytes(16), Fingerprint(0, b""), "", "", "", "")

    def execute(statement: str, parameters: Parameters) -> Rows:
        return session.connection().execute(text(statement), dict(parameters)).all()

    with statement_errors():
        run(plans.try_claim(dialect, claim), performing(execute))
        session.commit()
        session.close()
    return claim.id


UNBOUND = (
    "the sessions given to samekey do not use the connection they are bound to (bind=), so nothing "
    "they write would be joined; pass bind on to the session, and route nothing past it in get_bind()"
)
PROBE_FAILED = (
    "a commit of the application's session is real on this engine although samekey began the "
    "transaction, so claim and change would not be one; use an engine without AUTOCOMMIT and a "
    "plain session class"
)
