"""The papers' tables and figures, recomputed: functions from a histogram to published and our own figures.

No computation here uses a published result: `published` is only compared with ours. Only the command line imports this
package.
"""

from __future__ import annotations

from nopad.study.distributions import Distribution, distribution
from nopad.study.packing import Redone, StrategyCount, contrast, count_strategies, packing_matrix_of_table_4, redo
from nopad.study.published import TABLES, Table, tables_for, unpublished_table
from nopad.study.residuals import Compared, Residuals, compare, residuals

__all__ = [
    "TABLES",
    "Compared",
    "Distribution",
    "Redone",
    "Residuals",
    "StrategyCount",
    "Table",
    "compare",
    "contrast",
    "count_strategies",
    "distribution",
    "packing_matrix_of_table_4",
    "redo",
    "residuals",
    "tables_for",
    "unpublished_table",
]
