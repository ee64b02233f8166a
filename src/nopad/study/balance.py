"""Recompute the paper's Table 5 and Figure 6: tokens per GPU under each balancing method, the paper's and ours.

Each method draws from the histogram and deals step by step, as `nopad.balance` does in training; the reported values
are means over the steps. The published rows are simulated as the paper describes them: nodes of 8 GPUs, with a batch
of 16 sequences or 8 packs per GPU. The paper does not print the number of GPUs for Table 5; with 1,024 GPUs, and with
no other number, the simulation matches all of its rows.

*Communication* is what ranks have to exchange in training: the paper's presorting methods sort samples after they are
loaded, within a node or globally. Our methods need no communication: each rank computes the whole assignment from the
lengths and a seed.

Source: "Breaking MLPerf Training: A Case Study on Optimizing BERT" (Samsung), section 5.2, Figure 6 and Table 5.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.balance import (
    METHODS,
    Balance,
    CostModel,
    Report,
    Shape,
    Tokens,
    deal,
    draw,
    floor,
    report,
    whole_steps,
)
from nopad.errors import BalanceError, OptionError
from nopad.histogram import Histogram
from nopad.options import Option, check_integer
from nopad.planning import plan
from nopad.study.draws import SEED, shuffled
from nopad.study.published import TOKENS_PER_GPU, TOKENS_PER_GPU_ARE_OF, has_figures

__all__ = [
    "GPUS",
    "ORDER_STEPS",
    "STEPS",
    "BalanceRow",
    "Pool",
    "Studied",
    "balance_rows",
    "order_effect",
    "published_range",
    "studied",
]

GPUS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
STEPS = 500  # fewer if they take more than MOST_SEQUENCES; the least and most of a step vary by about 200 tokens
MOST_SEQUENCES = 1 << 23
ORDER_STEPS = 100_000
_STEPS = Option(default=None, none=True, help="steps to simulate")
_ORDER_STEPS = Option(default=ORDER_STEPS, low=2, help="most steps to simulate")
_SPARE = 1.15  # more units are drawn than the steps take, since quotas leave some over

Unit = Literal["sequences", "packs"]
Communication = Literal["none", "node", "global"]


@dataclass(frozen=True, kw_only=True)
class Studied:
    """A method of the study.

    Attributes:
        name: name of the method: a key of `nopad.balance.METHODS`, or "packs" or "packs_depth_N" if packs are dealt.
        balance: how the sequences or packs are drawn and dealt to ranks.
        unit: what is dealt: "sequences" or "packs".
        communication: where ranks exchange samples in training: "none" (nowhere), within each "node", or "global".
        published: whether the method is the paper's; False: it is ours.
        depth: most sequences in a pack; None: no limit. Used only if the unit is "packs".
    """

    name: str
    balance: Balance
    unit: Unit = "sequences"
    communication: Communication = "none"
    published: bool = False
    depth: int | None = None


def studied() -> tuple[Studied, ...]:
    """Return the methods of the study: first the paper's, then ours."""
    exchanged: dict[str, Communication] = {
        "none": "none",
        "stratified": "none",
        "local_presort_raster": "node",
        "local_presort": "node",
        "global_presort_raster": "global",
    }
    papers = [
        Studied(name=name, balance=METHODS[name], communication=what, published=True)
        for name, what in exchanged.items()
    ]
    at_random = METHODS["none"]
    packs = [
        Studied(name=f"packs_depth_{depth}", balance=at_random, unit="packs", published=True, depth=depth)
        for depth in (2, 3)
    ]
    ours = [Studied(name=name, balance=METHODS[name]) for name in METHODS if name not in exchanged]
    return (*papers, *packs, *ours, Studied(name="packs", balance=at_random, unit="packs"))


