"""The options of one protected route, validated when built.

Each field is a row of the behaviour table; the defaults follow the draft "The
Idempotency-Key HTTP Header Field" (draft-ietf-httpapi-idempotency-key-header-07),
Stripe's documented API, and the safest reading where both are silent.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from samekey.core.model import DAY_SECONDS
from samekey.errors import ConfigurationError

HOUR_SECONDS = 3600.0
RETENTION_SECONDS_MIN = HOUR_SECONDS
RETENTION_SECONDS_MAX = 365 * DAY_SECONDS
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FingerprintRule:
    """What of the request makes it "the same request".

    ``mode="meaning"`` compares JSON and forms by meaning, ``"raw"`` compares bytes.
    ``include`` or ``exclude`` (not both) choose JSON members or form fields by
    dotted path (``"card.number"``; ``*`` stands for any member or element).
    """

    mode: Literal["meaning", "raw"] = "meaning"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in ("meaning", "raw"):
            raise ConfigurationError(f"fingerprint mode is 'meaning' or 'raw', not {self.mode!r}")
        if self.include and self.exclude:
            raise ConfigurationError("give a fingerprint either include or exclude, not both")
        if self.mode == "raw" and (self.include or self.exclude):
            raise ConfigurationError("a raw fingerprint has no fields to include or exclude")


@dataclass(frozen=True, slots=True)
class Policy:
    """How one route treats its idempotency key. Durations are seconds, sizes bytes."""

    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    header: str = "Idempotency-Key"
    required: bool = False
    strict_header: bool = False
    key_format: Literal["any", "uuid"] = "any"
    key_pattern: str | None = None
    refuse_personal_keys: bool = False
    fingerprint: FingerprintRule = field(default_factory=FingerprintRule)
    mismatch_status: Literal[400, 409, 422] = 422
    wait_seconds: float = 0.0
    retention_seconds: float = DAY_SECONDS
    tombstone_seconds: float = 0.0
    keep_key: bool = False
    not_kept_statuses: frozenset[int] = frozenset({401, 403, 408, 425, 429})
    raised_4xx: Literal["keep", "roll back"] = "keep"
    body_bytes_max: int = 8 * MIB
    answer_bytes_max: int = MIB
    hold_seconds: float = 5.0
    marker: str = "Idempotent-Replayed"
    fail_open: bool = False

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_words()
        object.__setattr__(self, "methods", frozenset(method.upper() for method in self.methods))

    def _check_numbers(self) -> None:
        if not RETENTION_SECONDS_MIN <= self.retention_seconds <= RETENTION_SECONDS_MAX:
            raise ConfigurationError(
                "retention_seconds must be from 1 hour to 365 days, and longer than the "
                f"longest retry window of your clients; got {self.retention_seconds}"
            )
        if self.mismatch_status not in (400, 409, 422):
            raise ConfigurationError("mismatch_status is 422 (the draft's), 409 or 400")
        for name in ("wait_seconds", "tombstone_seconds", "hold_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name} must be finite and not negative")
        for name in ("body_bytes_max", "answer_bytes_max"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be positive")

    def _check_words(self) -> None:
        if self.key_format not in ("any", "uuid"):
            raise ConfigurationError(f"key_format is 'any' or 'uuid', not {self.key_format!r}")
        if self.raised_4xx not in ("keep", "roll back"):
            raise ConfigurationError(f"raised_4xx is 'keep' or 'roll back', not {self.raised_4xx!r}")
        if self.key_pattern is not None:
            try:
                re.compile(self.key_pattern)
            except re.error as error:
                raise ConfigurationError(f"key_pattern is not a regular expression: {error}") from error
        for name in ("header", "marker"):
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", getattr(self, name)):
                raise ConfigurationError(f"{name} must be an HTTP field name (RFC 9110, section 5.1)")
        if not self.methods:
            raise ConfigurationError("methods is empty, so nothing would be protected")
