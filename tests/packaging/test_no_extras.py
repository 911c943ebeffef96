"""The package without any extra: it imports, and what needs an extra names the one to install.

Each import runs in a fresh interpreter that sees the standard library and samekey's source, and nothing else.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

# What a user imports or runs, and the extra it needs.
NEEDS_EXTRA = [
    ("samekey.server.fastapi", "fastapi"),
    ("samekey.cli", "cli"),
]

# -I ignores PYTHONPATH and the current folder, -S leaves site-packages out.
ISOLATED = [sys.executable, "-I", "-S", "-c"]
IMPORT = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
try:
    importlib.import_module(sys.argv[2])
except ImportError as error:
    print(error)
else:
    print("imported")
"""


def import_alone(module: str) -> str:
    """What importing ``module`` without third-party packages says: ``imported``, or the error's message."""
    ended = subprocess.run(
        [*ISOLATED, IMPORT, str(SOURCE), module], capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""
    return ended.stdout.strip()


def test_the_interpreter_sees_no_third_party_package() -> None:
    assert import_alone("pytest") == "No module named 'pytest'"


def test_samekey_imports_without_extras() -> None:
    assert import_alone("samekey") == "imported"


@pytest.mark.parametrize(("module", "extra"), NEEDS_EXTRA)
def test_a_missing_extra_is_named(module: str, extra: str) -> None:
    assert f'pip install "samekey[{extra}]"' in import_alone(module)


def test_every_extra_that_is_named_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    named = {
        extra.strip() for group in re.findall(r"samekey\[([\w\-, ]+)\]", text) for extra in group.split(",")
    }
    assert sorted(named - set(extras)) == []
