"""The documents' files, commands and answers are run and compared, so they cannot drift.

A page's ``<!-- file: NAME -->`` block is written to a folder, the application is started, and each
``$ curl`` of its console blocks is sent over a real socket; the lines below it must come back.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/tutorial.md"]
READY_SECONDS_MAX = 30
SAMEKEY = "from samekey.cli import main; main()"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def files(text: str) -> dict[str, str]:
    pattern = r"^<!-- file: (\S+) -->\n```python\n(.*?)^```$"
    return dict(re.findall(pattern, text, re.DOTALL | re.MULTILINE))


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of the console blocks with the lines it should print."""
    for block in blocks(text, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *expected = part.rstrip().splitlines()
            yield command.partition("   #")[0], expected


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "error"]
    server = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)})
    try:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/openapi.json").raise_for_status()
                break
            except httpx.TransportError:
                assert server.poll() is None, "the application did not start"
                assert time.monotonic() < deadline, "the application did not start in time"
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def curl(command: str, base: str) -> list[str]:
    """What curl would print, with the headers in any order and without those that nobody reads."""
    method, url, body, headers, with_head = "GET", "", None, [], False
    words = iter(shlex.split(command)[1:])
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers.append((name, value))
        elif word == "-d":
            body = next(words)
        elif word == "-i":
            with_head = True
        else:
            url = word.replace("http://127.0.0.1:8000", base)
    answer = httpx.request(method, url, headers=headers, content=body)
    head = [f"HTTP/1.1 {answer.status_code}", *(f"{name}: {value}" for name, value in answer.headers.items())]
    return [*head, "", answer.text] if with_head else [answer.text]


def assert_printed(expected: list[str], printed: list[str]) -> None:
    for line in filter(None, expected):
        if line.endswith(", ...}"):
            start = line.removesuffix(", ...}")
            assert any(actual.startswith(start) for actual in printed), (line, printed)
        else:
            assert line in printed, (line, printed)


@pytest.mark.parametrize("page", PAGES)
def test_the_page_says_what_happens(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, content in files(text).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    sent = 0
    with serving(tmp_path) as base:
        for command, expected in commands(text):
            if command.startswith("curl"):
                assert_printed(expected, curl(command, base))
                sent += 1
            elif command.startswith("samekey") and "sqlite" in command:
                words = [sys.executable, "-c", SAMEKEY, *shlex.split(command)[1:]]
                subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    assert sent >= 3


def test_a_changed_answer_is_noticed() -> None:
    with pytest.raises(AssertionError):
        assert_printed(['{"id":2}'], ["HTTP/1.1 201", "", '{"id":1}'])


def test_how_to_snippets_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/how-to.md").read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "how_to"}
    snippets = blocks(text, "python")
    for snippet in snippets:
        exec(compile(snippet, "docs/how-to.md", "exec"), names)
    assert len(snippets) == 5
    names["engine"].dispose()  # type: ignore[attr-defined]


def test_links_between_the_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
