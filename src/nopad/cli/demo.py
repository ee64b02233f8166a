"""``nopad demo``: pack text that every machine has: the docstrings and comments of Python's standard library."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from nopad.cli.demo_model import embedding_lines
from nopad.cli.monitor import Bars
from nopad.cli.options import Seed, TokenizerSpec
from nopad.cli.render import console
from nopad.corpus import CorpusOptions, load_tokenizer, open_source, stdlib_texts
from nopad.errors import CorruptError, FormatError, MissingExtraError, install
from nopad.files import replacing, storage_errors
from nopad.planning import Plan
from nopad.planning.baselines import padded
from nopad.report import read_subject, write_report
from nopad.store import PackOptions, pack_corpus
from nopad.store import verify as find_problems
from nopad.store.manifest import FORMAT_VERSION, MANIFEST, PLAN, other_version

__all__ = ["demo"]

BAR = 32
VERIFIED = "each sequence in exactly one pack, every token equal to its source"


def demo(
    folder: Annotated[
        Path, typer.Option("--folder", metavar="FOLDER", help="Where to put the text and the packed dataset.")
    ] = Path("nopad-demo"),
    capacity: Annotated[int, typer.Option("--capacity", "-c", metavar="N", help="Most tokens a pack may hold.")] = 512,
    seed: Seed = 0,
    tokenizer: TokenizerSpec = None,
    no_model: Annotated[
        bool,
        typer.Option("--no-model", help="Pack only; do not run a model on packs, on padded batches and on requests."),
    ] = False,
) -> None:
    """Pack the docstrings and comments of this Python's standard library, then verify and show the result.

    The speed of a model is measured once, on packs, on padded batches, and on requests that arrive at random times. The
    result is kept beside the dataset.

    Examples:
      nopad demo

      nopad demo --capacity 128 --folder nopad-demo-128
    """
    screen = console()
    if note := _without_old_result(folder):
        screen.print(note, markup=False, soft_wrap=True)
    with Bars() as monitor:
        monitor.stage("reading the standard library", None, "")
        text = _write_texts(folder)
        out = folder / "packed"
        reused = (out / MANIFEST).exists()
        source = open_source([text])
        loaded = load_tokenizer(tokenizer)
        manifest = pack_corpus(
            source,
            out,
            CorpusOptions(capacity=capacity, over_long="split"),
            tokenizer=loaded,
            packing=PackOptions(seed=seed),
            monitor=monitor,
        )
        problems = find_problems(out, source=source, tokenizer=loaded, monitor=monitor)
        if problems:
            raise CorruptError(f"{out} does not verify: {problems[0]}; remove {folder} and run the demo again")
    # Printed before the model is measured, which takes longest: an interrupt then leaves these lines on the screen
    screen.print(
        f"{manifest.sequences:,} sequences, docstrings and comments of Python {platform.python_version()}, "
        f"{manifest.tokens:,} tokens, in rows of {capacity:,}:",
        markup=False,
        soft_wrap=True,
    )
    screen.print(_bars(Plan.load(out / PLAN)), end="")
    screen.print(f"  ✓ {'still ' if reused else ''}verified: {VERIFIED}", markup=False, soft_wrap=True)
    screen.print(f"  {_balance_line(out)}", markup=False, soft_wrap=True)
    with Bars() as monitor:
        monitor.stage("drawing the report", None, "")
        drawn = _draw(out, folder / "report.html")
        embedded = [] if no_model else embedding_lines(text, folder / "model.json", monitor)
    for line in embedded:
        screen.print(f"  {line}", markup=False, soft_wrap=True)
    command = ".venv/bin/nopad" if Path(sys.prefix) == Path(".venv").absolute() else "nopad"
    page = drawn or f"(for a page with pictures, {install('report')})"
    screen.print(f"  Look at  {page}", markup=False, soft_wrap=True)
    screen.print(f"  Try      {command} plan {text} --capacity 1024 --over-long split", markup=False, soft_wrap=True)


def _bars(plan: Plan) -> Text:
    """Return a text with a bar of real tokens and padding for each of four ways: three ways to pad, and packs."""
    without = padded(plan.histogram, plan.capacity)
    text = Text()
    for name, slots, then in (
        (f"padded to {plan.capacity:,}", without.fixed, f"   {plan.sequences:,} rows"),
        (f"to the longest of {without.batch_size}", without.dynamic, ""),
        ("the same, sorted", without.by_length, ""),
        ("packed", plan.packs * plan.capacity, f"   {plan.packs:,} rows, {_proof(plan)}"),
    ):
        full = min(BAR, round(BAR * plan.histogram.tokens / slots))
        text.append(f"  {name:<22}")
        text.append("█" * full, style="green")
        text.append("░" * (BAR - full), style="red")
        text.append(f"  {without.share(slots):>7.2%} padding", style="bold" if name == "packed" else "")
        text.append(f"{then}\n")
    return text


def _proof(plan: Plan) -> str:
    return "exactly the proven minimum" if not plan.gap else f"{plan.gap:,} above the proven minimum"


def _draw(out: Path, path: Path) -> Path | None:
    """Write the report on the dataset `out` to the file `path`, and return the path.

    If the libraries of the report are not installed, nothing is written, and the result is None.
    """
    try:
        write_report([read_subject(out)], path)
    except MissingExtraError:
        return None
    return path


def _balance_line(out: Path) -> str:
    """Return a line of text: how evenly 8 ranks share the work of the packed dataset `out`, with balancing and without.

    Work is counted by a cost model that includes attention.
    """
    from nopad.balance import Attention  # imported late: its compiled loops would slow the start of the command line
    from nopad.loading import PackedLoader
    from nopad.loading.summary import Summary

    def steps(balance: str) -> Summary:
        cost = Attention(hidden_size=768)
        found = PackedLoader(out, rows=4, rank=0, world_size=8, cost=cost, balance=balance).summary()
        assert isinstance(found, Summary)  # only streams have a `StreamSummary`
        return found

    dealt, drawn = steps("karmarkar_karp"), steps("none")
    return (
        f"8 ranks, 4 packs each a step: {dealt.steps:,} equal steps, the slowest rank {dealt.balanced.waste:.2%} above "
        f"the mean (as drawn: {drawn.balanced.waste:.2%}), counting attention"
    )


def _without_old_result(folder: Path) -> str:
    """Remove the demo's packed dataset in `folder` if it has another format version; return a note on this, else "".

    Raises:
        FormatError: there is such a dataset, but the demo's texts are not beside it, so it may not be the demo's; or
            its manifest is not one of nopad's.
        CorruptError: its manifest is damaged.
        StorageError: the dataset cannot be read or removed.
    """
    out = folder / "packed"
    version = other_version(out)
    if version is None:
        return ""
    told = f"{out} was packed by another version of nopad (format {version!r}, now {FORMAT_VERSION})"
    if not any(folder.glob("stdlib-*.jsonl")):
        raise FormatError(f"{told}, and the demo's texts are not beside it; delete {out}, or choose another --folder")
    with storage_errors("removing", out):
        shutil.rmtree(out)
    return f"{told}: packing it again"


def _write_texts(folder: Path) -> Path:
    """Write the demo's texts to a file in `folder` as JSON Lines, and return its path.

    If there is a file for this version of Python already, it is kept.
    """
    path = folder / f"stdlib-{platform.python_version()}.jsonl"
    if path.exists():
        return path
    with storage_errors("creating", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, open(partial, "w", encoding="utf-8") as file:
        for text in stdlib_texts():
            file.write(json.dumps(text) + "\n")
    return path
