"""Plans with two resources in milliseconds: open packs up front, deal out the long lengths, fill up with the short ones.

As many packs are opened as a lower bound asks for. The sequences go to them longest first, each to the pack with most
room, so that every pack gets a share of the dear ones; the last ones, which are short and cheap, go to the fullest pack
that they fit into, so that the room left over is in few packs. What room means, how many packs are opened and where the
second part begins are tried in a fixed order, until a plan is as good as asked for. O(distinct lengths x classes) steps
each.

Source: worst-fit with a fixed number of bins, as `nopad.planning.optimal.spread`; scores for several resources as in
Panigrahy, Talwar, Uyeda, Wieder, "Heuristics for vector bin packing", 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.planning.algorithm import Strategies

__all__ = ["Load", "Packed", "spread"]

_MOST_DEALT = 10**7  # steps of one try, of about 50 nanoseconds
_MOST_LOOKS = 5 * 10**7  # packs looked at in one try, of about one nanosecond
_DEAL = 50
_SHARES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3)  # of the tokens, in the shortest sequences: placed by best-fit
_SCORES = ((0, 0.5), (0, 0.7), (0, 1.0), (0, 1.5), (0, 3.0), (1, 0.5), (1, 1.0), (2, 1.0))
_MORE = (0.0, 1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7e-3, 1e-2, 2e-2)


@dataclass(frozen=True)
class Load:
    """What is to be packed, and the limits of a pack.

    Attributes:
        lengths: real lengths, ascending; int64 ``[k]``.
        sizes: the tokens that each takes, >= 1, ascending; int64 ``[k]``.
        costs: the cost of each, ascending; int64 ``[k]``.
        counts: number of each, >= 0; int64 ``[k]``.
        limits: most tokens, cost and sequences of a pack; int64 ``[3]``.
    """

    lengths: NDArray[np.int64]
    sizes: NDArray[np.int64]
    costs: NDArray[np.int64]
    counts: NDArray[np.int64]
    limits: NDArray[np.int64]


@dataclass(frozen=True)
class Packed:
    """Classes of equal packs, as in `nopad.planning.costs._kernels`."""

    classes: NDArray[np.int64]
    links: NDArray[np.int64]

    @property
    def packs(self) -> int:
        """Number of packs that hold something."""
        return sum(self.classes[self.classes[:, 4] >= 0, 3].tolist())

    def strategies(self, lengths: NDArray[np.int64]) -> Strategies:
        """Return ``(count, lengths longest first)`` pairs."""
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


def spread(load: Load, bound: int, enough: int, work: int) -> tuple[Packed, int]:
    """Return the best plan found, and the work it took; ends at `enough` packs or when `work` is spent.

    `bound` is a number of packs that no plan can go below. Work is counted in packs looked at, so the plan is the same
    on every machine.
    """
    least = np.cumsum(load.sizes * (load.counts / load.counts.sum()))
    starts = [int(np.searchsorted(least, share * least[-1])) if share else 0 for share in _SHARES]
    ways = [(first, kind, weight) for first in dict.fromkeys(starts) for kind, weight in _SCORES]
    best, used = _dealt(load, bound, *ways[0])
    ranked = []
    for number, way in enumerate(ways):
        made, steps = (best, 0) if number == 0 else _dealt(load, bound, *way)
        used += steps
        ranked.append((made.packs, number))
        best = made if made.packs < best.packs else best
        if best.packs <= enough or used > work:
            return best, used
    for _, number in sorted(ranked):
        for more in _MORE:
            packs = bound + 1 + int(bound * more)
            if packs >= best.packs:
                break
            made, steps = _dealt(load, packs, *ways[number])
            used += steps
            best = made if made.packs < best.packs else best
            if best.packs <= enough or used > work:
                return best, used
    return best, used


def _dealt(load: Load, packs: int, first: int, kind: int, weight: float) -> tuple[Packed, int]:
    """Open `packs` packs; deal out items from `first` up, then place the others by best-fit; also return the work."""
    from nopad.planning.costs import _kernels

    left = load.counts.copy()
    classes = np.empty((left.size + 16, 5), dtype=np.int64)
    classes[0] = [*load.limits, packs, -1]
    links = np.empty((8 * left.size + 16, 3), dtype=np.int64)
    made: Any = _kernels.spread_out(
        load.sizes, load.costs, left, classes, 1, links, 0, load.limits, first, kind, weight, _MOST_DEALT
    )
    classes, used, links, linked, steps = made
    made = _kernels.best_fit(load.sizes, load.costs, left, classes, used, links, linked, load.limits, 0.01, _MOST_LOOKS)
    classes, used, links, linked, looks = made
    return Packed(classes[:used], links[:linked]), _DEAL * steps + looks
