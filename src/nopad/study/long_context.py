"""Balance at long context, where attention is most of the work and one sequence can cost more than a rank's share.

The corpora are drawn at random; there are 64 ranks, with 4 packs per rank and step. Each method of packing and dealing
is simulated step by step, in one or both of two settings: ranks wait for each other once per optimiser step, or at each
micro-step. In the first, a step takes as long as its costliest rank; in the second, the times of the costliest ranks of
its micro-steps add up.

*Waste* is how much longer a step takes than it would if all ranks had the same cost. *Floor* is a lower bound on the
waste, however the sequences or packs of the same step (or of the same micro-step) are dealt to ranks. It may be above
0, because a rank costs at least as much as its longest sequence.

Two of the methods are ours:

*Sequences under a cap* are dealt to ranks by cost. A rank may get any number of sequences, up to twice the tokens of an
even share, and packs them into as many micro-batches as they need. Ranks then run different numbers of micro-batches,
so this method works only if ranks wait once per step.

*Packs drawn by cost* keeps fixed packs, and draws them in the same way in both settings. The packs of a window of steps
are sorted by cost; each micro-step takes its packs from one place in that order, and each step has one micro-step from
each quarter of it. The packs of a micro-step then have similar costs. The drawback: a micro-step is not a random sample
of the window (though every pack still comes exactly once), and the costs of steps differ more (`LongRow.spread`).

The published schedulers are re-implemented from their descriptions: next-fit in order of arrival (Megatron-LM's
``dp_balanced``), worst-fit decreasing over the sequences of a step (NeMo AutoModel), and first-fit into eight open
packs on each rank (torchtitan with Grain).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.balance import (
    METHODS,
    Attention,
    Balance,
    CostModel,
    Shape,
    deal,
    deal_under_cap,
    draw,
    needs_context_parallelism,
    report,
)
from nopad.histogram import Histogram
from nopad.options import check_integer
from nopad.planning import plan
from nopad.study.balance import BalanceRow, Communication
from nopad.study.draws import SEED, normal, uniform

__all__ = ["HIDDEN_SIZE", "WORKLOADS", "LongRow", "Workload", "long_context_rows", "too_long"]

HIDDEN_SIZE = 4096
RANKS, NODE, ACCUMULATION, STEPS = 64, 8, 4, 128
OPEN_PACKS = 8


@dataclass(frozen=True)
class Workload:
    """A random corpus: its lengths are drawn from a mixture of lognormal distributions and cut at the capacity.

    Attributes:
        name: name of the workload, for display.
        capacity: most tokens in a pack, and so in a sequence.
        parts: ``(share, mean length in tokens, standard deviation of the log length)`` of each part of the mixture.
    """

    name: str
    capacity: int
    parts: tuple[tuple[float, float, float], ...]

    def lengths(self, sequences: int) -> NDArray[np.int32]:
        """Return random lengths in tokens, int32 ``[sequences]``; calls with the same number return the same lengths.

        >>> WORKLOADS[0].lengths(3).size
        3
        """
        part = np.searchsorted(np.cumsum([share for share, *_ in self.parts])[:-1], uniform(sequences, 0), "right")
        _, means, sigmas = (np.array(column)[part] for column in zip(*self.parts, strict=True))
        drawn = means * np.exp(sigmas * (normal(sequences, 1) - sigmas / 2))
        return np.asarray(np.clip(np.rint(drawn), 1, self.capacity), dtype=np.int32)


# Llama-3-like SFT: the means and shares that Skrull (arXiv 2505.19609) names. The other mix is ours.
_SFT = ((0.9989, 1_000, 0.8), (0.0011, 37_000, 0.6))
_MIXED = ((0.70, 800, 1.0), (0.25, 5_000, 1.2), (0.05, 35_000, 1.0))
WORKLOADS = tuple(
    Workload(f"{name}, {capacity // 1024} K", capacity, parts)
    for name, parts in (("Llama-3-like SFT", _SFT), ("chat, code, books", _MIXED))
    for capacity in (32_768, 131_072)
)


@dataclass(frozen=True, kw_only=True)
class LongRow(BalanceRow):
    """How evenly one method loads the ranks on one workload.

    The other attributes, such as the waste and the tokens of the ranks, are described in `BalanceRow`.

    Attributes:
        batch: packs per rank and step.
        workload: name of the workload.
        wait: when ranks wait for each other: once per "step", or at each micro-step ("micro").
        spread: standard deviation of the cost of a step / mean cost of a step.
        fill: mean number of tokens per pack / capacity.
    """

    workload: str
    wait: str
    spread: float
    fill: float


@dataclass(frozen=True, kw_only=True)
class _Packed:
    """For each pack, its number of tokens, its cost, and the cost of its costliest sequence; int64 ``[packs]`` each.

    Some methods deal the packs in the order of these arrays; others first draw a new order.
    """

    tokens: NDArray[np.int64]
    costs: NDArray[np.int64]
    longest: NDArray[np.int64]  # cost of each pack's costliest sequence


@dataclass(frozen=True, kw_only=True)
class _Dealt:
    """What each rank gets in each micro-step: its tokens, its cost, and the cost of its costliest sequence.

    The arrays are int64 ``[steps, micro-steps, ranks]``. `seconds` is the time of drawing and dealing per step; 0.0 if
    it was not measured.
    """

    tokens: NDArray[np.int64]
    costs: NDArray[np.int64]
    longest: NDArray[np.int64]
    seconds: float = 0.0


def long_context_rows(
    workload: Workload, *, cost: CostModel | None = None, ranks: int = RANKS, node: int = NODE, steps: int = STEPS
) -> Iterator[LongRow]:
    """Simulate each method of packing and dealing on a workload; yield a row for each method and kind of wait.

    The kinds of wait: ranks wait for each other once per optimiser step, or at each micro-step. A method that is made
    for only one kind of wait has only that row. A method has no row if its packs or sequences do not fill one step.

    Args:
        workload: the distribution of lengths.
        cost: cost model; None: tokens and attention of a model with hidden size 4,096.
        ranks: number of ranks.
        node: ranks per node; with fewer ranks than this, all of them are one node.
        steps: approximate number of steps to simulate, at least 2.

    Raises:
        OptionError: `steps` is not an integer of at least 2; `ranks` or `node` is not an integer of at least 1; or
            `node` is below `ranks` and does not divide `ranks`.
    """
    steps = check_integer("steps", steps, 2)
    cost = cost or Attention(hidden_size=HIDDEN_SIZE)
    shape = Shape(ranks, min(node, ranks), ACCUMULATION, 1)
    lengths = _corpus(workload, shape, steps)
    costs = cost.of(lengths)
    best_fit = _group(_best_fit(lengths, workload.capacity), lengths, costs)
    by_cost = Balance(deal="karmarkar_karp", wait="micro")
    windows = METHODS["sorted_windows"]
    window = replace(windows, wait="micro", window=min(windows.window or steps, steps))
    everything = replace(window, window=None)
    runs: dict[str, tuple[Communication, Callable[[], _Dealt], tuple[str, ...]]] = {
        "next_fit": (
            "global",
            lambda: _in_order(_next_fit(lengths, costs, workload.capacity), shape),
            ("step", "micro"),
        ),
        "worst_fit_decreasing": (
            "none",
            lambda: _in_order(_worst_fit_decreasing(lengths, costs, workload.capacity, shape), shape),
            ("step", "micro"),
        ),
        "eight_open_packs": ("none", lambda: _open_packs(lengths, costs, workload.capacity, shape), ("step", "micro")),
        "packs_at_random": ("none", lambda: _dealt(best_fit, shape, Balance(deal="none")), ("step", "micro")),
        "packs_karmarkar_karp": ("none", lambda: _dealt(best_fit, shape, Balance()), ("step",)),
        "packs_in_order_of_cost": ("none", lambda: _dealt(best_fit, shape, by_cost), ("micro",)),
        "sequences_under_a_cap": ("none", lambda: _capped(lengths, costs, workload.capacity, shape), ("step",)),
        f"packs_drawn_by_cost_{window.window}": ("none", lambda: _dealt(best_fit, shape, window), ("step", "micro")),
        "packs_drawn_by_cost": ("none", lambda: _dealt(best_fit, shape, everything), ("step", "micro")),
    }
    for method, (communication, run, waits) in runs.items():
        dealt = run()
        for wait in waits if dealt.costs.size else ():  # too few sequences for a step of this method
            yield _row(workload, shape, method, communication, dealt, wait)


def too_long(
    workload: Workload, cost: CostModel | None = None, *, ranks: int = RANKS, steps: int = STEPS
) -> tuple[int, NDArray[np.int32]]:
    """Return how many steps have a sequence too long to be dealt evenly, and the lengths of all such sequences.

    A sequence is too long if it costs over 10 % more than the ranks of its step cost on average. Then the step's floor,
    the lower bound on its waste, is above 10 %. Only splitting such a sequence over several ranks (context parallelism)
    helps. The lengths are in tokens, int32 ``[n]``.

    Args:
        workload: the distribution of lengths, from which the sequences of the steps are drawn.
        cost: cost model; None: tokens and attention of a model with hidden size 4,096.
        ranks: number of ranks.
        steps: number of steps, at least 1.

    Raises:
        OptionError: `ranks` or `steps` is not an integer of at least 1.
    """
    steps = check_integer("steps", steps)
    cost = cost or Attention(hidden_size=HIDDEN_SIZE)
    lengths = _corpus(workload, Shape(ranks, 1, ACCUMULATION, 1), steps)
    found = [part[needs_context_parallelism(cost.of(part), ranks)] for part in np.array_split(lengths, steps)]
    return sum(part.size > 0 for part in found), np.concatenate(found)


def _corpus(workload: Workload, shape: Shape, steps: int) -> NDArray[np.int32]:
    """Return the lengths of a random corpus that fills about `steps` steps; int32 ``[n]``."""
    tokens = steps * shape.per_step * workload.capacity
    mean = float(workload.lengths(100_000).mean())
    return workload.lengths(int(tokens / mean))


def _row(
    workload: Workload, shape: Shape, method: str, communication: Communication, dealt: _Dealt, wait: str
) -> LongRow:
    costs, longest = dealt.costs, dealt.longest
    if wait == "step":
        costs, longest = costs.sum(axis=1, keepdims=True), longest.max(axis=1, keepdims=True)
    alone = np.maximum(longest.max(axis=2), -(-costs.sum(axis=2) // shape.world_size)).sum(axis=1)
    by_cost = report(costs, alone / costs.mean(axis=2).sum(axis=1) - 1)
    by_tokens = report(dealt.tokens.sum(axis=1))
    of_steps = dealt.costs.sum(axis=(1, 2))
    return LongRow(
        gpus=shape.world_size,
        node=shape.node_size,
        batch=shape.accumulation,
        method=method,
        unit="sequences" if method.startswith("sequences") else "packs",
        communication=communication,
        min_tokens=by_tokens.least,
        max_tokens=by_tokens.most,
        mean_tokens=by_tokens.mean,
        waste=by_cost.waste,
        floor=by_cost.floor or 0.0,
        abr=by_cost.abr,
        seconds_per_step=dealt.seconds,
        steps=by_cost.steps,
        workload=workload.name,
        wait=wait,
        spread=float(of_steps.std() / of_steps.mean()),
        fill=by_tokens.mean / (shape.accumulation * workload.capacity),
    )


def _group(pack_of: NDArray[np.int64], lengths: NDArray[np.int32], costs: NDArray[np.int64]) -> _Packed:
    """Return the packs, without empty ones; `pack_of` is the pack of each sequence, int64 ``[n]``."""
    _, number, held = np.unique(pack_of, return_inverse=True, return_counts=True)
    order = np.argsort(number, kind="stable")
    begin = np.concatenate([[0], np.cumsum(held)[:-1]])
    return _Packed(
        tokens=np.add.reduceat(lengths[order].astype(np.int64), begin),
        costs=np.add.reduceat(costs[order], begin),
        longest=np.maximum.reduceat(costs[order], begin),
    )


def _best_fit(lengths: NDArray[np.int32], capacity: int) -> NDArray[np.int64]:
    """Pack the whole corpus by best-fit; return the pack of each sequence, int64 ``[n]``.

    Of several sequences of equal length, an earlier one never gets a later pack.
    """
    made = plan(Histogram.from_lengths(lengths), capacity, algorithm="lpfhp")
    slots = np.concatenate(
        [np.tile(made.lengths[a:b], n) for a, b, n in zip(made.indptr, made.indptr[1:], made.counts, strict=False)]
    )
    sizes = np.repeat(np.diff(made.indptr), made.counts)
    pack_of_slot = np.repeat(np.arange(sizes.size), sizes)
    pack_of = np.empty(lengths.size, dtype=np.int64)
    pack_of[np.argsort(lengths, kind="stable")] = pack_of_slot[np.argsort(slots, kind="stable")]
    return pack_of


def _next_fit(lengths: NDArray[np.int32], costs: NDArray[np.int64], capacity: int) -> _Packed:
    from nopad.planning.greedy import greedy

    packs = greedy(lengths, capacity, None)
    return _group(np.repeat(np.arange(len(packs)), np.diff(packs.indptr)), lengths, costs)


def _worst_fit_decreasing(lengths: NDArray[np.int32], costs: NDArray[np.int64], capacity: int, shape: Shape) -> _Packed:
    """Pack the sequences of each step by worst-fit, longest first; return the packs of all steps, step after step.

    Each sequence goes into the emptiest pack of its step, or into a new pack if it does not fit there.
    """
    from nopad.study._kernels import worst_fit

    pack_of = np.empty(lengths.size, dtype=np.int64)
    step_of = np.cumsum(lengths, dtype=np.int64) // (shape.per_step * capacity)
    begin, packs = 0, 0
    for end in [*(np.flatnonzero(np.diff(step_of)) + 1).tolist(), lengths.size]:
        order = begin + np.argsort(-lengths[begin:end], kind="stable")
        found = np.empty(order.size, dtype=np.int64)
        opened = worst_fit(lengths[order], capacity, shape.per_step, found)
        pack_of[order] = packs + found
        begin, packs = end, packs + opened
    return _group(pack_of, lengths, costs)


def _open_packs(lengths: NDArray[np.int32], costs: NDArray[np.int64], capacity: int, shape: Shape) -> _Dealt:
    """Let each rank pack its own share of the sequences; in the k-th micro-step, a rank gets the k-th pack it made.

    All ranks keep the same number of packs: as many as the rank with the fewest packs has, without its last eight,
    which may not be full. Packs that do not fill a last step are left out, too.
    """
    from nopad.study._kernels import first_fit_in_bins

    ranks = []
    for rank in range(shape.world_size):
        mine = slice(rank, None, shape.world_size)
        pack_of = np.empty(lengths[mine].size, dtype=np.int64)
        first_fit_in_bins(lengths[mine], capacity, OPEN_PACKS, pack_of)
        ranks.append(_group(pack_of, lengths[mine], costs[mine]))
    least = max(min(rank.costs.size for rank in ranks) - OPEN_PACKS, 0)  # the last are not full
    side_by_side = {
        name: np.stack([getattr(rank, name)[:least] for rank in ranks], axis=1).reshape(-1)
        for name in ("tokens", "costs", "longest")
    }
    return _in_order(_Packed(**side_by_side), shape)


def _in_order(packed: _Packed, shape: Shape) -> _Dealt:
    """Deal packs in the order in which they were made: one to each rank, then the next to each rank, and so on.

    Packs that do not fill a last step are left out.
    """
    whole = packed.costs.size // shape.per_step * shape.per_step

    def cut(column: NDArray[np.int64]) -> NDArray[np.int64]:
        return column[:whole].reshape(-1, shape.accumulation, shape.world_size)

    return _Dealt(tokens=cut(packed.tokens), costs=cut(packed.costs), longest=cut(packed.longest))


def _dealt(packed: _Packed, shape: Shape, balance: Balance) -> _Dealt:
    """Draw and deal packs as in training; return what each rank gets, and the seconds that this takes per step.

    Packs that do not fill a last step are left out.
    """
    steps = packed.costs.size // shape.per_step
    if not steps:
        return _in_order(packed, shape)
    begin = time.perf_counter()
    order = draw(packed.costs, shape, balance, random.key(SEED, random.STREAM_LEG))
    parts = np.stack(
        [
            units[deal(packed.costs[units], shape, balance)][..., 0].T
            for units in order[: steps * shape.per_step].reshape(steps, -1)
        ]
    )
    return _Dealt(
        tokens=packed.tokens[parts],
        costs=packed.costs[parts],
        longest=packed.longest[parts],
        seconds=(time.perf_counter() - begin) / steps,
    )


def _capped(lengths: NDArray[np.int32], costs: NDArray[np.int64], capacity: int, shape: Shape) -> _Dealt:
    """Deal the sequences of each step by cost; a rank may take up to twice the tokens of an even share.

    The result has one micro-step per step, with all that a rank gets in the step. Sequences that do not fill a last
    step are left out.
    """
    cap = 2 * shape.accumulation * capacity
    step_of = np.cumsum(lengths, dtype=np.int64) // (shape.per_step * capacity)
    ends = np.flatnonzero(np.diff(step_of)) + 1
    if not ends.size:
        none = np.empty((0, 1, shape.world_size), dtype=np.int64)
        return _Dealt(tokens=none, costs=none, longest=none)
    held: list[list[NDArray[np.int64]]] = [[], [], []]
    begin_time = time.perf_counter()
    for begin, end in zip([0, *ends.tolist()], ends.tolist(), strict=False):
        mine, tokens = costs[begin:end], lengths[begin:end]
        rank_of = deal_under_cap(mine, tokens, shape.world_size, cap)
        longest = np.zeros(shape.world_size, dtype=np.int64)
        np.maximum.at(longest, rank_of, mine)
        for where, column in zip(held, (_sums(rank_of, tokens), _sums(rank_of, mine), longest), strict=True):
            where.append(column[None])
    seconds = (time.perf_counter() - begin_time) / len(ends)
    tokens_of, costs_of, longest_of = (np.stack(column) for column in held)
    return _Dealt(tokens=tokens_of, costs=costs_of, longest=longest_of, seconds=seconds)


def _sums(rank_of: NDArray[np.int64], values: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.int64]:
    sums = np.zeros(int(rank_of.max()) + 1, dtype=np.int64)
    np.add.at(sums, rank_of, values)
    return sums
