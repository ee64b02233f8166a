"""`plan`, the entry point of planning: checks the arguments, runs an algorithm by name, and returns a `Plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import ArrayLike

from nopad.errors import LengthError, OptionError
from nopad.histogram import Histogram, as_lengths, exact_sum
from nopad.options import check_sizes
from nopad.planning.algorithm import Planned
from nopad.planning.conditions import CONDITIONS, check_conditions, cut_strategies, even_limits, within_squares
from nopad.planning.costs import STOPPED, described, even_out, load_of, spreads, within
from nopad.planning.granularity import real_strategies, rounded_histogram
from nopad.planning.optimal.budget import Budget
from nopad.planning.plan import Plan
from nopad.planning.registry import BY_COST, HISTOGRAM_ALGORITHMS, check_algorithm, complete_options
from nopad.planning.summary import checked, drawn_order, pack_arrivals, summarise

__all__ = ["check_histogram", "plan"]

_BEFORE = 0.5  # share of the budget for a plan with few packs, before it is made even
_TIME = "stopped by the limit in seconds: another run may find another plan"
MAX_COUNT = 2**62  # most sequences of one length; a part of them, computed as a float, still fits in 64 bits
MAX_LISTED = 2**22  # most sequences that may fit into one pack, since a plan lists the lengths of every strategy


def plan(
    histogram_or_lengths: Histogram | ArrayLike,
    capacity: int,
    *,
    depth: int | None = None,
    algorithm: str = "auto",
    seed: int = 0,
    **options: Any,
) -> Plan:
    """Return a plan that says which lengths share packs, made from a histogram or from lengths.

    Args:
        histogram_or_lengths: a `Histogram`, or integer lengths ``[n]`` in tokens.
        capacity: most tokens a pack may hold.
        depth: most sequences a pack may hold; None: unlimited.
        algorithm: one of `ALGORITHMS`.
        seed: random seed, used only if an arrival-order algorithm is given a histogram: the algorithm then packs the
            sequences in a random order, and a note of the plan says so.
        options: options of the algorithm, and conditions on packs. Every algorithm takes the conditions `align`,
            `max_squares` and `pack_multiple`; "auto" and "optimal" also take `even`. `docs/internals/algorithms.md`
            lists all of them.

    Raises:
        LengthError: one of these:

            * the lengths are not integers ``[n]``
            * a length is below 1 or above `capacity`, or its square is above `max_squares`
            * more than 2^62 sequences have the same length
            * more than 2^62 sequences are given in total, and "auto" or "optimal" plans with `max_squares` or `even`
        OptionError: one of these:

            * capacity, depth, seed, algorithm or an option has an invalid value, or the algorithm has no such option
            * a condition cannot be met
            * more than 2^22 of these sequences fit into one pack, `depth` allows it, and the algorithm is neither
              "none" nor an arrival-order algorithm; this is too many for a plan to list
            * "nnlshp" or "ennlshp" would have to list too many strategies
            * an arrival-order algorithm is given a histogram of more than 2^28 sequences

    >>> import nopad
    >>> nopad.plan([5, 3, 4, 2, 8], capacity=8, algorithm="spfhp").packs
    3
    """
    capacity, depth = check_sizes(capacity, depth, seed)
    check_algorithm(algorithm)
    own, conditions = complete_options(algorithm, options)
    given = histogram_or_lengths
    histogram = given if isinstance(given, Histogram) else Histogram.from_lengths(as_lengths(given, capacity))
    by_cost = algorithm in BY_COST and (conditions["even"] or conditions["max_squares"] is not None)
    check_histogram(histogram, capacity, by_cost=by_cost)
    check_conditions(conditions, histogram, capacity)
    if algorithm in HISTOGRAM_ALGORITHMS:
        _check_depth(histogram, capacity, 1 if algorithm == "none" else depth)
        return _Run(histogram, capacity, depth, algorithm, own, conditions).plan()
    notes: tuple[str, ...] = ()
    if isinstance(given, Histogram):
        lengths = drawn_order(histogram, algorithm, seed)
        notes = (f"arrival order drawn from the histogram with seed {seed}",)
    else:
        lengths = as_lengths(given, capacity)
    packs = pack_arrivals(lengths, capacity, depth, algorithm, own, conditions)
    return summarise(packs, lengths, algorithm=algorithm, options=own | _given(conditions), notes=notes)


def check_histogram(histogram: Histogram, capacity: int, *, by_cost: bool = False) -> None:
    """Refuse lengths above the capacity, and more than `MAX_COUNT` sequences of one length.

    With `by_cost`, packs are planned by their squared lengths too; then more than `MAX_COUNT` sequences in total are
    refused as well.

    Raises:
        LengthError: a length or a number of sequences is above its limit.
    """
    if histogram.max_length > capacity:
        over = exact_sum(histogram.counts[histogram.lengths > capacity])
        raise LengthError(
            f"{over:,} sequence{' is' if over == 1 else 's are'} above the capacity of {capacity:,} (the longest has "
            f"{histogram.max_length:,} tokens); cut or remove them, or take a capacity of at least "
            f"{histogram.max_length:,}"
        )
    if histogram.counts.max(initial=0) > MAX_COUNT:
        raise LengthError(
            f"the histogram counts {histogram.counts.max()} sequences of one length; plans are exact up to "
            f"{MAX_COUNT}: divide its counts"
        )
    if by_cost and histogram.sequences > MAX_COUNT:
        raise LengthError(
            f"the histogram counts {histogram.sequences} sequences; with max_squares or even=True plans are exact up "
            f"to {MAX_COUNT}: divide its counts"
        )


def _given(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions that differ from their defaults."""
    return {name: value for name, value in conditions.items() if value != CONDITIONS[name].default}


