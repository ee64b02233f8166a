"""Tables of the studies of balance and scaling for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from nopad.cli.render import fitted, fitted_rows, headed
from nopad.histogram import Histogram
from nopad.study import BalanceRow, LatencyRow, LongRow, ScalingRow, published_range
from nopad.study.latency import METHODS
from nopad.study.published import TOKENS_PER_GPU_ARE_OF

__all__ = ["balance_table", "effect_lines", "latency_table", "long_table", "scaling_table", "waste_table"]

_TOLERANCE, _TOLERANCE_STRATIFIED = 30, 8  # tokens


def balance_table(rows: Sequence[BalanceRow], histogram: Histogram, width: int) -> Group:
    """Return a table of how evenly each method of balance loads the GPUs.

    In the setting of MLPerf's Table 5 with the published Wikipedia, the figures of that table are shown too. Up to four
    columns are left out if the table is wider than `width` characters.
    """
    published = {row.method: published_range(row, histogram) for row in rows}
    columns: dict[str, Callable[[BalanceRow], str]] = {
        "method": lambda row: row.method,
        "unit": lambda row: row.unit,
        "exchanges": lambda row: row.communication,
        "tokens per GPU": lambda row: f"{row.min_tokens:,.0f} .. {row.max_tokens:,.0f}",
        "waste": lambda row: f"{row.waste:.3%}",
        "limit": lambda row: f"{row.floor:.3%}",
        "ABR": lambda row: f"{row.abr:.4f}",
        "ms a step": lambda row: f"{1e3 * row.seconds_per_step:.2f}",
    }
    if any(published.values()):
        columns = {
            **columns,
            "published": lambda row: _range(published[row.method]),
            "difference": lambda row: _difference(row, published[row.method]),
        }

    def style(row: BalanceRow) -> str:
        printed = published[row.method]
        return "yellow" if printed and not _reproduced(row, printed) else ""

    first = rows[0]
    table = ", MLPerf Table 5" if any(published.values()) else ""
    title = f"{first.gpus:,} GPUs, nodes of {first.node}, {first.batch} sequences per GPU, {first.steps} steps{table}"
    least = ("exchanges", "ABR", "unit", "ms a step")
    return Group(Text(title, "bold"), fitted_rows(columns, rows, least, width, left=3, style=style))


def waste_table(rows: Sequence[BalanceRow]) -> Group:
    """Return a table of waste: a row for each method of balance, and a column for each number of GPUs.

    Waste is the time that the slowest rank takes beyond the mean of all ranks, as a share of this mean.
    """
    gpus = sorted({row.gpus for row in rows})
    found = {(row.method, row.gpus): row for row in rows}
    table = headed(["method", *(f"{n:,}" for n in gpus)])
    for method in dict.fromkeys(row.method for row in rows):
        table.add_row(method, *(f"{row.waste:.2%}" if (row := found.get((method, n))) else "" for n in gpus))
    return Group(Text("waste by number of GPUs: how much longer than the mean rank the slowest takes", "bold"), table)


def effect_lines(effects: Mapping[str, float], steps: int) -> Iterator[str]:
    """Yield lines of text: for each way to draw the sequences, whether steps become cheaper or dearer during an epoch.

    `effects` maps each way to the correlation between a step's cost and its number. A value of about 0 means that steps
    become neither cheaper nor dearer. `steps` is the number of steps from which the correlations were computed.
    """
    yield f"correlation of a step's cost with its number, over {steps:,} steps of 128 sequences:"
    for draw, correlation in effects.items():
        yield f"  {draw}: {correlation:+.4f}"


def long_table(rows: Sequence[LongRow], width: int) -> Group:
    """Return a table of how evenly the ranks are loaded on a workload: a row per method of packing and dealing.

    The rows are in two groups: ranks wait for each other once per optimiser step, or at each micro-step. A method that
    was simulated for both kinds of wait has a row in each group. Up to four columns are left out if the table is wider
    than `width` characters.
    """
    columns: dict[str, Callable[[LongRow], str]] = {
        "unit": lambda row: row.unit,
        "tokens per rank": lambda row: f"{row.min_tokens:,.0f} .. {row.max_tokens:,.0f}",
        "waste": lambda row: f"{row.waste:.2%}",
        "floor": lambda row: f"{row.floor:.2%}",
        "ABR": lambda row: f"{row.abr:.3f}",
        "spread": lambda row: f"{row.spread:.3f}",
        "fill": lambda row: f"{row.fill:.1%}",
    }

    def make(left_out: Sequence[str]) -> Table:
        shown = {head: show for head, show in columns.items() if head not in left_out}
        table = headed(["ranks wait at each", "method", *shown], left=2)
        for wait, name in (("step", "optimiser step"), ("micro", "micro-step")):
            chosen = [row for row in rows if row.wait == wait]
            for at, row in enumerate(chosen):
                cells = (show(row) for show in shown.values())
                table.add_row("" if at else name, row.method, *cells, end_section=at + 1 == len(chosen))
        return table

    first = rows[0]
    title = f"{first.workload}: {first.gpus} ranks, {first.batch} packs per rank and step, about {first.steps} steps"
    return Group(Text(title, "bold"), fitted(make, ("fill", "unit", "spread", "tokens per rank"), width))


def scaling_table(rows: Sequence[ScalingRow]) -> Group:
    """Return a table of how much faster un-padding and packing are than padding: a row per number of devices."""
    heads = ["devices", "as printed", "equations solved", "Gumbel times", "simulated", "balanced", "packing"]
    table = headed(heads, left=0)
    for row in rows:
        values = (row.printed, row.corrected, row.by_time, row.simulated, row.balanced, row.packing)
        table.add_row(f"{row.devices:,}", *("" if value is None else f"{value:.3f}" for value in values))
    return Group(Text("speed-up over padding, 32 sequences per device: un-padding, and packing", "bold"), table)


def latency_table(rows: Sequence[LatencyRow]) -> Group:
    """Return a table of the simulated time of a step: a row per batch size and number of GPUs, a column per method.

    Beside a time is the share of it that exchanging and sorting samples takes, unless this is 0.
    """
    methods = [name for name in METHODS if any(row.method == name for row in rows)]
    found = {(row.batch, row.gpus, row.method): row for row in rows}
    table = headed(["batch", "GPUs", *methods], left=0)
    for batch in dict.fromkeys(row.batch for row in rows):
        counts = list(dict.fromkeys(row.gpus for row in rows))
        for at, gpus in enumerate(counts):
            cells = (found.get((batch, gpus, method)) for method in methods)
            table.add_row(
                "" if at else str(batch),
                f"{gpus:,}",
                *("" if cell is None else _latency(cell) for cell in cells),
                end_section=at + 1 == len(counts),
            )
    title = "simulation: ms per step, and the share that exchanging and sorting samples takes"
    return Group(Text(title, "bold"), table)


def _latency(row: LatencyRow) -> str:
    share = f" ({row.exchange / row.seconds:.1%})" if row.exchange else ""
    return f"{1e3 * row.seconds:.1f}{share}"


def _range(published: tuple[int, int] | None) -> str:
    return "" if published is None else f"{published[0]:,} .. {published[1]:,}"


def _difference(row: BalanceRow, published: tuple[int, int] | None) -> str:
    if published is None:
        return ""
    return f"{row.min_tokens - published[0]:+.0f} {row.max_tokens - published[1]:+.0f}"


def _reproduced(row: BalanceRow, published: tuple[int, int]) -> bool:
    """Return whether a row is as near to MLPerf's Table 5 as noise and a slightly different Wikipedia allow.

    `published` has the least and most tokens per GPU in that table.
    """
    assert (row.gpus, row.node, row.batch) == TOKENS_PER_GPU_ARE_OF
    drawn_by_quota = row.method in ("stratified", "local_presort", "local_presort_raster")
    tolerance = _TOLERANCE_STRATIFIED if drawn_by_quota else _TOLERANCE
    return max(abs(row.min_tokens - published[0]), abs(row.max_tokens - published[1])) <= tolerance
