"""Every public fault of another system that this part touches has a test here that names its number.

The numbers are those of the project's collection of faults: BL-nn from public threads, PP-nn from
running other packages. What belongs to parts that are not built yet stands in ``LATER`` with the part.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent

FAULT = re.compile(r"(?<![A-Za-z])(BL|PP|bl|pp)[-_](\d{1,2})(?!\d)")
FAULTS = {f"BL-{number:02}" for number in range(1, 76)} | {f"PP-{number:02}" for number in range(1, 19)}

LATER = {
    "leases": {
        "BL-26",
        "BL-27",
        "BL-28",
        "BL-29",
        "BL-30",
        "BL-31",
        "BL-33",
        "BL-35",
        "PP-09",
        "PP-14",
        "PP-17",
    },
    "webhooks and events": {"BL-23", "BL-61", "BL-62", "BL-63", "BL-64", "BL-65", "PP-16"},
    "brokers": {"BL-66"},
    "the client half": {"BL-67", "BL-68", "BL-69", "BL-70", "BL-71", "BL-72", "BL-73"},
    "functions": {"BL-21"},
}


def named_in_tests() -> set[str]:
    named: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        if path != Path(__file__):
            text = path.read_text(encoding="utf-8")
            named |= {f"{kind.upper()}-{int(number):02}" for kind, number in FAULT.findall(text)}
    return named


def test_every_fault_of_this_part_has_a_test() -> None:
    later = set().union(*LATER.values())
    assert sorted(FAULTS - later - named_in_tests()) == []


def test_a_number_is_found_however_it_is_written() -> None:
    text = "BL-07 in a docstring, def test_pp_12_first_answer(), BL-5"
    assert {number for _, number in FAULT.findall(text)} == {"07", "12", "5"}
