"""Compiled loops of `nopad.planning.optimal.cover`: choose patterns that hold each item exactly as often as demanded.

Floating-point arithmetic is limited to operations that IEEE 754 rounds exactly (no logarithms, no powers), so that
every machine makes the same choices.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._kernels import GOLDEN, mix

NONE, UNKNOWN = -1, -2  # results of `cover` that are no number of patterns
TRAIL, LOSS, GONE, STEPS, DRAWS = 0, 1, 2, 3, 4  # the entries of `State.at`

_LEAST, _MOST = 1e-12, 1e12  # limits of messages
_TINY = 1e-200  # instead of 0 in a quotient
MOST_LEFT = 64  # an item of which more are left sends no messages
_UNIT = 2.0**-53
_11, _1 = np.uint64(11), np.uint64(1)
_PEELS = 32  # descents without messages for each one with messages
_NOISES = (0.25, 0.5, 1.0, 2.0)  # of the descents without messages, in turn
_NOISE = 0.1  # of those with messages
_FAILS = 50  # dead ends after which a descent begins again; twice as many in every second one, and so on
_FIRST_ROUNDS, _ROUNDS = 100, 5  # rounds of messages before the first choice of a descent, and before others


Loop = TypeVar("Loop", bound=Callable[..., Any])


class Patterns(NamedTuple):
    """Patterns and the items in them, listed both by pattern and by item; all arrays int64.

    An entry is one item of one pattern, with the number of times that the pattern holds this item. Entries are numbered
    pattern by pattern.

    Attributes:
        starts: pattern p has the entries from ``starts[p]`` up to ``starts[p + 1]``; ``[patterns + 1]``.
        items: the item of each entry; ``[entries]``.
        amounts: how often the entry's pattern holds its item; ``[entries]``.
        pattern: the pattern of each entry; ``[entries]``.
        first: item i has the entries ``entries[first[i]:first[i + 1]]``; ``[items + 1]``.
        entries: the numbers of the entries, item by item; ``[entries]``.
        loss: the loss of one use of each pattern, in descending order; the losses of all uses together are limited;
            ``[patterns]``.
    """

    starts: NDArray[Any]
    items: NDArray[Any]
    amounts: NDArray[Any]
    pattern: NDArray[Any]
    first: NDArray[Any]
    entries: NDArray[Any]
    loss: NDArray[Any]


class State(NamedTuple):
    """Working memory of a search; the arrays are int64 unless noted.

    A pattern is dead if it cannot be used now: too few of its items are left, its loss is above what is still allowed,
    or it was tried in this place already. Below, c is the largest demand of an item, but at most 64.

    Attributes:
        left: how many copies of each item are not packed yet; ``[items]``.
        degree: in how many patterns that are not dead each item occurs; ``[items]``.
        dead: whether each pattern is dead; bool ``[patterns]``.
        trail: the dead patterns, in the order in which they became dead; ``[patterns]``.
        chosen: the patterns used so far, in order; ``[n]`` for n sequences.
        marks: number of dead patterns before each of these uses; ``[n]``.
        gone: ``at[GONE]`` before each of these uses; ``[n]``.
        at: five numbers: dead patterns (`TRAIL`); loss that is still allowed (`LOSS`); patterns whose loss is above
            that, which come first in `Patterns` (`GONE`); steps taken (`STEPS`); random numbers drawn (`DRAWS`).
        message: the odds with which each entry's item wants its pattern to be used; float64 ``[entries]``.
        odds: the odds of each entry's pattern by its `prior` and the messages of its other items; float64
            ``[entries]``. Negative if the pattern can be used just once.
        ahead: ``ahead[j, t]`` is the weight of all ways in which the first j patterns of an item hold t copies of it;
            float64 ``[most patterns of an item + 1, c + 1]``.
        behind: ``behind[t]`` is the same for the last patterns of the item; float64 ``[c + 1]``.
    """

    left: NDArray[Any]
    degree: NDArray[Any]
    dead: NDArray[Any]
    trail: NDArray[Any]
    chosen: NDArray[Any]
    marks: NDArray[Any]
    gone: NDArray[Any]
    at: NDArray[Any]
    message: NDArray[Any]
    odds: NDArray[Any]
    ahead: NDArray[Any]
    behind: NDArray[Any]


def inner(loop: Loop) -> Loop:
    """Compile a loop that only other loops call.

    It has no wrapper for calls from Python. Without these wrappers, compiling all loops takes a third less time.
    """
    options: dict[str, Any] = {"cache": True, "nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: Loop = njit(**options)(loop)
    return compiled


@inner
def chance(state: State, key: np.uint64) -> float:
    """Return the next random number that follows from `key`, at least 0 and below 1."""
    state.at[DRAWS] += 1
    return float(mix(key + np.uint64(state.at[DRAWS]) * GOLDEN) >> _11) * _UNIT


@inner
def kill(patterns: Patterns, state: State, p: int) -> None:
    """Mark pattern `p` as dead, and update `State.trail` and `State.degree`."""
    state.dead[p] = True
    state.trail[state.at[TRAIL]] = p
    state.at[TRAIL] += 1
    for e in range(patterns.starts[p], patterns.starts[p + 1]):
        state.degree[patterns.items[e]] -= 1


@inner
def drop_lossy(patterns: Patterns, state: State) -> None:
    """Mark all patterns as dead whose loss is above the loss that is still allowed."""
    while state.at[GONE] < patterns.loss.size and patterns.loss[state.at[GONE]] > state.at[LOSS]:
        if not state.dead[state.at[GONE]]:
            kill(patterns, state, state.at[GONE])
        state.at[GONE] += 1


@inner
def use(patterns: Patterns, state: State, p: int, depth: int) -> None:
    """Use pattern `p` once, as choice number `depth`, and mark the patterns that can no longer be used as dead."""
    state.chosen[depth], state.marks[depth], state.gone[depth] = p, state.at[TRAIL], state.at[GONE]
    state.at[LOSS] -= patterns.loss[p]
    for e in range(patterns.starts[p], patterns.starts[p + 1]):
        i = patterns.items[e]
        state.left[i] -= patterns.amounts[e]
        state.at[STEPS] += patterns.first[i + 1] - patterns.first[i]
        for q in range(patterns.first[i], patterns.first[i + 1]):
            other = patterns.entries[q]
            if patterns.amounts[other] > state.left[i] and not state.dead[patterns.pattern[other]]:
                kill(patterns, state, patterns.pattern[other])
    drop_lossy(patterns, state)


@inner
def undo(patterns: Patterns, state: State, depth: int) -> None:
    """Take back the last choice, number `depth`, and mark its pattern as dead, so that it is not tried again here."""
    while state.at[TRAIL] > state.marks[depth]:
        state.at[TRAIL] -= 1
        p = state.trail[state.at[TRAIL]]
        state.dead[p] = False
        for e in range(patterns.starts[p], patterns.starts[p + 1]):
            state.degree[patterns.items[e]] += 1
    p = state.chosen[depth]
    state.at[GONE] = state.gone[depth]
    state.at[LOSS] += patterns.loss[p]
    for e in range(patterns.starts[p], patterns.starts[p + 1]):
        state.left[patterns.items[e]] += patterns.amounts[e]
    kill(patterns, state, p)


@inner
def begin(patterns: Patterns, state: State, demand: NDArray[Any], most_loss: int, key: np.uint64) -> None:
    """Reset the state: no pattern is used, those with a loss above `most_loss` are dead, messages are random."""
    for p in range(patterns.loss.size):
        state.dead[p] = False
    for i in range(demand.size):
        state.left[i] = demand[i]
        state.degree[i] = patterns.first[i + 1] - patterns.first[i]
    for e in range(patterns.items.size):
        state.message[e] = 0.5 + chance(state, key)
    state.at[TRAIL], state.at[LOSS], state.at[GONE] = 0, most_loss, 0
    state.at[STEPS] += patterns.items.size
    drop_lossy(patterns, state)


@inner
def scarcest(state: State) -> int:
    """Return the item with the fewest patterns per copy that is left; -1 if no item is left.

    Dead patterns do not count. An item with no pattern comes first, then one with a single pattern.
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
    """Return the pattern with item `i` whose items occur in the fewest patterns, so that most others stay possible.

    Each pattern gets a number, and the one with the smallest number is returned; -1 if all patterns with item `i` are
    dead. The number is a sum over the copies in the pattern, divided by the pattern's `prior`. A copy of item k counts
    as the number of patterns with item k that are not dead, divided by the number of copies of k that are left.
    `noise` is the largest random increase of a number, relative to it.
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
def likeliest(patterns: Patterns, state: State, prior: NDArray[Any], noise: float, key: np.uint64) -> int:
    """Return the pattern with the highest odds: its `prior` times the messages of all its items.

    Dead patterns are left out; the result is -1 if all are dead. `noise` is the largest random increase of the odds,
    relative to them.
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


