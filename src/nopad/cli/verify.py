"""``nopad verify``: verify a plan file or a packed dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from nopad.cli.content import encoder_of
from nopad.cli.inputs import open_inputs
from nopad.cli.monitor import Bars
from nopad.cli.options import TokenizerSpec
from nopad.cli.pretrain import as_packed
from nopad.cli.render import console
from nopad.cli.standard_input import StdinFormat, from_stdin
from nopad.cli.wording import worded
from nopad.corpus import load_tokenizer
from nopad.corpus.options import ReaderOptions
from nopad.errors import CorruptError, FormatError, OptionError
from nopad.planning import Plan
from nopad.planning.stored import load_plan
from nopad.store import Manifest
from nopad.store import verify as find_problems
from nopad.store.manifest import split_folders
from nopad.wording import counted

__all__ = ["verify"]


def verify(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Packed dataset folders, or plan files.")],
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            "-s",
            metavar="INPUT",
            help="What the one dataset was packed from: compare every token with it. Repeatable.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help='Print {"ok": ..., "problems": [...]}.')] = False,
    tokenizer: TokenizerSpec = None,
    stdin_format: StdinFormat = None,
) -> None:
    """Read plans or datasets and check them: every sequence once, no pack above capacity or depth, all checksums.

    Exit code 0 when every check passes, 1 when one fails.

    Examples:
      nopad verify packed

      nopad verify packed --source corpus/

      nopad verify runs/*/packed

      nopad verify lpfhp.plan.json --json
    """
    for path in paths:
        if not path.exists():
            raise OptionError(f"{path} does not exist; give a packed dataset folder or a plan file")
    if source and len(paths) > 1:
        raise OptionError(f"--source is what one dataset was packed from, and there are {len(paths)}; give one PATH")
    if source and paths[0].is_file():
        raise OptionError(f"--source is compared with the tokens of a dataset, and {paths[0]} is a file; leave it out")
    inputs = from_stdin(source or [], stdin_format)
    found = {path: [worded(problem, "verify") for problem in _problems(path, inputs, tokenizer)] for path in paths}
    problems = [f"{path}: {one}" if len(paths) > 1 else one for path, each in found.items() for one in each]
    if as_json:
        print(json.dumps({"ok": not problems, "problems": problems}, indent=1))
    else:
        screen = console()
        for problem in problems:
            screen.print(f"[red]✗[/] {escape(problem)}", soft_wrap=True)
        for whole in (whole for path, each in found.items() if not each for whole in split_folders(path) or [path]):
            screen.print(f"[green]✓[/] {escape(str(whole))}: {_proven(whole, bool(source))}", soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def _problems(path: Path, inputs: list[str], tokenizer: str | None) -> list[str]:
    """Return the problems of the plan file or dataset `path`, as messages; an empty list if there are none.

    `inputs` are what the dataset was packed from. If there are any, every token of the dataset (of an index, every
    length) is compared with them. An input or tokenizer that cannot be opened raises an error.
    """
    against: dict[str, Any] = {}
    try:
        manifest = Manifest.load((split_folders(path) or [path])[0]) if inputs else None
    except (CorruptError, FormatError) as error:
        return [str(error)]
    if manifest:
        try:
            encoder = encoder_of(manifest.options, manifest.capacity, tokenizer)
        except OptionError as error:
            raise OptionError(f"{path}: {error}") from error
        opened = open_inputs(inputs, ReaderOptions.from_settings(manifest.options), encoder=encoder)
        against["source"] = as_packed(opened, manifest.options, tokenizer)
        against["tokenizer"] = load_tokenizer(tokenizer) if manifest.tokenizer else None
    with Bars() as monitor:
        try:
            return find_problems(path, monitor=monitor, **against)
        except (CorruptError, FormatError) as error:
            return [str(error)]


def _proven(path: Path, compared: bool) -> str:
    """Return a text that says what was verified of the plan file or dataset `path`.

    `compared` says whether the dataset was compared with its source.
    """
    if not path.is_dir():
        made = load_plan(path)
        if not isinstance(made, Plan):
            state = f"{made.gap_share:.4%} above it" if made.gap else "so none costs less"
            return (
                f"{counted(sum(made.packs.values()), 'pack')} of {len(made.capacities)} capacities for "
                f"{counted(made.sequences, 'sequence')}, within every limit, at a price of {made.price:,}; lower bound "
                f"{made.lower_bound:,}, proven again by {made.bound.proof}: {state}"
            )
        state = f"{made.gap:,} above it" if made.gap else "so none is better"
        return (
            f"{counted(made.packs, 'pack')} for {counted(made.sequences, 'sequence')}, within capacity and depth; "
            f"lower bound {made.lower_bound:,}, proven again by {made.bound.proof}: {state}"
        )
    m = Manifest.load(path)
    what = "token" if m.kind == "packed" else "length"  # an index holds no tokens
    tokens = f" every {what} compared with its source," if compared else ""
    return (
        f"{counted(m.sequences, 'sequence')}, each in exactly one of {counted(m.packs, 'pack')},{tokens} "
        "none above capacity or depth, all checksums true"
    )
