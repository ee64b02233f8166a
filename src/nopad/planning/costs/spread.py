"""Fast plans with limits on tokens and cost: open all packs at the start, deal out long sequences, then fill up.

At first, as many packs are opened as a lower bound says. The sequences are dealt out longest first, each to the
emptiest pack, so that every pack gets a share of the long ones, which cost most. Sequences shorter than some limit go
to the fullest pack that they fit into instead, so that free room gathers in few packs. There are several tries, in a
fixed order, until a plan has few enough packs. A way to pack is a measure of emptiness (a score of free tokens, cost
and places) and a limit on length. First all ways are tried. Then more and more packs are opened, and only the best ways
are tried again: 12 at first, then half as many each time, but at least 3. A step of dealing out takes O(log(classes of
equal packs)) operations.

Source: worst-fit with a fixed number of bins, as `nopad.planning.optimal.spread`; scores for several resources as in
Panigrahy, Talwar, Uyeda, Wieder, "Heuristics for vector bin packing", 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.algorithm import Strategies
from nopad.planning.costs.bounds import fewest
from nopad.planning.optimal.budget import Budget

__all__ = ["LOOK", "Load", "Packed", "bound_of", "is_few", "load_of", "spread"]

UNLIMITED = 2**31 - 1  # the depth of a load without a limit
_MOST_DEALT = 10**7  # most steps of dealing out in one try
_MOST_LOOKS = 2 * 10**7  # most steps of best-fit in one try
LOOK = 7  # operations of a step of best-fit
_FEW = 5  # most sequences per pack on average, for `is_few`
_DEAL, _START = 75, 10**5  # operations of a step of dealing out, and of beginning a try
_SHARES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3)  # the shortest sequences with this share of all tokens are not dealt out
_SCORES = ((0, 0.5), (0, 0.7), (0, 1.0), (0, 1.5), (0, 3.0), (1, 0.5), (1, 1.0), (2, 1.0))  # (kind, weight) of a score
_LOOK, _HOPELESS = 9, 1.05  # from try _LOOK on, the search ends if the best plan has _HOPELESS times the bound
_BEST_WAYS, _LEAST_WAYS = 12, 3  # number of best ways tried again with more packs opened: at first, and at least
_MORE = (0.0, 1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7e-3, 1e-2, 2e-2)  # parts of the bound


@dataclass(frozen=True)
class Load:
    """The sequences to pack, and the limits of a pack.

    Attributes:
        lengths: distinct real lengths, ascending; int64 ``[k]``.
        sizes: each length rounded up to a multiple of `align` (see `load_of`): the tokens that such a sequence takes;
            int64 ``[k]``.
        costs: cost of a sequence of each length, ascending; int64 ``[k]``.
        counts: number of sequences of each length, >= 0; int64 ``[k]``.
        limits: most tokens, most cost and most sequences of a pack; int64 ``[3]``. 2^31 - 1 sequences mean that there
            is no depth limit.

    `nopad.planning.several.both` uses this class for two kinds of size: there, `lengths` are indices, and `sizes` and
    `costs` are the two sizes, which do not ascend.
    """

    lengths: NDArray[np.int64]
    sizes: NDArray[np.int64]
    costs: NDArray[np.int64]
    counts: NDArray[np.int64]
    limits: NDArray[np.int64]


def load_of(histogram: Histogram, capacity: int, depth: int | None, squares: int, align: int = 1) -> Load:
    """Return the load of a histogram: sizes are lengths padded to a multiple of `align`, costs are squared lengths.

    A pack holds at most `capacity` tokens, at most a cost of `squares`, and at most `depth` sequences (None:
    unlimited).
    """
    lengths = histogram.lengths
    sizes = -(-lengths // align) * align
    limits = np.array([capacity, squares, UNLIMITED if depth is None else depth], dtype=np.int64)
    return Load(lengths, sizes, lengths**2, histogram.counts, limits)


def bound_of(load: Load) -> int:
    """Return a lower bound on the number of packs of any plan of this load (`nopad.planning.costs.bounds`)."""
    capacity, most, depth = load.limits.tolist()
    return fewest(load.sizes, load.costs, load.counts, capacity, most, None if depth == UNLIMITED else depth)


def is_few(load: Load) -> bool:
    """Return whether few sequences share a pack, at most 5 on average; `nopad.planning.costs.few` is made for this.

    The average is estimated from the tokens and the cost of all sequences; the depth is ignored.
    """
    total = float(load.counts.sum())
    packs = max(
        float(load.counts @ (own / most)) for own, most in ((load.sizes, load.limits[0]), (load.costs, load.limits[1]))
    )
    return total <= _FEW * packs


@dataclass(frozen=True)
class Packed:
    """A plan as classes of equal packs, and links that say what each class holds.

    Attributes:
        classes: int64 ``[classes, 5]``. The columns are the free tokens, free cost and free places of each pack, the
            number of packs, and the row of their last link (-1: the packs are empty).
        links: int64 ``[links, 3]``. The columns are the row of the link before (-1: none), an item, and its number of
            copies. A pack holds the items of the links in one chain, from its last link back to one with -1.
    """

    classes: NDArray[np.int64]
    links: NDArray[np.int64]

    @property
    def packs(self) -> int:
        """Number of packs that are not empty."""
        return sum(self.classes[self.classes[:, 4] >= 0, 3].tolist())

    def strategies(self, lengths: NDArray[np.int64]) -> Strategies:
        """Return ``(count, lengths longest first)`` pairs for the packs that are not empty.

        Item i of the links has the length ``lengths[i]``; `lengths` are int64 ``[k]``.
        """
        names, links = lengths.tolist(), self.links.tolist()
        found = []
        for *_, count, link in self.classes.tolist():
            held: list[int] = []
            while link >= 0:
                link, item, copies = links[link]
                held += [names[item]] * copies
            if held:
                found.append((count, tuple(sorted(held, reverse=True))))
        return found


def spread(load: Load, bound: int, enough: int, budget: Budget) -> Packed:
    """Return the best plan found for `load`; `bound` is a lower bound on the number of packs.

    The search ends at a plan of at most `enough` packs, when the budget is spent, or when no try is left that could
    have fewer packs. It also ends if the best of at least ten tries needs more than 1.05 times `bound` packs. One plan
    is made even if the budget is spent at the start.
    """
    least = np.cumsum(load.sizes * (load.counts / load.counts.sum()))
    starts = [int(np.searchsorted(least, share * least[-1])) if share else 0 for share in _SHARES]
    ways = [(first, kind, weight) for first in dict.fromkeys(starts) for kind, weight in _SCORES]
    tries = _Tries(load, bound, enough, budget)
    ranked = []
    for number, way in enumerate(ways):
        ranked.append((tries.deal(bound, way), number))
        if tries.over or (number >= _LOOK and min(ranked)[0] > bound * _HOPELESS):
            return tries.finish(ways[min(ranked)[1]])
    ranked = sorted(ranked)[:_BEST_WAYS]
    for more in _MORE:
        packs = bound + 1 + int(bound * more)
        again = []
        for _, number in ranked:
            if tries.over or packs >= tries.packs:
                return tries.finish(ways[number])
            again.append((tries.deal(packs, ways[number]), number))
        ranked = sorted(again)[: max(_LEAST_WAYS, len(again) // 2)]
    return tries.finish(ways[min(ranked)[1]])


class _Tries:
    """All tries so far: the best plan (`best`), its number of packs (`packs`), and the `budget` for further tries."""

    def __init__(self, load: Load, bound: int, enough: int, budget: Budget) -> None:
        self.loads = (load.sizes, load.costs, np.ones_like(load.sizes))
        self.load, self.bound, self.enough, self.budget = load, bound, enough, budget
        self.best: Packed | None = None
        self.packs = 2**63

    @property
    def over(self) -> bool:
        """Whether the best plan has few enough packs, or the budget is spent."""
        return self.packs <= self.enough or self.budget.spent()

    def deal(self, packs: int, way: tuple[int, int, float], *, patient: bool = False) -> int:
        """Open `packs` packs and pack all sequences in one way; return the number of packs that this takes.

        The plan is kept if it is the best so far. A `way` is ``(first, kind, weight)``: the index of the shortest
        length to be dealt out, and the kind and weight of the score (`nopad.planning.costs._kernels.score`). If so many
        of the sequences to be dealt out fit nowhere that the plan would be poor, no plan is made, and the number
        returned is an estimate. With `patient`, the plan is made all the same.
        """
        from nopad.planning.costs import _kernels

        load = self.load
        first, kind, weight = way
        left = load.counts.copy()
        classes = np.empty((left.size + 16, 5), dtype=np.int64)
        classes[0] = [*load.limits, packs, -1]
        links = np.empty((8 * left.size + 16, 3), dtype=np.int64)
        made: Any = _kernels.spread_out(
            load.sizes, load.costs, left, classes, 1, links, 0, load.limits, first, kind, weight, _MOST_DEALT
        )
        classes, number, links, linked, steps = made
        self.budget.charge(_DEAL * steps + _START)
        stuck = max(left[first:] @ (own[first:] / most) for own, most in zip(self.loads, load.limits, strict=True))
        if packs + stuck > max(1000, self.bound * _HOPELESS) and not patient:
            return packs + int(stuck)
        made = _kernels.best_fit(load.sizes, load.costs, left, classes, number, links, linked, load.limits, _MOST_LOOKS)
        classes, number, links, linked, looks = made
        self.budget.charge(LOOK * looks)
        plan = Packed(classes[:number], links[:linked])
        total = plan.packs
        if total < self.packs:
            self.best, self.packs = plan, total
        return total

    def finish(self, way: tuple[int, int, float]) -> Packed:
        """Return the best plan; if no try has made a plan of all sequences, make one in this `way` first."""
        if self.best is None:
            self.deal(self.bound, way, patient=True)
        assert self.best is not None
        return self.best
