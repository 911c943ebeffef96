"""The record's primary key, and what a record knows of its own times."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samekey.core.model import Fingerprint, Record, State, record_id

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
RECORD = Record(
    id=bytes(32),
    state=State.COMPLETED,
    owner=bytes(16),
    fence=1,
    fingerprint=Fingerprint(1, b""),
    caller="",
    key_hint="",
    method="POST",
    path="/",
    now=NOW,
    created_at=NOW,
)
parts = st.tuples(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))


def test_the_id_is_the_sha_256_of_length_prefixed_parts() -> None:
    framed = b"\0\0\0\0\0\0\0\1a" + b"\0\0\0\0\0\0\0\2bc" + b"\0\0\0\0\0\0\0\3\xc3\xa9d"
    assert record_id("a", "bc", "éd") == hashlib.sha256(framed).digest()


def test_with_a_secret_the_id_is_an_hmac() -> None:
    framed = b"\0\0\0\0\0\0\0\0" + b"\0\0\0\0\0\0\0\1c" + b"\0\0\0\0\0\0\0\1k"
    assert record_id("", "c", "k", b"secret") == hmac.new(b"secret", framed, "sha256").digest()
    assert record_id("", "c", "k", b"secret") != record_id("", "c", "k")
    assert record_id("", "c", "k", b"secret") != record_id("", "c", "k", b"other")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("n", "a", "bc"), ("n", "ab", "c")),
        (("a", "b", "c"), ("ab", "", "c")),
        (("", "a", ""), ("a", "", "")),
        (("n", "caller", "K"), ("n", "caller", "k")),
        (("n", "caller", "k "), ("n", "caller", "k")),
        (("n", "é", "k"), ("n", "e\u0301", "k")),
    ],
)
def test_neighbours_have_different_ids(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert record_id(*one) != record_id(*other)


@given(parts, parts)
def test_equal_triples_and_only_they_have_equal_ids(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (record_id(*one) == record_id(*other)) is (one == other)


@given(st.text(min_size=1, max_size=300))
def test_the_id_has_32_bytes_and_never_the_key(key: str) -> None:
    id = record_id("orders", "shop", key)
    assert len(id) == 32
    assert id != key.encode("utf-8", "surrogatepass").ljust(32)[:32]


def test_a_lone_surrogate_has_an_id() -> None:
    assert record_id("", "\ud800", "k") != record_id("", "\udfff", "k")


@pytest.mark.parametrize(("seconds", "expired"), [(-1, True), (0, True), (0.000001, False), (1, False)])
def test_a_record_is_expired_by_the_stores_own_clock(seconds: float, expired: bool) -> None:
    assert replace(RECORD, expires_at=NOW + timedelta(seconds=seconds)).expired is expired


def test_a_record_without_expiry_never_expires() -> None:
    assert RECORD.expired is False
