"""``nopad study``: commands that recompute the papers' tables and figures. Without a command, it lists them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nopad.cli.helping import HelpedGroup
from nopad.cli.lengths import read_given
from nopad.cli.monitor import Bars
from nopad.cli.options import OverLong, Overwrite, TextUnit, TokenizerSpec
from nopad.cli.render import console
from nopad.cli.render_study import (
    counts_table,
    distributions_table,
    matrix_table,
    redone_notes,
    redone_table,
    residuals_table,
)
from nopad.cli.study_balance import balance, scaling_verb
from nopad.cli.study_glue import glue
from nopad.cli.study_lamb import lamb
from nopad.cli.study_learning import learning
from nopad.cli.study_output import AsJson, Plot, print_notes, print_saved, read_filled
from nopad.cli.study_pretraining import pretraining
from nopad.cli.study_serving import serving
from nopad.corpus import ReaderOptions
from nopad.errors import OptionError
from nopad.histogram import Histogram
from nopad.planning.nnlshp import SHORT_WEIGHT
from nopad.report.drawing import check_chart, save_chart
from nopad.store import Monitor
from nopad.study import (
    Distribution,
    compare,
    contrast,
    count_strategies,
    distribution,
    packing_matrix_of_table_4,
    redo,
    residuals,
    tables_for,
    unpublished_table,
)
from nopad.study.charts import distributions_chart, residuals_chart

__all__ = ["study"]

study = typer.Typer(cls=HelpedGroup, invoke_without_command=True)

HistogramFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A histogram (.json), such as one of the two published ones.")
]

_LEGEND = "  Above 0: sequences that found no slot. Below 0: slots that found no sequence, and stay padding."
_UNPUBLISHED = "  This is not the published dataset: there are no figures to compare with."

_INDEX = """[bold]nopad study[/]: the papers' tables and figures, redone beside the published numbers

  nopad study packing FILE            paper, Table 1; supplement, Tables 2 to 5; how many strategies there are
  nopad study glue [FOLDER]           supplement, Table 3, from GLUE's training sets in a folder or on the hub
  nopad study residuals FILE          supplement, Figures 10 and 11: what least squares leaves over and invents
  nopad study distributions FILE...   paper, Figure 1: lengths, theoretical and achieved speed-up, side by side
  nopad study pretraining [INPUT...]  BERT's pairs at 128, 384, 512 tokens of any text, beside the papers' factors
  nopad study balance [FILE]          MLPerf, Table 5 and Figure 6: tokens per GPU; alone: long context
  nopad study scaling FILE            supplement, F: un-padding on many devices; MLPerf, Figures 7 and 11, simulated
  nopad study learning                paper, 4.2 and 4.3: pre-training with packs and without, and what goes wrong
  nopad study lamb                    supplement, E: LAMB's betas to the power of the packing factor, with noise
  nopad study serving                 PopRT's tables of packed serving: the batches that each policy needs

