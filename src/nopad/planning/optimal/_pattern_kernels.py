"""Patterns and working memory of the search of `cover`; compiled loops that use a pattern or take a use back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from nopad._kernels import GOLDEN, mix

TRAIL, LOSS, GONE, STEPS, DRAWS = 0, 1, 2, 3, 4  # the entries of `State.at`

_UNIT = 2.0**-53
_11 = np.uint64(11)


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
        marks: number of dead patterns just before each of these uses; ``[n]``.
        gone: the number ``at[GONE]`` just before each of these uses; ``[n]``.
        at: five numbers: dead patterns (`TRAIL`); loss that is still allowed (`LOSS`); patterns whose loss is above
            that, which come first in `Patterns` (`GONE`); steps taken (`STEPS`); random numbers drawn (`DRAWS`).
        message: the message from each entry's item to its pattern: the odds that this item needs the pattern once more;
            float64 ``[entries]``.
        odds: the odds of each entry's pattern: its prior (the odds by its loss alone) times the messages of its other
            items; float64 ``[entries]``. Negative if the pattern can be used just once.
        ahead: ``ahead[j, t]`` is the weight of all ways in which the first j patterns of an item hold t copies of it;
            dead patterns do not count; float64 ``[most patterns of an item + 1, c + 1]``.
        behind: ``behind[t]`` is the weight of all ways in which the last patterns of the item, as many as were added so
            far, hold t copies of it; dead patterns do not count; float64 ``[c + 1]``.
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
    """Return a loop in compiled form, which only other compiled loops can call.

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
    """Mark as dead all patterns whose loss is above the loss that is still allowed."""
    while state.at[GONE] < patterns.loss.size and patterns.loss[state.at[GONE]] > state.at[LOSS]:
        if not state.dead[state.at[GONE]]:
            kill(patterns, state, state.at[GONE])
        state.at[GONE] += 1


@inner
def use(patterns: Patterns, state: State, p: int, depth: int) -> None:
    """Use pattern `p` once, after `depth` earlier choices; mark as dead all patterns that cannot be used any more."""
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
    """Take back the last choice, which came after `depth` others, and mark its pattern as dead.

    So this pattern is not tried again in this place. All other patterns that became dead by this choice or after it can
    be used again.
    """
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
    """Begin a new descent: no pattern is used, and ``demand[i]`` copies of each item i are left to pack.

    Patterns with a loss above `most_loss` are dead, all others are not. Messages are random numbers that follow from
    `key`. The counts of steps and of random numbers drawn are not reset, so the next descent gets other random numbers.
    """
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
