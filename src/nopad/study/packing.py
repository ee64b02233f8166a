"""The papers' packing tables, recomputed row by row; their counts of strategies; the packing matrix of Table 4.

Before they are compared, our figures are rounded to as many decimals as the printed ones. So "=" means that ours, if
printed, would look the same. Time: `nnlshp` takes 15 s on Wikipedia-512 and 5 s on SQuAD-384, `greedy` 3 s on
Wikipedia, and each other algorithm milliseconds.

Source: see `nopad.study.published`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from nopad.errors import OptionError
from nopad.histogram import Histogram
from nopad.options import MAX_LENGTH
from nopad.planning import Plan, plan
from nopad.planning.enumeration import full_strategies, packing_matrix, strategy_count
from nopad.planning.front import check_histogram
from nopad.study.published import EFFICIENCY, FACTOR, MATRIX_OF_TABLE_4, STRATEGY_COUNTS, Row, Table

__all__ = [
    "Redone",
    "StrategyCount",
    "contrast",
    "count_strategies",
    "packing_matrix_of_table_4",
    "redo",
    "sorted_batches",
]

BATCH_ROWS = 1500  # of the paper's training runs, section 4.2


@dataclass(frozen=True, kw_only=True)
class Redone:
    """One row of a published table beside ours.

    Attributes:
        table: name of the table.
        depth: depth as printed.
        name: name of the algorithm as printed.
        reached: most sequences in any of our packs; None: we made no packs for this row.
        published: figure as printed, by column; empty for rows that the paper does not have.
        ours: our figure, by column, with as many decimals as the printed one; 0 or 3 decimals if none is printed.
        difference: ours minus published, by column, with as many decimals; "=" if there is no difference.
        note: why a difference is expected, or another remark.
    """

    table: str
    depth: str
    name: str
    reached: int | None
    published: Mapping[str, str]
    ours: Mapping[str, str]
    difference: Mapping[str, str]
    note: str


def redo(table: Table, row: Row, histogram: Histogram) -> Redone:
    """Compute one row of a published table from the histogram, and return it beside the published row.

    If the histogram is too large for the row's algorithm, there are no figures of ours, and the note says why.

    Raises:
        LengthError: a length is above the table's capacity.

    The histogram below is not the paper's, so its packing factor differs from the published one:

    >>> from nopad.study.published import TABLES
    >>> redone = redo(TABLES[0], TABLES[0].rows[3], Histogram.from_counts({200: 3, 128: 3}))
    >>> [row["packing factor"] for row in (redone.published, redone.ours, redone.difference)]
    ['1.61', '2.00', '+0.39']
    """
    figures: Mapping[str, float] = {}
    reached, notes = None, [row.note]
    if row.algorithm == "sorted_batches":
        figures = sorted_batches(histogram, table.capacity, BATCH_ROWS)
    else:
        try:
            made = plan(histogram, table.capacity, depth=row.limit, algorithm=row.algorithm, **row.options)
            figures, reached = _as_the_papers_count(made), made.max_depth_used
            notes += _what_it_took(made)
        except OptionError as error:  # too large for this algorithm
            notes = [str(error)]
    ours = {c: as_printed(figures[c], row.printed.get(c, _DIGITS[c])) for c in table.columns if c in figures}
    return Redone(
        table=table.name,
        depth=row.depth,
        name=row.name,
        reached=reached,
        published=row.printed,
        ours=ours,
        difference={c: difference(ours[c], printed) for c, printed in row.printed.items() if c in ours},
        note="; ".join(note for note in notes if note),
    )


def _what_it_took(made: Plan) -> list[str]:
    """Return the notes on a plan that are shown in its row.

    For a plan by `greedy`, there is one note: how many sequences the deepest pack holds. For a plan by any other
    algorithm, these are the plan's own notes. If it is by least squares (`nnlshp`), a note on how many packs the exact
    cover needs comes before them.
    """
    if made.algorithm == "greedy":
        return [f"the deepest pack holds {made.max_depth_used}"]  # instead of the seed that drew its order
    cover = [f"the exact cover needs {made.packs:,} packs"] if "packs_before_repair" in made.facts else []
    return [*cover, *made.notes]


def contrast(table: Table, histogram: Histogram, algorithm: str = "optimal") -> list[Redone]:
    """Return, for each depth in the table except 1, a row with the result of `algorithm`.

    The row's note says that the plan is proven optimal, or how many packs it is above the lower bound; the plan's own
    notes follow.

    Raises:
        LengthError: a length is above the table's capacity.
        OptionError: there is no such algorithm, or the histogram is too large for it.
    """
    rows = []
    limits = {row.limit for row in table.rows} - {1}
    for limit in sorted(limits, key=lambda limit: limit or MAX_LENGTH):
        made = plan(histogram, table.capacity, depth=limit, algorithm=algorithm)
        proven = f"{made.gap:,} above the proven minimum of {made.lower_bound:,}" if made.gap else "proven optimal"
        rows.append(
            Redone(
                table=table.name,
                depth="max" if limit is None else str(limit),
                name=f"nopad {algorithm}",
                reached=made.max_depth_used,
                published={},
                ours={c: as_printed(value, _DIGITS[c]) for c, value in _figures(made).items() if c in table.columns},
                difference={},
                note="; ".join([proven, *made.notes]),
            )
        )
    return rows


def sorted_batches(histogram: Histogram, capacity: int, rows: int) -> dict[str, float]:
    """Return efficiency (in %) and packing factor, by name, of padded batches of `rows` sequences of similar length.

    Sequences are sorted by length, longest first, and each batch is padded to its longest sequence. The packing factor
    is the number of slots if each sequence is padded to `capacity`, divided by the number of slots of these batches.
    Without sequences, nothing is padded: 100 %, and a factor of 1.

    Raises:
        LengthError: a length is above the capacity.

    The sequences of 8 and 4 tokens take 16 slots, and the two of 2 tokens take 4 slots:

    >>> sorted_batches(Histogram.from_counts({2: 2, 4: 1, 8: 1}), 8, 2)
    {'efficiency %': 80.0, 'packing factor': 1.6}
    """
    check_histogram(histogram, capacity)
    if not histogram.sequences:
        return {EFFICIENCY: 100.0, FACTOR: 1.0}
    longest_first, counts = histogram.lengths[::-1], histogram.counts[::-1]
    firsts = np.arange(0, histogram.sequences, rows)
    longest = longest_first[np.searchsorted(np.cumsum(counts), firsts, side="right")]
    slots = int(longest @ np.minimum(histogram.sequences - firsts, rows))
    return {EFFICIENCY: 100 * histogram.tokens / slots, FACTOR: histogram.sequences * capacity / slots}


@dataclass(frozen=True, kw_only=True)
class StrategyCount:
    """The exact number of strategies that fill a pack completely, and the number that the papers' formulas give.

    A strategy says how many sequences of each length a pack holds.

    Attributes:
        capacity: capacity in tokens.
        depth: most sequences in a strategy; strategies with fewer sequences are counted too.
        exact: exact number of strategies.
        formula: number by the papers' formulas; the docstring of `count_strategies` has them.
        published: number in the papers' text; empty if the text gives none.
        note: remark about the published number.
    """

    capacity: int
    depth: int
    exact: int
    formula: int
    published: str
    note: str


def count_strategies() -> list[StrategyCount]:
    """Return a `StrategyCount` for each of five capacities and each depth from 1 to 4.

    It counts the strategies that fill a pack completely with at most as many sequences as the depth. A strategy says
    how many sequences of each length a pack holds. `StrategyCount.formula` estimates the count at a capacity of s. It
    adds one number, rounded down, for each number of sequences up to the depth:

    * exactly one sequence: 1
    * exactly two: ``s / 2``
    * exactly three: ``s^2 / 12`` (equation 5 of the supplement to arXiv 2107.02027, section D.5.1)
    * exactly four: ``s (s + 4) (2 s + 1) / 288`` (equation 6 there)

    >>> [(c.exact, c.formula) for c in count_strategies() if c.capacity == 512]
    [(1, 1), (257, 257), (22102, 22102), (959631, 962368)]
    """
    counted = []
    for s in (8, 128, 384, 512, 2048):
        by_formula = (1, s // 2, s * s // 12, s * (s + 4) * (2 * s + 1) // 288)
        for depth in (1, 2, 3, 4):
            published, note = STRATEGY_COUNTS.get((s, depth), ("", ""))
            counted.append(
                StrategyCount(
                    capacity=s,
                    depth=depth,
                    exact=strategy_count(s, depth, enough=2**62),
                    formula=sum(by_formula[:depth]),
                    published=published,
                    note=note,
                )
            )
    return counted


def packing_matrix_of_table_4() -> tuple[list[list[int]], bool]:
    """Return the packing matrix for capacity 8 and depth 3, and whether it equals the matrix printed as Table 4.

    Each row of the matrix is for a length from 1 to 8, each column for a strategy. An entry says how many sequences of
    that length the strategy holds.

    >>> packing_matrix_of_table_4()[1]
    True
    """
    ours = packing_matrix(full_strategies(8, 3), 8).astype(int).tolist()
    return ours, ours == [list(row) for row in MATRIX_OF_TABLE_4]


def as_printed(value: float, printed: str) -> str:
    """Return a figure as text, with as many decimals as the printed one.

    >>> as_printed(99.7459, "99.7"), as_printed(8155057, "1")
    ('99.7', '8155057')
    """
    return f"{value:.{len(printed.partition('.')[2])}f}"


def difference(ours: str, printed: str) -> str:
    """Return ``ours - printed``, with as many decimals as the printed figure has; "=" if there is no difference.

    >>> difference("97.315", "97.310"), difference("40808", "40808")
    ('+0.005', '=')
    """
    delta = Decimal(ours) - Decimal(printed)
    return f"{delta:+}" if delta else "="


_DIGITS = {"strategies": "0", "packs": "0", "tokens": "0", "padding tokens": "0", EFFICIENCY: "0.000", FACTOR: "0.000"}


def _figures(made: Plan) -> dict[str, float]:
    return {
        "strategies": int(made.counts.size),
        "packs": made.packs,
        "tokens": made.slots,
        "padding tokens": made.padding_tokens,
        EFFICIENCY: 100 * made.efficiency,
        FACTOR: made.packing_factor,
    }


def _as_the_papers_count(made: Plan) -> dict[str, float]:
    """Return a plan's figures as the papers count them.

    For a plan by least squares (`nnlshp`), these are the figures of its first solution, before the packs were repaired
    so that they hold each sequence exactly once.
    """
    facts: Mapping[str, Any] = made.facts
    if not facts.get("packs_before_repair"):  # another algorithm, or no sequence
        return _figures(made)
    packs = facts["packs_before_repair"]
    slots = packs * made.capacity
    return {
        "strategies": facts["strategies_before_repair"],
        "packs": packs,
        "tokens": slots,
        "padding tokens": slots - made.tokens,
        EFFICIENCY: 100 * made.tokens / slots,
        FACTOR: made.sequences / packs,
    }
