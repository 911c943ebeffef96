"""Which keys are accepted (BL-54), and what of a key is ever shown."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samekey.core.keys import check_key, key_hint, personal_kind
from samekey.core.policy import Policy
from samekey.errors import InvalidKey

ANY = Policy()
UUID_ONLY = Policy(key_format="uuid")
NOT_PERSONAL = Policy(refuse_personal_keys=True)


def reason(key: str, policy: Policy = ANY) -> str:
    with pytest.raises(InvalidKey) as caught:
        check_key(key, policy)
    assert not key or key not in str(caught.value)
    assert str(caught.value) == caught.value.reason
    return caught.value.reason


@pytest.mark.parametrize("key", ["Q", "k" * 255, "a:b", "../x", "'q'", '"q"', "a,b", "a\\b", "!", "~", "%00"])
def test_visible_ascii_is_accepted_as_it_stands_bl_54(key: str) -> None:
    assert check_key(key, ANY) == key


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", "the key is empty; send 1 to 255 visible ASCII characters"),
        ("k" * 256, "the key has 256 characters; send at most 255, a UUID for example"),
        ("\N{ROCKET}" * 128, "the key holds a blank, a control character or a character outside ASCII"),
        ("   ", "the key holds a blank, a control character or a character outside ASCII"),
        ("order 1", "the key holds a blank, a control character or a character outside ASCII"),
    ],
)
def test_other_keys_are_refused_with_a_reason_bl_54(key: str, expected: str) -> None:
    assert reason(key) == expected


@pytest.mark.parametrize(
    "character", ["\t", "\r", "\n", "\0", "\x1f", " ", "\x7f", "\x80", "\xa0", "é", "\ud800"]
)
def test_a_forbidden_character_is_refused_anywhere_bl_54(character: str) -> None:
    for key in (f"{character}order-1", f"order{character}1", f"order-1{character}"):
        assert "blank, a control character" in reason(key)


@given(st.text(max_size=300))
def test_a_key_is_accepted_exactly_when_short_and_visible_ascii(key: str) -> None:
    if 1 <= len(key) <= 255 and all(0x21 <= ord(character) <= 0x7E for character in key):
        assert check_key(key, ANY) == key
    else:
        with pytest.raises(InvalidKey):
            check_key(key, ANY)


@pytest.mark.parametrize(
    "key",
    [
        "8e03978e-40d5-43e8-bc93-6894a57f9324",
        "8E03978E-40D5-43E8-BC93-6894A57F9324",
        "00000000-0000-0000-0000-000000000000",
        "8e03978e-40d5-f3e8-0c93-6894a57f9324",  # no version, no variant
    ],
)
def test_uuid_shape_asks_for_no_version_bits(key: str) -> None:
    assert check_key(key, UUID_ONLY) == key


@pytest.mark.parametrize(
    "key",
    [
        "8e03978e40d543e8bc936894a57f9324",
        "{8e03978e-40d5-43e8-bc93-6894a57f9324}",
        "8e03978e-40d5-43e8-bc93-6894a57f9324x",
        "8e03978e-40d5-43e8-bc93-6894a57f932g",
        "order-77",
    ],
)
def test_other_shapes_are_no_uuid(key: str) -> None:
    assert reason(key, UUID_ONLY) == (
        "the key is not a UUID (8-4-4-4-12 hexadecimal digits), which this route asks for"
    )


def test_own_pattern_must_fit_the_whole_key() -> None:
    policy = Policy(key_pattern="ord_[0-9]{4}")
    assert check_key("ord_1234", policy) == "ord_1234"
    assert reason("ord_12345", policy) == "the key does not have the form that this route asks for"
    assert reason("xord_1234", policy) == "the key does not have the form that this route asks for"


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("jane.doe@example.com", "e-mail address"),
        ("order-7-jane.doe+shop@mail.example.co.uk-1", "e-mail address"),
        ("jane%40example.com", "e-mail address"),
        ("4111111111111111", "card number"),
        ("4111-1111-1111-1111", "card number"),
        ("4111.1111.1111.1111", "card number"),
        ("order-17-5555555555554444-1", "card number"),
        ("order_378282246310005", "card number"),
        ("4222222222222", "card number"),  # 13 digits
        ("6304000000000000000", "card number"),  # 19 digits
        ("+14155552671", "phone number"),
        ("order-+49-30-1234567", "phone number"),
        ("tel:%2B442071838750", "phone number"),
        ("(415)555-2671", "phone number"),
        ("415.555.2671", "phone number"),
    ],
)
def test_personal_data_is_refused_by_kind(key: str, kind: str) -> None:
    assert personal_kind(key) == kind
    assert check_key(key, ANY) == key
    assert reason(key, NOT_PERSONAL) == (
        f"the key seems to hold personal data ({kind}); send a random key instead"
    )


@pytest.mark.parametrize(
    "key",
    [
        "4111111111111112",  # check digit wrong
        "0000000000000000",  # passes the check digit, but no card starts with 0
        "424242424242",  # 12 digits
        "42424242424242424242",  # 20 digits
        "1700000000005",  # milliseconds since 1970
        "order-20240131-0000007",
        "a@b",
        "order-4155552671",
        "41111111-1111-1111-8111-aaaaaaaaaaaa",  # a UUID that begins like a valid card
        "order-4111-7",
        "a+1234567",
    ],
)
def test_business_keys_are_not_personal(key: str) -> None:
    assert personal_kind(key) is None
    assert check_key(key, NOT_PERSONAL) == key


@given(st.uuids())
def test_no_uuid_is_personal(value: uuid.UUID) -> None:
    assert personal_kind(str(value)) is None
    assert personal_kind(f"order-{value}-2") is None


def test_hint_is_six_characters() -> None:
    assert key_hint("8e03978e-40d5-43e8") == "8e0397"
    assert key_hint("abc") == "abc"
