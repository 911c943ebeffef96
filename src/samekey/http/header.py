"""The key on the wire: from header lines to a checked key, and back.

This module owns the two forms of the header's value. What makes a key acceptable
is ``core.keys``'s part, and what a missing key means is the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from samekey.core.keys import check_key
from samekey.core.policy import Policy
from samekey.errors import InvalidKey

_STRING = rb'"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*+"'  # RFC 9651, section 3.3.3

# RFC 9651, sections 3.3.1 to 3.3.8: what may follow the equals sign of a parameter.
_BARE_ITEM = b"|".join(
    (
        rb"-?[0-9]{1,12}\.[0-9]{1,3}",
        rb"@?-?[0-9]{1,15}",
        _STRING,
        rb"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*+",
        rb":[A-Za-z0-9+/=]*+:",
        rb"\?[01]",
        rb'%"(?:[\x20\x21\x23\x24\x26-\x7e]|%[0-9a-f]{2})*+"',
    )
)

# RFC 9651, section 3.3: an Item may carry parameters (section 3.1.2). None has a meaning here,
# and the draft lets later ones be added, so well-formed ones are passed over.
_QUOTED = re.compile(
    rb"(?P<string>" + _STRING + rb")(?:; *[a-z*][a-z0-9_.*-]*+(?:=(?:" + _BARE_ITEM + rb"))?)*+"
)


def read_key(values: Sequence[bytes], policy: Policy) -> str | None:
    """The request's key, or None when it has no such header.

    ``values`` are all header lines of that name, as received and in order. The
    quoted form (a structured-field String, RFC 9651) and the bare form are the same
    key, unless ``policy.strict_header`` asks for the quoted one. A bare value is the
    key as it stands; a comma or a double quote in it is refused, because the first is
    how a proxy joins two lines and the second is a broken quoted form.

    Raises InvalidKey; its reason never contains the key.
    """
    if not values:
        return None
    if len(values) > 1:
        # RFC 9651, section 4.2: the lines of an Item join with a comma, and then fail to parse.
        raise InvalidKey(f"the {policy.header} header was sent {len(values)} times; send it once")
    value = values[0].strip(b" \t")  # RFC 9110, section 5.5: blanks around a value are no part of it
    if value.startswith(b'"'):
        return check_key(_unquoted(value), policy)
    if policy.strict_header:
        raise InvalidKey('the key is not in double quotes (RFC 9651, section 3.3.3), as in "…"')
    if b"," in value:
        raise InvalidKey("the key holds a comma: the header was sent twice, or the key needs double quotes")
    if b'"' in value:
        raise InvalidKey("the key holds a double quote; put the whole key in double quotes, or in none")
    # Latin-1 gives every byte one character, so that check_key sees and refuses what is not ASCII.
    return check_key(value.decode("latin-1"), policy)


def write_key(key: str) -> str:
    """The quoted form of a checked key, as a client sends it (RFC 9651, section 4.1.6)."""
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _unquoted(value: bytes) -> str:
    match = _QUOTED.fullmatch(value)
    if match is None:
        raise InvalidKey(
            "the quoted key is malformed; send one string in double quotes (RFC 9651, section 3.3.3), "
            'in which only \\" and \\\\ are escapes, and nothing after it'
        )
    return re.sub(r"\\(.)", r"\1", match["string"][1:-1].decode("ascii"))
