"""The command line: ``samekey``. One file per command; text for people, ``--json`` for programs."""

from __future__ import annotations

try:
    from samekey.cli.app import main as main
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("samekey"):
        raise
    raise ImportError(
        f'the command line needs {error.name}; install it with: pip install "samekey[cli]"'
    ) from error

__all__ = ["main"]
