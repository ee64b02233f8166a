"""Compiled loops of `nopad.planning.optimal.cover`: choose patterns that hold each item exactly as often as demanded.

Floating-point arithmetic is limited to operations that IEEE 754 rounds exactly (no logarithms, no powers), so that
every machine makes the same choices.

``prior[p]`` are the odds of pattern p, estimated from its loss (`Patterns.loss`) alone. Random numbers follow from
`key`. A pattern is dead if it cannot be used now (`State`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad.planning.optimal._message_kernels import exchange_messages, likeliest
from nopad.planning.optimal._pattern_kernels import STEPS, Patterns, State, begin, chance, inner, undo, use

NONE, UNKNOWN = -1, -2  # results of `cover` that are no number of patterns

_PEELS = 32  # descents without messages for each one with messages
_NOISES = (0.25, 0.5, 1.0, 2.0)  # of the descents without messages, in turn
_NOISE = 0.1  # of those with messages
_FAILS = 50  # dead ends after which a descent begins again; twice as many in every second one, and so on
_FIRST_ROUNDS, _ROUNDS = 100, 5  # rounds of messages before the first choice of a descent, and before others


@inner
def scarcest(state: State) -> int:
    """Return the item with the fewest patterns per copy that is left to pack; -1 if no copy of any item is left.

    Dead patterns do not count. An item without any pattern comes first, then an item with a single pattern.
    """
    best, least = -1, np.inf
    state.at[STEPS] += state.left.size
    for i in range(state.left.size):
        if state.left[i] > 0:
            degree = state.degree[i]
            share = degree - 1.0 if degree < 2 else degree / state.left[i]
            if share < least:
                best, least = i, share
                if degree == 0:
                    break
    return best


@inner
def least_wanted(patterns: Patterns, state: State, prior: NDArray[Any], i: int, noise: float, key: np.uint64) -> int:
    """Return a pattern with item `i` whose items occur in few other patterns; -1 if all patterns with it are dead.

    Using such a pattern leaves most other patterns possible. Each pattern gets a score, and the one with the lowest
    score is returned. The score is a sum over the copies of items in the pattern, divided by ``prior[p]`` for pattern
    p. A copy of item k adds the number of patterns with item k that are not dead, divided by the number of copies of k
    that are left. Each score is raised at random, by at most the share `noise`.
    """
    best, least = -1, np.inf
    for q in range(patterns.first[i], patterns.first[i + 1]):
        p = patterns.pattern[patterns.entries[q]]
        if not state.dead[p]:
            wanted = 0.0
            for e in range(patterns.starts[p], patterns.starts[p + 1]):
                wanted += state.degree[patterns.items[e]] * patterns.amounts[e] / state.left[patterns.items[e]]
            wanted *= (1 + noise * chance(state, key)) / prior[p]
            if wanted < least:
                best, least = p, wanted
    return best


@inner
def descend(
    patterns: Patterns,
    state: State,
    prior: NDArray[Any],
    guided: bool,
    noise: float,
    fails: int,
    key: np.uint64,
    limit: int,
) -> int:
    """Use pattern after pattern until no item is left; return the number of patterns used.

    At a dead end the last choice is taken back. The result is `NONE` if all choices were tried without success, and
    `UNKNOWN` if the search ended after more than `fails` dead ends or after `limit` steps. An item that occurs in a
    single pattern is packed first, by that pattern. If there is no such item, and `guided` is true, the next pattern is
    chosen by `likeliest`, after new messages. If `guided` is false, it is chosen by `least_wanted` for the `scarcest`
    item. Both functions raise their scores at random, by at most the share `noise`.
    """
    depth, fresh = 0, True
    while state.at[STEPS] < limit:
        i = scarcest(state)
        if i < 0:
            return depth
        if state.degree[i] == 0:
            if depth == 0:
                return NONE
            if fails == 0:
                break
            fails -= 1
            depth -= 1
            undo(patterns, state, depth)
            continue
        if guided and state.degree[i] > 1:
            exchange_messages(patterns, state, prior, _FIRST_ROUNDS if fresh else _ROUNDS, limit)
            fresh = False
            p = likeliest(patterns, state, prior, noise, key)
        else:
            p = least_wanted(patterns, state, prior, i, noise, key)
        use(patterns, state, p, depth)
        depth += 1
    return UNKNOWN


@njit(cache=True, nogil=True)
def cover(
    patterns: Patterns,
    state: State,
    demand: NDArray[Any],
    most_loss: int,
    prior: NDArray[Any],
    key: np.uint64,
    limit: int,
) -> int:
    """Choose patterns that hold item i ``demand[i]`` times and lose at most `most_loss` together; return their number.

    The n chosen patterns are ``state.chosen[:n]``. The result is `NONE` if there is no such choice, and `UNKNOWN` if
    none is found in about `limit` steps. `prior` is float64 ``[patterns]``, above 0. Many short descents (`descend`)
    are made. Each begins anew, with other random numbers.
    """
    turn = 0
    while state.at[STEPS] < limit:
        guided = turn % (_PEELS + 1) == _PEELS
        number = turn // (_PEELS + 1) if guided else turn
        fails = _FAILS
        while number & 1:
            fails, number = 2 * fails, number >> 1
        noise = _NOISE if guided else _NOISES[turn % 4]
        begin(patterns, state, demand, most_loss, key)
        found = descend(patterns, state, prior, guided, noise, fails, key, limit)
        if found != UNKNOWN:
            return found
        turn += 1
    return UNKNOWN
