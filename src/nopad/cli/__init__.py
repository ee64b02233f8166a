"""The command line: one file per command. Exit codes: see `nopad.cli.app.main`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit."""
    try:
        from nopad.cli import app  # takes half a second, in which Ctrl-C must not print a traceback
    except KeyboardInterrupt:
        sys.exit(130)
    app.main(argv)
