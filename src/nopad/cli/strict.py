"""Checks of the arguments of every command, in the parser that all commands share.

An option that takes one value but is given twice is a mistake: the first value would silently be lost. An empty value
usually comes from a shell variable that is not set; as a path it would mean the current folder. Results are written to
local disks only: every option with the metavar FILE or FOLDER names an output.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import typer
from typer.core import TyperOption

from nopad.cli.helping import HelpedCommand
from nopad.errors import OptionError
from nopad.files import local_path

__all__ = ["StrictCommand", "make_strict", "sturdy_streams"]


OUTPUTS = ("FILE", "FOLDER")


class StrictCommand(HelpedCommand):
    """A command whose single-value options may be given only once, and whose outputs must be local paths.

    An existing FILE is replaced only if ``--force`` is given (`nopad.cli.options.Overwrite`).
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments as click does, after refusing those that are likely to be mistakes.

        Returns the arguments that are left over.

        Raises:
            OptionError: an option that takes one value is given twice; a value is empty; an output is a URL, or its
                path is not UTF-8; or an output file is a folder or no regular file, or exists and ``--force`` is not
                given.
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
                if param.metavar == "FILE" and os.path.exists(value) and not ctx.params.get("force"):
                    raise OptionError(f"{value} is there already; --force replaces it, or choose another name")
        return rest


def _check_output(path: str, *, is_file: bool) -> None:
    """Refuse an output path that cannot be written to.

    Raises:
        OptionError: the path is a URL or not UTF-8; or a file is to be written (`is_file`), and the path is a folder,
            or something else that exists and is no regular file or lies in ``/dev``.
    """
    local_path(path)
    if is_file and os.path.isdir(path):
        raise OptionError(f"{path} is a folder; give the name of a file, such as {os.path.join(path, 'out')}")
    device = os.path.dirname(os.path.abspath(path)) == "/dev"
    if is_file and os.path.exists(path) and (device or not os.path.isfile(path)):
        raise OptionError(f"{path} is no regular file, and nopad replaces a file as a whole; give the name of a file")


def sturdy_streams() -> None:
    """Make stdout and stderr accept any text, so that printing never fails because of a character.

    Characters that a stream cannot encode are replaced; if a stream is closed, its output is discarded.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed from outside, `nopad ... >&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as we run
        elif hasattr(stream, "reconfigure"):
            utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="backslashreplace" if utf8 else "replace")


def make_strict(*apps: typer.Typer) -> None:
    """Make every command of these apps a `StrictCommand`."""
    for app in apps:
        for command in app.registered_commands:
            command.cls = StrictCommand
