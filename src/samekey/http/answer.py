"""Which headers of an answer survive to a replay, and what a replay adds.

This module owns the header rules of replays and first answers, on ordered pairs
of bytes: repeated lines stay repeated and no value is ever split. It knows
nothing of frameworks, stores or the clock. The names it writes are lower-case,
as ASGI and HTTP/2 want them; the names it keeps are written as captured.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import format_datetime

from samekey.core.model import Answer, Headers

EXPIRES_HEADER = "Idempotency-Key-Expires"

# RFC 9110, section 7.6.1: these describe one connection. Proxy-Authenticate and
# Proxy-Authentication-Info (sections 11.7.1 and 11.7.3) speak to the next client on the chain only,
# Trailer (section 6.6.2) announces fields of one message's framing.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

# Facts of the first exchange that would be false, or another's, in a later one.
PER_EXCHANGE = frozenset(
    {
        b"age",
        b"authentication-info",
        b"content-length",  # written anew for the bytes that are sent
        b"date",
        b"retry-after",
        b"server",
        b"server-timing",
        b"set-cookie",  # a session belongs to who asked first
        b"set-cookie2",
        b"timing-allow-origin",
    }
)

TRACE_IDS = frozenset(
    {
        b"b3",
        b"cf-ray",
        b"correlation-id",
        b"request-id",
        b"sentry-trace",
        b"traceparent",
        b"traceresponse",
        b"tracestate",
        b"uber-trace-id",
        b"x-amz-id-2",
        b"x-amz-request-id",
        b"x-amzn-requestid",
        b"x-amzn-trace-id",
        b"x-cloud-trace-context",
        b"x-correlation-id",
        b"x-ms-request-id",
        b"x-request-id",
        b"x-trace-id",
    }
)

# The marks that samekey writes itself, and an echoed key: a raw key is stored only on request.
OWN_MARKS = frozenset(
    {b"idempotency-key", b"idempotency-key-expires", b"idempotency-status", b"idempotent-replayed"}
)

DROPPED = HOP_BY_HOP | PER_EXCHANGE | TRACE_IDS | OWN_MARKS
DROPPED_PREFIXES = (
    b"access-control-",  # granted to the origin that asked first
    b"ratelimit",  # draft-ietf-httpapi-ratelimit-headers: the quota of that moment
    b"x-b3-",
    b"x-datadog-",
    b"x-rate-limit",
    b"x-ratelimit",
)


def bodyless(status: int, method: str = "POST") -> bool:
    """Whether such an answer never has a body (RFC 9110, sections 6.4.1 and 9.3.2)."""
    return method.upper() == "HEAD" or status < 200 or status in (204, 304)


def kept_headers(
    headers: Iterable[tuple[bytes, bytes]], extra_dropped: frozenset[bytes] = frozenset()
) -> Headers:
    """The pairs of ``headers`` that a replay repeats, in order and as captured.

    Names are compared case-insensitively; ``extra_dropped`` adds names to the ones left out.
    """
    pairs = tuple((bytes(name), bytes(value)) for name, value in headers)
    dropped = DROPPED | _named_by_connection(pairs) | {name.lower() for name in extra_dropped}
    return tuple(
        (name, value)
        for name, value in pairs
        if name.lower() not in dropped and not name.lower().startswith(DROPPED_PREFIXES)
    )


def replay_headers(answer: Answer, marker: str, expires_at: datetime | None, method: str = "POST") -> Headers:
    """The headers of a replay: the stored pairs, the length of the bytes sent, and the marks of a replay.

    Raises ValueError when the body was not kept: such an answer is not replayed.
    """
    marker_name = marker.lower().encode("ascii")
    written_here = {b"content-length", b"transfer-encoding", EXPIRES_HEADER.lower().encode(), marker_name}
    stored = tuple(pair for pair in answer.headers if pair[0].lower() not in written_here)
    body = replay_body(answer, method)
    # RFC 9110, section 8.6: no length on 1xx and 204. On 304 and HEAD it would have to be the length of
    # a body that was never seen, so it is left out.
    length = () if bodyless(answer.status, method) else ((b"content-length", b"%d" % len(body)),)
    if expires_at is None:
        return (*stored, *length, (marker_name, b"true"), _exposed(marker))
    return (
        *stored,
        *length,
        (marker_name, b"true"),
        _expires(expires_at),
        _exposed(marker, EXPIRES_HEADER),
    )


def replay_body(answer: Answer, method: str = "POST") -> bytes:
    """The bytes a replay sends. Raises ValueError when they were not kept."""
    if bodyless(answer.status, method):
        return b""
    if answer.body is None:
        raise ValueError("the body was not kept: answer with the problem 'answer-not-kept'")
    return answer.body


def first_answer_headers(expires_at: datetime | None) -> Headers:
    """What a protected first answer gets in addition to its own, unchanged headers."""
    if expires_at is None:
        return ()
    return (_expires(expires_at), _exposed(EXPIRES_HEADER))


def imf_fixdate(moment: datetime) -> str:
    """An aware datetime as HTTP writes it (RFC 9110, section 5.6.7), whatever the locale.

    Fractions of a second are cut off, so that an expiry is never told later than it is.
    """
    if moment.utcoffset() is None:
        raise ValueError("an HTTP date needs an aware datetime")
    return format_datetime(moment.astimezone(UTC), usegmt=True)


def _named_by_connection(pairs: Headers) -> set[bytes]:
    # RFC 9110, section 7.6.1: a field named by Connection is as hop-by-hop as Connection itself.
    return {
        option.strip(b" \t").lower()
        for name, value in pairs
        if name.lower() == b"connection"
        for option in value.split(b",")
    }


def _expires(expires_at: datetime) -> tuple[bytes, bytes]:
    return EXPIRES_HEADER.lower().encode("ascii"), imf_fixdate(expires_at).encode("ascii")


def _exposed(*names: str) -> tuple[bytes, bytes]:
    # A line of its own: browsers join it with the application's, and a list is never rewritten.
    return b"access-control-expose-headers", ", ".join(names).encode("ascii")
