"""``nopad verify``: prove a plan file or a packed dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nopad.cli.monitor import Bars
from nopad.cli.options import TokenizerSpec
from nopad.cli.pack import open_inputs
from nopad.cli.render import console
from nopad.corpus import load_tokenizer
from nopad.errors import CorruptError, FormatError, OptionError
from nopad.store import Manifest
from nopad.store import verify as find_problems

__all__ = ["verify"]


def verify(
    path: Annotated[Path, typer.Argument(help="A packed dataset folder, or a plan file.")],
    deep: Annotated[
        bool, typer.Option("--deep", help="Also compare every token with the source; needs --source.")
    ] = False,
    source: Annotated[
        list[Path] | None, typer.Option("--source", "-s", help="What the dataset was packed from. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help='Print {"ok": ..., "problems": [...]}.')] = False,
    tokenizer: TokenizerSpec = None,
) -> None:
    """Read everything again and prove it: every sequence exactly once, nothing above capacity or depth, all checksums.

    Exit code 0 when all holds, 1 when something does not.

    Examples:
      nopad verify packed

      nopad verify packed --deep --source corpus/

      nopad verify lpfhp.plan.json --json
    """
    if deep != bool(source):
        raise OptionError("--deep compares with the source: give both --deep and --source INPUT, or neither")
    if not path.exists():
        raise OptionError(f"{path} does not exist; give a packed dataset folder or a plan file")
    try:
        with Bars() as monitor:
            if source:
                manifest = Manifest.load(path)
                reader = {name: manifest.options.get(name) for name in ("text_unit", "text_field", "ids_field")}
                reader["text_unit"] = reader["text_unit"] or "file"
                loaded = load_tokenizer(tokenizer) if manifest.tokenizer else None
                problems = find_problems(path, source=open_inputs(source, reader), tokenizer=loaded, monitor=monitor)
            else:
                problems = find_problems(path, monitor=monitor)
    except (CorruptError, FormatError) as error:
        problems = [str(error)]
    if as_json:
        print(json.dumps({"ok": not problems, "problems": problems}, indent=1))
    else:
        screen = console()
        for problem in problems:
            screen.print(f"[red]✗[/] {problem}", soft_wrap=True)
        if not problems:
            screen.print(f"[green]✓[/] {path}: {_proven(path, deep)}", soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def _proven(path: Path, deep: bool) -> str:
    """Say what has been proven."""
    if not path.is_dir():
        return "the plan covers its histogram exactly, within capacity and depth, and its lower bound holds"
    m = Manifest.load(path)
    tokens = " every token compared with its source," if deep else ""
    return (
        f"{m.sequences:,} sequences, each in exactly one of {m.packs:,} packs,{tokens} "
        "none above capacity or depth, all checksums true"
    )
