"""Runs each contract test on every store that has the capabilities the test names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.subjects import CAPABILITIES, Subject, make_subject


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        needed: set[str] = getattr(metafunc.function, "needs", set())
        names = [name for name, can in CAPABILITIES.items() if needed <= can]
        metafunc.parametrize("store", names, indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, sqlite_path: Path, postgres_url: str) -> Iterator[Subject]:
    """A fresh store; whatever a test did to it, nothing may be left open afterwards (BL-52)."""
    with make_subject(request.param, sqlite_path=sqlite_path, postgres_url=postgres_url) as subject:
        yield subject
        assert subject.leftovers() == 0
