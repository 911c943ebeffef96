"""``samekey demo``: the example shop, and its duplicate path run against it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from samekey.cli.options import Json
from samekey.cli.output import Exit, complain, console, print_json
from samekey.errors import ConfigurationError

if TYPE_CHECKING:
    from samekey.cli.demo_trial import Trial


def demo(
    once: Annotated[bool, typer.Option("--once", help="Run the trial, print its table, and end.")] = False,
    port: Annotated[int | None, typer.Option("--port", help="Default: a free one.")] = None,
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    store: Annotated[
        str | None, typer.Option("--store", help="The shop's database. Default: a temporary SQLite file.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, max=32, help="Server processes.")] = 4,
    mode: Annotated[str, typer.Option("--mode", help="How keys are kept: joined.")] = "joined",
    json: Json = False,
) -> None:
    """Start a protected shop API; with --once, try to make it create an order twice.

    The trial sends over real sockets: the same order twice, 20 at the same moment, the key with
    another body, a kill -9 of all processes between the business change and the record, and a
    lost answer. It ends with 1 if any of them went wrong.
    """
    if mode != "joined":
        raise ConfigurationError(f"--mode {mode}: this release has joined mode only")
    try:
        from samekey.cli.demo_server import Server, free_port, prepare  # noqa: PLC0415 - needs more extras
        from samekey.cli.demo_trial import Trial  # noqa: PLC0415 - the same
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f'the demo needs {error.name}; install it with: pip install "samekey[demo]"'
        ) from error
    with tempfile.TemporaryDirectory(prefix="samekey-demo-") as folder:
        where = store or f"sqlite:///{folder}/shop.db"
        prepare(where)
        server = Server(where, host, port or free_port(host), workers, Path(folder))
        try:
            server.start()
            if not json:
                console.print(
                    f"the shop is ready at {server.url} ({workers} processes, joined mode)", highlight=False
                )
            if once:
                _run_once(Trial(server), json)
            else:
                _stay_up(server.url)
                server.wait()
        except KeyboardInterrupt:
            complain("stopped")
        finally:
            server.stop()


def _run_once(trial: Trial, json: bool) -> None:
    findings = list(trial.findings())
    right = all(finding.right for finding in findings)
    if json:
        print_json({"right": right, "findings": [finding.as_json() for finding in findings]})
    else:
        table = Table("what was sent", "what came back", "orders", "", box=None)
        for finding in findings:
            verdict = "[green]right[/green]" if finding.right else "[red]WRONG[/red]"
            table.add_row(finding.sent, finding.came_back, str(finding.orders), verdict)
        console.print(table)
        console.print("one order each" if right else "[red]the shop is not safe[/red]")
    if not right:
        raise typer.Exit(Exit.WRONG)


def _stay_up(url: str) -> None:
    order = (
        f"curl -i {url}/orders -H 'X-Account: acme' -H 'Idempotency-Key: my-first-key' "
        '-H \'Content-Type: application/json\' -d \'{"cart": "12345", "amount": 10}\''
    )
    lines = [
        "",
        "Make an order, then send the very same again:",
        order,
        "",
        "Change the body under the same key:",
        order.replace('"amount": 10', '"amount": 99'),
        "",
        "See what exists:",
        f"curl {url}/orders -H 'X-Account: acme'",
        "",
        "Ctrl-C ends it.",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
