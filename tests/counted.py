"""What tests counted, for the summary of a run: a proof whose number nobody sees could quietly shrink.

A test says ``record_property(COUNTED, "14620 schedules of …")``; that travels from workers to their parent.
"""

from __future__ import annotations

from typing import Any

COUNTED = "counted"


def counted(stats: dict[str, list[Any]]) -> list[str]:
    """A line per count that a test recorded, whether it passed or failed."""
    return sorted(
        f"counted: {value}"
        for outcome in ("passed", "failed")
        for report in stats.get(outcome, [])
        for name, value in report.user_properties
        if name == COUNTED
    )
