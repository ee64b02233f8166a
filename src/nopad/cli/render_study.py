"""Tables of the studies for a terminal, with the published figures, ours, and the differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group
from rich.table import Table as Shown
from rich.text import Text

from nopad.cli.render import fitted, fitted_rows, headed
from nopad.histogram import Histogram
from nopad.study import Compared, Distribution, PairsAt, Redone, StrategyCount, Table

__all__ = [
    "counts_table",
    "distributions_table",
    "matrix_table",
    "pairs_table",
    "redone_notes",
    "redone_table",
    "residuals_table",
]

_BLOCKS = "·▁▂▃▄▅▆▇█"
_SPARK = 24


def redone_table(table: Table, rows: Sequence[Redone], width: int) -> Group:
    """Return a table with the figures of a published table and ours.

    Each row has up to three lines: the published figures, ours, and the differences. Lines without figures are left
    out; if no line has figures, an empty one for ours is shown. Up to three columns are left out if the table is wider
    than `width` characters.
    """

    def make(left_out: Sequence[str]) -> Shown:
        columns = [column for column in table.columns if column not in left_out]
        made = headed(["depth", "algorithm", "", *columns], left=3)
        for row in rows:
            lines = [("published", row.published), ("ours", row.ours), ("difference", row.difference)]
            lines = [line for line in lines if line[1]] or [("ours", {})]
            for at, (label, figures) in enumerate(lines):
                made.add_row(
                    *((row.depth, row.name) if at == 0 else ("", "")),
                    label,
                    *(_grouped(figures.get(column, "")) for column in columns),
                    style=_style(label, row),
                    end_section=at + 1 == len(lines),
                )
        return made

    title = f"{table.name}: {table.what}, capacity {table.capacity}"
    return _titled(title, fitted(make, ("tokens", "strategies", "padding tokens"), width))


def redone_notes(rows: Sequence[Redone]) -> Iterator[str]:
    """Yield a line of text for each row that has a note: its algorithm, its depth, and the note."""
    return (f"{row.name}, depth {row.depth}: {row.note}" for row in rows if row.note)


def matrix_table(matrix: Sequence[Sequence[int]], same: bool) -> Group:
    """Return the packing matrix of capacity 8 and depth 3 as a table: a row per length, a column per strategy.

    `same` says whether it equals the matrix that the paper's supplement prints.
    """
    verdict = "as published" if same else "not as published"
    made = headed(["length", *(str(column + 1) for column in range(len(matrix[0])))], left=0)
    for at, row in enumerate(matrix):
        made.add_row(str(at + 1), *("·" if not n else str(n) for n in row))
    note = Text(
        "  Each column is a strategy. The last one holds one sequence of length eight, not six as printed.\n", "dim"
    )
    return _titled(f"supplement, Table 4: packing matrix of capacity 8, depth 3 ({verdict})", made, note)


def counts_table(counted: Sequence[StrategyCount]) -> Group:
    """Return a table of how many strategies there are for each capacity and depth.

    Each row has the exact number, the result of the supplement's equations, and the number in the supplement's text. A
    strategy is a way to fill a pack exactly, with at most as many sequences as the depth says.
    """
    made = headed(["capacity", "depth", "exact", "equations 5 and 6", "difference", "in the text"], left=0)
    for at, one in enumerate(counted):
        made.add_row(
            f"{one.capacity:,}" if one.depth == 1 else "",
            str(one.depth),
            f"{one.exact:,}",
            f"{one.formula:,}",
            f"{one.formula - one.exact:+,}" if one.formula != one.exact else "=",
            _grouped(one.published),
            end_section=at + 1 < len(counted) and counted[at + 1].capacity != one.capacity,
        )
    return _titled("supplement, D.5.1: strategies that fill a pack exactly", made)


def residuals_table(compared: Sequence[Compared], histogram: Histogram, capacity: int, width: int) -> Group:
    """Return a table of what least squares leaves over (the residuals), without weights and with them.

    If the published residuals are of this histogram, they are shown too, with the difference and the tolerance. Up to
    three columns are left out if the table is wider than `width` characters.
    """
    title = f"supplement, Figures 10 and 11: {histogram.sequences:,} sequences, capacity {capacity}, depth 3"
    columns: dict[str, Callable[[Compared], str]] = {
        "": lambda row: row.what,
        "all weights 1": lambda row: _number(row.plain),
        "weighted": lambda row: _number(row.weighted),
    }
    if any(row.within is not None for row in compared):
        columns |= {
            "published": lambda row: _number(row.published),
            "difference": lambda row: "=" if row.difference == 0 else _number(row.difference),
            "tolerance": _tolerance,
        }
    least = ("tolerance", "difference", "published")
    made = fitted_rows(columns, compared, least, width, style=lambda row: "yellow" if row.within is False else "")
    return _titled(title, made)


def _tolerance(row: Compared) -> str:
    return "" if row.within is None else f"{'within' if row.within else 'OUTSIDE'} ±{_number(row.tolerance)}"


def distributions_table(found: Sequence[Distribution], width: int) -> Group:
    """Return a table of the lengths in each corpus, and of the speed-up that packing gives, with a row for each corpus.

    Up to seven columns are left out if the table is wider than `width` characters.
    """
    columns: dict[str, Callable[[Distribution], str]] = {
        "corpus": lambda one: one.name,
        "capacity": lambda one: f"{one.capacity:,}",
        "sequences": lambda one: f"{one.histogram.sequences:,}",
        "mean": lambda one: f"{one.mean:,.1f}",
        "median": lambda one: f"{one.median:,}",
        "full": lambda one: f"{one.full:.1%}",
        "padding": lambda one: f"{one.padding:.1%}",
        "lengths, 1 to capacity": sparkline,
        "theoretical": lambda one: f"{one.theoretical:.3f}",
        "spfhp": lambda one: f"{one.spfhp:.3f}",
        "nopad": lambda one: f"{one.factor:.3f}",
        "possible": lambda one: f"{one.possible:.3f}",
    }

    least = ("mean", "median", "full", "sequences", "spfhp", "capacity", "padding")
    title = "paper, Figure 1: length distributions, and speed-up over one sequence per row"
    return _titled(title, fitted_rows(columns, found, least, width))


def pairs_table(found: Sequence[PairsAt], width: int) -> Group:
    """Return a table of the lengths of pairs, and of the speed-up that packing gives: a row per maximum length.

    The paper's speed-ups and packing factors stand beside ours. Up to five columns are left out if the table is wider
    than `width` characters.
    """
    columns: dict[str, Callable[[PairsAt], str]] = {
        "tokens": lambda one: f"{one.lengths.capacity}",
        "pairs": lambda one: f"{one.lengths.histogram.sequences:,}",
        "mean": lambda one: f"{one.lengths.mean:.1f}",
        "median": lambda one: f"{one.lengths.median:,}",
        "full": lambda one: f"{one.lengths.full:.1%}",
        "predictions": lambda one: f"{one.predictions}",
        "lengths, 1 to most": lambda one: sparkline(one.lengths),
        "theoretical": lambda one: f"{one.lengths.theoretical:.3f}",
        "paper's": lambda one: "" if one.published is None else f"{one.published[0]:.1f}",
        "nopad": lambda one: f"{one.lengths.factor:.3f}",
        "the paper's": lambda one: "" if one.published is None else f"{one.published[1]:.2f}",
    }

    least = ("predictions", "median", "full", "mean", "pairs")
    made = fitted_rows(columns, found, least, width, left=0)
    return _titled("BERT's pairs: lengths, and speed-up over one pair per row", made)


def sparkline(one: Distribution) -> str:
    """Return the histogram of a distribution drawn as one line of text; the fullest bin has full height."""
    bars = one.bars(min(_SPARK, one.capacity))
    top = bars.max()
    return "".join(_BLOCKS[max(round(8 * share / top), 1) if share else 0] for share in bars)


def _titled(title: str, made: Shown, *below: Text) -> Group:
    """Return a title, the table `made`, and the lines `below`, one under the other.

    The title is not part of the table, so it may be wider.
    """
    return Group(Text(title, "bold"), made, *below)


def _style(label: str, row: Redone) -> str:
    if not row.published:
        return "green"
    if label != "difference":
        return ""
    return "yellow" if any(text != "=" for text in row.difference.values()) else "dim"


def _grouped(figure: str) -> str:
    """Return a number, given as text, with commas between thousands.

    Other texts, and numbers with a sign, stay as they are.
    """
    return f"{int(figure):,}" if figure.lstrip("+-").isdecimal() and figure[0] not in "+-" else figure


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if 0 < abs(value) < 0.1:
        return f"{value:g}"
    return f"{value:,.3f}" if value % 1 else f"{int(value):,}"
