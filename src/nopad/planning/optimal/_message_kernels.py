"""Compiled loops of belief propagation: messages from items to their patterns say how much each pattern is wanted.

An item stands for all sequences of one size, and a pattern is a multiset of items that fits into a pack. ``prior[p]``
are the odds of pattern p, estimated from its loss alone. A pattern is dead if it cannot be used now. An entry is one
item of one pattern, with the number of times that the pattern holds it.

``ahead`` and ``behind`` are about one item and its patterns that are not dead (`State`). ``ahead[j, t]`` is the weight
of all ways in which the first j of these patterns hold t copies of the item. ``behind[t]`` is the same for the last of
these patterns, as many as were added so far (`add_behind`).

Floating-point arithmetic is limited to operations that IEEE 754 rounds exactly (no logarithms, no powers), so that
every machine makes the same choices. `nopad.planning.optimal.cover` names the source.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.planning.optimal._pattern_kernels import STEPS, Patterns, State, chance, inner

_LEAST, _MOST = 1e-12, 1e12  # limits of messages
_TINY = 1e-200  # instead of 0 in a quotient
MOST_LEFT = 64  # an item of which more are left sends no messages


@inner
def weigh(patterns: Patterns, state: State, prior: NDArray[Any], i: int) -> None:
    """Set `State.odds` for the entries of item `i` in patterns that are not dead.

    These odds are the prior of the pattern times the messages that its other items send to it. They are limited to
    1e-12 up to 1e12, and stored as a negative number if the copies of items that are left allow just one use of the
    pattern.
    """
    for q in range(patterns.first[i], patterns.first[i + 1]):
        entry = patterns.entries[q]
        p = patterns.pattern[entry]
        if not state.dead[p]:
            odds, once = prior[p], False
            for e in range(patterns.starts[p], patterns.starts[p + 1]):
                if e != entry:
                    odds *= state.message[e]
                if state.left[patterns.items[e]] < 2 * patterns.amounts[e]:
                    once = True
            odds = min(max(odds, _LEAST), _MOST)
            state.odds[entry] = -odds if once else odds


@inner
def times(value: float, factor: float, often: int) -> float:
    """Return ``value * factor**often`` by plain multiplications."""
    for _ in range(often):
        value *= factor
    return value


@inner
def scale_odds(patterns: Patterns, state: State, i: int) -> float:
    """Multiply the odds of each entry of item `i` by ``s ** amount``; return s.

    `amount` is how often the entry's pattern holds the item. s is the largest of 1, 1/2, 1/4, ... for which the new
    odds are from -1 to 1 in all patterns that are not dead.
    """
    scale = 1.0
    for q in range(patterns.first[i], patterns.first[i + 1]):
        entry = patterns.entries[q]
        if not state.dead[patterns.pattern[entry]]:
            while abs(times(state.odds[entry], scale, patterns.amounts[entry])) > 1:
                scale *= 0.5
    for q in range(patterns.first[i], patterns.first[i + 1]):
        entry = patterns.entries[q]
        state.odds[entry] = times(state.odds[entry], scale, patterns.amounts[entry])
    return scale


@inner
def add_ahead(state: State, j: int, odds: float, amount: int, left: int) -> None:
    """Compute the weights ``ahead[j + 1]`` of an item (see the module) from ``ahead[j]`` and one more of its patterns.

    The pattern holds `amount` copies of the item. `odds` are those of the pattern, negative if it can be used just
    once. `left` is the number of copies of the item left. The new weights are scaled to a sum of 1.
    """
    once, total = odds < 0, 0.0
    for t in range(left + 1):
        weight = state.ahead[j, t]
        if t >= amount:
            weight += abs(odds) * state.ahead[j if once else j + 1, t - amount]
        state.ahead[j + 1, t] = weight
        total += weight
    for t in range(left + 1):
        state.ahead[j + 1, t] /= total


@inner
def add_behind(state: State, odds: float, amount: int, left: int) -> None:
    """Add one more pattern of an item to the weights ``behind`` (see the module), in place.

    The pattern holds `amount` copies of the item. `odds` are those of the pattern, negative if it can be used just
    once. `left` is the number of copies of the item left. The new weights are scaled to a sum of 1.
    """
    total = 0.0
    for k in range(left + 1):
        t = left - k if odds < 0 else k
        if t >= amount:
            state.behind[t] += abs(odds) * state.behind[t - amount]
        total += state.behind[t]
    for t in range(left + 1):
        state.behind[t] /= total


@inner
def send(patterns: Patterns, state: State, i: int) -> None:
    """Write the messages that item `i` sends to its patterns.

    Each pattern that is not dead gets a message: the odds that the item needs this pattern once more. Two cases are
    compared. In the first case, the item's other patterns leave just enough of its copies for one use of this pattern.
    In the second, they use all copies that are left. The weight of a case is the total weight of all ways in which it
    happens. The new message is the geometric mean of the old message and of the ratio
    ``weight of the first case / weight of the second``, which is limited to 1e-12 up to 1e12.
    """
    left, scale, j = state.left[i], 1.0, 0
    if left > 1:
        scale = scale_odds(patterns, state, i)
    for t in range(left + 1):
        state.ahead[0, t] = state.behind[t] = 1.0 if t == 0 else 0.0
    for q in range(patterns.first[i], patterns.first[i + 1]):
        entry = patterns.entries[q]
        if not state.dead[patterns.pattern[entry]]:
            add_ahead(state, j, state.odds[entry], patterns.amounts[entry], left)
            j += 1
    state.at[STEPS] += j * (left + 1)
    for k in range(patterns.first[i + 1] - patterns.first[i]):
        entry = patterns.entries[patterns.first[i + 1] - 1 - k]
        if not state.dead[patterns.pattern[entry]]:
            j -= 1
            amount = patterns.amounts[entry]
            unused, used = 0.0, 0.0
            for t in range(left + 1):
                unused += state.ahead[j, t] * state.behind[left - t]
                if t + amount <= left:
                    used += state.ahead[j, t] * state.behind[left - amount - t]
            message = times(max(used, _TINY) / max(unused, _TINY), scale, amount)
            message = min(max(message, _LEAST), _MOST)
            state.message[entry] = sqrt(state.message[entry] * message)  # half way, so that rounds settle
            add_behind(state, state.odds[entry], amount, left)


@inner
def exchange_messages(patterns: Patterns, state: State, prior: NDArray[Any], rounds: int, limit: int) -> None:
    """Set the messages of one item after another, in up to `rounds` rounds over all items.

    No round begins once the search has taken `limit` steps. An item sends no messages if no copy of it is left, or more
    than 64 copies.
    """
    for _ in range(rounds):
        if state.at[STEPS] >= limit:
            break
        state.at[STEPS] += patterns.items.size
        for i in range(state.left.size):
            if 0 < state.left[i] <= MOST_LEFT:
                weigh(patterns, state, prior, i)
                send(patterns, state, i)


@inner
def likeliest(patterns: Patterns, state: State, prior: NDArray[Any], noise: float, key: np.uint64) -> int:
    """Return the pattern with the highest odds: the prior of a pattern times the messages of all its items.

    Dead patterns are left out; the result is -1 if all are dead. The odds of each pattern are first raised at random,
    by at most the share `noise`; the random numbers follow from `key`.
    """
    best, most = -1, -1.0
    state.at[STEPS] += patterns.items.size
    for p in range(patterns.loss.size):
        if not state.dead[p]:
            odds = prior[p] * (1 + noise * chance(state, key))
            for e in range(patterns.starts[p], patterns.starts[p + 1]):
                odds *= state.message[e]
            if odds > most:
                best, most = p, odds
    return best
