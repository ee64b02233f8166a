"""``nopad demo``: pack text that every machine has: the docstrings and comments of Python's standard library."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from nopad.cli.demo_model import embedding_lines
from nopad.cli.monitor import Bars
from nopad.cli.options import Seed, TokenizerSpec
from nopad.cli.plan import table_rows
from nopad.cli.render import console, describe_histogram, outcome, plan_table
from nopad.corpus import CorpusOptions, load_tokenizer, open_source, stdlib_texts
from nopad.errors import CorruptError, FormatError, MissingExtraError
from nopad.files import replacing, storage_errors
from nopad.histogram import Histogram
from nopad.planning import Plan
from nopad.planning.comparison import DEPTHS, notes_of
from nopad.planning.registry import QUICK_ALGORITHMS
from nopad.report import read_subject, write_report
from nopad.report.subject import COMPARED
from nopad.store import PackOptions, open_packed, pack_corpus
from nopad.store import verify as find_problems
from nopad.store.manifest import FORMAT_VERSION, MANIFEST, PLAN, other_version

__all__ = ["demo"]


def demo(
    folder: Annotated[
        Path, typer.Option("--folder", metavar="FOLDER", help="Where to put the text and the packed dataset.")
    ] = Path("nopad-demo"),
    capacity: Annotated[int, typer.Option("--capacity", "-c", metavar="N", help="Most tokens a pack may hold.")] = 512,
    seed: Seed = 0,
    tokenizer: TokenizerSpec = None,
) -> None:
    """Pack the docstrings and comments of this Python's standard library, then verify and show the result.

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
        lengths = _lengths_in_source_order(out)
        histogram = Histogram.from_lengths(lengths)
        rows = table_rows(
            lengths, histogram, capacity, list(QUICK_ALGORITHMS), list(DEPTHS), seed=seed, monitor=monitor
        )
        balanced = _balance_line(out)
        monitor.stage("drawing the report", None, "")
        drawn = _draw(out, folder / "report.html", rows)
    screen.print(
        f"[bold]nopad demo[/]: docstrings and comments of Python {platform.python_version()}'s standard library"
    )
    screen.print(describe_histogram(histogram, capacity))
    screen.print(plan_table(rows, screen.width))
    for note in notes_of(rows):
        screen.print(note, style="dim", markup=False)
    screen.print(outcome(manifest, Plan.load(out / PLAN)), end="")
    screen.print(
        f"  [green]✓ verified[/]{' (reused)' if reused else ''}: {manifest.sequences:,} sequences, "
        "each in exactly one pack, every token equal to its source\n"
    )
    screen.print(f"  {balanced}\n", markup=False, soft_wrap=True)
    screen.print(
        f"  {text}  the texts, one JSON object per line\n"
        f"  {out}  the packed dataset (shards/*.parquet, {PLAN}, {MANIFEST})\n",
        markup=False,
        soft_wrap=True,
    )
    if drawn is not None:
        screen.print(f"  {drawn}  open it in a browser: packs as coloured bars\n", markup=False, soft_wrap=True)
    else:
        screen.print("  (a report.html too, with: pip install 'nopad[report]')\n", markup=False)
    for line in embedding_lines(text):
        screen.print(f"  {line}", markup=False, soft_wrap=True)
    screen.print()
    screen.print("Try next:")
    command = ".venv/bin/nopad" if Path(sys.prefix) == Path(".venv").absolute() else "nopad"
    for line in (
        f"plan {text} --capacity 1024 --over-long split",
        f"pack {text} -o {folder / 'packed-1024'} --capacity 1024 --over-long split --depth 8",
        f"verify {out} --source {text}",
    ):
        screen.print(f"  {command} {line}", markup=False, soft_wrap=True)


def _draw(out: Path, path: Path, rows: list[dict[str, Any]]) -> Path | None:
    """Write the report on the dataset `out` to `path`, if its libraries are installed; return the path, or None.

    `rows` are the table's rows, of which some are shown.
    """
    known = [row for row in rows if row["algorithm"] in COMPARED]
    try:
        write_report([read_subject(out, comparison=known)], path)
    except MissingExtraError:
        return None
    return path


def _balance_line(out: Path) -> str:
    """Return, in a line, how evenly 8 ranks work on the packed dataset `out`, counting attention."""
    from nopad.balance import Attention  # with compiled loops, which the start of the command line does not wait for
    from nopad.loading import PackedLoader
    from nopad.loading.summary import Summary

    def steps(balance: str) -> Summary:
        cost = Attention(hidden_size=768)
        found = PackedLoader(out, rows=4, rank=0, world_size=8, cost=cost, balance=balance).summary()
        assert isinstance(found, Summary)  # of a dataset
        return found

    dealt, drawn = steps("karmarkar_karp"), steps("none")
    return (
        f"dealt to 8 ranks, 4 packs each: {dealt.steps:,} equal steps, the slowest rank {dealt.balanced.waste:.2%} "
        f"above the mean (as drawn: {drawn.balanced.waste:.2%}), counting attention"
    )


def _lengths_in_source_order(out: Path) -> NDArray[np.int32]:
    """Return the lengths of all sequences of a packed dataset, in the order of its source; int32 ``[n]``."""
    dataset = open_packed(out)
    blocks = [block.sequences for block in dataset.iter_row_groups(range(dataset.row_groups))]
    lengths = np.concatenate([block.seq_lengths for block in blocks])
    values = {name: np.concatenate([block.values[name] for block in blocks]) for name in blocks[0].values}
    order = np.lexsort((values.get("seq_start", np.zeros(lengths.size)), values["seq_index"]))
    return lengths[order]


def _without_old_result(folder: Path) -> str:
    """Remove the demo's own result if another version of nopad made it; return what to tell, or nothing.

    Raises:
        FormatError: such a dataset is there without the demo's texts, so it may not be the demo's.
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
    """Write the texts as JSONL, unless the file for this version of Python exists."""
    path = folder / f"stdlib-{platform.python_version()}.jsonl"
    if path.exists():
        return path
    with storage_errors("creating", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, open(partial, "w", encoding="utf-8") as file:
        for text in stdlib_texts():
            file.write(json.dumps(text) + "\n")
    return path
