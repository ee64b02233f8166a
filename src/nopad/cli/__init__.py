"""The command line: one verb a file. Exit codes: see `main`."""

from nopad.cli.app import main

__all__ = ["main"]
