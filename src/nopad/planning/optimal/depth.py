"""`Search`: the search for a plan at one depth limit.

`nopad.planning.optimal` describes the steps of this search. The *exact program* is the linear program whose items are
the distinct lengths, without rounding.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.algorithm import Strategies
from nopad.planning.bounds import lower_bound
from nopad.planning.certificate import Certificate
from nopad.planning.optimal.budget import NEAR, Budget
from nopad.planning.optimal.listed import Listed
from nopad.planning.optimal.pricing import Items
from nopad.planning.optimal.spread import spread

if TYPE_CHECKING:
    from nopad.planning.optimal.master import Master
    from nopad.planning.optimal.search import Solved

__all__ = ["Search", "shallower"]

_MOST_TABLE = 2**27  # most entries of the pricing table, 8 bytes each; beyond that, the exact program is not tried
_MOST_SEEDS = 4_000  # strategies of the best plan that are added to the exact program
_LAST = 4 * 10**8  # operations to remove the last pack above the bound (`last_pack`)
_BEGINNING = 0.4  # share of the budget for a first attempt at the exact program
_MOST_BEGINNING = 0.9  # the same share if even a bad case (`_LENGTH_STEPS`) takes less than half of the budget
_LENGTH_STEPS = 1_700  # times (distinct lengths)^2: operations of the simplex iterations in a bad case
_UNLIKE = 1e-2  # a plan above the bound by more than this share is not improved by gathering free space
_PARTS = (10, 25, 5, 60, 15, 40, 8, 100)  # `parts` of `dive_through`, one value for each dive from the exact program
_FINER = 16  # a program in twice as many units is begun if this many times the operations of the last one are left
_GATHERING = 0.5  # share of the budget to gather free space before the exact program
_MORE_CLOSING = 4  # `_close` is tried again for the same plan if this many times as many operations are left
_SMALL = 400  # a plan of at most this many packs is packed again as a whole (`residuals`), which often helps
_CLOSING = 0.25  # share of the budget to pack some packs again before the other steps
_CONTINUING = 0.8  # share of the budget for the exact program after the one in units; the rest is to gather free space
_RELAXING = 0.7  # share of the budget for solving the linear program; the rest is for rounding it
_MOST_LEFT = 500  # `close` is tried on what a stage of a dive leaves if that is at most this many sequences
_MOST_CAPACITY = 2**24  # no linear programs above this: `units.fill` takes 40 bytes per token of capacity
_STREAMING = 0.1  # share of the budget that may be put aside for `streamed`
_MOST_STREAMED = 2**20  # sequences up to which `streamed` is tried for the last pack above the bound
_MOST_FIRST = 2**18  # sequences up to which `streamed` is tried before all linear programs, if a depth is given
_ENTRY_STEPS = 1_200  # operations for each entry of the plan: its strategies are listed and checked in the end
_QUICK_STEPS = 8_000  # operations for each distinct length, of the heuristics at one depth


def shallower(histogram: Histogram, capacity: int, depth: int | None, packs: int) -> list[int]:
    """Return the depths 2, 3, 4, 8, 16, ... below `depth` at which fewer than `packs` packs may be possible, ascending.

    Depths that limit no pack are left out. (A depth limits packs only if it is below the number of sequences of the
    shortest length that fit into a pack.) A `depth` of None is unlimited.

    In the example, 30 sequences need at least 8 packs at depth 4. So a plan of depth 4 may have fewer than 9 packs, but
    not fewer than 7:

    >>> shallower(Histogram.from_lengths([2] * 30), 12, None, packs=7)
    []
    >>> shallower(Histogram.from_lengths([2] * 30), 12, 12, packs=9)
    [4]
    """
    most = capacity // int(histogram.lengths[0])
    depths = sorted({3, *(2**power for power in range(1, most.bit_length()))})
    below = [other for other in depths if other < (most if depth is None else min(depth, most))]
    return [other for other in below if lower_bound(histogram, capacity, other).packs < packs]


@dataclass
class Search:
    """The search for a plan at one depth limit: its best plan and lower bound so far, and its budget.

    The search ends at a plan that is at most `within` packs above the bound. It also ends when the bound shows that no
    plan has fewer packs than `fewer`; if `fewer` is None, this never happens.

    Attributes:
        less: whether the heuristics are tried at smaller depths too, as a larger depth should not need more packs.
        bound: the lower bound proven so far: by `certificate`, or, if that is None, by a cheap bound, which needs no
            linear program.
        best: the best plan so far.
        notes: sentences for the user.
        master: the linear program over the exact lengths; None before it is first tried.
        solved: whether column generation for the exact program was completed (`Relaxed.converged`).
        dived: number of dives (see `nopad.planning.optimal.rounding`) from the solved exact program so far.
        dives: number of further dives that the current call of `_steps` allows.
        gathered: the best plan right after the last `_gather`; this plan need not be gathered again.
        streamed: whether `nopad.planning.optimal.streamed` was tried already.
        rounded: the result of the last dive; None before any dive, and once `_close_stages` was tried for it.
        closed: the plan for which `_close` failed last, and the number of operations that `_close` was allowed for it;
            None if it never failed.
    """

    histogram: Histogram
    capacity: int
    depth: int | None
    budget: Budget
    within: int
    fewer: int | None = None
    less: bool = True
    certificate: Certificate | None = None
    notes: list[str] = field(default_factory=list)
    master: Master | None = None
    gathered: Listed | None = None
    streamed: bool = False
    rounded: Solved | None = None
    closed: tuple[Listed, int] | None = None
    solved: bool = False
    dived: int = 0
    dives: int = 1

    def __post_init__(self) -> None:
        self.bound = lower_bound(self.histogram, self.capacity, self.depth).packs
        self.best = Listed.placed(self.histogram, self.capacity, self.depth)

    def run(self) -> None:
        """Try the heuristics, then the steps of `go_on`; most steps are left out once the plan is good.

        The heuristics are best-fit decreasing and, with a depth limit, `spread`. With `less`, both are tried at smaller
        depths too. With a depth limit and at most 2^18 sequences, `streamed` may be tried before `go_on`. Above a
        capacity of 2^24, only the heuristics are tried. Afterwards, `best` is the plan found, and `bound` is its lower
        bound.
        """
        if not self.good() and self.depth is not None:
            for packs in (self.bound, self.bound + 1):
                if not self.good():
                    self.offer(spread(self.histogram, self.capacity, self.depth, packs))
        if self.less and self.best.packs > self.bound:
            self._quick_at_less()
        if self.capacity > _MOST_CAPACITY:
            if self.best.packs > self.bound:
                self.notes.append(f"best-fit, and the cheap bounds: the capacity is above {_MOST_CAPACITY:,}")
            return
        if not self.good() and self.depth is not None and self.histogram.sequences <= _MOST_FIRST:
            self._streamed(self._stream_steps())
        self.go_on()

    def guided(self) -> None:
        """Plan in rounded lengths (`units`), then gather free space if the plan is not good yet.

        This is for histograms whose exact program is too slow. Nothing is done if the best plan is good already, if the
        solver failed before, or if the capacity is above 2^24.
        """
        if self.good() or self.budget.trouble or self.capacity > _MOST_CAPACITY:
            return
        from nopad.planning.optimal.solver import SolverError
        from nopad.planning.optimal.units import RESOLUTIONS, plan_in_units

        try:
            with self.budget.part(_RELAXING):
                self.offer(plan_in_units(self.histogram, self.capacity, self.depth, self.budget, RESOLUTIONS[0])[0])
        except SolverError as error:
            self.budget.trouble = str(error)
        if not self.good():
            self._gather()

    def hard(self) -> bool:
        """Return whether the exact program probably takes more than half of the budget left."""
        return 2 * _LENGTH_STEPS * self.histogram.lengths.size**2 > self.budget.left

    def good(self) -> bool:
        """Return whether the best plan is good, so that the search may end: at most `within` packs above the bound.

        Any plan counts as good if the bound shows that no plan has fewer packs than `fewer`.
        """
        return self.best.packs <= self.bound + self.within or self._hopeless()

    def _hopeless(self) -> bool:
        return self.fewer is not None and self.bound >= self.fewer

    def offer(self, packs: Listed) -> None:
        """Keep `packs` as the best plan if there are fewer of them than in the best plan so far.

        An entry of a plan is a pack and the number of its copies. If `fewer` is None, and the new plan has more entries
        than the old one, `budget` is charged for the difference.
        """
        if packs.packs < self.best.packs:
            if self.fewer is None:
                self.budget.charge(_ENTRY_STEPS * max(0, packs.copies.size - self.best.copies.size))
            self.best = packs

    def _prove(self, certificate: Certificate) -> None:
        if certificate.problem(self.capacity, self.depth) is not None:
            return  # a certificate that cannot be checked proves nothing
        self.budget.charge(certificate.work(self.capacity, self.depth))  # half of it here, half when the plan is made
        bound = certificate.bound(self.histogram, self.capacity, self.depth)
        if bound > self.bound:
            self.bound, self.certificate = bound, certificate

    def _quick_at_less(self) -> None:
        """Try the heuristics at smaller depths, and offer their plans (`offer`), which keep to the given depth too.

        The heuristics are best-fit decreasing and `spread`. No further depth is tried when the best plan meets the
        bound or the budget is spent.
        """
        for depth in shallower(self.histogram, self.capacity, self.depth, self.best.packs):
            self.offer(Listed.placed(self.histogram, self.capacity, depth))
            self.budget.charge(_QUICK_STEPS * self.histogram.lengths.size)
            packs = max(self.bound, lower_bound(self.histogram, self.capacity, depth).packs)
            self.offer(spread(self.histogram, self.capacity, depth, packs))
            if self.best.packs <= self.bound or self.budget.spent():
                break

    def go_on(self) -> None:
        """Improve the plan with the budget left, if it has more packs than its bound, and linear programs are possible.

        Linear programs are not possible if the capacity is above 2^24, or if the solver failed before.
        """
        if self.best.packs <= self.bound or self.budget.trouble or self.capacity > _MOST_CAPACITY:
            return
        from nopad.planning.optimal.solver import SolverError

        try:
            self._round()
        except SolverError as error:
            self.budget.trouble = str(error)

    def last_pack(self) -> None:
        """Try to bring a good plan down to its lower bound, with at most 400 million operations.

        Nothing is tried in these cases:

        * the plan is not good, or has no more packs than its bound, or no plan can have fewer packs than `fewer`
        * the budget has no more than 400 million operations left
        * linear programs are not possible: the capacity is above 2^24, or the solver failed before
        """
        if (
            self.budget.trouble
            or self.capacity > _MOST_CAPACITY
            or self._hopeless()
            or not self.good()
            or self.best.packs == self.bound
            or self.budget.left <= _LAST
        ):
            return
        from nopad.planning.optimal.solver import SolverError

        within, self.within = self.within, 0
        try:
            with self.budget.at_most(_LAST):
                self._close_stages()
                self._close()
        except SolverError as error:
            self.budget.trouble = str(error)
        self.within = within

    def _steps(self) -> None:
        """Take the steps of the search in their order, until a plan is good or the budget is spent.

        The exact program comes after the program over rounded lengths. It is tried before that program as well in two
        cases: the plan is at most 64 packs above the bound, or the budget left is more than twice what the exact
        program takes in a bad case.

        A call of this method allows one dive from the solved exact program if none was made yet (`dived` is 0).
        Otherwise it allows one dive for each value of `_PARTS` that is left.
        """
        self.dives = 1 if not self.dived else len(_PARTS) - self.dived
        close, gather, first = self._close_in_part, self._gather, self._gather_in_part
        bad = _LENGTH_STEPS * self.histogram.lengths.size**2
        near = self.best.packs <= self.bound + NEAR
        begin = (close, self._begin_exact) if near or 2 * bad < self.budget.left else ()
        exact = (self._exact_in_part, gather, close, self._exact, gather, self._close)
        for step in (*begin, close, self._in_units, first, close, *exact):
            if self.good() or self.budget.spent():
                break
            step()

    def _round(self) -> None:
        """Run `_steps`, then `_streamed`; if `_streamed` finds fewer packs, try to improve its plan.

        `_streamed` is left out if it was run before, or if it takes too many operations (`_stream_steps`). Otherwise
        its operations are put aside beforehand. Nothing is done if the best plan meets the bound, or if no plan has
        fewer packs than `fewer`.
        """
        if self.best.packs <= self.bound or self._hopeless():
            return
        aside = 0 if self.streamed else self._stream_steps()
        with self.budget.at_most(self.budget.left - aside):
            self._steps()
        before = self.best
        self._streamed(aside)
        if self.best is not before:
            for step in (self._gather, self._close):
                if not self.good() and not self.budget.spent():
                    step()

    def _stream_steps(self) -> int:
        """Return the number of operations of `streamed`; 0 if they are more than 10 % of the budget left."""
        from nopad.planning.optimal.streamed import streaming

        steps = streaming(self.histogram, self.capacity)
        return steps if steps <= self.budget.left * _STREAMING else 0

    def _streamed(self, steps: int) -> None:
        """Offer the packs of `streamed`, once per search; `steps` is its number of operations (0: do nothing).

        This is for a plan more than `within` packs above the bound. It is also for a plan one pack above the bound, if
        there are at most 2^20 sequences. Nothing is done if no plan has fewer packs than `fewer`.
        """
        above = self.best.packs - self.bound
        few = above == 1 and self.histogram.sequences <= _MOST_STREAMED
        if steps and not self.streamed and not self._hopeless() and (above > self.within or few):
            from nopad.planning.optimal.streamed import streamed

            self.streamed = True
            self.budget.charge(steps)
            self.offer(streamed(self.histogram, self.capacity, self.depth))

    def _most_used(self) -> int:
        """Return the depth if it limits any pack, otherwise 1.

        The knapsack table of pricing has one row more than this number.
        """
        most = self.capacity // int(self.histogram.lengths[0])
        return 1 if self.depth is None or self.depth >= most else self.depth

    def _begin_exact(self) -> None:
        """Try the exact program (`_exact`) early, with a share of the budget that is often enough to solve it.

        The share is 90 % if the budget left is more than twice what the exact program takes in a bad case, and 40 %
        otherwise. If the program is not solved then, it is not rounded yet.
        """
        bad = _LENGTH_STEPS * self.histogram.lengths.size**2
        with self.budget.part(_MOST_BEGINNING if 2 * bad < self.budget.left else _BEGINNING):
            self._exact(whole=False)

    def _exact_in_part(self) -> None:
        """Continue with the exact program (`_exact`), but leave some budget to gather free space afterwards."""
        with self.budget.part(_CONTINUING):
            self._exact()

    def _exact(self, *, whole: bool = True) -> None:
        """Solve and round the exact program, whose items are the distinct lengths; keep better bounds and plans.

        A later call continues the program of an earlier one. Once the program is solved (`solved`), each dive rounds it
        with the next value in `_PARTS`, and `dives` limits the number of dives. With `whole`, a program that is not
        solved is rounded too, by one dive. Nothing is done in these cases:

        * no dive is allowed
        * the pricing table would be too large
        * checking the proof of the bound would take more than half of the budget
        """
        from nopad.planning.optimal.search import relax, round_off

        lengths, most = self.histogram.lengths, self._most_used()
        if not self.dives or self.capacity * (most + 1) > _MOST_TABLE:
            return
        if 2 * lengths.size * self.capacity * most > self.budget.most:
            return
        master = self._exact_master()
        with self.budget.part(_RELAXING):
            relaxed = relax(master, self.budget, enough=self.bound, hopeless=self.fewer)
        if relaxed is None:
            return
        self._prove(Certificate.of(zip(lengths.tolist(), relaxed.values.tolist(), strict=True)))
        if self._hopeless() or not (whole or relaxed.converged):
            return
        self.solved = relaxed.converged
        while relaxed is not None:
            parts = _PARTS[self.dived]
            solved = round_off(master, relaxed, max(self.bound, relaxed.bound), self.budget, parts=parts)
            self.offer(Listed.of(_named(solved.packing, lengths)))
            self.rounded = solved
            self._close_stages()
            if not self.solved:
                break
            self.dived += 1
            self.dives -= 1
            if self.good() or self.budget.spent() or not self.dives:
                break
            relaxed = relax(master, self.budget, enough=self.bound)

    def _exact_master(self) -> Master:
        """Return the exact program; the first call makes it.

        Until the program is solved (`solved`), each call adds the most common strategies of the best plan to its
        patterns, up to 4,000.
        """
        from nopad.planning.optimal.master import Master
        from nopad.planning.optimal.rounding import best_fit

        lengths = self.histogram.lengths
        if self.master is None:
            items = Items.of(lengths, self.histogram.counts, self.capacity, self.depth)
            self.master = Master(items)
            self.master.add(best_fit(items, items.demand))
        if not self.solved:
            common = np.argsort(-self.best.copies, kind="stable")[:_MOST_SEEDS]
            number = {length: item for item, length in enumerate(lengths.tolist())}
            strategies = self.best.take(common).strategies()
            self.master.add(tuple(number[length] for length in strategy) for _, strategy in strategies)
        return self.master

    def _close_stages(self) -> None:
        """Pack the sequences left at each stage of the last dive again, by `close`.

        A stage is the packs that a dive had made after one of its steps, and the sequences left then (`dive_through`).
        This is done once for each dive, and only while the plan is not good. The last stage comes first; stages with
        more than 500 sequences left are not tried. The target of `close` is the bound less the packs that the dive had
        made at that stage.
        """
        from nopad.planning.optimal.closing import close

        lengths = self.histogram.lengths
        if self.rounded is None or self.good():
            return
        stages, self.rounded = self.rounded.stages, None
        for taken, left in reversed(stages):
            if self.good() or self.budget.spent() or left.sum() > _MOST_LEFT:
                break
            present = np.flatnonzero(left)
            items = Items.of(lengths[present], left[present], self.capacity, self.depth)
            packing = close(items, self.bound - taken.total(), self.budget)
            if packing is not None:
                self.offer(Listed.of(_named(taken, lengths) + _named(packing, lengths[present])))

    def _gather_in_part(self) -> None:
        """Run `_gather` with half of the budget left, or with all of it if the exact program is much too slow.

        The other half remains for the exact program. That program is much too slow if, in a bad case, it takes at least
        three times the budget left.
        """
        bad = _LENGTH_STEPS * self.histogram.lengths.size**2
        with self.budget.part(_GATHERING if bad < 3 * self.budget.left else 1):
            self._gather()

    def _gather(self) -> None:
        """Gather the free space of the best plan in few packs (`gathering`), unless this plan was gathered before.

        A plan more than 1 % above the bound is left as it is: its packs hold the wrong combinations of lengths, so
        gathering their free space would not be enough. A plan one pack above the bound is left to `_close`.
        """
        from nopad.planning.optimal.gathering import gather

        above = self.best.packs - self.bound
        if self.best is not self.gathered and 1 < above <= self.bound * _UNLIKE:
            self.offer(gather(self.best, self.capacity, self.depth, self.bound, self.budget))
            self.gathered = self.best

    def _in_units(self) -> None:
        """Plan with lengths rounded to few sizes (see `units`), then to more sizes as long as this takes little budget.

        If the plan is still not good, also try to prove a bound from the last program that `plan_in_units` returned.

        Nothing is done if the exact program was solved (`solved`).
        """
        if self.solved:
            return
        from nopad.planning.optimal.units import RESOLUTIONS, certify, plan_in_units

        guide, units = None, 0
        for finest in sorted(RESOLUTIONS)[1:]:
            before = self.budget.left
            packs, found = plan_in_units(self.histogram, self.capacity, self.depth, self.budget, finest)
            self.offer(packs)
            guide = found or guide
            finer = _FINER * (before - self.budget.left) < self.budget.left
            if guide is None or self.good() or not finer or guide[1].items.capacity <= units:
                break
            units = guide[1].items.capacity
        if guide is not None and not self.good():
            certificate = certify(*guide, self.capacity, self.depth, self.budget)
            if certificate is not None:
                self._prove(certificate)

    def _close_in_part(self) -> None:
        """Run `_close` with a quarter of the budget left, or with all of it for a plan of at most 400 packs."""
        with self.budget.part(1 if self.best.packs <= _SMALL else _CLOSING):
            self._close()

    def _close(self) -> None:
        """Pack the sequences of some packs into fewer packs (`pack_again`), until this fails or the plan is good.

        It also ends when the budget is spent. A plan for which `pack_again` failed last is tried again only with at
        least four times as large a budget.
        """
        from nopad.planning.optimal.closing import pack_again

        while not self.good() and not self.budget.spent():
            most = self.budget.most
            if self.closed is not None and self.closed[0] is self.best and most < _MORE_CLOSING * self.closed[1]:
                break
            packs = pack_again(self.best, self.capacity, self.depth, self.bound, self.budget)
            if packs is None:
                self.closed = self.best, most
                break
            self.offer(packs)


def _named(packing: Counter[tuple[int, ...]], lengths: NDArray[np.int64]) -> Strategies:
    """Return a packing as ``(count, lengths)`` pairs; `packing` maps each pattern to its number of packs.

    A pattern is a tuple of item numbers; item i has the length ``lengths[i]``.
    """
    names = lengths.tolist()
    return [(count, tuple(names[item] for item in pattern)) for pattern, count in packing.items()]
