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
    """Patterns and the items in them, both ways round; all arrays int64.

    An entry is an item of a pattern, with the number of times that the pattern holds it.

    Attributes:
        starts: pattern p has the entries from ``starts[p]`` up to ``starts[p + 1]``; ``[patterns + 1]``.
        items: item of each entry; ``[entries]``.
        amounts: how often the pattern holds this item; ``[entries]``.
        pattern: pattern of each entry; ``[entries]``.
        first: item i occurs in the entries ``entries[first[i]:first[i + 1]]``; ``[items + 1]``.
        entries: entry numbers, item by item; ``[entries]``.
        loss: what one use of each pattern takes from the limit on losses, in descending order; ``[patterns]``.
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

    A pattern is dead if it can no longer be used: its items are not left, its loss is too high, or it was tried.

    Attributes:
        left: how many of each item are not packed yet; ``[items]``.
        degree: number of patterns with each item that are not dead; ``[items]``.
        dead: bool ``[patterns]``.
        trail: dead patterns in the order of their death; ``[patterns]``.
        chosen: the patterns used so far, in order; ``[n]`` for n sequences.
        marks: length of the trail before each of them was used; ``[n]``.
        gone: ``at[GONE]`` before each of them was used; ``[n]``.
        at: length of the trail, loss left, number of patterns that are too lossy, steps taken, random numbers drawn.
        message: odds that each entry's item gives its pattern; float64 ``[entries]``.
        odds: odds that each entry's pattern has by its other items; float64 ``[entries]``. Negative if the pattern can
            be used just once.
        ahead: sums over the first j patterns of an item; float64 ``[most patterns of an item + 1, 65]``.
        behind: the same over the last patterns; float64 ``[65]``.
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

    It cannot be called from Python, as all loops together take two thirds of the time to compile without the wrappers
    for such calls.
    """
    options: dict[str, Any] = {"cache": True, "nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: Loop = njit(**options)(loop)
    return compiled


@inner
def chance(state: State, key: np.uint64) -> float:
    """Return the next random number, at least 0 and below 1."""
    state.at[DRAWS] += 1
    return float(mix(key + np.uint64(state.at[DRAWS]) * GOLDEN) >> _11) * _UNIT


@inner
def kill(patterns: Patterns, state: State, p: int) -> None:
    """Mark pattern `p` as dead."""
    state.dead[p] = True
    state.trail[state.at[TRAIL]] = p
    state.at[TRAIL] += 1
    for e in range(patterns.starts[p], patterns.starts[p + 1]):
        state.degree[patterns.items[e]] -= 1


@inner
def drop_lossy(patterns: Patterns, state: State) -> None:
    """Kill all patterns that lose more than is left to lose."""
    while state.at[GONE] < patterns.loss.size and patterns.loss[state.at[GONE]] > state.at[LOSS]:
        if not state.dead[state.at[GONE]]:
            kill(patterns, state, state.at[GONE])
        state.at[GONE] += 1


@inner
def use(patterns: Patterns, state: State, p: int, depth: int) -> None:
    """Use pattern `p` once, as choice number `depth`, and kill the patterns that no longer fit."""
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
    """Take back choice number `depth`, the last one, and kill its pattern instead."""
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
    """Reset the state: no pattern is used, none is dead but the too lossy ones, all messages are random."""
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
    """Return the item that is left with the fewest patterns per copy; -1 if no item is left.

    An item with no pattern comes first, then one with a single pattern.
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
    """Return the pattern with item `i` whose items have the most other patterns, so that much stays possible."""
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
    """Return the pattern with the highest odds by all messages."""
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
    """Set the odds of all entries of item `i`, by the messages of the other items."""
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
    """Return the largest power of 1/2 whose power by the amount brings the odds of each entry of item `i` to at most 1.

    The odds are multiplied by it.
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
    """Set ``ahead[j + 1]`` by one more pattern; ``ahead[j, t]`` is the weight of all uses of j patterns of t copies."""
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
    """Change ``behind`` by one more pattern, as `add_ahead` does."""
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
    """Set the messages of item `i`: the odds that its other patterns leave just enough copies for this pattern."""
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
    """Let every item that is left send its messages in turn, `rounds` times, or until `limit` steps are taken."""
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
    more than `fails` dead ends or `limit` steps. If `guided`, the pattern with the highest odds is used; otherwise the
    least wanted pattern of the scarcest item. In both cases, the pattern of an item that has only one comes first.
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

    The result is `NONE` if there are no such patterns, and `UNKNOWN` if none are found in about `limit` steps; a number
    n says that they are ``state.chosen[:n]``. ``prior[p]`` is the odds of pattern p before its items are considered;
    float64 ``[patterns]``, above 0. Many short descents begin from scratch with other random numbers.
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
