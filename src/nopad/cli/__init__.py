"""The command line: one file per command. Exit codes: see `nopad.cli.app.main`."""

from __future__ import annotations

import os
import signal
from typing import Any

__all__ = ["main"]

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> None:
    """Run the command line with the arguments `argv` (None: those of the process), and exit."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # an exception during an import may turn into another error
        signal.signal(signal.SIGINT, _leave)
    try:
        from nopad.cli import app  # takes half a second
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)
    app.main(argv)


def _leave(number: int, frame: Any) -> None:
    os._exit(INTERRUPTED)
