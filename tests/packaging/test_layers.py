"""The layers of the package, enforced on its imports.

The rules are the tables below; an import inside a function or under TYPE_CHECKING counts like any other.
Every rule is also shown a source that breaks it, so that a rule which stopped seeing anything fails here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "samekey"
SOURCE = Path(__file__).parents[2] / "src" / PACKAGE

# Which layers a layer may import besides itself. "" is the package's front door, samekey/__init__.py.

BASE = {"errors", "core", "run", "stores", "engine", "aengine"}
DOORS = {"server", "client", "consumer"}
EVERYTHING_BUT_TESTING = {"", *BASE, *DOORS, "http", "observe", "cli", "dashboard"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors"},
    "run": {"errors", "core"},
    "stores": {"errors", "core", "run"},
    "engine": {"errors", "core", "run", "stores"},
    "aengine": {"errors", "core", "run", "stores", "engine"},
    "http": {"errors", "core"},
    "observe": {"core"},
    "server": {*BASE, "http", "observe"},
    "client": {*BASE, "http", "observe"},
    "consumer": {*BASE, "http", "observe"},
    "cli": EVERYTHING_BUT_TESTING,
    "dashboard": EVERYTHING_BUT_TESTING,
    "testing": {*EVERYTHING_BUT_TESTING, "testing"},
    "": EVERYTHING_BUT_TESTING - {"cli", "dashboard"},
}

# The only places where a third-party import may stand; everything else runs on the standard library.
EDGES = (
    "stores.drivers", "server", "client", "consumer.brokers", "observe", "cli", "dashboard", "testing",
)  # fmt: skip

# The core is pure: no clock, chance, environment, output, waiting or network of its own.
IMPURE = {"asyncio", "logging", "os", "random", "secrets", "socket", "threading", "time", "uuid"}

# A plan awaits only samekey's own operations, so it needs no event loop and no driver.
FOREIGN_TO_PLANS = {"asyncio", "concurrent", "selectors", "sqlite3", "threading"}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: ``target`` is absolute, with the name that was taken from the module."""

    module: str  # the importing module below samekey: "stores.sql.plans", or "" for samekey/__init__.py
    target: str
    line: int

    @property
    def layer(self) -> str:
        return self.module.partition(".")[0]

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]

    @property
    def is_own(self) -> bool:
        return self.top == PACKAGE

    @property
    def is_third_party(self) -> bool:
        return not self.is_own and self.top not in sys.stdlib_module_names

    @property
    def own_layer(self) -> str:
        """The layer that is imported; a name from the front door (``from samekey import SameKey``) is ""."""
        layer = [*self.target.split("."), ""][1]
        return layer if layer in MAY_IMPORT else ""

    def __str__(self) -> str:
        return f"{self.module or '__init__'}:{self.line} imports {self.target}"


