"""The operator's commands, on SQLite and PostgreSQL: text, JSON, exit codes, wrong input on purpose."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from samekey.cli import main
from samekey.cli.output import complain
from samekey.core.model import Answer, Claim, Completion, Fingerprint, record_id
from samekey.core.ops import Complete, CreateSchema, TryClaim
from samekey.stores.drivers.sqlalchemy import SqlAlchemyStore
from samekey.stores.url import open_store

KEY = "order-12345-secret-part"


@dataclass(frozen=True, slots=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


def samekey(*words: str) -> Ended:
    """The program in this process: as ``samekey words…`` in a shell without a terminal."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr("sys.argv", ["samekey", *words])
        patch.setattr("sys.stdin", io.StringIO())
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    return Ended(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, sqlite_path: Path, fresh_postgres: str) -> str:
    return f"sqlite:///{sqlite_path}" if request.param == "sqlite" else fresh_postgres


@pytest.fixture
def store(url: str) -> Iterator[SqlAlchemyStore]:
    opened = open_store(url, must_exist=False)
    opened.perform(CreateSchema())
    yield opened
    opened.engine.dispose()


@pytest.fixture
def add(store: SqlAlchemyStore) -> Callable[[str, str], None]:
    """Adds a completed record of (key, caller)."""

    def add_record(key: str, caller: str) -> None:
        id, owner = record_id("", caller, key), bytes(16)
        transaction = store.transaction()
        claim = Claim(id, owner, Fingerprint(1, b"f"), caller, key[:6], "POST", "/orders")
        granted = transaction.perform(TryClaim(claim))
        answer = Answer(201, ((b"location", b"/orders/1"), (b"x-token", b"hush")), b'{"card": "4111"}')
        transaction.perform(Complete(Completion(id, owner, granted.fence, answer, 3600.0)))

    return add_record


def parsed(ended: Ended) -> Any:
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_init_makes_the_table_and_may_be_run_again(url: str) -> None:
    assert parsed(samekey("init", "--store", url, "--json")) == {
        "table": "idempotency_keys",
        "version": 1,
        "created": True,
    }
    assert parsed(samekey("init", "--store", url, "--json"))["created"] is False
    assert samekey("init", "--store", url).stdout == "table idempotency_keys was there already (version 1)\n"


def test_init_prints_statements_and_a_migration_without_touching_anything(url: str) -> None:
    printed = samekey("init", "--store", url, "--print").stdout
    assert "CREATE TABLE IF NOT EXISTS idempotency_keys" in printed
    migration = samekey("init", "--store", url, "--alembic").stdout
    compile(migration, "migration", "exec")
    assert 'op.execute("DROP TABLE idempotency_keys")' in migration
    assert samekey("init", "--store", url, "--print", "--alembic").returncode == 2
    assert parsed(samekey("init", "--store", url, "--json"))["created"] is True


def test_show_finds_a_key_with_and_without_its_caller(url: str, add: Callable[[str, str], None]) -> None:
    add(KEY, "acme")
    add(KEY, "zenith")
    add("order-99999", "acme")
    (record,) = parsed(samekey("show", KEY, "--caller", "acme", "--store", url, "--json"))
    assert record["caller"] == "acme"
    assert record["state"] == "completed"
    assert record["status"] == 201
    assert record["headers"] == ["location", "x-token"]
    assert record["body_bytes"] == 16
    assert "body" not in record
    everyone = parsed(samekey("show", KEY, "--store", url, "--json"))
    assert sorted(record["caller"] for record in everyone) == ["acme", "zenith"]
    (with_body,) = parsed(samekey("show", KEY, "--caller", "acme", "--body", "--store", url, "--json"))
    assert with_body["body"] == '{"card": "4111"}'


def test_nothing_secret_is_shown_unasked(url: str, add: Callable[[str, str], None]) -> None:
    add(KEY, "acme")
    for words in (["show", KEY], ["list"], ["list", "--json"], ["show", KEY, "--json"]):
        shown = samekey(*words, "--store", url).stdout
        assert "acme" in shown
        assert KEY not in shown
        assert "4111" not in shown
        assert "hush" not in shown


