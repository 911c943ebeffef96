"""What makes two requests "the same request": a versioned digest of one.

This module owns the digest. It reads what the request says, never what the
handler makes of it, and knows nothing of stores, time or how the bytes came in.

The digest is SHA-256 over length-prefixed parts: method, path, query, media type,
the kind of the body (json, form, multipart, raw), the rule that chose its fields,
and the body in its kind's canonical form. Two kinds never give one digest.

The theory of the JSON form. The standard library's C scanner builds the tree and
its C encoder writes it again with sorted members, which costs microseconds where
a walk in Python costs tens. Numbers must not become floats on the way, so each one
becomes the pair ``(0, text)`` and is written as ``[0,"text"]``. No array of the body
can be taken for such a pair: a bare number in the output comes from us alone. JSON
text is unambiguous, so different trees give different bytes. This is not RFC 8785,
which sends numbers through a float.

Whatever is doubtful (JSON with duplicate members, a form with a broken escape…) is
compared as raw bytes: never refused here, and never equal to anything but itself.

Every change to what a digest covers or how it is written needs a new
``FINGERPRINT_VERSION``, since records of the old one are still in the stores.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal
from urllib.parse import unquote_to_bytes

from samekey.core.model import Fingerprint
from samekey.core.policy import FingerprintRule

FINGERPRINT_VERSION = 1

JSON_DEPTH_MAX = 64
FORM_PAIRS_MAX = 10_000  # ten times what Django and Starlette accept
MULTIPART_PARTS_MAX = 1_000  # Starlette's own limit
EXPONENT_DIGITS_MAX = 18  # beyond it an exponent is compared as written, never computed with


def fingerprint(  # noqa: PLR0917 - the six follow a request from its first line to its body
    method: str,
    path: str | bytes,
    query: bytes,
    content_type: str | None,
    body: bytes,
    rule: FingerprintRule,
) -> Fingerprint:
    """The fingerprint of one request; takes any bytes and raises for none.

    ``path`` is the concrete path as received (no template), ``query`` what follows the
    question mark, ``content_type`` the header's value with its parameters. Take it
    once, before the handler runs: what a handler does to a parsed body must not count.
    """
    media_type = _media_type(content_type)
    content = _content(media_type, content_type or "", body, rule)
    parts = (
        _bytes(method),
        path if isinstance(path, bytes) else _bytes(path),
        _canonical_query(query),
        media_type,
        content.kind.encode("ascii"),
        content.detail,
        content.data,
    )
    return Fingerprint(FINGERPRINT_VERSION, hashlib.sha256(_framed(parts)).digest())


@dataclass(frozen=True, slots=True)
class _Content:
    """A body in canonical form. ``detail`` is what else its kind needs to be compared by."""

    kind: Literal["json", "form", "multipart", "raw"]
    data: bytes
    detail: bytes = b""


class _Doubtful(ValueError):
    """The body cannot be read in one way only; it is compared as raw bytes."""


def _content(media_type: bytes, content_type: str, body: bytes, rule: FingerprintRule) -> _Content:
    try:
        if rule.mode == "raw":
            return _raw(media_type, content_type, body)
        if media_type == b"application/json" or media_type.endswith(b"+json"):  # RFC 6839, section 3.1
            return _json_content(body, rule)
        if media_type == b"application/x-www-form-urlencoded":
            return _fields_content("form", _form_fields(body), rule)
        if media_type.startswith(b"multipart/"):
            return _fields_content("multipart", _multipart_fields(content_type, body), rule)
    except ValueError:  # ours, or the decoder's: not JSON, not UTF-8, a lone surrogate
        pass
    return _raw(media_type, content_type, body)


def _raw(media_type: bytes, content_type: str, body: bytes) -> _Content:
    # The same multipart bytes mean something else under another boundary, so here the parameter counts.
    detail = _bytes(content_type) if media_type.startswith(b"multipart/") else b""
    return _Content("raw", body, detail)


def _framed(parts: Iterable[bytes]) -> bytes:
    """The parts, length-prefixed, so that no two rows of parts give the same bytes."""
    return b"".join([len(part).to_bytes(8, "big") + part for part in parts])


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _media_type(content_type: str | None) -> bytes:
    # RFC 9110, section 8.3.1: type and subtype are case-insensitive. Lowered as bytes, so in ASCII only.
    return _bytes((content_type or "").partition(";")[0].strip(" \t")).lower()


def _canonical_query(query: bytes) -> bytes:
    """The query's pairs, byte for byte, sorted by name; equal names stay in order.

    Names are decoded for sorting alone: ``a[]`` and ``a%5B%5D`` are one name to the
    handler, so their order counts. Values are not decoded: a retry sends the same bytes,
    and whether ``+`` is a blank is the handler's own affair.
    """
    pairs = [pair for pair in query.split(b"&") if pair]
    pairs.sort(key=lambda pair: unquote_to_bytes(pair.partition(b"=")[0].replace(b"+", b" ")))
    return _framed(pairs)


# Choosing fields


def _rule_detail(rule: FingerprintRule) -> bytes:
    """The rule as a part of the digest.

    A digest of chosen fields says nothing about the others, so it must not equal one
    that was made by another rule and did look at them (BL-08's lesson).
    """
    if rule.include:
        return _framed((b"include", *map(_bytes, sorted(set(rule.include)))))
    if rule.exclude:
        return _framed((b"exclude", *map(_bytes, sorted(set(rule.exclude)))))
    return b""


_Path = tuple[str, ...]
_NOTHING = object()


def _paths(dotted: Iterable[str]) -> list[_Path]:
    return [tuple(path.split(".")) for path in dotted]


def _below(paths: list[_Path], name: str) -> list[_Path]:
    """What remains of the paths that lead through ``name``; ``()`` is a path that ends there."""
    return [path[1:] for path in paths if path[0] == name or path[0] == "*"]


def _without(value: object, paths: list[_Path]) -> object:
    """The tree without the members and elements that a path names."""
    if isinstance(value, dict):
        return {
            name: _without(member, below) if below else member
            for name, member in value.items()
            if () not in (below := _below(paths, name))
        }
    if isinstance(value, list):
        return [
            _without(element, below) if below else element
            for index, element in enumerate(value)
            if () not in (below := _below(paths, str(index)))
        ]
    return value


def _only(value: object, paths: list[_Path]) -> object:
    """The tree with nothing but what a path names and the way to it; _NOTHING if no path fits."""
    if isinstance(value, dict):
        members = {name: _chosen(member, _below(paths, name)) for name, member in value.items()}
        return {name: member for name, member in members.items() if member is not _NOTHING} or _NOTHING
    if isinstance(value, list):
        elements = [_chosen(element, _below(paths, str(index))) for index, element in enumerate(value)]
        return [element for element in elements if element is not _NOTHING] or _NOTHING
    return _NOTHING


def _chosen(value: object, below: list[_Path]) -> object:
    if () in below:
        return value
    return _only(value, below) if below else _NOTHING


# JSON by meaning


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        # RFC 8259, section 4: which of two equal names counts is up to the reader, so it is not ours to say.
        raise _Doubtful("duplicate members")
    return members


_ZERO = (
    0,
    "0e0",
)  # 0, -0, 0.0 and 0e9 are equal: numerically they are, and a client that re-encodes drops the sign


def _integer(text: str) -> tuple[int, str]:
    digits = text.rstrip("0")
    if digits in ("", "-"):
        return _ZERO
    return (0, f"{digits}e{len(text) - len(digits)}")


def _decimal(text: str) -> tuple[int, str]:
    """A number with a fraction or an exponent, as sign, digits without outer zeros, and exponent.

    Text in, text out: a number is never expanded, so ``1e999999999`` costs no more than
    its length. An exponent of more than EXPONENT_DIGITS_MAX digits is kept as written
    beside the shift of the point: still one spelling for one number and exponent, but
    ``10e<huge>`` is not recognised as ``1e<huge + 1>``.
    """
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    sign = "-" if whole.startswith("-") else ""
    digits = whole.removeprefix("-") + fraction
    significant = digits.rstrip("0")
    if not significant:
        return _ZERO
    shift = len(digits) - len(significant) - len(fraction)
    power_sign = "-" if exponent.startswith("-") else ""
    power = exponent.lstrip("+-").lstrip("0")
    if len(power) > EXPONENT_DIGITS_MAX:
        return (0, f"{sign}{significant.lstrip('0')}e{power_sign}{power}shift{shift}")
    return (0, f"{sign}{significant.lstrip('0')}e{int(power_sign + (power or '0')) + shift}")


def _constant(name: str) -> object:
    raise _Doubtful(f"{name} is not JSON")  # RFC 8259, section 6


_decode: Callable[[str], object] = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_decimal, parse_constant=_constant
).decode
_encode: Callable[[object], str] = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":")
).encode

_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")  # up one and down one, as signed bytes


def _is_too_deep(body: bytes) -> bool:
    """Whether JSON is nested deeper than JSON_DEPTH_MAX, told without nesting a single call.

    The limit is checked before the parser runs, not by its RecursionError: how deep the
    caller's own stack is must not change a fingerprint. What follows a syntax error may be
    counted wrongly, which is no matter, since the parser never gets there.
    """
    if body.count(b"[") + body.count(b"{") <= JSON_DEPTH_MAX:
        return False
    # With escaped backslashes gone, and then escaped quotes, every second piece between quotes is a string.
    pieces = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    steps = b"".join(pieces[::2]).translate(_STEPS, _NOT_BRACKETS)
    return max(accumulate(array("b", steps)), default=0) > JSON_DEPTH_MAX


def _json_content(body: bytes, rule: FingerprintRule) -> _Content:
    if _is_too_deep(body):
        raise _Doubtful("nested too deeply")
    tree = _decode(body.decode("utf-8"))
    detail = _rule_detail(rule)
    if rule.exclude:
        tree = _without(tree, _paths(rule.exclude))
    elif rule.include:
        chosen = _only(tree, _paths(rule.include))
        if chosen is _NOTHING:
            detail = b""  # a rule that finds nothing must not make all bodies equal, so the whole body counts
        else:
            tree = chosen
    # Strings are compared by value; a lone surrogate has none, and strict UTF-8 refuses it.
    return _Content("json", _encode(tree).encode("utf-8"), detail)


# Forms and multipart: rows of named fields


@dataclass(frozen=True, slots=True)
class _Field:
    name: bytes | None  # None where a multipart part has no single name
    data: bytes


def _fields_content(
    kind: Literal["form", "multipart"], fields: Sequence[_Field], rule: FingerprintRule
) -> _Content:
    """The fields in order; a rule's path is compared with the whole field name, ``*`` being any."""
    detail = _rule_detail(rule)
    if detail:
        if any(field.name is None for field in fields):
            raise _Doubtful("a part without a name")
        named = {_bytes(path) for path in rule.include or rule.exclude}
        fits = [field.name in named or b"*" in named for field in fields]
        if rule.exclude:
            fields = [field for field, fit in zip(fields, fits, strict=True) if not fit]
        elif any(fits):
            fields = [field for field, fit in zip(fields, fits, strict=True) if fit]
        else:
            detail = b""  # as with JSON: nothing found, so the whole body counts
    return _Content(kind, _framed(field.data for field in fields), detail)


_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def _form_fields(body: bytes) -> list[_Field]:
    """The pairs of a form (WHATWG URL, section 5.1), as bytes, so that ``%ff`` and ``%fe`` differ (PP-05)."""
    if body.count(b"&") >= FORM_PAIRS_MAX:
        raise _Doubtful("too many pairs")
    if _BROKEN_ESCAPE.search(body):
        raise _Doubtful("a broken percent escape")
    fields = []
    for pair in body.replace(b"+", b" ").split(b"&"):
        if pair:
            name, equals, value = pair.partition(b"=")
            name = unquote_to_bytes(name)
            fields.append(_Field(name, _framed((name, equals, unquote_to_bytes(value)))))
    return fields


_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"  # RFC 9110, section 5.6.2
_PARAMETER = re.compile(  # RFC 9110, section 5.6.6; escapes in the quoted form are left to the raw comparison
    rb"[ \t]*+;[ \t]*+(?P<name>" + _TOKEN + rb')=(?:"(?P<quoted>[^"\\\r\n]*+)"|(?P<token>' + _TOKEN + rb"))"
)
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")  # RFC 2046, section 5.1.1
_PART_HEADER = re.compile(rb"(?P<name>" + _TOKEN + rb"):(?P<value>[^\r\n\x00]*+)")


def _parameter(value: bytes, name: bytes) -> bytes | None:
    """The named parameter of a header value; None unless all are well-formed and it is there once."""
    position = len(value.partition(b";")[0].rstrip(b" \t"))
    found = []
    while position < len(value):
        match = _PARAMETER.match(value, position)
        if match is None:
            return None
        position = match.end()
        if match["name"].lower() == name:
            found.append(match["token"] if match["quoted"] is None else match["quoted"])
    return found[0] if len(found) == 1 else None


def _multipart_fields(content_type: str, body: bytes) -> list[_Field]:
    """The parts, RFC 2046 section 5.1.1, in order; boundary and part-header order do not count.

    Strict on purpose: a preamble, an epilogue, blanks after a boundary, bare line feeds or a
    missing end are read in different ways by different parsers, and so compared as raw bytes.
    """
    boundary = _parameter(_bytes(content_type).strip(b" \t"), b"boundary")
    if boundary is None or not _BOUNDARY.fullmatch(boundary):
        raise _Doubtful("no boundary")
    delimiter = b"\r\n--" + boundary
    if body.count(delimiter) > MULTIPART_PARTS_MAX:
        raise _Doubtful("too many parts")
    # The line break before a delimiter belongs to it; the first delimiter may stand without one.
    before, *parts, end = (b"\r\n" + body.removeprefix(b"\r\n")).split(delimiter)
    if before or end not in (b"--", b"--\r\n"):
        raise _Doubtful("a preamble, an epilogue or no end")
    return [_part_field(part) for part in parts]


def _part_field(part: bytes) -> _Field:
    """One part: all of its headers count, by value, and so does its content."""
    head, blank_line, content = part.partition(b"\r\n\r\n")
    if not blank_line or not (head.startswith(b"\r\n") or not head):
        raise _Doubtful("a part without a blank line, or a boundary followed by something else")
    headers = []
    for line in head.split(b"\r\n")[1:]:
        match = _PART_HEADER.fullmatch(line)
        if match is None:
            raise _Doubtful("a malformed part header")
        headers.append((match["name"].lower(), match["value"].strip(b" \t")))
    headers.sort(key=lambda header: header[0])  # stable: equal names stay in order
    dispositions = [value for name, value in headers if name == b"content-disposition"]
    field_name = _parameter(dispositions[0], b"name") if len(dispositions) == 1 else None
    framed_headers = _framed(item for header in headers for item in header)
    return _Field(field_name, _framed((framed_headers, content)))
