"""`plan`, the entry point of planning: checks the arguments, runs an algorithm by name, and returns a `Plan`.

There are two kinds of algorithm, see `nopad.planning.algorithm`:

* histogram algorithms return strategies (lengths that share a pack, and how many packs); sequences are assigned later
* arrival-order algorithms return packs of sequences; their plan is a summary of these packs

A new algorithm is one new file and one entry in a table below.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad import random
from nopad.errors import LengthError, OptionError
from nopad.histogram import Histogram, as_lengths, exact_sum
from nopad.options import BOOLEAN, Option, check_sizes
from nopad.packs import Packs, take_lists
from nopad.planning.algorithm import Algorithm, Planned
from nopad.planning.best_fit import best_fit
from nopad.planning.conditions import (
    CONDITIONS,
    bound_under,
    check_conditions,
    cut_packs,
    cut_strategies,
    even_limits,
    within_squares,
)
from nopad.planning.costs import described, even_out, load_of, spreads, within
from nopad.planning.ennlshp import ENNLSHP_OPTIONS, ennlshp
from nopad.planning.ffd import ffd
from nopad.planning.first_fit import first_fit
from nopad.planning.granularity import real_strategies, rounded_histogram
from nopad.planning.greedy import greedy
from nopad.planning.harmonic import harmonic
from nopad.planning.lpfhp import lpfhp
from nopad.planning.mffd import mffd
from nopad.planning.nnlshp import NNLSHP_OPTIONS, nnlshp
from nopad.planning.none import none
from nopad.planning.optimal import auto, optimal
from nopad.planning.optimal.budget import Budget
from nopad.planning.plan import Plan
from nopad.planning.sort import sort
from nopad.planning.spfhp import spfhp

__all__ = ["ALGORITHMS", "check_algorithm", "plan", "summarise"]

_EFFORT = "budget, in seconds of an ordinary core; counted in operations, so every machine makes the same plan"
_SEARCH = {
    "seconds": Option(default=None, none=True, help="stop after so many seconds; the plan then depends on the machine"),
}
HISTOGRAM_ALGORITHMS: dict[str, Algorithm] = {
    "auto": Algorithm(
        run=auto,
        help="the best within about three seconds: best-fit where it meets the bound, else column generation",
        options={"effort": Option(default=3, low=0, help=_EFFORT), **_SEARCH},
    ),
    "bfd": Algorithm(run=lpfhp, help="best-fit decreasing: lpfhp by its textbook name"),
    "ennlshp": Algorithm(
        run=ennlshp,
        help="nnlshp extended: least padding, no sequence left out before rounding",
        options=ENNLSHP_OPTIONS,
    ),
    "ffd": Algorithm(run=ffd, help="first-fit decreasing"),
    "lpfhp": Algorithm(
        run=lpfhp,
        help="best-fit decreasing on the histogram (longest-pack-first)",
        options={
            "distribute": Option(default=True, choices=BOOLEAN, help="copies of a length share a pack where they can")
        },
    ),
    "mffd": Algorithm(run=mffd, help="modified first-fit decreasing: first finds partners for long lengths"),
    "nnlshp": Algorithm(
        run=nnlshp, help="non-negative least squares over all strategies without padding", options=NNLSHP_OPTIONS
    ),
    "none": Algorithm(run=none, help="one sequence per pack"),
    "optimal": Algorithm(
        run=optimal,
        help="column generation down to the last pack, with a proof of the bound",
        options={"effort": Option(default=30, low=0, help=_EFFORT), **_SEARCH},
    ),
    "sort": Algorithm(run=sort, help="next-fit, longest length first"),
    "spfhp": Algorithm(run=spfhp, help="worst-fit decreasing on the histogram (shortest-pack-first)"),
}
ARRIVAL_ALGORITHMS: dict[str, Algorithm] = {
    "best_fit": Algorithm(
        run=best_fit,
        help="best-fit in arrival order, or with a bounded look-ahead",
        options={
            "window": Option(
                default=None,
                none=True,
                help="fill one pack after the other from a buffer of so many sequences; None: every pack stays open",
            )
        },
    ),
    "first_fit": Algorithm(run=first_fit, help="first-fit in arrival order"),
    "greedy": Algorithm(run=greedy, help="next-fit in arrival order"),
    "harmonic": Algorithm(
        run=harmonic,
        help="harmonic-k in arrival order: next-fit within classes of like lengths",
        options={"k": Option(default=12, high=2**20, help="number of size classes")},
    ),
}
ALGORITHMS = tuple(sorted([*HISTOGRAM_ALGORITHMS, *ARRIVAL_ALGORITHMS]))
QUICK_ALGORITHMS = ("auto", "ffd", "greedy", "lpfhp", "spfhp")  # the default algorithms of a table

# Algorithms that plan by tokens and cost at once: how many attempts of `even_out` may solve linear programs
_BY_COST = {"auto": 4, "optimal": 20}
_BEFORE = 0.5  # share of the budget for a plan with few packs, before it is made even
_STOPPED = "evenness was stopped by its budget: a larger one (effort) may find packs more alike"
_TIME = "stopped by the limit in seconds: another run may find another plan"
MAX_DRAWN = 2**28  # sequences whose order may be drawn: 1 GiB of lengths
MAX_COUNT = 2**62  # sequences of one length, so that a share of them, rounded from a float, still fits in 64 bits
MAX_LISTED = 2**22  # sequences that may fit into one pack: a plan lists the lengths of every strategy


def plan(
    histogram_or_lengths: Histogram | ArrayLike,
    capacity: int,
    *,
    depth: int | None = None,
    algorithm: str = "auto",
    seed: int = 0,
    **options: Any,
) -> Plan:
    """Plan packs for a histogram, or for lengths.

    Args:
        histogram_or_lengths: a `Histogram`, or integer lengths ``[n]`` in tokens.
        capacity: most tokens a pack may hold.
        depth: most sequences a pack may hold; None: unlimited.
        algorithm: one of `ALGORITHMS`.
        seed: random seed, used only where an arrival-order algorithm is given a histogram: it packs the sequences in a
            random order, and a note of the plan says so.
        options: options of the algorithm, and conditions on packs: `align`, `max_squares` and `pack_multiple` with
            every algorithm, `even` with "auto" and "optimal"; the algorithms' page lists them.

    Raises:
        LengthError: a length is < 1, not an integer, or above `capacity`; or more than 2^62 sequences have the same
            length (with `max_squares` or `even`: than 2^62 sequences in all).
        OptionError: capacity, depth, seed, algorithm or an option has an invalid value, or the algorithm has no such
            option; or more than 2^22 of these sequences fit into one pack (a plan lists them: limit the depth).

    >>> import nopad
    >>> nopad.plan([5, 3, 4, 2, 8], capacity=8, algorithm="spfhp").packs
    3
    """
    capacity, depth = check_sizes(capacity, depth, seed)
    check_algorithm(algorithm)
    own, conditions = complete_options(algorithm, options)
    given = histogram_or_lengths
    histogram = given if isinstance(given, Histogram) else Histogram.from_lengths(as_lengths(given, capacity))
    if histogram.max_length > capacity:
        over = exact_sum(histogram.counts[histogram.lengths > capacity])
        raise LengthError(
            f"{over:,} sequence{' is' if over == 1 else 's are'} above the capacity of {capacity} (the longest has "
            f"{histogram.max_length} tokens); truncate, split or drop them, or take a capacity of at least "
            f"{histogram.max_length}"
        )
    if histogram.counts.max(initial=0) > MAX_COUNT:
        raise LengthError(
            f"the histogram counts {histogram.counts.max()} sequences of one length; plans are exact up to "
            f"{MAX_COUNT}: divide its counts"
        )
    by_cost = algorithm in _BY_COST and (conditions["even"] or conditions["max_squares"] is not None)
    if by_cost and histogram.sequences > MAX_COUNT:
        raise LengthError(
            f"the histogram counts {histogram.sequences} sequences; with max_squares or even=True plans are exact up "
            f"to {MAX_COUNT}: divide its counts"
        )
    check_conditions(conditions, histogram, capacity)
    if algorithm in HISTOGRAM_ALGORITHMS:
        _check_depth(histogram, capacity, 1 if algorithm == "none" else depth)
        return _Run(histogram, capacity, depth, algorithm, own, conditions).plan()
    notes: tuple[str, ...] = ()
    if isinstance(given, Histogram):
        lengths = _drawn_order(histogram, algorithm, seed)
        notes = (f"arrival order drawn from the histogram with seed {seed}",)
    else:
        lengths = as_lengths(given, capacity)
    packs = pack_arrivals(lengths, capacity, depth, algorithm, own, conditions)
    return summarise(packs, lengths, algorithm=algorithm, options=own | _given(conditions), notes=notes)


def complete_options(algorithm: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check options; return the algorithm's own options and the conditions, both with defaults filled in.

    Raises:
        OptionError: an option is neither the algorithm's nor a condition, or its value is invalid.
    """
    chosen = {**HISTOGRAM_ALGORITHMS, **ARRIVAL_ALGORITHMS}[algorithm]
    if options.get("even") is True and algorithm not in _BY_COST:
        raise OptionError(f"even=True needs an algorithm that plans by cost: take {' or '.join(_BY_COST)}")
    conditions = {name: option.check(name, options.get(name, option.default)) for name, option in CONDITIONS.items()}
    own = {name: value for name, value in options.items() if name not in CONDITIONS}
    return chosen.complete(algorithm, own, CONDITIONS), conditions


