"""What holds for every command, checked in the one place through which all their arguments pass.

An option of one value that is given twice is a mistyped repeat: the first value would be lost without a word. An empty
value is a variable that is not set: as a path it would be the folder that the shell is in. What is
written goes to this machine's disk: every option with the metavar FILE or FOLDER names an output.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from nopad.errors import OptionError
from nopad.files import local_path

__all__ = ["StrictCommand", "make_strict", "sturdy_streams"]


OUTPUTS = ("FILE", "FOLDER")


class StrictCommand(TyperCommand):
    """A command that takes each option of one value once, and writes to nothing but local paths."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and refuse what would be lost or could not be written.

        Raises:
            OptionError: an option is given twice, or anything is empty; an output is a URL, or a folder where a file is
                to be.
        """
        values, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for param in self.params:
            value = values.get(param.name)
            if "" in (value if isinstance(value, list | tuple) else [value]):
                name = "/".join(param.opts) if isinstance(param, TyperOption) else param.metavar
                raise OptionError(f"{name} is empty; give a value (is a variable of the shell not set?)")
        for param, times in Counter(given).items():
            if times > 1 and isinstance(param, TyperOption) and not param.multiple:
                raise OptionError(f"{'/'.join(param.opts)} is given {times} times, and takes one value; give it once")
        rest = super().parse_args(ctx, args)
        for param in self.params:
            value = ctx.params.get(param.name or "")
            if isinstance(param, TyperOption) and param.metavar in OUTPUTS and value:
                _check_output(os.fspath(value), is_file=param.metavar == "FILE")
        return rest


def _check_output(path: str, *, is_file: bool) -> None:
    """Refuse what cannot be written to."""
    local_path(path)
    if is_file and os.path.isdir(path):
        raise OptionError(f"{path} is a folder; give the name of a file, such as {os.path.join(path, 'out')}")


def sturdy_streams() -> None:
    """Let stdout and stderr take whatever is printed: in ASCII, closed, or names that are no text."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed from outside, `nopad ... >&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as we run
        elif hasattr(stream, "reconfigure"):
            utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="backslashreplace" if utf8 else "replace")


def make_strict(*apps: typer.Typer) -> None:
    """Make every command of these apps a strict one."""
    for app in apps:
        for command in app.registered_commands:
            command.cls = StrictCommand
