"""``samekey.testing.override``: another database and a fixed caller for a test, and nothing left of it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from samekey import SameKey, SamekeyError, callers
from samekey.testing import override


def make_engine(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    return engine


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM orders")).scalar_one())


async def test_a_test_database_and_a_fixed_caller(tmp_path: Path) -> None:
    real, test = make_engine(tmp_path / "real.db"), make_engine(tmp_path / "test.db")
    app = FastAPI()
    samekey = SameKey(real, caller=callers.header("X-Account"))
    samekey.install(app)

    @app.post("/orders", status_code=201)
    def create(db: Session = Depends(samekey.session)) -> dict[str, int]:
        db.execute(text("INSERT INTO orders DEFAULT VALUES"))
        return {"orders": 1}

    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
    key = {"Idempotency-Key": "k"}
    assert (await client.post("/orders", headers=key)).status_code == 400  # no caller
    with override(app, engine=test, caller="acme"):
        first = await client.post("/orders", headers=key)
        again = await client.post("/orders", headers=key)
        assert (first.status_code, again.headers["idempotent-replayed"]) == (201, "true")
        assert (count(real), count(test)) == (0, 1)
    assert (await client.post("/orders", headers=key)).status_code == 400
    assert (await client.post("/orders", headers={**key, "X-Account": "acme"})).status_code == 201
    assert (count(real), count(test)) == (1, 1)
    assert app.dependency_overrides == {}
    await client.aclose()
    real.dispose()
    test.dispose()


def test_an_unprotected_application_is_refused() -> None:
    with pytest.raises(SamekeyError, match="install"), override(FastAPI(), caller="acme"):
        pass
