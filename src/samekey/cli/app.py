"""The commands together, and how errors end the program."""

from __future__ import annotations

import sys

import typer

from samekey.cli import demo, forget, init, list_, purge, show
from samekey.cli.output import Exit, complain
from samekey.errors import ConfigurationError, SamekeyError, StoreUnavailable

_EPILOG = (
    "Exit codes: 0 done; 1 not found, or the demo went wrong; 2 wrong usage or configuration; "
    "3 the store does not answer; 4 refused (ambiguous, or not confirmed)."
)

app = typer.Typer(
    name="samekey",
    help="Look at the records of idempotency keys, and see samekey at work.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(epilog=_EPILOG)(demo.demo)
app.command(epilog=_EPILOG)(init.init)
app.command(epilog=_EPILOG)(show.show)
app.command(name="list", epilog=_EPILOG)(list_.list_)
app.command(epilog=_EPILOG)(forget.forget)
app.command(epilog=_EPILOG)(purge.purge)


def main() -> None:
    """The entry point; every error of ours is one line and an exit code."""
    try:
        app()
    except ConfigurationError as error:
        complain(str(error))
        sys.exit(Exit.USAGE)
    except StoreUnavailable as error:
        complain(str(error))
        sys.exit(Exit.UNAVAILABLE)
    except SamekeyError as error:
        complain(str(error))
        sys.exit(Exit.WRONG)
