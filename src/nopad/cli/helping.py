"""Write the text of ``--help`` in two columns, at most 100 characters wide, without interpreting any markup."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup, TyperOption

__all__ = ["HelpedCommand", "HelpedGroup"]

WIDEST = 100  # characters of a line
NAMES = 28  # characters of the column of names
PANEL = "Options"
_Rows = list[tuple[str, str]]


class HelpedCommand(TyperCommand):
    """A command that shows its help as this module writes it."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the command."""
        _print(self, ctx)


class HelpedGroup(TyperGroup):
    """A group of commands that shows its help as this module writes it."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the group, with a line for each command."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        _print(self, ctx, [(name, _first(one.help or "")) for name, one in commands if not one.hidden])


def _print(command: Any, ctx: Any, commands: _Rows | None = None) -> None:
    screen = Console(highlight=False, emoji=False, soft_wrap=True, markup=False)
    width = min(Console().width, WIDEST)
    usage = " ".join(piece.strip("{}").replace("}...", "...") for piece in command.collect_usage_pieces(ctx))
    screen.print(Text.assemble(("Usage: ", "bold"), f"{ctx.command_path} {_once(usage)}\n"))
    screen.print("\n".join(_prose(inspect.cleandoc(command.help or ""), width)))
    sections: dict[str, _Rows] = {}
    for param in command.get_params(ctx):
        if getattr(param, "hidden", False):
            continue
        is_option = isinstance(param, TyperOption) or param.param_type_name == "option"
        panel = (getattr(param, "rich_help_panel", None) or PANEL) if is_option else "Arguments"
        sections.setdefault(panel, []).append(
            (_names(param, command) if is_option else param.metavar, _said(param, is_option))
        )
    if commands:
        sections["Commands"] = commands
    for panel, rows in sections.items():
        screen.print(Text(f"\n{panel}:", "bold"))
        for line in _table(rows, width):
            screen.print(line)
    if command.epilog:
        screen.print("\n" + "\n".join(textwrap.wrap(inspect.cleandoc(command.epilog), width)))


def _once(usage: str) -> str:
    return usage.replace("......", "...")


def _first(text: str) -> str:
    """Return the first paragraph of a docstring, joined to one line."""
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())


def _prose(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a docstring for a terminal that is `width` characters wide.

    Paragraphs are wrapped anew; indented lines, which are examples, are kept as they are.
    """
    paragraphs = text.replace("\b\n", "").split("\n\n")
    for at, paragraph in enumerate(paragraphs):
        lines = paragraph.split("\n")
        plain = [line for line in lines if not line.startswith("  ")]
        examples = [line for line in lines if line.startswith("  ")]
        if at and plain:
            yield ""
        yield from textwrap.wrap(" ".join(plain), width)
        yield from examples


def _names(param: Any, command: Any) -> str:
    """Return an option's names, followed by a placeholder for its value, such as ``-c, --capacity N``.

    A flag has no value, and so no placeholder.
    """
    short = [name for name in param.opts if not name.startswith("--")]
    long = [*(name for name in param.opts if name.startswith("--")), *param.secondary_opts]
    names = ", ".join([*short, *long]) if short else "    " + ", ".join(long)
    if param.is_flag or param.name == "help":
        return names
    return f"{names} {param.metavar or _choices(command, param.name)}"


def _choices(command: Any, name: str) -> str:
    """Return the words that an option may take as its value, such as ``skip|error``; "VALUE" if any value is possible.

    `name` is the option's name as an argument of the command's function.
    """
    hint = get_type_hints(command.callback).get(name)
    for one in (hint, *get_args(hint)):
        if get_origin(one) is Literal:
            return "|".join(map(str, get_args(one)))
    return "VALUE"


def _said(param: Any, is_option: bool) -> str:
    """Return the help text of an option or argument.

    An option's text ends with its default, if it has one that is shown, or with the word "Required", if the option must
    be given.
    """
    text = " ".join((getattr(param, "help", None) or "").split())
    if param.required:
        return f"{text} Required." if is_option else text
    default = param.default
    shown = is_option and getattr(param, "show_default", True) and not callable(default)
    if (
        not shown
        or default is None
        or default is False
        or default in ((), "")
        or "Default:" in text
        or param.name == "help"
    ):
        return text
    if param.is_flag:
        default = (param.opts if default else param.secondary_opts)[0]
    return f"{text} Default: {default.as_posix() if isinstance(default, Path) else default}."


def _table(rows: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield the lines of a table with two columns; `width` is the width of a line in characters.

    `rows` are pairs of texts, one for each column; the first is, for example, the names of an option. A first text that
    is too wide for its column has a line of its own.
    """
    rows = list(rows)
    column = min(max(len(names) for names, _ in rows), NAMES) + 2
    for names, text in rows:
        lines = textwrap.wrap(text, max(width - column - 2, 20), break_on_hyphens=False) or [""]
        if len(names) + 2 > column:
            yield f"  {names}"
        else:
            yield f"  {names:<{column}}{lines.pop(0)}".rstrip()
        yield from (" " * (column + 2) + line for line in lines)