@dataclass(frozen=True, kw_only=True)
class BalanceRow:
    """How evenly one method loads a number of GPUs.

    Attributes:
        gpus: number of ranks.
        node: ranks per node.
        batch: sequences per rank and step; a pack counts as two sequences, as in the paper.
        method: name of the method.
        unit: what is dealt: "sequences" or "packs".
        communication: where ranks exchange samples in training: "none" (nowhere), within each "node", or "global".
        min_tokens: number of tokens on the rank with the fewest, averaged over the steps.
        max_tokens: number of tokens on the rank with the most, averaged over the steps.
        mean_tokens: number of tokens per rank, averaged over ranks and steps.
        waste: how much longer the costliest rank takes than the mean rank: largest / mean cost of a step, minus 1,
            averaged over the steps.
        floor: a lower bound on the waste, however the sequences or packs of the same steps are dealt.
        abr: share of the ranks' time that is spent waiting: 1 - mean / largest cost of a step, averaged over the steps.
        seconds_per_step: seconds to draw and deal a step for all ranks.
        steps: number of steps that were simulated.
    """

    gpus: int
    node: int
    batch: int
    method: str
    unit: Unit
    communication: Communication
    min_tokens: float
    max_tokens: float
    mean_tokens: float
    waste: float
    floor: float
    abr: float
    seconds_per_step: float
    steps: int


