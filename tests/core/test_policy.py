"""A bad option fails when the policy is built, and its message says what would be right."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from samekey.core.policy import FingerprintRule, Policy
from samekey.errors import ConfigurationError

DAY = 24 * 3600


def refused(**options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Policy(**options)
    return str(caught.value)


def test_the_defaults_are_those_of_the_behaviour_table() -> None:
    policy = Policy()
    assert policy.methods == frozenset({"POST", "PATCH"})
    assert policy.header == "Idempotency-Key"
    assert policy.required is False
    assert policy.mismatch_status == 422
    assert policy.wait_seconds == 0
    assert policy.retention_seconds == DAY
    assert policy.tombstone_seconds == 0
    assert policy.not_kept_statuses == frozenset({401, 403, 408, 425, 429})
    assert policy.body_bytes_max == 8 * 1024 * 1024
    assert policy.answer_bytes_max == 1024 * 1024
    assert policy.hold_seconds == 5
    assert policy.marker == "Idempotent-Replayed"
    assert policy.fail_open is False


@pytest.mark.parametrize("seconds", [3600, DAY, 365 * DAY])
def test_retention_from_an_hour_to_a_year_is_accepted(seconds: float) -> None:
    assert Policy(retention_seconds=seconds).retention_seconds == seconds


@pytest.mark.parametrize("seconds", [0, -1, 3599.9, 365 * DAY + 1, float("inf"), float("nan")])
def test_other_retention_is_refused(seconds: float) -> None:
    assert refused(retention_seconds=seconds) == (
        "retention_seconds must be from 1 hour to 365 days, and longer than the longest retry window "
        f"of your clients; got {seconds}"
    )


@pytest.mark.parametrize("name", ["wait_seconds", "tombstone_seconds", "hold_seconds"])
@pytest.mark.parametrize("seconds", [-0.1, float("inf"), float("nan")])
def test_a_duration_is_finite_and_not_negative(name: str, seconds: float) -> None:
    assert refused(**{name: seconds}) == f"{name} must be finite and not negative"


@pytest.mark.parametrize("name", ["body_bytes_max", "answer_bytes_max"])
@pytest.mark.parametrize("size", [0, -1])
def test_a_size_is_positive(name: str, size: int) -> None:
    assert refused(**{name: size}) == f"{name} must be positive"


@pytest.mark.parametrize("status", [400, 409, 422])
def test_three_statuses_may_tell_a_mismatch(status: Any) -> None:
    assert Policy(mismatch_status=status).mismatch_status == status


def test_another_mismatch_status_is_refused() -> None:
    assert refused(mismatch_status=500) == "mismatch_status is 422 (the draft's), 409 or 400"


def test_a_word_that_is_no_choice_is_refused() -> None:
    assert refused(key_format="uuid4") == "key_format is 'any' or 'uuid', not 'uuid4'"
    assert refused(raised_4xx="rollback") == "raised_4xx is 'keep' or 'roll back', not 'rollback'"


def test_a_broken_pattern_is_refused() -> None:
    assert refused(key_pattern="(") == (
        "key_pattern is not a regular expression: missing ), unterminated subpattern at position 0"
    )


@pytest.mark.parametrize("name", ["header", "marker"])
@pytest.mark.parametrize("value", ["", "Idempotency Key", "Key:", "Schlüssel", "X-Key\r\n"])
def test_a_header_is_a_field_name(name: str, value: str) -> None:
    assert refused(**{name: value}) == f"{name} must be an HTTP field name (RFC 9110, section 5.1)"


def test_methods_are_upper_case() -> None:
    assert Policy(methods=frozenset({"post", "Put"})).methods == frozenset({"POST", "PUT"})


def test_a_policy_without_methods_protects_nothing_and_is_refused() -> None:
    assert refused(methods=frozenset()) == "methods is empty, so nothing would be protected"


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Policy().required = True  # type: ignore[misc]


def test_a_fingerprint_has_one_way_of_choosing_fields() -> None:
    with pytest.raises(ConfigurationError, match="either include or exclude, not both"):
        FingerprintRule(include=("a",), exclude=("b",))
    with pytest.raises(ConfigurationError, match="a raw fingerprint has no fields"):
        FingerprintRule(mode="raw", exclude=("b",))
    with pytest.raises(ConfigurationError, match="'meaning' or 'raw', not 'exact'"):
        FingerprintRule(mode="exact")  # type: ignore[arg-type]
