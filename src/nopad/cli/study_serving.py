"""``nopad study serving``: redo PopRT's tables of packed serving, with the number of batches each policy needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from nopad.cli.render import console
from nopad.study.serving import GRIDS, WAITING, ServingRow, best_reduction, serving_rows

__all__ = ["serving"]

_NOTES = (
    "samples/s, speed-up: published, on one IPU, requests packed online. batches, reduction: counted here, for the",
    "same requests; reduction is the speed-up that a policy allows. realised: published speed-up / reduction.",
    "PopRT's end-to-end pays for rearranging tokens around each attention layer; first-fit does not, and is faster",
    "with more batches. The published speed-ups of DeBERTa are above what its policies allow; nothing public says why.",
)


def serving(
    waiting: Annotated[
        list[int] | None,
        typer.Option("--waiting", metavar="N", min=1, help="Requests that look_ahead sees; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Redo PopRT's tables of packed serving: published throughput, and the batches that each policy needs.

    Packs the requests of PopRT's examples, by PopRT's policies and by nopad's. This is a simulation; no model is run.

    Examples:
      nopad study serving

      nopad study serving --waiting 64 --waiting 256
    """
    seen = waiting or list(WAITING)
    done = [(grid, serving_rows(grid, seen)) for grid in GRIDS]
    if as_json:
        document = [
            {**asdict(grid), "best": best_reduction(grid), "rows_of_table": [asdict(row) for row in rows]}
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
    for note in _NOTES:
        screen.print(f"  {note}", style="dim", markup=False, soft_wrap=True)


def _table(rows: Sequence[ServingRow]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for head in ("samples/s", "speed-up", "batches", "reduction", "tokens / slots", "realised"):
        table.add_column(head, justify="right", no_wrap=True)
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