def _check_depth(histogram: Histogram, capacity: int, depth: int | None) -> None:
    """Refuse limits under which one pack can hold so many sequences that a plan cannot list them.

    A `depth` of None is unlimited.

    Raises:
        OptionError: more than `MAX_LISTED` of these sequences (the shortest ones) fit into one pack, and `depth` allows
            it.
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
        """Run the algorithm, make its packs meet the conditions, check the plan, and return it.

        Raises:
            OptionError: the algorithm cannot plan this histogram, or the condition `pack_multiple` cannot be met.
            RuntimeError: the plan is not valid, which is a bug in the algorithm.
        """
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
        return checked(plan, self.histogram)

    def _budget(self) -> Budget:
        """Return the budget that all steps of this run share; the options `effort` and `seconds` set it.

        For an algorithm without the option `effort` the budget is empty, and the algorithm does not use it.
        """
        return Budget(self.own.get("effort", 0), self.own.get("seconds"))

    def _by_both(self, budget: Budget) -> Planned:
        """Return a plan that keeps to the capacity, the depth and the conditions `align` and `max_squares`.

        `max_squares` counts from the start if the algorithm can plan by cost, and the limit is below the squared
        capacity. Otherwise packs are planned without this limit, and packs above it are divided afterwards. If the
        limit is at least the squared capacity, no pack is above it.
        """
        align, squares = self.conditions["align"], self.conditions["max_squares"]
        if squares is None or squares >= self.capacity**2 or self.algorithm not in BY_COST:
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
        """Return the most even plan found (`even_out`), with its packs cut for `pack_multiple`.

        The result keeps the certificate, facts and notes of `made`, the plan before this search. The fact ``even`` and
        a note are added; both compare the plan before the search with the plan after it. A second note is added if the
        operations of `budget` are used up, unless the limit in seconds has passed too.
        """
        load = load_of(self.histogram, self.capacity, self.depth, *even_limits(self.conditions, self.capacity))
        strategies, facts = even_out(
            load,
            made.strategies,
            self.conditions["align"],
            lambda depth: self._by_tokens(depth, None, budget).strategies,
            budget,
            slow=BY_COST[self.algorithm],
            multiple=self.conditions["pack_multiple"],
        )
        strategies = cut_strategies(strategies, self.conditions["pack_multiple"])
        facts["after"] = spreads(strategies)
        notes = [*made.notes, described(facts)]
        if budget.spent() and not budget.out_of_time:
            notes.append(STOPPED)
        return replace(made, strategies=strategies, facts={**made.facts, "even": facts}, notes=tuple(notes))

    def _by_tokens(self, depth: int | None, squares: int | None, budget: Budget) -> Planned:
        """Run the algorithm without a limit on squares; return its plan after packs above `squares` were divided.

        `squares` is the limit on a pack's sum of squared lengths. A `depth` or `squares` of None is unlimited. With
        `align`, the algorithm plans rounded lengths, which are then replaced by the real ones. Only `auto` and
        `optimal` get the `budget`, and charge it.
        """
        align = self.conditions["align"]
        seen = rounded_histogram(self.histogram, align, self.capacity) if align > 1 else self.histogram
        shared = {"budget": budget} if self.algorithm in BY_COST else {}
        made = HISTOGRAM_ALGORITHMS[self.algorithm].run(seen, self.capacity, depth, **self.own, **shared)
        if not isinstance(made, Planned):
            made = Planned(strategies=made)
        if align > 1:
            made = replace(made, strategies=real_strategies(made.strategies, self.histogram, align, self.capacity))
        if squares is not None:
            made = replace(made, strategies=within_squares(made.strategies, self.capacity, depth, squares, align))
        return made