def quick_algorithms(options: Mapping[str, Any]) -> list[str]:
    """Return the algorithms to compare by default: those of `QUICK_ALGORITHMS` that have all these options.

    If none has them, all of `QUICK_ALGORITHMS` are returned. Conditions count as options of every algorithm.

    >>> quick_algorithms({"effort": 9, "align": 8}), quick_algorithms({}) == list(QUICK_ALGORITHMS)
    (['auto'], True)
    """
    own = {name for name in options if name not in CONDITIONS}
    if options.get("even"):
        return [name for name in QUICK_ALGORITHMS if name in _BY_COST]
    known = {**HISTOGRAM_ALGORITHMS, **ARRIVAL_ALGORITHMS}
    return [name for name in QUICK_ALGORITHMS if own <= known[name].options.keys()] or list(QUICK_ALGORITHMS)


def _given(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions that differ from their defaults."""
    return {name: value for name, value in conditions.items() if value != CONDITIONS[name].default}


def _check_depth(histogram: Histogram, capacity: int, depth: int | None) -> None:
    """Refuse limits under which a pack can hold so many sequences that a plan cannot list them.

    `depth` None is unlimited.

    Raises:
        OptionError: more than `MAX_LISTED` of these sequences, shortest first, fit into one pack and its depth.
    """
    shortest = int(histogram.lengths[0]) if histogram.lengths.size else capacity
    if min(capacity // shortest, capacity if depth is None else depth, histogram.sequences) <= MAX_LISTED:
        return
    held, room = 0, capacity
    for length, count in zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True):
        copies = min(count, room // length)
        held, room = held + copies, room - copies * length
        if held > MAX_LISTED:
            raise OptionError(
                f"more than {MAX_LISTED:,} of these sequences fit into a pack of {capacity:,} tokens, and a plan lists "
                f"those of every pack: take a depth of at most {MAX_LISTED}, or a smaller capacity"
            )
        if copies < count:
            return


@dataclass(frozen=True)
class _Run:
    """One run of a histogram algorithm.

    Attributes:
        histogram: the sequences to plan.
        capacity: most tokens of a pack.
        depth: most sequences of a pack; None: unlimited.
        algorithm: a name in `HISTOGRAM_ALGORITHMS`.
        own: all options of the algorithm itself.
        conditions: all conditions of `nopad.planning.conditions`, by name.
    """

    histogram: Histogram
    capacity: int
    depth: int | None
    algorithm: str
    own: Mapping[str, Any]
    conditions: Mapping[str, Any]

    def plan(self) -> Plan:
        """Run the algorithm, then make its packs meet the conditions."""
        budget = self._budget()
        even = self.conditions["even"]
        with budget.part(_BEFORE if even else 1):
            made = self._by_both(budget)
        if even and made.strategies:
            made = self._evener(made, budget)
        plan = Plan.from_strategies(
            cut_strategies(made.strategies, self.conditions["pack_multiple"]),
            self.histogram,
            capacity=self.capacity,
            depth=self.depth,
            algorithm=self.algorithm,
            options=dict(self.own) | _given(self.conditions),
            certificate=made.certificate,
            facts=made.facts,
            notes=(*made.notes, _TIME) if budget.out_of_time and _TIME not in made.notes else made.notes,
        )
        return _check_made(plan, self.histogram)

    def _budget(self) -> Budget:
        """Return the budget of the options `effort` and `seconds`, which all steps of this run share.

        Without the option `effort` it is empty; the algorithms that have no such option do not look at it.
        """
        return Budget(self.own.get("effort", 0), self.own.get("seconds"))

    def _by_both(self, budget: Budget) -> Planned:
        """Plan with the condition `max_squares` from the start if the algorithm can; otherwise plan, then cut packs.

        A `max_squares` of at least the squared capacity limits no pack, and is left out of planning.
        """
        align, squares = self.conditions["align"], self.conditions["max_squares"]
        if squares is None or squares >= self.capacity**2 or self.algorithm not in _BY_COST:
            return self._by_tokens(self.depth, squares, budget)
        return within(
            self.histogram,
            self.capacity,
            self.depth,
            squares,
            align,
            budget=budget,
            exact=self.algorithm == "optimal",
            by_tokens=lambda: self._by_tokens(self.depth, squares, budget).strategies,
        )

    def _evener(self, made: Planned, budget: Budget) -> Planned:
        """Return a plan whose packs are more alike in cost and depth than those of `made`, with facts about both."""
        load = load_of(self.histogram, self.capacity, self.depth, *even_limits(self.conditions, self.capacity))
        strategies, facts = even_out(
            load,
            made.strategies,
            self.conditions["align"],
            lambda depth: self._by_tokens(depth, None, budget).strategies,
            budget,
            slow=_BY_COST[self.algorithm],
            multiple=self.conditions["pack_multiple"],
        )
        strategies = cut_strategies(strategies, self.conditions["pack_multiple"])
        facts["after"] = spreads(strategies)
        notes = [*made.notes, described(facts)]
        if budget.spent() and not budget.out_of_time:
            notes.append(_STOPPED)
        return replace(made, strategies=strategies, facts={**made.facts, "even": facts}, notes=tuple(notes))

    def _by_tokens(self, depth: int | None, squares: int | None, budget: Budget) -> Planned:
        """Run the algorithm, which does not know `squares`, then cut packs to this sum of squared lengths.

        `depth` and `squares` None are unlimited. With `align`, the algorithm plans the rounded lengths. Only `auto` and
        `optimal` take the `budget`, and charge it.
        """
        align = self.conditions["align"]
        seen = rounded_histogram(self.histogram, align, self.capacity) if align > 1 else self.histogram
        shared = {"budget": budget} if self.algorithm in _BY_COST else {}
        made = HISTOGRAM_ALGORITHMS[self.algorithm].run(seen, self.capacity, depth, **self.own, **shared)
        if not isinstance(made, Planned):
            made = Planned(strategies=made)
        if align > 1:
            made = replace(made, strategies=real_strategies(made.strategies, self.histogram, align, self.capacity))
        if squares is not None:
            made = replace(made, strategies=within_squares(made.strategies, self.capacity, depth, squares, align))
        return made


def _check_made(plan: Plan, histogram: Histogram) -> Plan:
    """Check the plan of any algorithm, and return it.

    Every sequence is in it once, it keeps capacity, depth and all conditions but `even`, and is not below its bound.

    Raises:
        RuntimeError: the plan fails this check, which is a mistake of the algorithm.
    """
    broken = plan.broken_limits()
    if not broken and plan.histogram != histogram:
        broken = ["it does not hold every sequence once"]
    if broken or plan.packs < plan.lower_bound:
        wrong = "; ".join(broken) or "its lower bound is above its packs"
        raise RuntimeError(
            f"{plan.algorithm} made a plan that does not pack this histogram ({wrong}); please report it"
        )
    return plan


def pack_arrivals(
    lengths: NDArray[np.int32],
    capacity: int,
    depth: int | None,
    algorithm: str,
    own: Mapping[str, Any],
    conditions: Mapping[str, Any],
) -> Packs:
    """Run an arrival-order algorithm, then make its packs meet the conditions; return the packs of `lengths`.

    `lengths` are int32 ``[n]``; `own` are the algorithm's options, `conditions` those of `nopad.planning.conditions`.
    """
    align = conditions["align"]
    seen = -(-lengths // align) * align if align > 1 else lengths
    packs: Packs = ARRIVAL_ALGORITHMS[algorithm].run(seen, capacity, depth, **own)
    return cut_packs(packs, lengths, conditions["max_squares"], conditions["pack_multiple"])


def summarise(
    packs: Packs,
    lengths: NDArray[np.int32],
    *,
    algorithm: str,
    options: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan that describes existing packs: their distinct multisets of lengths, and how often each occurs.

    `lengths` are those of the sequences that `packs` name; int32 ``[n]``.
    """
    from nopad import _kernels
    from nopad.planning import _fit_kernels

    keys = np.empty(len(packs), dtype=np.uint64)
    _fit_kernels.multiset_keys(packs.indptr, packs.sequence, lengths, keys)
    keys, first, counts = np.unique(keys, return_index=True, return_counts=True)
    distinct = packs.take(first)
    indptr = distinct.indptr.astype(np.int64)
    flat = -lengths[distinct.sequence]
    _kernels.sort_within_packs(indptr, flat)  # ascending order of the negated lengths is longest first
    columns = [np.where(np.diff(indptr) > i, flat[np.minimum(indptr[:-1] + i, flat.size - 1)], 0) for i in range(3)]
    # Sorted by the three longest lengths, for the reader; ties are sorted by key, which is deterministic too.
    order = np.lexsort((keys, *reversed(columns))) if flat.size else np.arange(0)
    ordered, held = take_lists(indptr, -flat, order)
    histogram = Histogram.from_lengths(lengths)
    made = Plan(
        capacity=packs.capacity,
        depth=packs.depth,
        algorithm=algorithm,
        indptr=ordered,
        lengths=held.astype(np.int64),
        counts=counts[order].astype(np.int64),
        bound=bound_under(options or {}, histogram, packs.capacity, packs.depth),
        options=dict(options or {}),
        notes=notes,
    )
    return _check_made(made, histogram)


def check_algorithm(algorithm: str) -> None:
    """Refuse a name that no algorithm has.

    Raises:
        OptionError: there is no such algorithm; the message gives similar names.
    """
    if algorithm not in ALGORITHMS:
        near = difflib.get_close_matches(str(algorithm).lower(), ALGORITHMS, n=2)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise OptionError(f"unknown algorithm {algorithm!r}{meant} (there are: {', '.join(ALGORITHMS)})")


def _drawn_order(histogram: Histogram, algorithm: str, seed: int) -> NDArray[np.int32]:
    """Return the length of every sequence, int32 ``[n]``, in a random order that depends on `seed` alone.

    Raises:
        OptionError: there are more than `MAX_DRAWN` sequences.
    """
    from nopad import _kernels

    if histogram.sequences > MAX_DRAWN:
        raise OptionError(
            f"{algorithm} places sequences one by one; {histogram.sequences:,} in a histogram are too many to draw "
            f"(limit {MAX_DRAWN:,}): take a histogram algorithm ({', '.join(HISTOGRAM_ALGORITHMS)})"
        )
    lengths = np.repeat(histogram.lengths.astype(np.int32), histogram.counts)
    _kernels.shuffle(lengths, np.uint64(random.key(seed, random.STREAM_ARRIVAL)))
    return lengths
