"""Which keys are accepted, and what may be shown of one.

This module owns the rules for a decoded key. It knows nothing of headers: how a
key is written on the wire is ``http.header``'s part. A reason never contains
the key, because reasons reach answers and logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from samekey.core.model import KEY_HINT_CHARACTERS
from samekey.core.policy import Policy
from samekey.errors import InvalidKey

KEY_CHARACTERS_MAX = 255  # Stripe's documented limit, which clients already keep to

PersonalKind = Literal["e-mail address", "card number", "phone number"]

_VISIBLE_ASCII = re.compile(r"[\x21-\x7e]+")

# Any 8-4-4-4-12: some SDKs set no version bits, so RFC 9562's version and variant are not asked for.
_UUID = re.compile(r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}")

# A plus sign or an at sign may arrive percent-encoded, in keys made from parts of a URL.
_EMAIL = re.compile(r"[\w.!#$&'*+/=?^{|}~-](?:@|%40)(?:[a-z0-9-]+\.)+[a-z]{2,}", re.ASCII | re.IGNORECASE)

# E.164 with its plus sign, or the North American 3-3-4 with separators. A bare row of
# digits is not taken for a phone number: most of those are order numbers.
_PHONE = re.compile(
    r"(?<![0-9A-Za-z+])(?:\+|%2B)[0-9](?:[-.()]{0,2}[0-9]){7,14}(?!\w)"
    r"|(?<![\w.-])\(?[0-9]{3}\)?[-.]?[0-9]{3}[-.][0-9]{4}(?![\w.-])",
    re.ASCII | re.IGNORECASE,
)

_CARD_DIGITS_MIN = 13  # ISO/IEC 7812: the shortest number in use, and the longest allowed
_CARD_DIGITS_MAX = 19
_DIGIT_GROUPS = re.compile(r"(?<![0-9A-Za-z])[0-9]+(?:[-._][0-9]+)*(?![0-9A-Za-z])")
# Leading digits of payment cards. Dates (20…) and epoch times (1…) are left out: one in ten of
# them would pass the check digit, and an honest key would be refused at random.
_CARD_START = re.compile(r"2[2-7]|3[04-9]|[456]")


def check_key(key: str, policy: Policy) -> str:
    """The key itself, when it keeps the policy's rules.

    A key has 1 to 255 characters of visible ASCII (0x21-0x7E). A space is refused
    although a structured string may hold one: proxies and logs trim and fold it, and
    two keys that differ in blanks alone would be taken for one.

    Raises InvalidKey; its reason never contains the key.
    """
    if not key:
        raise InvalidKey(f"the key is empty; send 1 to {KEY_CHARACTERS_MAX} visible ASCII characters")
    if len(key) > KEY_CHARACTERS_MAX:
        raise InvalidKey(
            f"the key has {len(key)} characters; send at most {KEY_CHARACTERS_MAX}, a UUID for example"
        )
    if not _VISIBLE_ASCII.fullmatch(key):
        raise InvalidKey("the key holds a blank, a control character or a character outside ASCII")
    if policy.key_format == "uuid" and not _UUID.fullmatch(key):
        raise InvalidKey("the key is not a UUID (8-4-4-4-12 hexadecimal digits), which this route asks for")
    if policy.key_pattern is not None and not re.fullmatch(policy.key_pattern, key):
        raise InvalidKey("the key does not have the form that this route asks for")
    if policy.refuse_personal_keys:
        kind = personal_kind(key)
        if kind is not None:
            raise InvalidKey(f"the key seems to hold personal data ({kind}); send a random key instead")
    return key


def personal_kind(key: str) -> PersonalKind | None:
    """Which personal data the key seems to hold, or None.

    A guess by form: it errs towards letting a key pass, and UUIDs in it are never
    looked into, so that no random key is refused by chance.
    """
    rest = _UUID.sub("x", key)
    if _EMAIL.search(rest):
        return "e-mail address"
    if any(_is_card_number(digits) for digits in _digit_rows(rest)):
        return "card number"
    if _PHONE.search(rest):
        return "phone number"
    return None


def key_hint(key: str) -> str:
    """The first characters of the key: what an operator may see of it."""
    return key[:KEY_HINT_CHARACTERS]


def _digit_rows(text: str) -> Iterator[str]:
    """Every row of digits that neighbouring groups form, no longer than a card number."""
    for run in _DIGIT_GROUPS.findall(text):
        groups = re.split(r"[-._]", run)
        for start in range(len(groups)):
            row = ""
            for group in groups[start:]:
                row += group
                if len(row) > _CARD_DIGITS_MAX:
                    break
                yield row


def _is_card_number(digits: str) -> bool:
    if len(digits) < _CARD_DIGITS_MIN or not _CARD_START.match(digits):
        return False
    # The Luhn check digit, ISO/IEC 7812-1 annex B: from the right, every second digit doubled.
    total = 0
    for position, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + position % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0
