"""Several statements in one trip to PostgreSQL, through psycopg's own wrapper of libpq.

psycopg sends BEGIN, each statement and COMMIT one after the other and waits for each; a claim and a
completion would cost five trips. Here they go out together, in libpq's pipeline mode (PostgreSQL
documentation, "Pipeline Mode"): if one fails, the server skips the rest. Between trips the
connection is psycopg's, in whatever state its server reports.

``Trips`` owns how a statement and its values travel; it knows nothing of what a statement means. A trip is a
generator that yields what it waits for, and two short runners wait: one in a thread, one on an event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import select
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

import psycopg
from psycopg import errors, pq

Rows = Sequence[Sequence[Any]]
Parameters = Mapping[str, Any]
Trip = Generator[Literal["readable", "writable"], None, list[Rows]]

_NAMED = re.compile(r"(?<![:\w]):([a-z_]+)")  # not a cast, and not a colon inside of a name
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # of PostgreSQL's binary timestamps
_MISSING_STATEMENT = "26000"


def is_supported(driver_connection: object) -> bool:
    """Whether this is psycopg's connection, on a libpq (14 or later) with a pipeline mode."""
    ours = isinstance(driver_connection, psycopg.Connection | psycopg.AsyncConnection)
    return ours and psycopg.Pipeline.is_supported()


