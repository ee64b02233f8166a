"""Choose packs from a list of patterns, so that they hold each item exactly as often as demanded.

An item stands for all sequences of one size; its demand is their number. A pattern is a multiset of items that fits
into a pack. This is the exact-cover problem, with demands. Each pattern has a loss, and the losses of all packs
together are limited too. A descent uses one pattern after another, goes back at dead ends, and is given up after a
number of dead ends. Two kinds of descents take turns:

* The scarcest item, with the fewest patterns per copy, comes first. Of its patterns, the one whose items occur in the
  fewest patterns is used, so that the items left at the end still have many patterns in common. If there are many
  covers, this finds one in a millisecond.
* Belief propagation: each item sends a message to each of its patterns. The message to a pattern is the odds that the
  item needs this pattern once more: that the item's other patterns leave just enough of its copies for one use of this
  pattern, instead of using all copies. After some rounds of messages, the pattern with the highest odds is used. If
  there are few covers, the messages often point to one of them.

The search is a heuristic: it may miss a cover that exists. It can prove that there is none only if there are few
patterns; then it ends early.

Source: the choice of the scarcest item is that of Knuth, "Dancing links", 2000; the messages are those of the
sum-product algorithm (Kschischang, Frey, Loeliger 2001), and using the likeliest one by one is decimation (Mezard,
Parisi, Zecchina 2002).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.pricing import Pattern
from nopad.planning.optimal.rounding import Packing

if TYPE_CHECKING:
    from nopad.planning.optimal._pattern_kernels import Patterns, State

__all__ = ["cover"]

_STEP = 10  # operations of one step of the search
_PATTERN_STEPS, _ITEM_STEPS = 2_000, 200  # operations to prepare the search: for each pattern, for each item in it
_LEAST_PRIOR = 1e-12


def cover(
    patterns: Sequence[Pattern],
    losses: NDArray[np.int64],
    demand: NDArray[np.int64],
    most_loss: int,
    packs: int,
    budget: Budget,
    *,
    turn: int = 0,
) -> Packing | None:
    """Return a packing that holds item i exactly ``demand[i]`` times, made of `patterns`; None if none is found.

    The packing maps each pattern used to its number of packs. If nothing is found, the search usually takes about as
    many operations as the budget allows.

    Args:
        patterns: the patterns that may be used, each any number of times; none holds an item more often than demanded.
        losses: the loss of a pack of each pattern, >= 0; int64 ``[patterns]``.
        demand: how often the packs must hold each item, >= 1; int64 ``[k]``.
        most_loss: the losses of all packs together are at most this.
        packs: about how many packs are expected; the odds of each pattern are estimated from this. The packing may have
            another number of packs.
        budget: the search charges its operations to this budget.
        turn: the seed of the random choices, >= 0.

    >>> patterns, losses = [(2, 0), (1, 1), (1, 0), (0,)], np.array([0, 0, 1, 4])
    >>> sorted(cover(patterns, losses, np.array([1, 2, 1]), 2, 2, Budget(1)).items())
    [((1, 1), 1), ((2, 0), 1)]
    """
    from nopad.planning.optimal import _cover_kernels
    from nopad.planning.optimal._pattern_kernels import STEPS

    order = np.argsort(-losses, kind="stable")
    ordered = [patterns[p] for p in order.tolist()]
    loss = losses[order].astype(np.int64)
    listed = _listed(ordered, loss, demand.size)
    budget.charge(_PATTERN_STEPS * len(ordered) + _ITEM_STEPS * sum(map(len, ordered)))
    state = _empty(listed, demand)
    limit = max(0, budget.most) // _STEP
    key = np.uint64(random.key(turn, random.STREAM_WITHIN_LENGTH))
    found = _cover_kernels.cover(listed, state, demand, most_loss, _prior(loss, most_loss, packs), key, limit)
    budget.charge(_STEP * int(state.at[STEPS]))
    if found < 0:
        return None
    packing: Packing = Counter(ordered[p] for p in state.chosen[:found].tolist())
    held: Counter[int] = Counter()
    for pattern, count in packing.items():
        for item in pattern:
            held[item] += count
    lost = int(loss[state.chosen[:found]].sum())
    return packing if lost <= most_loss and held == Counter(dict(enumerate(demand.tolist()))) else None


def _prior(loss: NDArray[np.int64], most_loss: int, packs: int) -> NDArray[np.float64]:
    """Return the odds of each pattern by its loss alone; float64 ``[patterns]``.

    Suppose that all ways to divide `most_loss` among the packs are equally likely. If one pack has a loss of l, about
    the share ``(1 - l / (most_loss + 1)) ** (packs - 2)`` of these ways is left for the others. The odds are this
    share, but at least 1e-12; for a single pack, they are 1.
    """
    kept = 1 - loss / (most_loss + 1)
    prior = np.ones(loss.size)
    for _ in range(packs - 2):  # a power may differ in its last bit from machine to machine
        prior *= kept
    return np.maximum(prior, _LEAST_PRIOR)


def _listed(patterns: Sequence[Pattern], loss: NDArray[np.int64], k: int) -> Patterns:
    """Return `patterns` as arrays for the compiled search.

    ``loss[p]`` is the loss of pattern p. The patterns must be in descending order of loss. There are `k` items.
    """
    from nopad.planning.optimal._pattern_kernels import Patterns

    amounts = [Counter(pattern) for pattern in patterns]
    sizes = np.fromiter((len(held) for held in amounts), np.int64, len(amounts))
    items = np.array([item for held in amounts for item in held], dtype=np.int64)
    return Patterns(
        starts=np.append(0, np.cumsum(sizes)),
        items=items,
        amounts=np.array([count for held in amounts for count in held.values()], dtype=np.int64),
        pattern=np.repeat(np.arange(sizes.size), sizes),
        first=np.append(0, np.cumsum(np.bincount(items, minlength=k))),
        entries=np.argsort(items, kind="stable"),
        loss=loss,
    )


def _empty(patterns: Patterns, demand: NDArray[np.int64]) -> State:
    """Return the working memory of a search for patterns that hold item i ``demand[i]`` times; all numbers are 0."""
    from nopad.planning.optimal._message_kernels import MOST_LEFT
    from nopad.planning.optimal._pattern_kernels import State

    k, m, n, entries = demand.size, patterns.loss.size, int(demand.sum()), patterns.items.size
    most = int(np.diff(patterns.first).max(initial=0))
    copies = min(int(demand.max()), MOST_LEFT)
    return State(
        left=np.zeros(k, dtype=np.int64),
        degree=np.zeros(k, dtype=np.int64),
        dead=np.zeros(m, dtype=bool),
        trail=np.zeros(m, dtype=np.int64),
        chosen=np.zeros(n, dtype=np.int64),
        marks=np.zeros(n, dtype=np.int64),
        gone=np.zeros(n, dtype=np.int64),
        at=np.zeros(5, dtype=np.int64),
        message=np.zeros(entries),
        odds=np.zeros(entries),
        ahead=np.zeros((most + 1, copies + 1)),
        behind=np.zeros(copies + 1),
    )
