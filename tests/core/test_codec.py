"""Header pairs come back as they went in, and damaged ones are said to be damaged (BL-55, PP-15)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samekey.core.codec import decode_headers, encode_headers
from samekey.core.model import Headers
from samekey.errors import CorruptRecord

headers = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=8).map(tuple)


@given(headers)
def test_any_bytes_come_back(pairs: Headers) -> None:
    assert decode_headers(encode_headers(pairs)) == pairs


@pytest.mark.parametrize(
    "pairs",
    [
        (),
        ((b"", b""),),
        ((b"link", b"<a>"), (b"Link", b"<b>"), (b"link", b"<a>")),
        ((b"x-odd", bytes(range(256))),),
        ((b"x-text", 'é"\\\N{ROCKET}'.encode()),),
    ],
)
def test_order_repetition_and_odd_bytes_come_back(pairs: Headers) -> None:
    assert decode_headers(encode_headers(pairs)) == pairs


def test_the_stored_form_is_versioned_ascii() -> None:
    assert encode_headers(((b"a", b"\xff\0"),)) == b'1[["a","\\u00ff\\u0000"]]'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1",
        b"1[",
        b"1null",
        b"1{}",
        b"1{\"ab\":1}",
        b'1["ab"]',
        b'1[["a"]]',
        b'1[["a","b","c"]]',
        b'1[["a",1]]',
        b'1[[["a"],"b"]]',
        b'1[["a","\\u0100"]]',
        b'1[["a","\xff"]]',
        b"1" + '[["a","b"]]'.encode("utf-16"),
        b"1" + b"[" * 100_000,
    ],
)  # fmt: skip
def test_damage_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match=r"cannot be read back|damaged"):
        decode_headers(data)


@pytest.mark.parametrize("data", [b'2[["a","b"]]', b'[["a","b"]]', b" 1[]"])
def test_another_version_is_not_guessed_at(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="written by a newer release of samekey, or damaged"):
        decode_headers(data)


@given(st.binary(max_size=60))
def test_arbitrary_data_is_headers_or_corrupt(data: bytes) -> None:
    try:
        pairs = decode_headers(b"1" + data)
    except CorruptRecord:
        return
    assert decode_headers(encode_headers(pairs)) == pairs
