"""Which requests are "the same": every rule of the fingerprint, and the faults of others behind it."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from samekey.core.fingerprint import FINGERPRINT_VERSION, fingerprint
from samekey.core.policy import FingerprintRule

MEANING = FingerprintRule()
RAW = FingerprintRule(mode="raw")
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


def of(
    body: bytes | str,
    content_type: str | None = JSON,
    rule: FingerprintRule = MEANING,
    *,
    method: str = "POST",
    path: str | bytes = "/orders",
    query: bytes = b"",
) -> bytes:
    body = body.encode("utf-8") if isinstance(body, str) else body
    return fingerprint(method, path, query, content_type, body, rule).digest


def is_raw(body: bytes | str, content_type: str = JSON, rule: FingerprintRule = MEANING) -> bool:
    """Whether the body is compared as bytes: then the rule makes no difference."""
    return of(body, content_type, rule) == of(body, content_type, RAW)


# The request around the body


def test_version_and_digest_are_pinned() -> None:
    """Stored records hold these digests: when this test fails, FINGERPRINT_VERSION has to grow (BL-08)."""
    first = fingerprint("POST", "/orders", b"b=2&a=1", JSON, b'{"b":[1.50,"\\u0041"],"a":null}', MEANING)
    assert first.version == FINGERPRINT_VERSION == 1
    assert first.digest.hex() == "95d68bc839154bc6354343c904d1a1235dfaaa03e45eb20cb7a638d354d2cf2e"
    assert of(b"a=1&b=%20", FORM).hex() == "acf5efffcc93f027563e212536cfcb3a14bae03b6b5d92e3042fac357fb16864"
    assert (
        of(multipart("AAA"), "multipart/form-data; boundary=AAA").hex()
        == "ff1884c2e4b9fc605f5f222e7c08165ad5bee532edb718930088cb4525d3f3dc"
    )
    assert of(b"\x00\xff", None).hex() == "2a3742e2ad2247844122ef2a87b0e2a3e16d7578b59d2183641b9685c42bdb1b"


def test_method_path_and_media_type_count() -> None:
    base = of("{}")
    assert of("{}", method="PATCH") != base
    assert of("{}", path="/orders/1") != base
    assert of("{}", path=b"/orders") == base
    assert of("{}", "application/merge-patch+json") != base
    assert of("{}", None) != base


def test_parts_do_not_run_into_each_other() -> None:
    assert of("", None, method="POST", path="/a", query=b"b") != of("", None, method="POST", path="/ab")
    assert of("", None, method="POST/", path="a") != of("", None, method="POST", path="/a")


def test_media_type_parameters_and_case_do_not_count() -> None:
    assert (
        of("{}", "application/json; charset=utf-8")
        == of("{}", "Application/JSON")
        == of("{}", " application/json ")
    )
    assert of("x", "text/plain; charset=utf-8") == of("x", "TEXT/plain")


def test_query_counts_bl_08() -> None:
    assert of("{}", path="/x") != of("{}", path="/x", query=b"dry=1")


def test_order_of_different_names_in_the_query_does_not_count() -> None:
    assert of("", None, query=b"a=1&b=2&c=3") == of("", None, query=b"c=3&a=1&b=2")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"a=1&a=2", b"a=2&a=1"),
        (b"a=1&b=0&a=2", b"a=2&b=0&a=1"),
        (b"a[]=1&a%5B%5D=2", b"a%5B%5D=2&a[]=1"),  # one name, spelled twice
        (b"a=%ff", b"a=%fe"),
        (b"a=1%2B1", b"a=1+1"),
        (b"a", b"a="),
        (b"a=1", b"a=1&a=1"),
        (b"a=b%26c=d", b"a=b&c=d"),
    ],
)
def test_queries_that_differ(one: bytes, other: bytes) -> None:
    assert of("", None, query=one) != of("", None, query=other)


def test_no_body_and_an_empty_body_are_the_same() -> None:
    assert of(b"", None) == of(b"", "")


def test_kinds_never_collide() -> None:
    # A body that spells out another kind's canonical form is still of its own kind.
    assert of('[[0,"1e0"]]', JSON) != of("[1]", JSON)
    assert of(b"a=1", FORM) != of(b"a=1", FORM, RAW)
    assert of(b"[]", JSON) != of(b"[]", JSON, RAW)


# JSON by meaning


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":[{"x":1,"y":2}]}', '{ "b":[{"y":2,"x":1}], "a":1 }'),  # BL-01
        (r'"\u0041"', '"A"'),
        (r'"\ud83d\ude80"', '"\N{ROCKET}"'),
        (r'"\/"', '"/"'),
        ('{"\\u0061":1}', '{"a":1}'),
        ("1", "1.0"),
        ("1", "1e0"),
        ("1", "10e-1"),
        ("1", "1E+0"),
        ("100", "1e2"),
        ("-1500", "-1.5e3"),
        ("0.001", "1e-3"),
        ("0.10", "0.1"),
        ("0", "-0"),
        ("0", "0.0"),
        ("0", "-0.00e99999999999999999999"),
        ("1e1000", "10e999"),
        ("1e007", "1e7"),
        ("\r\n\t [ 1 , 2 ] ", "[1,2]"),
    ],
)
def test_json_of_equal_meaning_bl_01(one: str, other: str) -> None:
    assert one != other
    assert of(one) == of(other)
    assert of(f'{{"member": [{one}]}}') == of(f'{{"member":[{other}]}}')
    assert of(one, rule=RAW) != of(other, rule=RAW)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"amount":9007199254740993}', '{"amount":9007199254740992}'),  # BL-04
        ("9007199254740993.0", "9007199254740992.0"),  # BL-04
        ("0.1", "0.1000000000000000055511151231257827"),
        ("1e400", "1e500"),  # PP-05
        ("-1e400", "1e400"),
        ("1e-400", "0"),
        ('{"amt":1,"amt":900}', '{"amt":900}'),  # PP-05
        ('{"amt":1,"amt":900}', '{"amt":2,"amt":900}'),
        ('{"amt":1,"\\u0061mt":900}', '{"amt":900}'),
        ("[1,2]", "[2,1]"),
        ("[]", "{}"),
        ("1", '"1"'),
        ("1", "true"),
        ("0", "false"),
        ("null", '"null"'),
        ('{"a":null}', "{}"),
        ("[[]]", "[]"),
        ("[[1],2]", "[[1,2]]"),
        ("1", "-1"),
        ("12", "1.2"),
        ("10", "1"),
        ('"\u00e9"', '"e\u0301"'),  # no Unicode normalisation
        ('"a"', '"A"'),
        ('["a\\",\\"b"]', '["a","b"]'),
        ('[0,"1e0"]', "1"),
        ('[0,"0e0"]', "0"),
        ('{"a":[0,"1e0"]}', '{"a":1}'),
        ("NaN", '"NaN"'),
        ("[NaN]", "[Infinity]"),
        ("[NaN]", "[ NaN]"),
        (r'"\ud800"', r'"\ud801"'),
        ('"\ufeff"', '""'),
    ],
)
def test_json_of_different_meaning_bl_04_pp_05(one: str, other: str) -> None:
    assert of(one) != of(other)


@pytest.mark.parametrize(
    "body",
    [
        b'{"amt":1,"amt":900}',
        b'[{"a":1,"\\u0061":1}]',
        rb'"\ud800"',
        rb'{"\udc00":1}',
        rb'"\ude80\ud83d"',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"NaN",
        b"[-Infinity]",
        b"[1,]",
        b'{"a":1',
        b"{} {}",
        b"01",
        b"1.",
        b"+1",
        b"'a'",
        b'"a\tb"',
        b'"\\x"',
        b"",
        b"[" * 65 + b"]" * 65,
        b'{"a":' * 65 + b"1" + b"}" * 65,
    ],
)
def test_doubtful_json_is_compared_as_bytes_pp_05_pp_06(body: bytes) -> None:
    assert is_raw(body)
    assert of(body) != of(body + b" ")


def test_depth_counts_outside_of_strings_only() -> None:
    deepest = "[" * 64 + "]" * 64
    assert of(deepest) == of(deepest + " ")
    wide = json.dumps(["[{" * 100, 'quote " [[[', "backslash \\", "[[" * 50] + [[]] * 200)
    assert of(wide) == of(wide + " ")


@given(st.recursive(st.text(alphabet='[]{}"\\u n', max_size=8), lambda inner: st.lists(inner, max_size=3)))
def test_brackets_in_strings_never_make_json_deep(value: Any) -> None:
    text = json.dumps([value, "[" * 70])
    assert not is_raw(text)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 20_000 + b"]" * 20_000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'[{"a":' * 20_000 + b"1" + b"}]" * 20_000,
        b'"' + b'\\"' * 100_000,
        b'"' * 100_001,
        b"1e" + b"9" * 100_000,
        b"1" * 100_000,
        b"-0." + b"0" * 100_000 + b"1",
        b"1e999999999",
        b"-1e-" + b"1" * 5_000,
    ],
)
def test_hostile_json_is_quick_and_never_raises_pp_06(body: bytes) -> None:
    started = time.process_time()
    assert of(body) == of(body)
    assert of(body) != of(body[:-1] + b"7")
    assert time.process_time() - started < 0.5  # milliseconds in fact; a quadratic reading takes minutes


def test_fingerprint_does_not_depend_on_the_depth_of_the_callers_stack() -> None:
    body = "[" * 64 + "]" * 64
    there: list[bytes] = []

    def call(levels: int) -> None:
        if levels:
            call(levels - 1)
        else:
            there.append(of(body))

    call(sys.getrecursionlimit() // 2)
    assert there == [of(body)]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("1e" + "9" * 5_000, "1.0e" + "9" * 5_000, True),
        ("1e" + "9" * 5_000, "1e+000" + "9" * 5_000, True),
        ("1e" + "9" * 5_000, "1e" + "9" * 4_999 + "8", False),
        ("1e" + "9" * 5_000, "1e-" + "9" * 5_000, False),
        ("1e" + "9" * 5_000, "12e" + "9" * 5_000, False),
        ("1e" + "0" * 5_000 + "1", "10", True),
        ("1e999999999999999999", "0.1e1000000000000000000", False),  # beyond 18 digits: as written
    ],
)
def test_exponents_of_thousands_of_digits(one: str, other: str, equal: bool) -> None:
    assert (of(one) == of(other)) is equal


@pytest.mark.parametrize(
    "media_type", ["application/vnd.api+json", "application/problem+json", "APPLICATION/x+JSON"]
)
def test_any_json_suffix_is_json_pp_07(media_type: str) -> None:
    assert of('{"a":1,"b":2}', media_type) == of('{"b":2, "a":1.0}', f"{media_type}; v=1")


@pytest.mark.parametrize(
    "media_type", [None, "text/plain", "application/jsonx", "application/json-seq", "json"]
)
def test_other_types_are_compared_as_bytes(media_type: str | None) -> None:
    assert of('{"a":1,"b":2}', media_type) != of('{"b":2,"a":1}', media_type)


def test_raw_mode_compares_bytes() -> None:
    assert of('{"a":1}', rule=RAW) == of('{"a":1}', rule=RAW)
    assert of('{"a":1}', rule=RAW) != of('{"a": 1}', rule=RAW)


def test_what_a_handler_does_to_the_parsed_body_does_not_count_bl_05() -> None:
    body = b'{"items":[1,2]}'
    before = of(body)
    parsed = json.loads(body)
    parsed["items"].pop()
    assert of(body) == before


numbers = st.integers() | st.decimals(allow_nan=False, allow_infinity=False).map(float).filter(
    lambda x: x * 0 == 0
)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('ab01\\"é', max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def rewritten(value: Any, rng: random.Random) -> str:
    """The value as JSON with members shuffled, white space and escapes at random."""
    blank = rng.choice(["", " ", "\n\t"])
    if isinstance(value, dict):
        members = [f"{rewritten(name, rng)}:{rewritten(member, rng)}" for name, member in value.items()]
        rng.shuffle(members)
        return blank + "{" + f",{blank}".join(members) + "}" + blank
    if isinstance(value, list):
        return "[" + blank + f"{blank},".join(rewritten(element, rng) for element in value) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return rng.choice([f"{value}", f"{value}.0", f"{value}e0", f"{value}0E-1", f"{value}.00e+0"]) + blank
    return json.dumps(value, ensure_ascii=rng.choice([True, False])) + blank


def plain(value: Any) -> Any:
    """The value with its types visible to ==, which takes 1, 1.0 and True for equal."""
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, float) and value.is_integer():
        return ("number", int(value))
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__,
        value,
    )


@given(values, st.randoms(use_true_random=False))
def test_json_written_in_another_way_is_the_same(value: Any, rng: random.Random) -> None:
    assert of(rewritten(value, rng)) == of(json.dumps(value))
    assert not is_raw(json.dumps(value))


@given(values, values)
@example([1], [True])
@example({"a": []}, {"a": {}})
@example([[], [1]], [[1], []])
@example(10, 1)
@example("1", 1)
def test_json_that_differs_is_different(one: Any, other: Any) -> None:
    assume(plain(one) != plain(other))
    assert of(json.dumps(one)) != of(json.dumps(other))


@given(values, st.integers(0, 10), st.randoms(use_true_random=False))
def test_a_near_miss_is_different(value: Any, place: int, rng: random.Random) -> None:
    text = json.dumps(value)
    at = place % len(text)
    changed = text[:at] + rng.choice('0123[]{}",:x') + text[at + 1 :]
    try:
        meant = json.loads(changed)
    except ValueError:
        meant = None
    assume(changed != text and (meant is None or plain(meant) != plain(value)))
    assert of(changed) != of(text)


# Choosing fields


def test_chosen_fields_make_json_rpc_retries_equal_bl_02() -> None:
    one = '{"jsonrpc":"2.0","id":1,"method":"pay","params":{"amount":5,"_meta":{"at":"10:00"}}}'
    other = '{"jsonrpc":"2.0","id":2,"method":"pay","params":{"amount":5,"_meta":{"at":"10:05"}}}'
    changed = one.replace('"amount":5', '"amount":6')
    exclude = FingerprintRule(exclude=("id", "params._meta"))
    include = FingerprintRule(include=("method", "params.amount"))
    assert of(one) != of(other)
    for rule in (exclude, include):
        assert of(one, rule=rule) == of(other, rule=rule)
        assert of(one, rule=rule) != of(changed, rule=rule)


@pytest.mark.parametrize(
    ("path", "one", "other", "equal"),
    [
        (
            "items.*.at",
            '{"items":[{"n":1,"at":5},{"n":2,"at":6}]}',
            '{"items":[{"n":1,"at":7},{"n":2}]}',
            True,
        ),
        ("items.*.at", '{"items":[{"n":1,"at":5}]}', '{"items":[{"n":2,"at":5}]}', False),
        ("items.0.at", '{"items":[{"at":5},{"at":6}]}', '{"items":[{"at":7},{"at":6}]}', True),
        ("items.0.at", '{"items":[{"at":5},{"at":6}]}', '{"items":[{"at":5},{"at":7}]}', False),
        ("*.id", '[{"id":1,"n":1}]', '[{"id":2,"n":1}]', True),
        ("*.id", '{"a":{"id":1}}', '{"a":{"id":2}}', True),
        ("id", '{"a":{"id":1}}', '{"a":{"id":2}}', False),
        ("a.b", '{"a":1}', '{"a":2}', False),
        ("a", '{"a":1}', "{}", True),
        ("a", '"a"', '"b"', False),
    ],
)
def test_excluded_paths(path: str, one: str, other: str, equal: bool) -> None:
    rule = FingerprintRule(exclude=(path,))
    assert (of(one, rule=rule) == of(other, rule=rule)) is equal


@pytest.mark.parametrize(
    ("path", "one", "other", "equal"),
    [
        ("card.number", '{"card":{"number":1,"at":5},"x":1}', '{"card":{"number":1}}', True),
        ("card.number", '{"card":{"number":1}}', '{"card":{"number":2}}', False),
        ("card.number", '{"card":{"number":1}}', '{"card":{"number":null}}', False),
        ("card", '{"card":{"a":1}}', '{"card":{"a":2}}', False),
        ("*.id", '[{"id":1,"n":1},{"id":2}]', '[{"id":1,"n":2},{"id":2}]', True),
        ("*.id", '[{"id":1},{"id":2}]', '[{"id":2},{"id":1}]', False),
        ("0", "[1,2]", "[1,3]", True),
        ("card", "[1]", "[2]", False),  # nothing found: the whole body counts
        ("card", '{"a":1}', '{"a":2}', False),
        ("card", '{"a":1,"b":2}', '{"b":2,"a":1}', True),
        ("card.number", '{"card":5}', '{"card":6}', False),
    ],
)
def test_included_paths(path: str, one: str, other: str, equal: bool) -> None:
    rule = FingerprintRule(include=(path,))
    assert (of(one, rule=rule) == of(other, rule=rule)) is equal


def test_unreadable_json_is_compared_whole_whatever_the_rule() -> None:
    rule = FingerprintRule(exclude=("a",))
    assert is_raw('{"a":1,"a":2}', rule=rule)
    assert of('{"a":1', rule=rule) != of('{"a":2', rule=rule)


def test_a_digest_of_chosen_fields_never_equals_one_of_the_whole_body() -> None:
    body = '{"a":1}'
    digests = {
        of(body),
        of(body, rule=FingerprintRule(include=("a",))),
        of(body, rule=FingerprintRule(include=("a", "b"))),
        of(body, rule=FingerprintRule(exclude=("b",))),
        of(body, rule=FingerprintRule(exclude=("b", "c"))),
    }
    assert len(digests) == 5
    assert of(body, rule=FingerprintRule(include=("b", "a"))) in digests


def test_chosen_fields_of_forms_and_multipart() -> None:
    for rule in (FingerprintRule(exclude=("nonce",)), FingerprintRule(include=("amount", "to"))):
        one = of(b"amount=5&nonce=1&to=A", FORM, rule)
        assert one == of(b"amount=5&nonce=2&to=A", FORM, rule)
        assert one != of(b"amount=6&nonce=1&to=A", FORM, rule)
        assert one != of(b"to=A&nonce=1&amount=5", FORM, rule)
        assert of(b"x=1", FORM, FingerprintRule(include=("amount",))) != of(
            b"x=2", FORM, FingerprintRule(include=("amount",))
        )
    content_type = "multipart/form-data; boundary=AAA"
    file_left_out = FingerprintRule(exclude=("file",))
    assert of(multipart("AAA", content=b"x"), content_type, file_left_out) == of(
        multipart("AAA", content=b"y"), content_type, file_left_out
    )
    assert of(multipart("AAA", note="x"), content_type, file_left_out) != of(
        multipart("AAA", note="y"), content_type, file_left_out
    )
    nameless = multipart("AAA").replace(b'name="note"', b"inline")
    assert is_raw(nameless, content_type, file_left_out)


# Forms


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (b"a=%ff", b"a=%fe", False),  # PP-05
        (b"to=A&to=B&amt=1&amt=9", b"to=B&to=A&amt=9&amt=1", False),  # PP-05
        (b"a=1&b=2", b"b=2&a=1", False),
        (b"a=b+c", b"a=b%20c", True),
        (b"a=%7e&%62=1", b"a=~&b=1", True),
        (b"a=b%2bc", b"a=b+c", False),
        (b"a=1%26b=2", b"a=1&b=2", False),
        (b"a=1%3D2", b"a=1=2", True),
        (b"a", b"a=", False),
        (b"a=1&&b=2", b"a=1&b=2", True),
        (b"a=%", b"a=%25", False),
        (b"a=%zz", b"a=%25zz", False),
        (b"a=\xff", b"a=%FF", True),
    ],
)
def test_forms_are_ordered_byte_pairs_pp_05(one: bytes, other: bytes, equal: bool) -> None:
    assert (of(one, FORM) == of(other, FORM)) is equal


def test_a_form_of_too_many_pairs_is_compared_as_bytes() -> None:
    assert not is_raw(b"&".join([b"a=1"] * 10_000), FORM)
    assert is_raw(b"&".join([b"a=1"] * 10_001), FORM)


# Multipart


def multipart(
    boundary: str,
    *,
    content: bytes = bytes(range(256)) * 4,
    note: str = "hello",
    filename: str = "a.bin",
    file_type: str = "application/octet-stream",
    type_first: bool = False,
) -> bytes:
    headers = [
        f'Content-Disposition: form-data; name="file"; filename="{filename}"',
        f"Content-Type: {file_type}",
    ]
    head = "\r\n".join(reversed(headers) if type_first else headers).encode()
    edge = f"--{boundary}".encode()
    return b"\r\n".join(
        [
            edge,
            b'Content-Disposition: form-data; name="note"',
            b"",
            note.encode(),
            edge,
            b'Content-Disposition: form-data; name="to"',
            b"",
            b"A",
            edge,
            head,
            b"",
            content,
            edge + b"--",
            b"",
        ]
    )


def test_boundary_and_order_of_part_headers_do_not_count_bl_03() -> None:
    one = of(multipart("AAA"), "multipart/form-data; boundary=AAA")
    assert one == of(multipart("BBB", type_first=True), 'multipart/form-data; boundary="BBB"')
    assert one == of(
        multipart("BBB").removesuffix(b"\r\n"), "Multipart/Form-Data;charset=utf-8; Boundary=BBB"
    )
    assert one == of(
        multipart("B").replace(b"Content-Type:", b"content-type: "), "multipart/form-data; boundary=B"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"content": bytes(range(256)) * 4 + b"\n"},
        {"content": b""},
        {"note": "hallo"},
        {"filename": "b.bin"},
        {"file_type": "image/png"},
    ],
)
def test_what_a_part_says_counts_bl_03(change: dict[str, Any]) -> None:
    content_type = "multipart/form-data; boundary=AAA"
    assert of(multipart("AAA", **change), content_type) != of(multipart("AAA"), content_type)


def test_name_and_order_of_parts_count_bl_03() -> None:
    content_type = "multipart/form-data; boundary=B"
    first = b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    second = b'--B\r\nContent-Disposition: form-data; name="b"\r\n\r\n1\r\n'
    assert of(first + second + b"--B--", content_type) != of(second + first + b"--B--", content_type)
    assert of(first + first + b"--B--", content_type) != of(first + second + b"--B--", content_type)
    assert of(first + b"--B--", content_type) != of(first + first + b"--B--", content_type)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"a=1",
        b"--B\r\n\r\n1\r\n",  # no end
        b"preamble\r\n--B\r\n\r\n1\r\n--B--",
        b"--B\r\n\r\n1\r\n--B--\r\nepilogue",
        b"--B \r\n\r\n1\r\n--B--",
        b"--B\n\n1\n--B--",
        b"--B\r\n\r\n1\r\n--Bx\r\n\r\n2\r\n--B--",
        b"--B\r\nno colon\r\n\r\n1\r\n--B--",
        b"--B\r\nA: 1\r\n folded\r\n\r\n1\r\n--B--",
        b"--B\r\nA: 1\nB: 2\r\n\r\n1\r\n--B--",
        b"--B\r\nA: 1\r\n--B--",  # no blank line
        b"--B\r\n--B--",
        b"--B\r\n\r\n1\r\n" * 1_001 + b"--B--",
    ],
)
def test_malformed_multipart_is_compared_as_bytes(body: bytes) -> None:
    assert is_raw(body, "multipart/form-data; boundary=B")


@pytest.mark.parametrize(
    "parameters",
    [
        "",
        "; boundary=",
        "; boundary=B; boundary=B",
        '; boundary="B',
        "; x; boundary=B",
        "; boundary=" + "B" * 71,
    ],
)
def test_multipart_without_one_clear_boundary_is_compared_as_bytes(parameters: str) -> None:
    assert is_raw(b"--B\r\n\r\n1\r\n--B--", f"multipart/form-data{parameters}")


def test_readable_multipart_is_not_raw() -> None:
    assert not is_raw(b"--B\r\n\r\n1\r\n--B--", "multipart/form-data; boundary=B")
    assert not is_raw(b"--B--", "multipart/mixed; boundary=B")
    assert not is_raw(b"--B\r\n\r\n1\r\n" * 999 + b"--B--", "multipart/form-data; boundary=B")


def test_raw_multipart_under_another_boundary_is_different() -> None:
    body = b"--A\r\n--B\r\n\r\n1"
    assert of(body, "multipart/form-data; boundary=A") != of(body, "multipart/form-data; boundary=B")


# Any bytes at all

TYPES = [
    None,
    "",
    JSON,
    "application/vnd.api+json",
    FORM,
    "multipart/form-data; boundary=B",
    "multipart/form-data",
    "text/plain; charset=\udcff",
]
RULES = [MEANING, RAW, FingerprintRule(include=("a", "*.b")), FingerprintRule(exclude=("a.*", "0"))]
bodies = (
    st.binary(max_size=60)
    | st.text('{}[]",:\\ud8019eE.+-truefalsn a', max_size=30).map(str.encode)
    | st.lists(
        st.sampled_from([b"--B", b"\r\n", b"--", b"a: b", b'Content-Disposition: x; name="a"', b"1"])
    ).map(b"".join)
    | st.text("ab=&+%f0", max_size=20).map(str.encode)
)


@given(
    one=bodies,
    other=bodies,
    content_type=st.sampled_from(TYPES),
    rule=st.sampled_from(RULES),
    query=st.binary(max_size=20),
    path=st.text(max_size=8),
)
def test_any_bytes_give_a_fingerprint(
    *, one: bytes, other: bytes, content_type: str | None, rule: FingerprintRule, query: bytes, path: str
) -> None:
    first = fingerprint("POST", path, query, content_type, one, rule)
    assert len(first.digest) == 32
    assert first == fingerprint("POST", path, query, content_type, one, rule)
    if rule is RAW and one != other:
        assert first != fingerprint("POST", path, query, content_type, other, rule)
