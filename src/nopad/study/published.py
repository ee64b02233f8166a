"""Figures that the papers print: tables, residuals and counts of strategies. Figures of tables are kept as text.

Text keeps the printed digits. What the papers call "tokens" counts every slot, padding included; the column of this
name here counts the same.

Sources: [B] "Efficient Sequence Packing without Cross-contamination" (arXiv 2107.02027); [S] its supplement, under the
earlier title "Towards Packing: 2x NLP BERT Acceleration"; [M] "Breaking MLPerf Training: A Case Study on
Optimizing BERT".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nopad.histogram import Histogram

__all__ = [
    "FIGURES_ARE_OF",
    "MATRIX_OF_TABLE_4",
    "RESIDUALS",
    "STRATEGY_COUNTS",
    "TABLES",
    "TOKENS_PER_GPU",
    "TOKENS_PER_GPU_ARE_OF",
    "Row",
    "Stated",
    "Table",
    "has_figures",
    "tables_for",
    "unpublished_table",
]

EFFICIENCY, FACTOR = "efficiency %", "packing factor"
COUNTS = ("strategies", "packs", "tokens", "padding tokens", EFFICIENCY, FACTOR)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a published table, and how nopad recomputes it.

    Attributes:
        depth: depth as printed.
        name: name of the algorithm as printed.
        algorithm: nopad's name for the algorithm, or "sorted_batches".
        limit: the depth to plan with; None: unlimited.
        options: options of the algorithm.
        printed: figure as printed, by column; columns that the paper leaves out are missing.
        note: why a difference is expected.
    """

    depth: str
    name: str
    algorithm: str
    limit: int | None
    printed: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A published table of one dataset.

    Attributes:
        name: short name, for a heading and for JSON.
        what: name of the dataset.
        capacity: capacity in tokens.
        sequences: number of sequences in the dataset; together with the capacity it identifies the paper's histogram.
        columns: column names in the printed order.
        rows: the rows of the table.
    """

    name: str
    what: str
    capacity: int
    sequences: int
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def tables_for(histogram: Histogram, capacity: int) -> list[Table]:
    """Return the published tables of the dataset with this capacity and number of sequences; empty if there is none.

    >>> from nopad import Histogram
    >>> [table.name for table in tables_for(Histogram.from_counts({100: 88_641}), 384)]
    ['supplement, Table 2']
    """
    return [t for t in TABLES if (t.capacity, t.sequences) == (capacity, histogram.sequences)]


def has_figures(histogram: Histogram, capacity: int) -> bool:
    """Return whether the histogram is of Wikipedia for BERT, for which papers print residuals and tokens per GPU.

    The dataset is recognised by its number of sequences and by the capacity, which must be 512.
    """
    return any(table.name == FIGURES_ARE_OF for table in tables_for(histogram, capacity))


def _counts(text: str) -> dict[str, str]:
    """Return the figures in `text` as a dict by column; `text` has one for each of `COUNTS`, separated by spaces."""
    return dict(zip(COUNTS, text.split(), strict=True))


def _counted(depth: str, name: str, limit: int | None, figures: str, **more: Any) -> Row:
    """Return a row with a figure for each column in `COUNTS`; `figures` has these figures, separated by spaces.

    `name` is the algorithm's name as printed; nopad's name for it is the same in lower case. `depth` is the depth as
    printed, and `limit` the depth to plan with (None: unlimited). `more` are other fields of the `Row`, by name.
    """
    return Row(depth=depth, name=name, algorithm=name.lower(), limit=limit, printed=_counts(figures), **more)


def _short(efficiency: str, factor: str) -> dict[str, str]:
    return {EFFICIENCY: efficiency, FACTOR: factor}


_NNLSHP_NOTE = "counted before the repair into an exact cover, as the paper does"
_GREEDY_NOTE = "the paper's order is not known; ours is drawn from the histogram"
_SORT_NOTE = (
    "sorted batches of 1,500 rows, padded to their longest: those of the paper's training; which it sorted into is not "
    "stated"
)

TABLE_1 = Table(
    name="paper, Table 1",
    what="Wikipedia for BERT",
    capacity=512,
    sequences=16_279_552,
    columns=(EFFICIENCY, FACTOR),
    rows=(
        Row(depth="1", name="NONE", algorithm="none", limit=1, printed=_short("50.0", "1.00")),
        Row(
            depth="1", name="SORT", algorithm="sorted_batches", limit=1, printed=_short("99.9", "2.00"), note=_SORT_NOTE
        ),
        Row(depth="≈10", name="GREEDY", algorithm="greedy", limit=None, printed=_short("78", "1.6"), note=_GREEDY_NOTE),
        Row(depth="2", name="SPFHP", algorithm="spfhp", limit=2, printed=_short("80.5", "1.61")),
        Row(depth="3", name="SPFHP", algorithm="spfhp", limit=3, printed=_short("89.4", "1.79")),
        Row(depth="3", name="NNLSHP", algorithm="nnlshp", limit=3, printed=_short("99.7", "2.00"), note=_NNLSHP_NOTE),
        Row(depth="4", name="SPFHP", algorithm="spfhp", limit=4, printed=_short("93.9", "1.88")),
        Row(depth="8", name="SPFHP", algorithm="spfhp", limit=8, printed=_short("98.9", "1.98")),
        Row(depth="max", name="SPFHP", algorithm="spfhp", limit=None, printed=_short("99.6", "1.99")),
    ),
)

TABLE_2 = Table(
    name="supplement, Table 2",
    what="SQuAD 1.1 for BERT",
    capacity=384,
    sequences=88_641,
    columns=COUNTS,
    rows=(
        _counted("1", "none", 1, "348 88641 34038144 18788665 44.801 1.000"),
        _counted("2", "SPFHP", 2, "348 45335 17408640 2159161 87.597 1.955"),
        _counted(
            "3",
            "NNLSHP",
            3,
            "398 40808 15670272 420793 97.310 2.172",
            options={"weighting": "capacity"},
            note=f"{_NNLSHP_NOTE}; weight sqrt(8 / 768), not listing 3's 0.09; "
            "the printed counts give 97.315 %; a few packs depend on the solver's build",
        ),
        _counted("3/max", "SPFHP", None, "344 40711 15633024 383545 97.547 2.177"),
    ),
)

TABLE_5 = Table(
    name="supplement, Table 5",
    what="Wikipedia for BERT, longest-pack-first",
    capacity=512,
    sequences=16_279_552,
    columns=COUNTS,
    rows=tuple(
        _counted(depth, "LPFHP", limit, figures)
        for depth, limit, figures in (
            ("1", 1, "508 16279552 8335130624 4170334451 49.967 1.000"),
            ("2", 2, "634 10099081 5170729472 1005933299 80.546 1.612"),
            ("3", 3, "648 9090154 4654158848 489362675 89.485 1.791"),
            ("4", 4, "671 8657119 4432444928 267648755 93.962 1.880"),
            ("8", 8, "670 8207569 4202275328 37479155 99.108 1.983"),
            ("16", 16, "670 8140006 4167683072 2886899 99.931 2.000"),
            ("29/max", None, "670 8138483 4166903296 2107123 99.949 2.000"),
        )
    ),
)

_GLUE = {  # name: depth reached without a limit, then the rows of depth 1 and of no limit
    "cola": ("13/max", "34 8551 1094528 997669 8.849 1.000", "29 913 116864 20005 82.882 9.366"),
    "sst2": ("15/max", "64 67349 8620672 7723633 10.406 1.000", "64 7691 984448 87409 91.121 8.757"),
    "mrpc": ("4/max", "77 3668 469504 274214 41.595 1.000", "74 1606 205568 10278 95.000 2.284"),
    "qqp": ("5/max", "123 363846 46572288 35448844 23.884 1.000", "123 97204 12442112 1318668 89.402 3.743"),
    "stsb": ("6/max", "85 5749 735872 575993 21.726 1.000", "83 1367 174976 15097 91.372 4.206"),
    "mnli": ("8/max", "124 392702 50265856 34636487 31.093 1.000", "124 123980 15869440 240071 98.487 3.167"),
    "rte": ("4/max", "112 2490 318720 152980 52.002 1.000", "108 1330 170240 4500 97.357 1.872"),
    "wnli": ("6/max", "72 635 81280 57741 28.960 1.000", "63 192 24576 1037 95.780 3.307"),
}
TABLE_3 = tuple(
    Table(
        name=f"supplement, Table 3 ({name})",
        what=f"GLUE {name} for BERT",
        capacity=128,
        sequences=int(_counts(alone)["packs"]),
        columns=COUNTS,
        rows=(
            _counted("1", "none", 1, alone),
            _counted(depth, "SPFHP", None, packed),
        ),
    )
    for name, (depth, alone, packed) in _GLUE.items()
)

TABLES = (TABLE_1, TABLE_2, *TABLE_3, TABLE_5)


def unpublished_table(histogram: Histogram, capacity: int, what: str) -> Table:
    """Return a table for a dataset that the papers do not have: the rows of Tables 1 and 5, without printed figures.

    Table 5's row of depth 1 is left out. `what` is the name of the dataset.
    """
    rows = [replace(row, printed={}) for row in (*TABLE_1.rows, *TABLE_5.rows[1:])]
    return Table(
        name="the papers' rows",
        what=what,
        capacity=capacity,
        sequences=histogram.sequences,
        columns=COUNTS,
        rows=tuple(replace(row, depth=_depth(row.limit)) for row in rows),
    )


def _depth(limit: int | None) -> str:
    return "max" if limit is None else str(limit)


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A figure that a paper's text states, and how far ours may differ from it.

    Attributes:
        value: figure as printed; None: the text leaves it out.
        tolerance: largest difference that still counts as reproduced, in the unit of the value.
        weighted: whether the figure belongs to the least-squares problem with weights.
        note: remark about the figure.
    """

    value: float | None
    tolerance: float
    weighted: bool = False
    note: str = ""