@inner
def weigh(patterns: Patterns, state: State, prior: NDArray[Any], i: int) -> None:
    """Set `State.odds` for item `i` in each pattern that is not dead.

    The odds are the pattern's `prior` times the messages of its other items, limited to 1e-12 up to 1e12. They are
    stored as a negative number if the pattern can be used just once.
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
    """Multiply the odds of each entry of item `i` by ``s ** amount``, so that they are at most 1; return s.

    `amount` is how often the entry's pattern holds the item. s is the largest of 1, 1/2, 1/4, ... that is small enough.
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
    """Compute ``ahead[j + 1]`` from ``ahead[j]`` (see `State`) and one more pattern, which holds `amount` copies.

    `odds` are those of the pattern, negative if it can be used just once. `left` is the number of copies left. The new
    weights are scaled to a sum of 1.
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
    """Add one more pattern to ``behind``, in place; the arguments are those of `add_ahead`."""
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
    """Set the messages of item `i` to its patterns.

    A message goes to each pattern that is not dead. Two events are compared: the item's other patterns leave just
    enough copies for one use of this pattern, or they leave no copy. Each event has a weight: the total weight of all
    ways in which it happens. The new message is the geometric mean of the ratio of both weights (first / second) and of
    the last message.
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
    """Set the messages of one item after another, `rounds` times, or until `limit` steps are taken.

    An item sends no messages if no copy of it is left, or more than 64 copies.
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

    At a dead end the last choice is taken back. The result is `NONE` if all choices were tried, and `UNKNOWN` after
    more than `fails` dead ends or `limit` steps. An item with a single pattern is packed first, by that pattern. If
    there is no such item, the next pattern is `likeliest` by new messages if `guided`, and otherwise `least_wanted` of
    the scarcest item.
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
    none is found in about `limit` steps. ``prior[p]`` is the odds of pattern p before its items are considered; float64
    ``[patterns]``, above 0. Many short descents (`descend`) are made. Each begins anew with other random numbers, which
    follow from `key`.
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
