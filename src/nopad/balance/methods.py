"""The methods of balance: each combines a way to draw units, a way to deal them, and the point where ranks wait.

A unit is a sequence, or a pack of several. `Balance` explains the other words of this table. In all of these methods,
ranks wait for one another once per optimiser step.

| name | drawn | dealt | from |
|---|---|---|---|
| none | at random | as drawn | |
| sorted | units alike in cost share a step | as drawn | sorted batching |
| sorted_windows | the same in windows of 64 steps | Karmarkar-Karp over all ranks | |
| global_presort_raster | at random | raster over all ranks | NVIDIA's "exchange padding" |
| global_presort | at random | snake over all ranks | |
| stratified | fixed quotas of strata per rank | as drawn | Samsung, "Breaking MLPerf Training", 4.1 |
| local_presort_raster | fixed quotas of strata per rank | raster within a node | the same, 4.2 |
| local_presort | fixed quotas of strata per rank | snake within a node | the same, 4.2 |
| quantile | one unit of each of equally large strata per rank | as drawn | |
| quantile_node | one unit of each of equally large strata per node | Karmarkar-Karp within a node | |
| karmarkar_karp_node | at random | Karmarkar-Karp within a node | |
| karmarkar_karp | at random | Karmarkar-Karp over all ranks | |

The default is karmarkar_karp. Its draw is fully random. While costs do not differ too much (lengths up to some thousand
tokens), no other of these methods leaves less imbalance between ranks. At long context, sorted_windows leaves the
least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from nopad.errors import OptionError
from nopad.options import check_choice, check_integer, shown

__all__ = ["METHODS", "Balance", "Deal", "Draw", "Wait", "Within"]

Draw = Literal["random", "sorted", "stratified", "quantile"]
Deal = Literal["none", "raster", "snake", "karmarkar_karp"]
Within = Literal["rank", "node", "world"]
Wait = Literal["step", "micro"]


@dataclass(frozen=True, kw_only=True)
class Balance:
    """A method of balance; `Balance.named` returns the usual ones by name.

    Attributes:
        draw: how the units of a step are chosen:

            * "random": at random.
            * "sorted": units of similar cost share a step, or a micro-step if ranks wait there.
            * "stratified": costs are divided into ranges, the strata; every rank gets a fixed number of units from each
              stratum, its quota.
            * "quantile": units are sorted by cost and cut into equally large strata. `within` says who takes one unit
              from each stratum per step: each rank, each node, or all ranks together. The number of strata is the
              number of units that one of these takes per step.
        deal: how the units of a step are given to ranks:

            * "none": in the order drawn.
            * "raster": in turn, from the costliest on; each turn begins at the first rank.
            * "snake": in turn, from the costliest on; every second turn goes from the last rank to the first.
            * "karmarkar_karp": by the largest differencing method, with the same number of units for each rank.
        within: the ranks among which units are dealt: "node" (the ranks of each node) or "world" (all ranks). If `draw`
            is "quantile", it also says who takes one unit from each stratum; then "rank" is allowed too, if `deal` is
            "none".
        wait: where ranks wait for one another. "step": once per optimiser step (DDP with no_sync). "micro": at each
            micro-step (FSDP2, expert or pipeline parallelism).
        window: if `draw` is "sorted", the number of steps that are sorted together; None: the whole epoch.
        edges: if `draw` is "stratified", the largest cost of each stratum but the last, ascending. None: four strata,
            with edges at a quarter, half and three quarters of the largest cost.
        quotas: if `draw` is "stratified", the number of units per rank and micro-step from each stratum. None: in
            proportion to the number of units in each stratum.

    Raises:
        OptionError: a value is not allowed, or values contradict each other.

    >>> Balance.named("karmarkar_karp", wait="micro").wait
    'micro'
    """

    draw: Draw = "random"
    deal: Deal = "karmarkar_karp"
    within: Within = "world"
    wait: Wait = "step"
    window: int | None = None
    edges: tuple[int, ...] | None = None
    quotas: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("draw", Draw), ("deal", Deal), ("within", Within), ("wait", Wait)):
            check_choice(name, getattr(self, name), allowed)
        if self.window is not None:
            object.__setattr__(self, "window", check_integer("window", self.window, also=" or None"))
        if self.window is not None and self.draw != "sorted":
            raise OptionError(f"window is for draw 'sorted', not for draw {self.draw!r}")
        if self.within == "rank" and (self.draw != "quantile" or self.deal != "none"):
            raise OptionError("within 'rank' is for draw 'quantile' with deal 'none'; else it is 'node' or 'world'")
        self._check_strata()

    def _check_strata(self) -> None:
        for name in ("edges", "quotas"):
            values = getattr(self, name)
            if values is None:
                continue
            if self.draw != "stratified":
                raise OptionError(f"{name} are for draw 'stratified', not for draw {self.draw!r}")
            if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
                raise OptionError(
                    f"{name} are integers, one after another, such as (128, 256, 384), got {shown(values)}"
                )
            checked = tuple(check_integer(f"each of {name}", value, 0, 2**63 - 1) for value in values)
            object.__setattr__(self, name, checked)
        if self.edges is not None and any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise OptionError(f"edges must ascend, each once, got {self.edges}")
        strata = 4 if self.edges is None else len(self.edges) + 1
        if self.quotas is not None and len(self.quotas) != strata:
            raise OptionError(f"there are {strata} strata but {len(self.quotas)} quotas; give one quota per stratum")

    @classmethod
    def named(cls, name: str | Balance, **changes: Any) -> Balance:
        """Return the method called `name`, a key of `METHODS`, with `changes` to its attributes.

        `name` may also be a `Balance`; then a copy of it with the changes is returned.

        Raises:
            OptionError: there is no method called `name`, a changed attribute has a value that is not allowed, or the
                attributes then contradict each other.
            TypeError: `changes` has a name that is not an attribute of `Balance`.
        """
        if isinstance(name, Balance):
            return replace(name, **changes)
        if not isinstance(name, str) or name not in METHODS:
            raise OptionError(f"unknown method of balance {name!r}; there are {', '.join(METHODS)}")
        return replace(METHODS[name], **changes)


METHODS: Mapping[str, Balance] = MappingProxyType(
    {
        "none": Balance(deal="none"),
        "sorted": Balance(draw="sorted", deal="none"),
        "sorted_windows": Balance(draw="sorted", window=64),
        "global_presort_raster": Balance(deal="raster"),
        "global_presort": Balance(deal="snake"),
        "stratified": Balance(draw="stratified", deal="none"),
        "local_presort_raster": Balance(draw="stratified", deal="raster", within="node"),
        "local_presort": Balance(draw="stratified", deal="snake", within="node"),
        "quantile": Balance(draw="quantile", deal="none", within="rank"),
        "quantile_node": Balance(draw="quantile", within="node"),
        "karmarkar_karp_node": Balance(within="node"),
        "karmarkar_karp": Balance(),
    }
)
"""The methods of balance by name; `Balance.named` returns one of them, with changes to its attributes.

>>> from nopad.balance import METHODS
>>> METHODS["sorted_windows"].window, "karmarkar_karp" in METHODS
(64, True)
"""