# [S] D.4.1 and D.4.4 with figure 10: Wikipedia-512, depth 3.
FIGURES_ARE_OF = "supplement, Table 5"  # the dataset of this table
_LOST = "the text prints 8 values for the 9 lengths from 504 on: this one is lost"
_SHORT = (-4620, -4553, -4612, -4614, -3723, -3936, -3628, -3970)
_LONG = (None, 3628, 3936, 3724, 4613, 4612, 4553, 4619, 0)
RESIDUALS: Mapping[str, Stated] = {
    **{f"length {n}": Stated(value=value, tolerance=2) for n, value in enumerate(_SHORT, start=1)},
    **{
        f"length {n}": Stated(value=value, tolerance=2, note="" if value is not None else _LOST)
        for n, value in enumerate(_LONG, start=504)
    },
    "sequences left over": Stated(value=56_799, tolerance=60),
    "left over, % of all": Stated(value=0.352, tolerance=0.0035, note="56,799 of 16,279,552 is 0.349 %"),
    "padding tokens of these slots": Stated(
        value=7.94e6, tolerance=0.12e6, note="before rounding it is 8.04 million; where 7.94 comes from is not known"
    ),
    "strategies with leftovers": Stated(
        value=634, tolerance=3, weighted=True, note="the text means listing 3, which is the weighted one"
    ),
}