def balance_rows(
    histogram: Histogram,
    gpus: Sequence[int],
    *,
    node: int = 8,
    batch: int = 16,
    cost: CostModel | None = None,
    steps: int | None = None,
    methods: Sequence[Studied] | None = None,
) -> Iterator[BalanceRow]:
    """Simulate each method on each number of GPUs, and yield a row for each.

    A stratified method is left out if the batch or the histogram is too small for its quotas of each stratum, or if the
    ends of its strata would be equal, as where the longest length is below 3.

    Args:
        histogram: lengths to draw from.
        gpus: the numbers of GPUs (ranks) to simulate.
        node: ranks per node; with fewer GPUs than this, all of them are one node.
        batch: sequences per rank and step, at least 2.
        cost: cost model; None: the number of tokens.
        steps: number of steps to simulate, at least 1; None: 500, or fewer if these would take more than 8 million
            sequences.
        methods: the methods to simulate; None: all those that `studied` returns.

    Raises:
        OptionError: a number is out of range, or `node` does not divide a number of GPUs above it.
        BalanceError: the histogram gives too few sequences or packs for one step of a method (if the method is
            stratified, it is left out instead).

    >>> histogram = Histogram.from_counts({n: 50 for n in range(1, 65)})
    >>> rows = balance_rows(histogram, [8], steps=20, methods=[Studied(name="ours", balance=Balance())])
    >>> [(row.method, row.waste < 0.01) for row in rows]
    [('ours', True)]
    """
    batch = check_integer("batch", batch, 2)  # one pack
    steps = _STEPS.check("steps", steps)
    shapes = [Shape(n, min(node, n), 1, batch) for n in gpus]
    pool = Pool(histogram, cost or Tokens())
    for shape in shapes:
        most = max(1, min(STEPS, MOST_SEQUENCES // shape.per_step)) if steps is None else steps
        for method in studied() if methods is None else methods:
            per_rank = batch // 2 if method.unit == "packs" else batch
            taken = replace(shape, per_rank=per_rank)
            tokens, costs = pool.units(method, int(most * taken.per_step * _SPARE))
            try:
                found = _simulate(taken, tokens, costs, _strata(method, histogram, pool.cost), most)
            except BalanceError:
                if method.balance.draw == "stratified":
                    continue
                raise
            yield _row(method, shape, *found)


# The index of each unit's length (or strategy, for packs), in random order; tokens and cost of each length (strategy).
_Kinds = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]


class Pool:
    """The units from which a study draws: every sequence of a histogram, or every pack of a plan, in random order."""

    def __init__(self, histogram: Histogram, cost: CostModel) -> None:
        self.cost = cost
        self._histogram = histogram
        self._orders: dict[tuple[Unit, int | None], _Kinds] = {}
        self._drawn: dict[tuple[Unit, int | None, int], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def units(self, method: Studied, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of tokens and the cost of each of a method's first `size` units; int64 ``[size]`` each.

        If there are fewer units, all are returned. If tokens are the cost, both results are the same array.
        """
        what = (method.unit, method.depth)
        if what not in self._orders:
            self._orders[what] = self._sequences() if method.unit == "sequences" else self._packs(method.depth)
        if (*what, size) not in self._drawn:
            chosen, tokens, costs = self._orders[what]
            of_units = tokens[chosen[:size]]
            self._drawn = {(*what, size): (of_units, of_units if tokens is costs else costs[chosen[:size]])}
        return self._drawn[*what, size]

    def _sequences(self) -> _Kinds:
        lengths = self._histogram.lengths
        costs = lengths if isinstance(self.cost, Tokens) else self.cost.of(lengths)
        return shuffled(self._histogram.counts, 0, 0, 0), lengths, costs

    def _packs(self, depth: int | None) -> _Kinds:
        """Pack by best-fit (`lpfhp`) with this depth limit, and return the packs; the capacity is the longest length.

        The result is ``(strategies, tokens, costs)``: the strategy number of each pack, in random order; the number of
        tokens of each strategy; and the cost of each strategy.
        """
        made = plan(self._histogram, self._histogram.max_length, depth=depth, algorithm="lpfhp")
        tokens = Tokens().of_packs(made.indptr, made.lengths)
        costs = tokens if isinstance(self.cost, Tokens) else self.cost.of_packs(made.indptr, made.lengths)
        return shuffled(made.counts, 0, 0, 1), tokens, costs


def _strata(method: Studied, histogram: Histogram, cost: CostModel) -> Balance:
    """Return the method's `Balance`; its strata, if it has any, become four equal ranges of lengths.

    A `Balance` gives the ends of its strata as costs, so `cost` converts the lengths at which they end to costs.

    Raises:
        BalanceError: two strata would end at the same length or cost.
    """
    if method.balance.draw != "stratified":
        return method.balance
    edges = [histogram.max_length * part // 4 for part in (1, 2, 3)]
    ends = tuple(cost.of(edges).tolist())
    if not ends[0] < ends[1] < ends[2]:
        raise BalanceError(
            f"the strata of {method.name} would end at the costs {', '.join(map(str, ends))}, of the lengths "
            f"{', '.join(map(str, edges))}; study longer sequences, or leave the method out"
        )
    return Balance.named(method.balance, edges=ends)


def _simulate(
    shape: Shape, tokens: NDArray[np.int64], costs: NDArray[np.int64], balance: Balance, steps: int
) -> tuple[Report, Report, float]:
    """Draw and deal `steps` steps; return (report by tokens, report by cost, mean seconds to draw and deal a step).

    `tokens` and `costs` are those of the units (sequences or packs) to draw from; int64 ``[n]``.

    Raises:
        BalanceError: there are too few units for one step.
    """
    held, spent, floors, seconds = [], [], [], 0.0
    for units, took in _steps(costs, shape, balance, steps):
        begin = time.perf_counter()
        mine = costs[units]
        parts = deal(mine, shape, balance)
        seconds += took + time.perf_counter() - begin
        spent.append(mine[parts].sum(axis=(1, 2)))
        held.append(spent[-1] if tokens is costs else tokens[units][parts].sum(axis=(1, 2)))
        floors.append(floor(mine, shape.world_size))
    return report(held), report(spent, floors), seconds / len(held)


def _row(method: Studied, shape: Shape, by_tokens: Report, by_cost: Report, seconds: float) -> BalanceRow:
    return BalanceRow(
        gpus=shape.world_size,
        node=shape.node_size,
        batch=shape.per_rank,
        method=method.name,
        unit=method.unit,
        communication=method.communication,
        min_tokens=by_tokens.least,
        max_tokens=by_tokens.most,
        mean_tokens=by_tokens.mean,
        waste=by_cost.waste,
        floor=by_cost.floor or 0.0,
        abr=by_cost.abr,
        seconds_per_step=seconds,
        steps=by_cost.steps,
    )


def _steps(
    costs: NDArray[np.int64], shape: Shape, balance: Balance, steps: int
) -> Iterator[tuple[NDArray[Any], float]]:
    """Yield (indices of the units, seconds of drawing) for each of `steps` steps, in as many epochs as needed.

    A unit is a sequence or a pack; `costs` has the cost of each unit.

    Raises:
        BalanceError: there are too few units for one step.
    """
    whole = whole_steps(costs, shape, balance)
    if not whole:
        raise BalanceError(
            f"{costs.size:,} units are too few for one step of a draw {balance.draw!r} on {shape.world_size:,} GPUs, "
            f"which takes {shape.per_step:,}; study fewer GPUs or a smaller batch"
        )
    _warm_up(balance)
    for epoch in range(-(-steps // whole)):
        begin = time.perf_counter()
        order = draw(costs, shape, balance, random.key(SEED, random.STREAM_LEG, epoch))
        took = (time.perf_counter() - begin) * shape.per_step / costs.size
        for step in range(min(whole, steps - epoch * whole)):
            yield order[step * shape.per_step : (step + 1) * shape.per_step], took


def _warm_up(balance: Balance) -> None:
    """Compile the loops that a method needs, so that compilation is not timed."""
    costs = np.arange(16, dtype=np.int64)
    shape = Shape(2, 2, 1, 4)
    deal(costs[:8], shape, balance)
    draw(costs, shape, Balance(draw="random" if balance.draw == "stratified" else balance.draw), 0)


def published_range(row: BalanceRow, histogram: Histogram) -> tuple[int, int] | None:
    """Return the least and most tokens per GPU that Table 5 prints for the setting of `row`.

    The result is None if Table 5 prints none for this setting and method, or if the histogram is not the paper's.
    """
    same = (row.gpus, row.node, row.batch) == TOKENS_PER_GPU_ARE_OF
    return TOKENS_PER_GPU.get(row.method) if same and has_figures(histogram, histogram.max_length) else None


def order_effect(histogram: Histogram, cost: CostModel | None = None, steps: int = ORDER_STEPS) -> dict[str, float]:
    """Return the correlation between a step's number in an epoch and its cost, for three ways to draw the steps.

    The result is a dict with the keys "random", "sorted" (by cost) and "sorted in windows of 64 steps". With many
    steps, all three values are near 0, since steps that are drawn by cost come in random order too. With few steps,
    chance alone gives larger values; with two, each value is 1 or -1, unless both cost the same. A value is 0 if all
    steps cost the same. One epoch is simulated, with up to `steps` steps of 128 sequences each; with fewer if the
    histogram holds too few sequences.

    Args:
        histogram: lengths to draw from.
        cost: cost model; None: the number of tokens.
        steps: most steps to simulate, at least 2.

    Raises:
        OptionError: `steps` is below 2, or the histogram holds too few sequences for two steps.

    >>> effect = order_effect(Histogram.from_counts({n: 1280 for n in range(1, 101)}))
    >>> sorted(effect), max(map(abs, effect.values())) < 0.1
    (['random', 'sorted', 'sorted in windows of 64 steps'], True)
    """
    shape, steps = Shape(8, 8, 1, 16), _ORDER_STEPS.check("steps", steps)
    chosen = shuffled(histogram.counts, 0, 0, 2)[: steps * shape.per_step]
    costs = (cost or Tokens()).of(histogram.lengths)[chosen]
    whole = whole_steps(costs, shape, Balance())
    if whole < 2:
        raise OptionError(f"{histogram.sequences:,} sequences are too few for two steps of {shape.per_step}")
    draws = {
        "random": Balance(),
        "sorted": METHODS["sorted"],
        "sorted in windows of 64 steps": Balance(draw="sorted", window=64),
    }
    effects = {}
    for name, balance in draws.items():
        order = draw(costs, shape, balance, random.key(SEED, random.STREAM_LEG))
        of_steps = costs[order[: whole * shape.per_step]].reshape(whole, -1).sum(axis=1)
        varied = np.ptp(of_steps) > 0
        effects[name] = float(np.corrcoef(of_steps, np.arange(whole))[0, 1]) if varied else 0.0
    return effects
