"""How header pairs become bytes in a store, and back.

JSON of Latin-1 text: every header byte has one Latin-1 character, so the pairs
return exactly as they came (order, repetition, odd bytes), and an operator can
read the column. The leading version lets a later release read older rows.
"""

from __future__ import annotations

import json

from samekey.core.model import Headers
from samekey.errors import CorruptRecord

_VERSION = b"1"


def encode_headers(headers: Headers) -> bytes:
    """Header pairs as versioned bytes."""
    pairs = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
    return _VERSION + json.dumps(pairs, separators=(",", ":")).encode("ascii")


def decode_headers(data: bytes) -> Headers:
    """The inverse of ``encode_headers``; CorruptRecord for anything else."""
    if data[:1] != _VERSION:
        raise CorruptRecord("the stored headers were written by a newer release of samekey, or damaged")
    try:
        # Text first: given bytes, json would guess at an encoding that was never written.
        return _pairs(json.loads(data[1:].decode("ascii")))
    except (ValueError, RecursionError) as error:
        raise CorruptRecord("the stored headers cannot be read back") from error


def _pairs(value: object) -> Headers:
    match value:
        case [*items]:
            return tuple(_pair(item) for item in items)
        case _:
            raise ValueError("not a list")


def _pair(item: object) -> tuple[bytes, bytes]:
    match item:
        case [str(name), str(value)]:
            return name.encode("latin-1"), value.encode("latin-1")
        case _:
            raise ValueError("not a pair of texts")