def test_list_filters(url: str, add: Callable[[str, str], None]) -> None:
    add(KEY, "acme")
    add("refund-1", "zenith")
    listed = parsed(samekey("list", "--store", url, "--json"))
    assert [record["key_hint"] for record in listed] == ["refund", "order-"]
    assert len(parsed(samekey("list", "--caller", "acme", "--store", url, "--json"))) == 1
    assert len(parsed(samekey("list", "--key-prefix", "refund-1", "--store", url, "--json"))) == 1
    assert parsed(samekey("list", "--state", "held", "--store", url, "--json")) == []
    assert len(parsed(samekey("list", "--limit", "1", "--store", url, "--json"))) == 1
    assert samekey("list", "--state", "held", "--store", url).stdout == "no records\n"


def test_forget_refuses_what_is_ambiguous_or_unconfirmed_bl_75(
    url: str, add: Callable[[str, str], None]
) -> None:
    """BL-75: operators can find and evict one record, by the client's key."""
    add(KEY, "acme")
    add(KEY, "zenith")
    ambiguous = samekey("forget", KEY, "--yes", "--store", url)
    assert (ambiguous.returncode, "2 callers" in ambiguous.stderr) == (4, True)
    unconfirmed = samekey("forget", KEY, "--caller", "acme", "--store", url)
    assert (unconfirmed.returncode, "add --yes" in unconfirmed.stderr) == (4, True)
    assert len(parsed(samekey("show", KEY, "--store", url, "--json"))) == 2
    forgotten = parsed(samekey("forget", KEY, "--caller", "acme", "--yes", "--store", url, "--json"))
    assert forgotten["forgotten"] is True
    (left,) = parsed(samekey("show", KEY, "--store", url, "--json"))
    assert left["caller"] == "zenith"
    assert samekey("forget", KEY, "--caller", "acme", "--yes", "--store", url).returncode == 1


def test_purge_takes_what_is_over(url: str, store: SqlAlchemyStore, add: Callable[[str, str], None]) -> None:
    for number in range(5):
        add(f"key-{number}", "acme")
    with store.engine.begin() as connection:
        over = "0" if store.dialect.name == "sqlite" else "now() - interval '1 second'"
        connection.execute(text(f"UPDATE idempotency_keys SET purge_at = {over} WHERE key_hint <> 'key-0'"))
    assert parsed(samekey("purge", "--batch", "2", "--store", url, "--json"))["purged"] == 4
    assert samekey("purge", "--store", url).stdout == "0 records purged\n"
    assert len(parsed(samekey("list", "--store", url, "--json"))) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["list"], 2, "--store"),
        (["list", "--store", "shop.db"], 2, "sqlite:///file.db"),
        (["list", "--store", "mongodb://x"], 2, "'mongodb'"),
        (["list", "--store", "sqlite:///no-such-file.db"], 2, "no SQLite file no-such-file.db"),
        (["list", "--store", "postgresql://nobody@127.0.0.1:1/x"], 3, "did not answer"),
        (["list", "--store", "sqlite:///x.db", "--table", "a;b"], 2, ""),
        (["show", "no-such-key", "--store", "STORE"], 1, "no record of that key"),
        (
            ["show", "k", "--store", "STORE", "--secret-env", "NO_SUCH_VARIABLE"],
            2,
            "NO_SUCH_VARIABLE is empty",
        ),
        (["purge", "--batch", "0", "--store", "STORE"], 2, "batch"),
        (["demo", "--mode", "leased"], 2, "joined mode only"),
        (["demo", "--once", "--store", "mysql://x"], 2, "sqlite:///file.db or postgresql://"),
    ],
)
def test_a_wrong_input_is_one_clear_line(words: list[str], code: int, said: str, sqlite_path: Path) -> None:
    url = f"sqlite:///{sqlite_path}"
    samekey("init", "--store", url)
    ended = samekey(*[url if word == "STORE" else word for word in words])
    assert (ended.returncode, said in ended.stderr, "Traceback" in ended.stderr) == (code, True, False)


def test_a_complaint_names_an_extra_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    complain('install it with: pip install "samekey[demo]"')
    assert capsys.readouterr().err == 'samekey: install it with: pip install "samekey[demo]"\n'


def test_a_database_without_the_table_says_what_to_run(sqlite_path: Path) -> None:
    sqlite_path.touch()
    ended = samekey("list", "--store", f"sqlite:///{sqlite_path}")
    assert (ended.returncode, "run 'samekey init'" in ended.stderr) == (2, True)


@pytest.mark.parametrize("command", ["demo", "init", "show", "list", "forget", "purge"])
def test_every_command_has_help_with_exit_codes(command: str) -> None:
    ended = samekey(command, "--help")
    assert ended.returncode == 0
    assert "Exit codes" in ended.stdout