FILE is a histogram. The two published ones are in github.com/graphcore/examples (MIT licence),
tutorials/blogs_code/packedBERT/histograms.py; docs/reference/papers.md shows how to save them, and
explains the errata."""


@study.callback(help="Redo the papers' tables and figures beside the published numbers; alone: list them.")
def index(context: typer.Context) -> None:
    """List the studies, unless the command line names one."""
    if context.invoked_subcommand is None:
        console().print(_INDEX)


@study.command()
def packing(file: HistogramFile, as_json: AsJson = False) -> None:
    """Recompute the packing tables: published figure, ours, and the difference; then the result of `optimal`.

    The papers' histograms are recognised by capacity and number of sequences. For any other histogram, the same rows
    are shown without published figures.

    Examples:
      nopad study packing wikipedia.json

      nopad study packing squad.json --json
    """
    histogram, capacity = _histogram(file)
    tables = tables_for(histogram, capacity) or [unpublished_table(histogram, capacity, file.name)]
    done = []
    with Bars() as monitor:
        for table in tables:
            monitor.stage(table.name, len(table.rows) + 1, "rows")
            rows = []
            for row in table.rows:
                rows.append(redo(table, row, histogram))
                monitor.advance(1)
            done.append((table, rows + contrast(table, histogram)))
    matrix, same = packing_matrix_of_table_4()
    if as_json:
        document = {
            "tables": [
                {"name": table.name, "what": table.what, "rows": [asdict(row) for row in rows]} for table, rows in done
            ],
            "strategy_counts": [asdict(counted) for counted in count_strategies()],
            "packing_matrix_of_table_4": {"matrix": matrix, "as_published": same},
        }
        print(json.dumps(document, indent=1))
        return
    screen = console()
    for table, rows in done:
        screen.print(redone_table(table, rows, screen.width))
        print_notes(redone_notes(rows))
        screen.print()
    screen.print(matrix_table(matrix, same))
    counted = count_strategies()
    screen.print(counts_table(counted))
    print_notes(f"capacity {c.capacity}, depth {c.depth}: {c.note}" for c in counted if c.note)
    screen.print()


@study.command(name="residuals")
def residuals_verb(file: HistogramFile, as_json: AsJson = False, plot: Plot = None, force: Overwrite = False) -> None:
    """Recompute Figures 10 and 11: the residual of least squares at each length, with and without weights.

    Examples:
      nopad study residuals wikipedia.json

      nopad study residuals wikipedia.json --plot residuals.html
    """
    if plot is not None:
        check_chart(plot)
    histogram, capacity = _histogram(file)
    with Bars() as monitor:
        monitor.stage("solving twice", 2, "systems")
        plain = residuals(histogram, capacity)
        monitor.advance(1)
        weighted = residuals(histogram, capacity, weight=SHORT_WEIGHT)
        monitor.advance(1)
    compared = compare(plain, weighted, histogram)
    if plot is not None:
        save_chart(residuals_chart(plain, weighted), plot)
    if as_json:
        document = {
            "compared": [asdict(row) for row in compared],
            "residuals": plain.values.tolist(),
            "residuals_weighted": weighted.values.tolist(),
        }
        print(json.dumps(document, indent=1))
        return
    screen = console()
    screen.print(residuals_table(compared, histogram, capacity, screen.width))
    screen.print(
        _LEGEND if any(row.within is not None for row in compared) else f"{_LEGEND}\n{_UNPUBLISHED}", style="dim"
    )
    print_notes(f"{row.what}: {row.note}" for row in compared if row.note)
    screen.print()
    print_saved(plot)


@study.command()
def distributions(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Histograms (.json), lengths (.npy), or corpora."),
    ],
    capacity: Annotated[
        int | None,
        typer.Option("--capacity", "-c", metavar="N", help="Most tokens a pack may hold. Default: what a file says."),
    ] = None,
    as_json: AsJson = False,
    plot: Plot = None,
    force: Overwrite = False,
    tokenizer: TokenizerSpec = None,
    over_long: OverLong = "error",
    text_unit: TextUnit = "file",
) -> None:
    """Recompute Figure 1 of arXiv 2107.02027 for any number of corpora: how lengths are distributed, and speed-ups.

    Speed-ups are relative to one sequence per row. They are shown without any padding, with `spfhp`, with nopad, and
    for the best plan that may be possible.

    Examples:
      nopad study distributions wikipedia.json squad.json

      nopad study distributions squad.json docs/ --capacity 384 --over-long split --plot figure1.svg
    """
    if plot is not None:
        check_chart(plot)
    with Bars() as monitor:
        found = [
            _distribution(file, capacity, monitor, tokenizer, over_long, text_unit) for file in dict.fromkeys(files)
        ]
    if plot is not None:
        save_chart(distributions_chart(found), plot)
    if as_json:
        print(json.dumps([one.summary() for one in found], indent=1))
        return
    screen = console()
    screen.print(distributions_table(found, screen.width))
    print_saved(plot)


study.command(name="balance")(balance)
study.command(name="scaling")(scaling_verb)
study.command(name="glue")(glue)
study.command(name="lamb")(lamb)
study.command(name="pretraining")(pretraining)
study.command(name="learning")(learning)
study.command(name="serving")(serving)


def _histogram(file: Path) -> tuple[Histogram, int]:
    """Read a histogram with at least one sequence, and its capacity.

    Raises:
        FormatError: the file cannot be read, or is no histogram.
        LengthError: a length or count in it is not an integer, or is out of range.
        OptionError: the file states no capacity, or holds no sequences.
    """
    histogram, capacity = read_filled(file)
    if capacity is None:
        raise OptionError(f'{file} does not say for which capacity; add "max_sequence_length": N to it')
    return histogram, capacity


def _distribution(
    file: str, capacity: int | None, monitor: Monitor, tokenizer: str | None, over_long: str, text_unit: TextUnit
) -> Distribution:
    given = read_given(
        [file],
        capacity,
        monitor,
        tokenizer=tokenizer,
        policies={"over_long": over_long},
        reader=ReaderOptions(text_unit=text_unit),
    )
    monitor.stage(f"packing {file}", None, "")
    return distribution(Path(file).stem or file, given.histogram, given.capacity)
