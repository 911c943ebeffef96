"""The key on the wire: quoted and bare forms, the header twice (BL-53), odd bytes (BL-54)."""

from __future__ import annotations

import http_sf
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from samekey.core.policy import Policy
from samekey.errors import InvalidKey
from samekey.http.header import read_key, write_key

LENIENT = Policy()
STRICT = Policy(strict_header=True)

VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255)


def refused(*values: bytes, policy: Policy = LENIENT) -> str:
    with pytest.raises(InvalidKey) as caught:
        read_key(values, policy)
    return caught.value.reason


def parsed_item(value: bytes) -> object:
    """The item by another library's reading, without its parameters."""
    parsed = http_sf.parse(value, tltype="item")
    assert isinstance(parsed, tuple)
    return parsed[0]


def test_no_header_is_no_key() -> None:
    assert read_key([], LENIENT) is None
    assert read_key([], STRICT) is None


@pytest.mark.parametrize(
    "value", [b"order-77", b'"order-77"', b"  order-77\t", b'\t"order-77"  ', b'"order-77";a=1;b']
)
def test_quoted_and_bare_are_one_key(value: bytes) -> None:
    assert read_key([value], LENIENT) == "order-77"


def test_strict_header_takes_the_quoted_form_only() -> None:
    assert read_key([b'"order-77"'], STRICT) == "order-77"
    assert refused(b"order-77", policy=STRICT) == (
        'the key is not in double quotes (RFC 9651, section 3.3.3), as in "…"'
    )


def test_header_twice_is_refused_bl_53() -> None:
    expected = "the Idempotency-Key header was sent 2 times; send it once"
    assert refused(b"order-77", b"order-77") == expected
    assert refused(b'"order-77"', b'"order-77"', policy=STRICT) == expected
    assert refused(b"", b"") == expected
    assert refused(b"a", b"b", policy=Policy(header="X-Request-Key")) == (
        "the X-Request-Key header was sent 2 times; send it once"
    )


@pytest.mark.parametrize("value", [b"order-77,order-77", b"order-77, order-77", b"order-77,", b","])
def test_lines_joined_by_a_proxy_are_refused_bl_53(value: bytes) -> None:
    assert refused(value) == (
        "the key holds a comma: the header was sent twice, or the key needs double quotes"
    )


@pytest.mark.parametrize("value", [b'"order-77","order-77"', b'"order-77", "order-77"', b'"order-77",'])
def test_quoted_lines_joined_by_a_proxy_are_refused_bl_53(value: bytes) -> None:
    assert "malformed" in refused(value)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"k" * 255, "k" * 255),
        (b'"' + b"k" * 255 + b'"', "k" * 255),
        (b'"' + b'\\"' * 255 + b'"', '"' * 255),  # the limit counts the key, not its spelling
        (b"a:b", "a:b"),
        (b"../x", "../x"),
        (b"'q'", "'q'"),
        (rb"a\b", "a\\b"),
        (rb'"a\\b\"c"', 'a\\b"c'),
        (b'"a,b"', "a,b"),
        (b"a;b=c", "a;b=c"),
    ],
)
def test_odd_but_valid_keys_bl_54(value: bytes, key: str) -> None:
    assert read_key([value], LENIENT) == key


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"k" * 256, "the key has 256 characters"),
        (b'"' + b"k" * 256 + b'"', "the key has 256 characters"),
        ("\N{ROCKET}".encode() * 128, "the key has 512 characters"),
        ("\N{ROCKET}".encode() * 32, "outside ASCII"),
        (b"", "the key is empty"),
        (b" \t ", "the key is empty"),
        (b'""', "the key is empty"),
        (b'"   "', "holds a blank"),
        (b"order\t77", "control character"),
        (b"order-77\r", "control character"),
        (b"order-77\n", "control character"),
        (b"\norder-77", "control character"),
        (b"order\x0077", "control character"),
        (b"order\xff77", "outside ASCII"),
        (b"order 77", "holds a blank"),
        (b'"order 77"', "holds a blank"),
        (b'order"77', "holds a double quote"),
        (b'order-77"', "holds a double quote"),
        (b'"', "malformed"),
        (b'"order-77', "malformed"),
        (b'"order\x0977"', "malformed"),
        (b'"order\x0077"', "malformed"),
        (b'"order-77"\n', "malformed"),
        (b'"order\xc3\xa977"', "malformed"),
        (rb'"order\n77"', "malformed"),
        (b'"order-77\\"', "malformed"),
        (b'"order-77"x', "malformed"),
        (b'"order-77" ;a', "malformed"),
        (b'"order-77";', "malformed"),
        (b'"order-77";A=1', "malformed"),
        (b'"order-77";a=', "malformed"),
        (b'"order-77";a=(1)', "malformed"),
    ],
)
def test_malformed_keys_are_refused_and_never_repeated_bl_54(value: bytes, expected: str) -> None:
    reason = refused(value)
    assert expected in reason
    assert "order" not in reason
    assert "kk" not in reason


@pytest.mark.parametrize(
    "parameter",
    [
        b";a",
        b"; a",
        b";*a=-12;b=1.5;c=tok/en:x;d=?1",
        b';a="x\\"y"',
        b";a=:aGk=:",
        b";a=@1659578233",
        b';a=%"f%c3%bc"',
    ],
)
def test_parameters_of_every_type_are_passed_over(parameter: bytes) -> None:
    value = b'"order-77"' + parameter
    assert parsed_item(value) == "order-77"
    assert read_key([value], STRICT) == "order-77"


def test_the_policy_of_the_key_applies_to_both_forms() -> None:
    policy = Policy(key_format="uuid")
    assert "not a UUID" in refused(b"order-77", policy=policy)
    assert "not a UUID" in refused(b'"order-77"', policy=policy)


@given(VISIBLE)
def test_what_is_written_is_read_back(key: str) -> None:
    written = write_key(key)
    assert written == http_sf.ser(key)
    assert read_key([written.encode("ascii")], STRICT) == key


# The alphabet leaves out what opens byte sequences and display strings: their inner encoding is not checked.
@given(st.text(alphabet='"\\;= ,.-*?1aAz', max_size=24))
@example('a\\\\"')
@example('a";b="c')
def test_quoted_form_agrees_with_a_structured_fields_parser(tail: str) -> None:
    value = b'"' + tail.encode("ascii")
    try:
        key = parsed_item(value)
    except http_sf.StructuredFieldError:
        with pytest.raises(InvalidKey):
            read_key([value], LENIENT)
        return
    if isinstance(key, str) and key and " " not in key:
        assert read_key([value], LENIENT) == key
    else:
        with pytest.raises(InvalidKey):
            read_key([value], LENIENT)


@given(st.lists(st.binary(max_size=40), max_size=2))
def test_any_bytes_give_a_key_none_or_invalid_key(values: list[bytes]) -> None:
    try:
        key = read_key(values, LENIENT)
    except InvalidKey:
        return
    assert (key is None) == (values == [])