class Trips:
    """One psycopg connection of either colour: what is prepared on it, and how it writes text."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._pgconn: pq.abc.PGconn = connection.pgconn
        self._encoding: str = connection.info.encoding
        self._prepared: set[bytes] = set()

    def begin(self) -> list[tuple[str, Parameters]]:
        """What psycopg would begin a transaction with; nothing where one is open, or in autocommit."""
        connection = self._connection
        if connection.autocommit or self._pgconn.transaction_status != pq.TransactionStatus.IDLE:
            return []
        words = ["BEGIN"]
        if connection.isolation_level is not None:
            level = psycopg.IsolationLevel(connection.isolation_level).name.replace("_", " ")
            words.append(f"ISOLATION LEVEL {level}")
        if connection.read_only is not None:
            words.append("READ ONLY" if connection.read_only else "READ WRITE")
        if connection.deferrable is not None:
            words.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
        return [(" ".join(words), {})]

    def run(self, statements: Sequence[tuple[str, Parameters]]) -> list[Rows]:
        """Make a trip, waiting in this thread; the rows of each statement."""
        return _wait(self._trip(statements), self._pgconn.socket)

    async def run_async(self, statements: Sequence[tuple[str, Parameters]]) -> list[Rows]:
        """Make a trip on the event loop. If that is cancelled, the connection must not be used again."""
        return await _wait_async(self._trip(statements), self._pgconn.socket)

    def _trip(self, statements: Sequence[tuple[str, Parameters]]) -> Trip:
        pgconn = self._pgconn
        pgconn.enter_pipeline_mode()
        sent: list[bytes | None] = []  # the name that is being prepared, or None for a statement
        for statement, parameters in statements:
            sent.extend(self._send(statement, parameters))
        pgconn.pipeline_sync()
        while pgconn.flush():
            yield "writable"
            pgconn.consume_input()  # a server that waits for its reader would not read on either
        results = []
        while True:
            while pgconn.is_busy():
                yield "readable"
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                if pgconn.status == pq.ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection broke on the way")
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                break
            results.append(result)
        pgconn.exit_pipeline_mode()
        return self._rows_of(sent, results)

    def _send(self, statement: str, parameters: Parameters) -> list[bytes | None]:
        text, names, name = _numbered(statement)
        values = [self._encoded(parameters[each]) for each in names]
        formats = [pq.Format.BINARY if isinstance(value, bytes) else pq.Format.TEXT for value in values]
        encoded = [value.encode(self._encoding) if isinstance(value, str) else value for value in values]
        if not names or self._connection.prepare_threshold is None:
            self._pgconn.send_query_params(
                text, encoded, param_formats=formats, result_format=pq.Format.BINARY
            )
            return [None]
        new = name not in self._prepared
        if new:
            self._pgconn.send_prepare(name, text)
        self._pgconn.send_query_prepared(name, encoded, formats, pq.Format.BINARY)
        return [name, None] if new else [None]

    @staticmethod
    def _encoded(value: Any) -> bytes | str | None:
        match value:
            case None | bytes() | str():
                return value
            case [*items]:
                return _array(items)
            case _:
                return str(value)

    def _rows_of(self, sent: Sequence[bytes | None], results: Sequence[pq.abc.PGresult]) -> list[Rows]:
        rows: list[Rows] = []
        for name, result in zip(sent, results, strict=True):
            if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
                raise self._error(result)
            if name is None:
                rows.append(_rows(result, self._encoding))
            else:
                self._prepared.add(name)
        return rows

    def _error(self, result: pq.abc.PGresult) -> psycopg.Error:
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode("ascii", "replace")
        if state == _MISSING_STATEMENT:  # somebody deallocated what was prepared
            self._prepared.clear()
        message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(
            self._encoding, "replace"
        )
        kind: type[psycopg.Error] = psycopg.DatabaseError
        with suppress(KeyError):
            kind = errors.lookup(state)
        return kind(message)


def _wait(trip: Trip, socket: int) -> list[Rows]:
    poll = select.poll()
    try:
        while True:
            poll.register(
                socket, select.POLLIN if next(trip) == "readable" else select.POLLIN | select.POLLOUT
            )
            poll.poll()
    except StopIteration as stop:
        rows: list[Rows] = stop.value
        return rows


async def _wait_async(trip: Trip, socket: int) -> list[Rows]:
    loop = asyncio.get_running_loop()
    try:
        while True:
            writing = next(trip) == "writable"
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(socket, _wake, ready)
            if writing:
                loop.add_writer(socket, _wake, ready)
            try:
                await ready
            finally:
                loop.remove_reader(socket)
                if writing:
                    loop.remove_writer(socket)
    except StopIteration as stop:
        rows: list[Rows] = stop.value
        return rows


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


@lru_cache(maxsize=256)
def _numbered(statement: str) -> tuple[bytes, tuple[str, ...], bytes]:
    """The text with ``$1``-style parameters, their names in order, and a name to prepare it under."""
    names: dict[str, int] = {}
    text = _NAMED.sub(lambda found: f"${names.setdefault(found[1], len(names) + 1)}", statement).encode()
    return text, tuple(names), b"samekey_" + hashlib.sha256(text).hexdigest()[:16].encode()


def _array(items: Sequence[bytes]) -> bytes:
    """A bytea[] in PostgreSQL's binary form: dimensions, flags, element type, length, lower bound, items."""
    head = (1).to_bytes(4) + bytes(4) + _BYTEA.to_bytes(4) + len(items).to_bytes(4) + (1).to_bytes(4)
    return head + b"".join(len(item).to_bytes(4) + item for item in items)


def _integer(value: bytes) -> int:
    return int.from_bytes(value, signed=True)


def _moment(value: bytes) -> datetime:
    return _EPOCH + timedelta(microseconds=int.from_bytes(value, signed=True))


# pg_type's numbers; these are the types that our statements return.
_BYTEA = 17
_TEXTS = frozenset({25, 1043})  # text, varchar
_DECODERS: Mapping[int, Callable[[bytes], Any]] = {
    16: lambda value: value == b"\x01",  # bool
    _BYTEA: bytes,
    20: _integer,  # int8, int2, int4
    21: _integer,
    23: _integer,
    1184: _moment,  # timestamptz
}


def _rows(result: pq.abc.PGresult, encoding: str) -> Rows:
    columns = range(result.nfields)
    decoders = [_decoder(result.ftype(column), encoding) for column in columns]
    return [
        [_decoded(decoders[column], result.get_value(row, column)) for column in columns]
        for row in range(result.ntuples)
    ]


def _decoded(decoder: Callable[[bytes], Any], value: bytes | None) -> Any:
    return None if value is None else decoder(value)


def _decoder(oid: int, encoding: str) -> Callable[[bytes], Any]:
    return (lambda value: value.decode(encoding)) if oid in _TEXTS else _DECODERS[oid]
