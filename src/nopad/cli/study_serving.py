"""``nopad study serving``: redo the tables of packed serving in the documentation of PopRT, Graphcore's runtime.

The number of batches that each policy needs is counted anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nopad.cli.monitor import Bars
from nopad.cli.render import console, headed
from nopad.cli.study_output import AsJson, print_notes
from nopad.errors import MissingExtraError, install
from nopad.study.serving import GRIDS, WAITING, Grid, ServingRow, best_reduction, serving_rows

if TYPE_CHECKING:
    from nopad.study.serving_runs import RealRow

__all__ = ["serving"]

_NOTES = (
    "samples/s, speed-up: published, on one IPU, requests packed online. batches, reduction: counted here, for the",
    "same requests; reduction is the speed-up that a policy allows. realised: published speed-up / reduction.",
    "PopRT's end-to-end pays for rearranging tokens around each attention layer; first-fit does not, and is faster",
    "with more batches. The published speed-ups of DeBERTa are above what its policies allow; nothing public says why.",
)


_REAL_NOTES = (
    "Real runs on this machine, of a model of MiniLM's size. First all requests wait: requests/s, speed-up, batches,",
    "and the largest difference of any hidden state. Then they arrive at random times, 0.6 times as many per second as",
    "the first way answers: p50 and p99 of the time to the answer. Grids are computed with their padding; flat batches",
    "have none.",
)


def serving(
    waiting: Annotated[
        list[int] | None,
        typer.Option(
            "--waiting",
            metavar="N",
            min=1,
            help="How many waiting requests nopad's policy look_ahead sees. Repeatable.",
        ),
    ] = None,
    real: Annotated[
        bool, typer.Option("--real", help="Run the requests through a model too, in each way: about two minutes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Redo PopRT's tables of packed serving: published throughput, and the batches that each policy needs.

    Packs the requests of PopRT's examples, by PopRT's policies and by nopad's. This is a simulation; with --real, a
    model answers some of the requests too, and throughput, latency and results are measured.

    Examples:
      nopad study serving

      nopad study serving --real

      nopad study serving --waiting 64 --waiting 256
    """
    seen = waiting or list(WAITING)
    done = [(grid, serving_rows(grid, seen)) for grid in GRIDS]
    runs = _runs() if real else {}
    if as_json:
        document = [
            {
                **asdict(grid),
                "best": best_reduction(grid),
                "rows_of_table": [asdict(row) for row in rows],
                **({"real": [asdict(row) for row in runs[grid.name]]} if real else {}),
            }
            for grid, rows in done
        ]
        print(json.dumps(document, indent=1))
        return
    screen = console()
    for grid, rows in done:
        separated = f", {grid.separator} slot between them" if grid.separator else ""
        title = f"PopRT, {grid.name}: {grid.rows} rows of {grid.capacity}, at most {grid.max_sequences} requests"
        screen.print(f"{title}{separated}; without padding x{best_reduction(grid):.3f}", style="bold")
        screen.print(_table(rows))
    print_notes(_NOTES)
    for grid in GRIDS if real else ():
        some = runs[grid.name]
        asked = f"{some[0].requests} requests, {some[0].offered_per_s:.1f} arrive per second"
        screen.print(f"\nRun here, {grid.name}'s setting: {asked}", style="bold")
        screen.print(_real_table(some))
    print_notes(_REAL_NOTES if real else ())


def _runs() -> dict[str, list[RealRow]]:
    """Run some requests of each of `GRIDS`, the settings of PopRT's examples, through a model; return the measurements.

    The result is a dict by the name of the setting.

    Raises:
        MissingExtraError: torch or transformers is not installed.
    """
    try:
        from nopad.study.serving_runs import model_for, real_rows
    except ImportError as error:
        raise MissingExtraError(f"real runs need torch and transformers; {install('torch')}") from error
    found = {}
    with Bars() as monitor:
        for grid in GRIDS:
            say = partial(_say, monitor, grid)
            found[grid.name] = real_rows(grid, model_for(grid), say=say)
    return found


def _say(monitor: Bars, grid: Grid, way: str) -> None:
    monitor.stage(f"{grid.name}: {way}", None, "")


def _real_table(rows: Sequence[RealRow]) -> Table:
    table = headed(["way", "requests/s", "speed-up", "batches", "difference", "p50", "p99"])
    for row in rows:
        table.add_row(
            row.way,
            f"{row.per_s:,.1f}",
            f"x{row.speed_up:.2f}",
            str(row.batches),
            f"{row.difference:.0e}" if row.difference else "0",
            f"{row.p50_ms:,.0f} ms",
            f"{row.p99_ms:,.0f} ms",
        )
    return table


def _table(rows: Sequence[ServingRow]) -> Table:
    table = headed(["policy", "samples/s", "speed-up", "batches", "reduction", "tokens / slots", "realised"])
    for row in rows:
        table.add_row(
            row.way if row.waiting is None else f"{row.way}, {row.waiting} waiting",
            "" if row.published is None else f"{row.published:,.1f}",
            "" if row.speed_up is None else f"x{row.speed_up:.3f}",
            str(row.batches),
            f"x{row.reduction:.3f}",
            f"{row.efficiency:.1%}",
            "" if row.realised is None else f"{row.realised:.2f}",
        )
    return table
