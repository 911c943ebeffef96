"""Another database, or a fixed caller, for the time of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fastapi import FastAPI

from samekey.errors import ConfigurationError
from samekey.server.fastapi import SameKey


@contextmanager
def override(app: FastAPI, *, engine: Any = None, caller: str | None = None) -> Iterator[None]:
    """Run ``app``'s protected routes on another ``engine``, or as ``caller``, and restore both afterwards.

    The engine may be of the other colour only if the handlers' sessions are. Its table is made or
    checked at the first request, as at start-up. Not for use while other requests are served.
    """
    given = [guard.kwargs.get("samekey") for guard in app.user_middleware]
    keepers = [keeper for keeper in given if isinstance(keeper, SameKey)]
    if not keepers:
        raise ConfigurationError("this application is not protected: call samekey.install(app) first")
    before = [(keeper, keeper.site) for keeper in keepers]
    overrides = dict(app.dependency_overrides)
    try:
        for keeper in keepers:
            if engine is not None:
                _move(keeper, engine)
            if caller is not None:
                app.dependency_overrides[keeper.caller] = lambda: caller
        yield
    finally:
        app.dependency_overrides = overrides
        for keeper, site in before:
            if keeper.site is not site:
                keeper.move_to(site)


def _move(keeper: SameKey, engine: Any) -> None:
    keeper.move_to(replace(keeper.site, database=keeper.database_on(engine)))
