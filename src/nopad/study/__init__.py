"""The papers' tables and figures, recomputed from a histogram and shown beside the published values.

Published results (`published`) are only shown beside ours. Three modules also compute with published numbers, and say
with which: `scaling`, `latency` and `serving`. Within nopad, only the command line imports this package.
"""

from __future__ import annotations

from nopad.study.balance import BalanceRow, balance_rows, order_effect, published_range
from nopad.study.distributions import Distribution, distribution
from nopad.study.lamb import LambRow, PowerRow, lamb_rows, powers
from nopad.study.latency import LatencyRow, latency_rows
from nopad.study.long_context import WORKLOADS, LongRow, long_context_rows, too_long
from nopad.study.packing import Redone, StrategyCount, contrast, count_strategies, packing_matrix_of_table_4, redo
from nopad.study.pretraining import PairsAt, machine_documents, pairs_at
from nopad.study.published import TABLES, Table, tables_for, unpublished_table
from nopad.study.residuals import Compared, Residuals, compare, residuals
from nopad.study.scaling import ScalingRow, scaling
from nopad.study.serving import ServingRow, serving_rows

__all__ = [
    "TABLES",
    "WORKLOADS",
    "BalanceRow",
    "Compared",
    "Distribution",
    "LambRow",
    "LatencyRow",
    "LongRow",
    "PairsAt",
    "PowerRow",
    "Redone",
    "Residuals",
    "ScalingRow",
    "ServingRow",
    "StrategyCount",
    "Table",
    "balance_rows",
    "compare",
    "contrast",
    "count_strategies",
    "distribution",
    "lamb_rows",
    "latency_rows",
    "long_context_rows",
    "machine_documents",
    "order_effect",
    "packing_matrix_of_table_4",
    "pairs_at",
    "powers",
    "published_range",
    "redo",
    "residuals",
    "scaling",
    "serving_rows",
    "tables_for",
    "too_long",
    "unpublished_table",
]
