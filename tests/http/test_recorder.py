"""The recorder: what it holds, when it stops, and what it records."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samekey.core.model import Answer, Headers
from samekey.http.answer import replay_body
from samekey.http.recorder import Complete, Hold, Overflow, PassThrough, Recorder

JSON: Headers = ((b"content-type", b"application/json"),)


def record(status: int, *chunks: bytes, limit: int = 1024, method: str = "POST") -> Answer:
    """The answer recorded of a response that fits the limit."""
    recorder = Recorder(limit, method=method)
    assert recorder.start(status, JSON) == Hold()
    for data in chunks[:-1]:
        assert recorder.chunk(data, more=True) == Hold()
    verdict = recorder.chunk(chunks[-1], more=False)
    assert isinstance(verdict, Complete)
    return verdict.answer


def test_a_response_in_one_piece_is_complete() -> None:
    recorder = Recorder(1024)
    assert recorder.start(201, JSON) == Hold()
    assert recorder.chunk(b"{}", more=False) == Complete(Answer(201, JSON, b"{}"))
    assert recorder.release() == b"{}"
    assert recorder.release() == b""


def test_bl_42_a_stream_of_three_chunks_of_binary_bytes_is_recorded_whole() -> None:
    assert record(200, bytes(range(100)), bytes(range(100, 200)), bytes(range(200, 256))) == Answer(
        200, JSON, bytes(range(256))
    )


def test_a_zero_length_final_chunk_ends_the_answer() -> None:
    assert record(200, b"ab", b"", b"") == Answer(200, JSON, b"ab")


@pytest.mark.parametrize("status", [201, 202, 303, 406, 299, 599, 999])
def test_bl_44_the_status_is_recorded_as_it_is(status: int) -> None:
    assert record(status, b"x") == Answer(status, JSON, b"x")


@pytest.mark.parametrize("body", [b"{}", b"[]", b'""', b"0", b"false", b"null", b""])
def test_bl_46_an_empty_value_is_recorded_and_replayed(body: bytes) -> None:
    answer = record(200, body)
    assert answer == Answer(200, JSON, body)
    assert replay_body(answer) == body


def test_pp_12_the_first_answer_keeps_all_its_headers_and_pp_11_the_record_has_no_cookie() -> None:
    headers: Headers = (
        (b"Set-Cookie", b"a=1"),
        (b"Location", b"/orders/1"),
        (b"Set-Cookie", b"b=2"),
        (b"X-Shop", b"1"),
        (b"Date", b"Tue, 15 Nov 1994 08:12:31 GMT"),
    )
    recorder = Recorder(1024, extra_dropped=frozenset({b"x-shop"}))
    recorder.start(201, headers)
    assert recorder.chunk(b"", more=False) == Complete(Answer(201, ((b"Location", b"/orders/1"),), b""))
    assert recorder.status == 201
    assert recorder.headers == headers


def test_a_body_exactly_at_the_limit_is_kept() -> None:
    assert record(200, b"abc", b"de", b"", limit=5) == Answer(200, JSON, b"abcde")


def test_one_byte_over_the_limit_is_settled_as_not_kept() -> None:
    recorder = Recorder(5)
    recorder.start(201, JSON)
    assert recorder.chunk(b"abcde", more=True) == Hold()
    assert recorder.chunk(b"f", more=False) == Overflow(Answer(201, JSON, None))
    assert recorder.release() == b"abcde"
    assert recorder.answer(body_kept=False) == Answer(201, JSON, None)


def test_a_single_chunk_over_the_limit_is_not_held_at_all() -> None:
    recorder = Recorder(5)
    recorder.start(200, JSON)
    assert recorder.chunk(b"abcdef", more=True) == Overflow(Answer(200, JSON, None))
    assert recorder.held_bytes == 0
    assert recorder.chunk(b"g", more=True) == PassThrough()
    assert recorder.chunk(b"", more=False) == PassThrough()
    assert recorder.release() == b""


@pytest.mark.parametrize("length", [b"6", b"0006", b" 6 ", b"5242880", b"9" * 5000])
def test_a_declared_length_over_the_limit_is_given_up_at_the_start(length: bytes) -> None:
    recorder = Recorder(5)
    headers: Headers = ((b"Location", b"/exports/1"), (b"Content-Length", length))
    assert recorder.start(201, headers) == Overflow(Answer(201, ((b"Location", b"/exports/1"),), None))
    assert recorder.chunk(b"abc", more=True) == PassThrough()
    assert recorder.release() == b""


@pytest.mark.parametrize("length", [b"5", b"0", b"0" * 5000, b"", b"-6", b"+6", b"6.0", b"six"])
def test_any_other_declared_length_decides_nothing(length: bytes) -> None:
    recorder = Recorder(5)
    assert recorder.start(200, [(b"content-length", length)]) == Hold()


def test_giving_up_settles_without_the_body_and_releases_what_was_held() -> None:
    recorder = Recorder(1024)
    recorder.start(200, JSON)
    recorder.chunk(b"data: 1\n\n", more=True)
    assert recorder.give_up() == Overflow(Answer(200, JSON, None))
    assert recorder.release() == b"data: 1\n\n"
    assert recorder.chunk(b"data: 2\n\n", more=True) == PassThrough()
    assert recorder.give_up() == PassThrough()


def test_giving_up_after_the_end_changes_nothing() -> None:
    recorder = Recorder(1024)
    recorder.start(200, JSON)
    recorder.chunk(b"whole", more=False)
    assert recorder.give_up() == PassThrough()
    assert recorder.answer(body_kept=True) == Answer(200, JSON, b"whole")
    assert recorder.release() == b"whole"


def test_the_answer_stays_known_after_its_bytes_were_released() -> None:
    recorder = Recorder(1024)
    recorder.start(200, JSON)
    recorder.chunk(b"whole", more=False)
    recorder.release()
    assert recorder.answer(body_kept=True) == Answer(200, JSON, b"whole")
    assert recorder.answer(body_kept=False) == Answer(200, JSON, None)


@pytest.mark.parametrize(("status", "method"), [(204, "POST"), (304, "POST"), (200, "HEAD"), (404, "head")])
def test_bodyless_answers_are_recorded_empty_and_sent_as_they_were(status: int, method: str) -> None:
    recorder = Recorder(1024, method=method)
    # The length of a HEAD or 304 answer is that of a body which is not sent: it is no reason to give up.
    assert recorder.start(status, [(b"content-length", b"4096")]) == Hold()
    assert recorder.chunk(b"stray", more=False) == Complete(Answer(status, (), b""))
    assert recorder.release() == b"stray"
    assert recorder.answer(body_kept=False) == Answer(status, (), b"")


@pytest.mark.parametrize(("status", "method"), [(204, "POST"), (200, "HEAD")])
def test_a_bodyless_answer_lacks_nothing_when_its_stray_bytes_pass_the_limit(
    status: int, method: str
) -> None:
    recorder = Recorder(5, method=method)
    recorder.start(status, JSON)
    assert recorder.chunk(b"stray bytes", more=False) == Overflow(Answer(status, JSON, b""))


@pytest.mark.parametrize(
    "call",
    [
        lambda recorder: recorder.chunk(b"x", more=True),
        lambda recorder: recorder.give_up(),
        lambda recorder: recorder.release(),
        lambda recorder: recorder.answer(body_kept=False),
        lambda recorder: recorder.start(103, JSON),
        lambda recorder: recorder.start(1000, JSON),
        lambda recorder: recorder.start(200, [(b"one", b"two", b"three")]),
    ],
    ids=["chunk", "give_up", "release", "answer", "early-hint", "status", "triple"],
)
def test_what_must_not_come_before_the_start_changes_nothing(call: Callable[[Recorder], object]) -> None:
    recorder = Recorder(1024)
    with pytest.raises(ValueError):  # noqa: PT011 - the kind is the contract, the words are not
        call(recorder)
    assert (recorder.status, recorder.headers, recorder.held_bytes) == (None, (), 0)
    assert recorder.start(201, JSON) == Hold()
    assert recorder.chunk(b"x", more=False) == Complete(Answer(201, JSON, b"x"))


def test_a_second_start_is_refused_in_every_phase_and_changes_nothing() -> None:
    recorder = Recorder(1024)
    recorder.start(201, JSON)
    with pytest.raises(ValueError, match="started already"):
        recorder.start(500, ())
    assert recorder.chunk(b"x", more=False) == Complete(Answer(201, JSON, b"x"))
    with pytest.raises(ValueError, match="started already"):
        recorder.start(500, ())
    assert recorder.answer(body_kept=True) == Answer(201, JSON, b"x")
    passing = Recorder(0)
    passing.start(200, JSON)
    passing.chunk(b"x", more=True)
    with pytest.raises(ValueError, match="started already"):
        passing.start(500, ())
    assert passing.status == 200


def test_nothing_is_released_and_no_part_is_kept_while_holding() -> None:
    recorder = Recorder(1024)
    recorder.start(200, JSON)
    recorder.chunk(b"half", more=True)
    with pytest.raises(ValueError, match="complete or given up"):
        recorder.release()
    with pytest.raises(ValueError, match="not whole"):
        recorder.answer(body_kept=True)
    recorder.give_up()
    with pytest.raises(ValueError, match="not whole"):
        recorder.answer(body_kept=True)
    assert recorder.release() == b"half"


def test_a_chunk_of_a_wrong_type_changes_nothing() -> None:
    recorder = Recorder(1024)
    recorder.start(200, JSON)
    for wrong in ("text", 3, None):
        with pytest.raises(TypeError):
            recorder.chunk(wrong, more=False)  # type: ignore[arg-type]
    assert recorder.chunk(b"x", more=False) == Complete(Answer(200, JSON, b"x"))


def test_held_bytes_are_a_copy_of_a_buffer_the_application_uses_again() -> None:
    recorder = Recorder(1024)
    recorder.start(200, JSON)
    buffer = bytearray(b"one")
    recorder.chunk(buffer, more=True)
    buffer[:] = b"two"
    assert recorder.chunk(memoryview(buffer), more=False) == Complete(Answer(200, JSON, b"onetwo"))


def test_a_view_counts_its_bytes_not_its_items() -> None:
    two_items_of_two_bytes = memoryview(b"\x01\x00\x02\x00").cast("H")
    exact, short = Recorder(4), Recorder(3)
    exact.start(200, JSON)
    short.start(200, JSON)
    assert exact.chunk(two_items_of_two_bytes, more=False) == Complete(Answer(200, JSON, b"\x01\x00\x02\x00"))
    assert short.chunk(two_items_of_two_bytes, more=False) == Overflow(Answer(200, JSON, None))


def test_many_tiny_chunks_cost_about_their_bytes() -> None:
    recorder = Recorder(100_000)
    recorder.start(200, JSON)
    tracemalloc.start()
    try:
        for number in range(50_000):
            recorder.chunk(number.to_bytes(2, "big"), more=True)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert recorder.held_bytes == 100_000
    assert held < 200_000


def split(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    return [body[left:right] for left, right in pairwise(edges)]


@settings(max_examples=100)
@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_any_split_of_a_body_gives_the_same_answer(body: bytes, cuts: list[int]) -> None:
    assert record(200, *split(body, cuts), limit=40) == Answer(200, JSON, body)


@settings(max_examples=200)
@given(
    body=st.binary(max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=8),
    limit=st.integers(0, 45),
    give_up_before=st.none() | st.integers(0, 9),
    declared=st.booleans(),
)
def test_the_bytes_held_and_passed_on_are_the_bytes_fed_in_order(
    body: bytes, cuts: list[int], limit: int, give_up_before: int | None, declared: bool
) -> None:
    chunks = split(body, cuts)
    headers: Headers = ((b"content-length", str(len(body)).encode()),) if declared else ()
    recorder = Recorder(limit)
    sent = bytearray()
    settled: list[Answer] = []

    def settle(verdict: Hold | Complete | Overflow | PassThrough) -> None:
        assert recorder.held_bytes <= limit
        if isinstance(verdict, Complete | Overflow):
            settled.append(verdict.answer)
            sent.extend(recorder.release())

    settle(recorder.start(200, headers))
    for number, data in enumerate(chunks):
        if number == give_up_before:
            settle(recorder.give_up())
        verdict = recorder.chunk(data, more=number < len(chunks) - 1)
        settle(verdict)
        if isinstance(verdict, Overflow | PassThrough):
            sent.extend(data)
    assert bytes(sent) == body
    gave_up = give_up_before is not None and give_up_before < len(chunks)
    assert settled == [Answer(200, (), None if gave_up or len(body) > limit else body)]