# [S] Table 4, row by row: how often each of the 10 strategies of capacity 8 and depth 3 holds lengths 1 to 8.
MATRIX_OF_TABLE_4 = (
    (2, 1, 1, 1, 0, 0, 0, 0, 0, 0),
    (0, 1, 0, 0, 2, 1, 1, 0, 0, 0),
    (0, 0, 1, 0, 0, 2, 0, 1, 0, 0),
    (0, 0, 1, 0, 1, 0, 0, 0, 2, 0),
    (0, 1, 0, 0, 0, 0, 0, 1, 0, 0),
    (1, 0, 0, 0, 0, 0, 1, 0, 0, 0),
    (0, 0, 0, 1, 0, 0, 0, 0, 0, 0),
    (0, 0, 0, 0, 0, 0, 0, 0, 0, 1),
)

# [S] D.4.1 and D.5.1: (capacity, depth) -> figure in the text, note.
STRATEGY_COUNTS: Mapping[tuple[int, int], tuple[str, str]] = {
    (8, 3): ("10", "the columns of Table 4"),
    (512, 3): ("22102", ""),
    (512, 4): ("940000", '"around 940K": depth 4 alone, by equation 6'),
    (2048, 3): ("350540", "should be 350,550"),
}

# [M] Table 5: least and most tokens per GPU, by the method's name in `nopad.balance`; Wikipedia-512.
TOKENS_PER_GPU: Mapping[str, tuple[int, int]] = {
    "none": (1886, 6459),
    "stratified": (3620, 4482),
    "local_presort_raster": (3743, 4401),
    "local_presort": (3900, 4246),
    "global_presort_raster": (3807, 4313),
}
TOKENS_PER_GPU_ARE_OF = (1024, 8, 16)  # GPUs (not printed; only 1024 reproduces these), GPUs per node, sequences
