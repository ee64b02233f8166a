"""Decide which rank gets which sequences or packs, so that no rank waits long for another.

A *unit* is a sequence, or a pack of several. Each unit has a cost, an integer (`costs`). `Shape` says how many units a
step takes and on how many ranks; `Balance` names the method by which units are dealt. `draw` orders all units of an
epoch; `deal` then gives the units of one step to the ranks. The results of `draw` and `deal` depend on their arguments
alone, so every rank computes the whole assignment, and nothing is communicated.

In the example, the first rank gets units 1 and 0, with a total cost of 10, and the second gets units 2 and 3, with the
same total:

>>> import numpy as np
>>> shape = Shape(world_size=2, node_size=2, accumulation=1, per_rank=2)
>>> deal(np.array([9, 1, 5, 5]), shape, Balance.named("karmarkar_karp")).tolist()
[[[1, 0]], [[2, 3]]]
"""

from __future__ import annotations

from nopad.balance.cap import cut_under_cap, deal_step_under_cap, deal_under_cap, first_over_cap
from nopad.balance.costs import Attention, CostModel, Measured, Tokens, cost_model, round_up
from nopad.balance.deal import deal
from nopad.balance.draw import draw, whole_steps
from nopad.balance.floor import Report, floor, needs_context_parallelism, report
from nopad.balance.methods import METHODS, Balance
from nopad.balance.shape import Shape

__all__ = [
    "METHODS",
    "Attention",
    "Balance",
    "CostModel",
    "Measured",
    "Report",
    "Shape",
    "Tokens",
    "cost_model",
    "cut_under_cap",
    "deal",
    "deal_step_under_cap",
    "deal_under_cap",
    "draw",
    "first_over_cap",
    "floor",
    "needs_context_parallelism",
    "report",
    "round_up",
    "whole_steps",
]