def imports_of(source: str, module: str, *, is_package: bool = False) -> Iterator[Import]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(module, name.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            parent = _absolute(node, module, is_package=is_package)
            for name in node.names:
                yield Import(module, f"{parent}.{name.name}", node.lineno)


def _absolute(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = [PACKAGE, *module.split(".")] if module else [PACKAGE]
    up = node.level - 1 if is_package else node.level
    parents = parts[: len(parts) - up]
    return ".".join([*parents, node.module] if node.module else parents)


def crosses_layers(found: Import) -> bool:
    return found.is_own and found.own_layer != found.layer and found.own_layer not in MAY_IMPORT[found.layer]


def leaves_the_edges(found: Import) -> bool:
    at_edge = any(found.module == edge or found.module.startswith(f"{edge}.") for edge in EDGES)
    return found.is_third_party and not at_edge


def makes_core_impure(found: Import) -> bool:
    return found.layer == "core" and found.top in IMPURE


def ties_a_plan_to_a_driver(found: Import) -> bool:
    is_plan = "plans" in found.module.split(".")
    is_driver = found.target.startswith(f"{PACKAGE}.stores.drivers")
    return is_plan and (found.is_third_party or is_driver or found.top in FOREIGN_TO_PLANS)


def imports_testing(found: Import) -> bool:
    return found.is_own and found.own_layer == "testing" and found.layer != "testing"


RULES: list[Callable[[Import], bool]] = [
    crosses_layers,
    leaves_the_edges,
    makes_core_impure,
    ties_a_plan_to_a_driver,
    imports_testing,
]


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def package_imports() -> list[Import]:
    return [
        found
        for path in sorted(SOURCE.rglob("*.py"))
        for found in imports_of(path.read_text(), module_of(path), is_package=path.name == "__init__.py")
    ]


def test_every_module_belongs_to_a_layer() -> None:
    layers = {module_of(path).partition(".")[0] for path in SOURCE.rglob("*.py")}
    assert {"errors", "core"} <= layers
    assert sorted(layers - set(MAY_IMPORT)) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_import(rule: Callable[[Import], bool]) -> None:
    assert [str(found) for found in package_imports() if rule(found)] == []


BROKEN = [
    (crosses_layers, "core.decide", "from samekey.stores.memory import MemoryStore"),
    (crosses_layers, "core.decide", "from ..stores import memory"),
    (crosses_layers, "errors", "import samekey.core.model"),
    (crosses_layers, "stores.memory", "from samekey.engine import Engine"),
    (crosses_layers, "stores.memory", "def late():\n    from samekey import SameKey"),
    (crosses_layers, "engine", "from samekey.http.header import read_key"),
    (crosses_layers, "http.header", "from samekey.run import run"),
    (crosses_layers, "observe.logging", "from samekey.engine import Engine"),
    (crosses_layers, "server.asgi", "from samekey.client import Client"),
    (crosses_layers, "", "from samekey.cli import main"),
    (leaves_the_edges, "http.header", "import http_sf"),
    (leaves_the_edges, "stores.sql.postgres", "from psycopg import sql"),
    (leaves_the_edges, "stores.drivers_of_old", "import psycopg"),
    (leaves_the_edges, "", "import sqlalchemy"),
    (makes_core_impure, "core.backoff", "import random"),
    (makes_core_impure, "core.model", "from time import monotonic"),
    (makes_core_impure, "core.model", "import os.path"),
    (ties_a_plan_to_a_driver, "stores.sql.plans", "import asyncio"),
    (ties_a_plan_to_a_driver, "core.plans", "from anyio import to_thread"),
    (ties_a_plan_to_a_driver, "stores.sql.plans", "from samekey.stores.drivers import sqlalchemy"),
    (ties_a_plan_to_a_driver, "stores.sql.plans.claim", "import sqlite3"),
    (imports_testing, "cli.demo", "from samekey.testing import crash"),
    (imports_testing, "server.fastapi", "def late():\n    import samekey.testing.clock"),
]


@pytest.mark.parametrize(
    ("rule", "module", "source"), BROKEN, ids=[f"{r.__name__}-{i}" for i, (r, _, _) in enumerate(BROKEN)]
)
def test_a_broken_source_is_caught(rule: Callable[[Import], bool], module: str, source: str) -> None:
    assert [rule(found) for found in imports_of(source, module)] == [True]


def test_every_rule_is_broken_once() -> None:
    assert {rule.__name__ for rule, _, _ in BROKEN} == {rule.__name__ for rule in RULES}


def test_relative_imports_are_resolved() -> None:
    source = "from . import model\nfrom .. import errors\nfrom ..core import keys"
    in_module = [found.target for found in imports_of(source, "core.decide")]
    assert in_module == ["samekey.core.model", "samekey.errors", "samekey.core.keys"]
    in_package = [found.target for found in imports_of("from .model import Claim", "core", is_package=True)]
    assert in_package == ["samekey.core.model.Claim"]
