"""Which headers survive to a replay, and what a replay adds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from samekey.core.model import Answer, Headers
from samekey.http.answer import (
    bodyless,
    first_answer_headers,
    imf_fixdate,
    kept_headers,
    replay_body,
    replay_headers,
)

EXPIRES_AT = datetime(2026, 11, 6, 8, 49, 37, 999_999, tzinfo=UTC)
EXPIRES = (b"idempotency-key-expires", b"Fri, 06 Nov 2026 08:49:37 GMT")


def test_bl_39_values_are_never_split_on_commas() -> None:
    headers: Headers = (
        (b"Content-Disposition", b'attachment; filename="a,b.txt"'),
        (b"Expires", b"Wed, 09 Jun 2027 10:18:14 GMT"),
    )
    assert kept_headers(headers) == headers


def test_bl_40_repeated_lines_stay_repeated_in_order_and_as_captured() -> None:
    headers: Headers = (
        (b"Link", b"</a>; rel=next, </b>; rel=prev"),
        (b"set-cookie", b"a=1"),
        (b"X-Shop", b"1"),
        (b"set-cookie", b"b=2"),
        (b"link", b"</c>; rel=up"),
        (b"Link", b"</c>; rel=up"),
    )
    assert kept_headers(headers) == (
        (b"Link", b"</a>; rel=next, </b>; rel=prev"),
        (b"X-Shop", b"1"),
        (b"link", b"</c>; rel=up"),
        (b"Link", b"</c>; rel=up"),
    )


def test_bl_41_location_etag_and_link_survive_and_facts_of_the_exchange_do_not() -> None:
    headers: Headers = (
        (b"Location", b"/orders/1"),
        (b"ETag", b'"v1"'),
        (b"Link", b"</orders>; rel=collection"),
        (b"Set-Cookie", b"session=1"),
        (b"Date", b"Tue, 15 Nov 1994 08:12:31 GMT"),
        (b"X-Request-Id", b"r-1"),
        (b"RateLimit", b'"default";r=50;t=30'),
        (b"RateLimit-Remaining", b"9"),
    )
    assert kept_headers(headers) == (
        (b"Location", b"/orders/1"),
        (b"ETag", b'"v1"'),
        (b"Link", b"</orders>; rel=collection"),
    )


@pytest.mark.parametrize(
    "name",
    [
        *("Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "TE", "Trailer"),
        *("Transfer-Encoding", "Upgrade", "Date", "Server", "Age", "Content-Length", "Retry-After"),
        *("Set-Cookie", "Set-Cookie2", "X-Request-ID", "X-Correlation-ID", "Request-Id", "CF-RAY"),
        *("traceparent", "tracestate", "X-Trace-Id", "X-Amzn-Trace-Id", "X-B3-TraceId", "b3"),
        *("RateLimit-Policy", "X-RateLimit-Limit", "X-Ratelimit-Reset", "X-Rate-Limit-Remaining"),
        *("Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "Server-Timing"),
        *("Idempotent-Replayed", "Idempotency-Key-Expires", "Idempotency-Status", "Idempotency-Key"),
    ],
)
@pytest.mark.parametrize("case", [str.lower, str.upper, str])
def test_what_belongs_to_one_exchange_is_dropped_in_any_case(name: str, case: type[str]) -> None:
    pair = (case(name).encode("ascii"), b"x")
    assert kept_headers([pair, (b"Content-Type", b"text/plain")]) == ((b"Content-Type", b"text/plain"),)


@pytest.mark.parametrize(
    "name",
    [b"Vary", b"Content-Encoding", b"X-Rated", b"Dates", b"X-Server", b"Cache-Control", b"Content-Type"],
)
def test_names_that_only_look_alike_are_kept(name: bytes) -> None:
    assert kept_headers([(name, b"x")]) == ((name, b"x"),)


def test_fields_named_by_any_connection_line_are_dropped() -> None:
    headers = [
        (b"X-Hop", b"1"),
        (b"connection", b"close , x-hop"),
        (b"Connection", b",X-Other\t,"),
        (b"x-other", b"2"),
        (b"X-End", b"3"),
    ]
    assert kept_headers(headers) == ((b"X-End", b"3"),)


def test_more_names_can_be_dropped_whatever_their_case() -> None:
    headers = [(b"x-replay", b"true"), (b"X-Shop", b"1")]
    assert kept_headers(headers, frozenset({b"X-Replay"})) == ((b"X-Shop", b"1"),)


def test_a_replay_has_the_stored_pairs_its_length_and_its_marks() -> None:
    answer = Answer(201, ((b"Content-Type", b"application/json"), (b"Location", b"/orders/1")), b'{"id":1}')
    assert replay_headers(answer, "Idempotent-Replayed", EXPIRES_AT) == (
        (b"Content-Type", b"application/json"),
        (b"Location", b"/orders/1"),
        (b"content-length", b"8"),
        (b"idempotent-replayed", b"true"),
        EXPIRES,
        (b"access-control-expose-headers", b"Idempotent-Replayed, Idempotency-Key-Expires"),
    )


def test_bl_47_the_marker_is_exposed_under_its_own_name_also_without_an_expiry() -> None:
    assert replay_headers(Answer(200, (), b""), "X-Replay", None) == (
        (b"content-length", b"0"),
        (b"x-replay", b"true"),
        (b"access-control-expose-headers", b"X-Replay"),
    )


def test_stored_lengths_and_marks_never_double_those_of_the_replay() -> None:
    stored: Headers = (
        (b"Content-Length", b"999"),
        (b"Transfer-Encoding", b"chunked"),
        (b"X-Replay", b"false"),
        (b"Idempotency-Key-Expires", b"never"),
    )
    assert replay_headers(Answer(200, stored, b"ab"), "X-Replay", EXPIRES_AT) == (
        (b"content-length", b"2"),
        (b"x-replay", b"true"),
        EXPIRES,
        (b"access-control-expose-headers", b"X-Replay, Idempotency-Key-Expires"),
    )


def test_bl_42_binary_bytes_are_replayed_as_they_are() -> None:
    body = bytes(range(256))
    answer = Answer(200, (), body)
    assert replay_body(answer) == body
    assert (b"content-length", b"256") in replay_headers(answer, "Idempotent-Replayed", None)


@pytest.mark.parametrize(
    ("status", "method", "expected"),
    [
        (100, "POST", True),
        (204, "POST", True),
        (304, "PATCH", True),
        (200, "head", True),
        (200, "POST", False),
        (205, "POST", False),
        (404, "PATCH", False),
    ],
)
def test_answers_without_a_body(status: int, method: str, expected: bool) -> None:
    assert bodyless(status, method) is expected


@pytest.mark.parametrize(("status", "method"), [(103, "POST"), (204, "POST"), (304, "POST"), (200, "HEAD")])
def test_an_answer_without_a_body_has_no_length(status: int, method: str) -> None:
    answer = Answer(status, ((b"content-length", b"5"), (b"etag", b'"v1"')), b"stray")
    assert replay_body(answer, method) == b""
    assert replay_headers(answer, "Idempotent-Replayed", None, method) == (
        (b"etag", b'"v1"'),
        (b"idempotent-replayed", b"true"),
        (b"access-control-expose-headers", b"Idempotent-Replayed"),
    )


@pytest.mark.parametrize("body", [b"{}", b"[]", b'""', b"0", b"false", b"null", b""])
def test_bl_46_an_empty_value_is_an_answer(body: bytes) -> None:
    answer = Answer(200, (), body)
    assert replay_body(answer) == body
    assert replay_headers(answer, "M", None)[0] == (b"content-length", str(len(body)).encode())


def test_bl_46_a_body_that_was_not_kept_is_not_an_empty_one() -> None:
    answer = Answer(201, ((b"location", b"/orders/1"),), None)
    with pytest.raises(ValueError, match="answer-not-kept"):
        replay_body(answer)
    with pytest.raises(ValueError, match="answer-not-kept"):
        replay_headers(answer, "Idempotent-Replayed", None)


def test_pp_11_a_cookie_of_the_first_caller_is_never_replayed() -> None:
    first = [(b"Set-Cookie", b"session=s3cret; HttpOnly"), (b"SET-COOKIE", b"csrf=1"), (b"X-Shop", b"1")]
    answer = Answer(201, kept_headers(first), b"")
    replayed = replay_headers(answer, "Idempotent-Replayed", EXPIRES_AT)
    assert [name for name, _ in replayed if b"cookie" in name.lower()] == []
    assert (b"X-Shop", b"1") in replayed


def test_a_first_answer_tells_its_expiry_and_nothing_else() -> None:
    assert first_answer_headers(EXPIRES_AT) == (
        EXPIRES,
        (b"access-control-expose-headers", b"Idempotency-Key-Expires"),
    )
    assert first_answer_headers(None) == ()


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC), "Sun, 06 Nov 1994 08:49:37 GMT"),
        (datetime(2027, 1, 1, 0, 30, tzinfo=timezone(timedelta(hours=1))), "Thu, 31 Dec 2026 23:30:00 GMT"),
        (datetime(2026, 5, 9, 0, 0, 0, 999_999, tzinfo=UTC), "Sat, 09 May 2026 00:00:00 GMT"),
    ],
)
def test_dates_are_imf_fixdates_in_gmt(moment: datetime, expected: str) -> None:
    assert imf_fixdate(moment) == expected


def test_a_naive_date_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        imf_fixdate(datetime(2026, 5, 9))  # noqa: DTZ001 - the naive datetime is the point
