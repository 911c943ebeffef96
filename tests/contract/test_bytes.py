"""What goes in comes out, byte by byte; what is secret does not go in at all."""

from __future__ import annotations

import pytest

from samekey.core.model import Answer, Headers
from samekey.core.ops import Find
from tests.contract.moves import a_claim, found, operate
from tests.contract.subjects import TABLE, Subject, needs

BODIES: dict[str, bytes | None] = {
    "all": bytes(range(256)),
    "empty": b"",
    "not kept": None,
    "null": b"null",
    "nul": b'{"name": "\x00"}',
    "escaped nul": b'{"name": "\\u0000"}',
    "lone surrogate": b'"\xed\xa0\x80"',
    "not utf-8": b"\xff\xfe\x00",
    "1 MiB": bytes(range(256)) * 4096,
}
HEADERS: dict[str, Headers] = {
    "none": (),
    "ordered and repeated": ((b"link", b"<b>"), (b"a", b"1"), (b"Link", b"<a>"), (b"link", b"<b>")),
    "odd": ((b"x-odd", bytes(range(256))), (b"", b"")),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_body_comes_back_byte_by_byte_bl_46_bl_55(store: Subject, body: bytes | None) -> None:
    """BL-46: empty, null and "not kept" are three things. BL-55: bytes never pass through a text column."""
    claim = a_claim()
    operate(store, claim, Answer(200, (), body))
    assert found(store, claim).answer == Answer(200, (), body)


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS.keys())
def test_header_pairs_come_back_in_order(store: Subject, headers: Headers) -> None:
    claim = a_claim()
    operate(store, claim, Answer(200, headers, b""))
    assert found(store, claim).answer == Answer(200, headers, b"")


@pytest.mark.parametrize("status", [200, 204, 304, 422, 599])
def test_a_status_comes_back(store: Subject, status: int) -> None:
    claim = a_claim()
    operate(store, claim, Answer(status, (), None))
    assert found(store, claim).answer == Answer(status, (), None)


def test_no_record_is_not_an_empty_answer_bl_46(store: Subject) -> None:
    assert store.perform(Find(a_claim().id)) is None


@needs("table")
def test_the_key_itself_is_in_no_column(store: Subject) -> None:
    key = "order-4711-of-a-customer-who-must-not-be-recognised"
    operate(store, a_claim(key))
    (row,) = store.sql(f"SELECT * FROM {TABLE}")
    stored = b"\0".join(
        value if isinstance(value, bytes) else str(value).encode() for value in row if value is not None
    )
    assert b"order-" in stored  # the hint, so this is the right row
    assert b"4711-of" not in stored  # with letters, which no time or fence can have by chance
