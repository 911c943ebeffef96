"""Each problem: its table row, its JSON, its headers."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest

from samekey.core.model import Headers
from samekey.errors import ConfigurationError
from samekey.http import problem
from samekey.http.problem import Problem

# factory's problem -> code, status, retryable, safe_to_use_new_key, Retry-After
ROWS: list[tuple[Problem, str, int, bool, bool, int | None]] = [
    (problem.missing_key(), "missing-key", 400, False, True, None),
    (problem.invalid_key("the key is empty"), "invalid-key", 400, False, False, None),
    (problem.caller_missing(), "caller-missing", 400, False, False, None),
    (problem.in_progress(7), "in-progress", 409, True, False, 7),
    (problem.key_reused(), "key-reused", 422, False, False, None),
    (problem.key_reused(409), "key-reused", 409, False, False, None),
    (problem.outcome_unknown(), "outcome-unknown", 409, False, False, None),
    (problem.commit_unknown(), "outcome-unknown", 503, True, False, 5),
    (problem.answer_expired(), "answer-expired", 409, False, False, None),
    (problem.answer_not_kept(), "answer-not-kept", 409, False, False, None),
    (problem.body_too_large(1024), "body-too-large", 413, False, False, None),
    (problem.store_unavailable(), "store-unavailable", 503, True, False, 5),
    (problem.store_busy(), "store-busy", 503, True, False, 1),
    (problem.not_committed(), "not-committed", 503, True, False, 1),
    (problem.joined_broken(), "joined-broken", 500, False, False, None),
]
Row = tuple[Problem, str, int, bool, bool, int | None]
EACH = pytest.mark.parametrize("row", ROWS, ids=[f"{row[1]}-{row[2]}" for row in ROWS])


@EACH
def test_the_body_has_the_required_members(row: Row) -> None:
    made, code, status, retryable, safe_to_use_new_key, _ = row
    members = json.loads(made.body())
    title, detail = members.pop("title"), members.pop("detail")
    assert members == {
        "type": f"urn:samekey:problem:{code}",
        "code": code,
        "status": status,
        "retryable": retryable,
        "safe_to_use_new_key": safe_to_use_new_key,
    }
    assert made.status == status
    assert len(title) > 10
    assert len(detail) > len(title)
    assert detail.endswith(".")


@EACH
def test_the_headers_fit_the_body(row: Row) -> None:
    made, _, _, _, _, retry_after = row
    expected = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(made.body())).encode()),
        (b"cache-control", b"no-store"),
    ]
    if retry_after is not None:
        expected.append((b"retry-after", str(retry_after).encode()))
    assert made.headers() == tuple(expected)


def test_every_kind_has_a_row_here() -> None:
    assert {(kind.code, kind.status) for kind in problem._KINDS.values()} <= {row[1:3] for row in ROWS}


def test_only_a_retryable_problem_has_a_retry_after() -> None:
    assert [row[1] for row in ROWS if (row[5] is not None) != row[3]] == []


@pytest.mark.parametrize(("seconds", "expected"), [(0, 1), (-3, 1), (0.2, 1), (1, 1), (1.01, 2), (30, 30)])
def test_retry_after_is_whole_seconds_rounded_up_and_at_least_one(seconds: float, expected: int) -> None:
    for made in (
        problem.in_progress(seconds),
        problem.store_unavailable(seconds),
        problem.store_busy(seconds),
        problem.not_committed(seconds),
        problem.commit_unknown(seconds),
    ):
        assert made.headers()[-1] == (b"retry-after", str(expected).encode())


def test_a_retry_after_of_zero_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Problem("x", "t", 503, "d", True, False, retry_after_seconds=0)


@pytest.mark.parametrize("made", [row[0] for row in ROWS if not row[4]])
def test_no_detail_sends_a_retry_to_a_new_key(made: Problem) -> None:
    for sentence in made.detail.lower().split("."):
        if "new key" in sentence:
            assert "new operation" in sentence or "do not repeat it with a new key" in sentence


def test_an_invalid_key_is_explained_by_its_reason_as_a_sentence() -> None:
    assert problem.invalid_key("the key is empty.").detail == (
        "The key is empty. This request was not run. Correct the header and send the request again."
    )


def test_a_key_that_was_never_valid_may_be_replaced() -> None:
    made = problem.invalid_key("the key is too long", safe_to_use_new_key=True)
    assert json.loads(made.body())["safe_to_use_new_key"] is True


def test_a_missing_key_names_the_header_of_the_route() -> None:
    assert "the header X-Key," in problem.missing_key("X-Key").detail


def test_a_too_large_body_is_told_the_limit() -> None:
    assert "at most 1024 bytes" in problem.body_too_large(1024).detail


def test_the_page_that_explains_is_linked_when_there_is_one() -> None:
    made = problem.missing_key()
    linked = made.documented("https://shop.example/docs/keys?v=1#rules")
    assert linked.headers()[-1] == (
        b"link",
        b'<https://shop.example/docs/keys?v=1#rules>; rel="describedby"',
    )
    assert linked.body() == made.body()
    assert made.documented(None) == made
    assert [name for name, _ in made.headers() if name == b"link"] == []


@pytest.mark.parametrize(
    "url",
    ["", "https://a.example/>x", 'https://a.example/"', "https://a.example/\r\nx: y", "https://a.example/ä"],
)
def test_a_link_that_would_break_the_header_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="percent-encoded"):
        problem.missing_key().documented(url)


def test_an_answer_not_kept_goes_with_its_location_and_not_with_facts_of_its_body() -> None:
    kept: Headers = (
        (b"Location", b"/exports/1"),
        (b"Content-Type", b"text/csv"),
        (b"Content-Encoding", b"gzip"),
        (b"content-length", b"5242880"),
        (b"ETag", b'"v1"'),
        (b"Cache-Control", b"max-age=60"),
        (b"Set-Cookie", b"session=1"),
        (b"Link", b"</a>; rel=next"),
        (b"Link", b"</b>; rel=prev"),
    )
    made = problem.answer_not_kept(kept, first_status=201).documented("https://shop.example/keys")
    assert made.headers() == (
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(made.body())).encode()),
        (b"cache-control", b"no-store"),
        (b"link", b'<https://shop.example/keys>; rel="describedby"'),
        (b"Location", b"/exports/1"),
        (b"Link", b"</a>; rel=next"),
        (b"Link", b"</b>; rel=prev"),
    )
    assert "answered with status 201, but" in made.detail
    assert "answered, but" in problem.answer_not_kept(kept).detail


def test_extra_headers_never_double_the_own_ones() -> None:
    made = Problem("x", "t", 409, "d", False, False, 3, ((b"Retry-After", b"9"), (b"X-Shop", b"1")))
    assert made.headers()[3:] == ((b"retry-after", b"3"), (b"X-Shop", b"1"))


def test_a_body_is_ascii_whatever_the_reason_says() -> None:
    made = problem.invalid_key("the key contains \u2028 or ä")
    assert made.body().isascii()
    assert json.loads(made.body())["detail"].startswith("The key contains \u2028 or ä.")


def test_a_problem_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        problem.missing_key().status = 200  # type: ignore[misc]
