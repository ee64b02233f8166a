"""Legs, the parts of an epoch in which the same ranks take steps of the same size; and the steps of the current leg.

An epoch is one leg, unless training stops in the middle and goes on with another number of ranks or nodes, another size
of a step (units per rank, accumulation, token cap) or another balancing of ranks. Then a new leg begins, which deals
exactly the units (packs, rows, single sequences or groups) that no earlier leg has taken. A state stores only a few
integers per leg: the order of a leg is computed again from the seed, the epoch, the leg's number and the units left.

Cost: O(units) when a leg begins, and once more for every earlier leg; O(units of a step) per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.balance import Balance, CostModel, Shape, cut_under_cap, deal, deal_step_under_cap, draw, first_over_cap
from nopad.errors import BalanceError, FormatError, LengthError, OptionError
from nopad.loading import _kernels
from nopad.loading.units import Taken, Units
from nopad.packs import index_dtype

__all__ = ["Course", "Last", "Leg", "check_cap", "ordered"]

_KEPT = 4  # steps that a `Course` caches
EQUAL = Balance()  # Karmarkar-Karp among all ranks

Last = Literal["drop", "fill", "short", "refuse"]


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A part of an epoch in which the numbers of ranks and nodes, the size of a step and the balancing stay the same.

    Attributes:
        shape: numbers of ranks, ranks per node, micro-steps per step, and units (packs, rows, sequences or groups) per
            rank and micro-step.
        balance: how units are drawn into steps and dealt to ranks.
        steps: number of whole steps that the leg has taken.
        token_cap: maximum number of tokens per rank and micro-step; None: no limit.
    """

    shape: Shape
    balance: Balance
    steps: int
    token_cap: int | None = None

    def deals_as(self, other: Leg) -> bool:
        """Return whether `other` has the same shape, balance and token cap, and so deals units in the same way."""
        return replace(self, steps=0) == replace(other, steps=0)


class Course:
    """The steps of a leg: which units each rank gets in each step. Each rank computes this for all ranks.

    A leg is a part of an epoch in which the ranks, the size of a step and the balancing stay the same. Units are packs,
    rows, single sequences or groups.

    Attributes:
        shape: numbers of ranks, ranks per node, micro-steps per step, and units per rank and micro-step.
        balance: how units are drawn into steps and dealt to ranks.
        steps: number of steps from the beginning of this leg to the end of the epoch.
        units_left: number of units that no earlier leg has taken.
        empty: number of places in the last step that get no unit, since there are too few units.
        last: what happens to units that make no whole step: "drop", "fill", "short" or "refuse" (`PackedLoader`).
        token_cap: maximum number of tokens of a rank's micro-step; None: no limit.
    """

    def __init__(
        self, units: Units, order: NDArray[Any] | None, leg: Leg, *, cost: CostModel, last: Last, resumed: bool = False
    ) -> None:
        """Divide units into the steps of a leg.

        Args:
            units: the units of the epoch.
            order: the units that are left, in the order in which this leg takes them, from `ordered`; None: all units,
                in the order of their numbers.
            leg: shape, balance and token cap of the steps.
            cost: the cost model by which ranks are balanced.
            last: what happens to units that make no whole step: "drop", "fill", "short" or "refuse" (`PackedLoader`).
            resumed: whether there were earlier legs in this epoch; if so, a leg without a step is not an error.

        Raises:
            OptionError: the units do not make whole steps and `last` is "refuse"; or not a single step can be made, and
                `resumed` is False.
            BalanceError: a unit does not fit under the token cap of `leg`, even in a step of its own.
        """
        self._units, self._order, self._cost, self.last = units, order, cost, last
        self.shape, self.balance, self.token_cap = leg.shape, leg.balance, leg.token_cap
        self.units_left = len(units) if order is None else order.size
        self._steps: dict[int, Taken] = {}
        self._dealt: tuple[int, int, NDArray[np.int64]] | None = None  # step, rank, its part
        self._dealing = replace(leg.shape, per_rank=leg.shape.per_rank * units.parts)
        self._cuts = _cuts(units, order, leg)
        self.steps, self.empty = _whole_steps(self.units_left, leg.shape, last, resumed, self._cuts)

    def units_at(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the units at places `begin` to `end` (exclusive) in this leg's order; int64 ``[k]``.

        Units are packs, rows, single sequences or groups. If the leg (this part of an epoch) has fewer than `end`
        units, those up to its last one are returned.
        """
        end = min(end, self.units_left)
        if self._order is None:
            return np.arange(begin, end)
        return self._order[begin:end].astype(np.int64)

    def bounds(self, step: int) -> tuple[int, int]:
        """Return the begin and the end (exclusive) of a step's units, as places in the leg's order of units.

        A leg is a part of an epoch with the same ranks and step size. If `step` equals the number of steps of the leg,
        the first value is the place where the last step ends. Without a token cap, the end of a last step with empty
        places lies beyond the last unit; `units_at` ignores the places beyond it.
        """
        if self._cuts is None:
            return step * self.shape.per_step, (step + 1) * self.shape.per_step
        return int(self._cuts[step]), int(self._cuts[min(step + 1, self._cuts.size - 1)])

    @property
    def cut_short(self) -> int:
        """Number of steps with fewer than ``shape.per_step`` units because more did not fit under the token cap."""
        if self._cuts is None:
            return 0
        return int((np.diff(self._cuts[: self.steps + 1]) < self.shape.per_step).sum()) - bool(self.empty)

    def step(self, number: int) -> Taken:
        """Return the units and sequences that step `number` takes on all ranks together.

        Steps are counted from 0 in this leg (part of an epoch with the same ranks and step size). A few results are
        cached.

        Raises:
            IndexError: there is no such step.
        """
        found = self._steps.get(number)
        if found is None:
            if not 0 <= number < self.steps:
                raise IndexError(f"step {number} of {self.steps} steps")
            units = self.units_at(*self.bounds(number))
            found = Taken(units, *self._units.members(units))
            if len(self._steps) >= _KEPT:
                self._steps.clear()
            self._steps[number] = found
        return found

    def seen(self, number: int) -> tuple[int, int]:
        """Return (number of sequences, number of tokens) that step `number` takes on all ranks together.

        Raises:
            IndexError: there is no such step.
        """
        step = self.step(number)
        return step.sequences.size, _kernels.sum_at(self._units.seq_lengths, step.sequences)

    def part(self, step: int, rank: int, micro: int) -> Taken:
        """Return the units and sequences that rank `rank` takes in micro-step number `micro` of step `step`.

        A rank may have no unit, mostly in a last step with empty places; the result then has no unit and no sequence.

        Raises:
            IndexError: there is no such step.
            BalanceError: the cost model gives an invalid cost, or costs whose sum does not fit into 64 bits.
        """
        if self.shape.per_step == self.shape.per_rank and not self._units.apart:  # a single rank, without accumulation
            return self.step(step)
        kept = self._dealt  # a reference of its own, since another thread may replace the attribute
        if kept is None or kept[:2] != (step, rank):
            self._dealt = kept = step, rank, self.dealt(step)[rank]
        chosen = kept[2][micro]
        return self._units.taken(chosen[chosen >= 0])

    def dealt(self, step: int) -> NDArray[np.int64]:
        """Return the numbers of the units of a step, by rank, micro-step and place; -1: the place stays empty.

        The result is int64 ``[world_size, accumulation, per_rank]``. Under a token cap, the last dimension is as large
        as the largest number of units of any micro-step. If the sequences of a unit may go to different ranks
        (`Units.apart`), the result holds numbers of sequences instead, and the last dimension counts these. The units
        of a rank's micro-step are in the order in which steps take units; empty places come last.

        Raises:
            IndexError: there is no such step.
            BalanceError: the cost model gives an invalid cost, or the sum of the costs of a pack or of the step does
                not fit into 64 bits.
        """
        taken = self.step(step)
        if self._units.apart:
            dealt, sizes = taken.sequences, np.ones(taken.sequences.size, dtype=np.int64)
        else:
            dealt, sizes = taken.units, taken.sizes
        places = self._places(self._units.costs_of(taken.sequences, sizes, self._cost), taken)
        found: NDArray[np.int64] = np.append(dealt, -1)[np.sort(np.where(places < 0, dealt.size, places), axis=-1)]
        return found

    def _places(self, costs: NDArray[np.int64], taken: Taken) -> NDArray[np.int64]:
        """Return the index into `costs` of the unit (or sequence) at each place of a step; -1: the place stays empty.

        There are places for each rank and micro-step: the result is int64, of the shape that `dealt` returns.

        Args:
            costs: the cost of each unit of the step or, with `Units.apart`, of each sequence.
            taken: the units and sequences of the step, in the order of `costs`.
        """
        shape, size = self._dealing, costs.size
        if self.token_cap is not None:
            tokens = self._units.sizes_dealt(taken.units)
            return deal_step_under_cap(costs, tokens, shape, self.balance, self.token_cap)
        if size == shape.per_step:
            return deal(costs, shape, self.balance)
        # Spread the empty places over all micro-steps of all ranks, whatever the balance.
        every = Shape(
            world_size=shape.world_size * shape.accumulation, node_size=1, accumulation=1, per_rank=shape.per_rank
        )
        filled = np.concatenate([costs, np.zeros(shape.per_step - size, dtype=np.int64)])
        places = deal(filled, every, EQUAL).reshape(shape.world_size, shape.accumulation, -1)
        return np.where(places < size, places, -1)


def ordered(
    units: Units, leg: Leg, past: Sequence[Leg], *, seed: int, epoch: int, cost: CostModel
) -> NDArray[Any] | None:
    """Return the units that the legs in `past` did not take, in the order in which `leg` takes them.

    A leg is a part of an epoch in which the ranks, the size of a step and the balancing stay the same. Units are packs,
    rows, single sequences or groups.

    The result is integers ``[units left]``; None stands for all units, in the order of their numbers. This takes
    O(units) per leg.

    Args:
        units: the units of the epoch.
        leg: the current leg.
        past: the finished legs of this epoch, in order.
        seed: the seed of the loader.
        epoch: number of the epoch, from 0.
        cost: the cost model by which ranks are balanced.

    Raises:
        OptionError: a leg's balance would reorder units that must stay in their phases (`Units.phased`).
        BalanceError: the balance of a leg cannot draw its units, or the cost model gives an invalid cost. (If the draw
            is "stratified" and the leg is not the first, the units keep their order instead.)
        FormatError: a finished leg had a token cap, and cannot have taken its steps from these units.
    """
    left = units.order
    for number, other in enumerate((*past, leg)):
        if other.balance.draw != "random" and units.phased:
            raise OptionError(
                f"draw {other.balance.draw!r} would mix the phases of a mixture that drops exhausted sources; choose "
                "draw 'random', or exhausted='repeat' or 'stop'"
            )
        if other.balance.draw != "random":  # otherwise the epoch's own order, which is random already
            left = np.arange(len(units), dtype=index_dtype(len(units))) if left is None else left
            if left.size >= other.shape.per_step:
                key = random.key(seed, random.STREAM_LEG, epoch, number)
                left = left[_drawn(units.costs(left.astype(np.int64), cost), other, key, resumed=number > 0)]
        if number < len(past) and other.steps:
            left = np.arange(len(units), dtype=index_dtype(len(units))) if left is None else left
            left = left[_taken_by(units, left, other) :]
    return left


def check_cap(units: Units, leg: Leg, unit: str) -> None:
    """Refuse a token cap (maximum number of tokens per rank and micro-step) under which a unit does not fit.

    All units of the data are checked, also those that the epoch leaves out. If ranks get the sequences of a unit one by
    one (`Units.apart`), a unit fits if all ranks together can take its sequences in one step.

    Args:
        units: the units of the data: packs, rows, single sequences or groups.
        leg: a leg with the token cap and the ranks; if its cap is None, nothing is checked.
        unit: what one unit is called in the message, such as "sequence".

    Raises:
        LengthError: a unit does not fit under the cap; the message names the first one.
    """
    if leg.token_cap is None:
        return
    count = units.seq_lengths.size if units.indptr is None else units.indptr.size - 1
    sizes = units.sizes_dealt(np.arange(count))
    found = first_over_cap(sizes, leg.shape, leg.token_cap, units.parts)
    if found is None:
        return
    numbers, _ = units.members(np.array([found]))
    lengths = units.seq_lengths[numbers].astype(np.int64)
    named = f"{unit} {found:,} has {int(lengths.sum()):,} tokens"
    if unit == "group":
        named += f" (sequences {', '.join(map(str, numbers[:8].tolist()))}{', ...' if numbers.size > 8 else ''})"
    if units.apart:
        ranks = leg.shape.world_size * leg.shape.accumulation
        raise LengthError(
            f"{named}, the longest of them {int(lengths.max()):,}, and does not fit into one step, of {ranks:,} "
            f"micro-steps of ranks with at most token_cap={leg.token_cap:,} tokens each; raise the cap, or leave it out"
        )
    over = int(np.count_nonzero(sizes > leg.token_cap))
    raise LengthError(
        f"{over:,} of {count:,} {unit}s have more tokens than token_cap={leg.token_cap:,}, the first: {named}; "
        f"the longest has {int(sizes.max()):,}: raise the cap to that, or cut or leave out what is longer"
    )


def _cuts(units: Units, order: NDArray[Any] | None, leg: Leg) -> NDArray[np.int64] | None:
    """Return the places in the leg's order of units where each step begins, and where the last step ends.

    A leg is a part of an epoch with the same ranks and step size. The result is int64 ``[steps + 1]``; None if the leg
    has no token cap (maximum number of tokens per rank and micro-step). `order` is the leg's order of units; None: all
    units, in the order of their numbers.

    Raises:
        BalanceError: a unit does not fit under the cap, even in a step of its own.
    """
    if leg.token_cap is None:
        return None
    chosen = np.arange(len(units)) if order is None else order.astype(np.int64)
    return cut_under_cap(units.sizes_dealt(chosen), leg.shape, leg.token_cap, units.parts)


def _taken_by(units: Units, left: NDArray[Any], leg: Leg) -> int:
    """Return how many units a finished leg took; they are the first ones of `left`.

    A leg is a part of an epoch with the same ranks and step size. `left` are the units that were left when the leg
    began, in the order in which the leg took them.

    Raises:
        FormatError: the leg had a token cap, and cannot have taken its steps from these units.
    """
    if leg.token_cap is None:
        return leg.steps * leg.shape.per_step
    try:
        cuts = _cuts(units, left, leg)
    except BalanceError as error:
        raise FormatError(f"this state has steps under a cap that these data do not fit under: {error}") from error
    assert cuts is not None
    if leg.steps >= cuts.size:
        raise FormatError(f"this state took {leg.steps} steps under a cap, and there are {cuts.size - 1}")
    return int(cuts[leg.steps])


def _drawn(costs: NDArray[np.int64], leg: Leg, key: int, *, resumed: bool) -> NDArray[Any]:
    """Return the order in which a leg (a part of an epoch) takes its units, as indices into `costs`.

    Args:
        costs: the cost of each unit that was left when the leg began; int64 ``[n]``.
        leg: the ranks and units of a step, and the balance.
        key: the seed of the draw.
        resumed: whether this epoch had earlier legs. If so, and the draw "stratified" fails, the units stay in the
            order given: earlier legs may have taken all units of a stratum (a range of costs).

    Raises:
        BalanceError: the balance cannot draw these units.
    """
    try:
        return draw(costs, leg.shape, leg.balance, key)
    except BalanceError:
        if not resumed or leg.balance.draw != "stratified":
            raise
        return np.arange(costs.size)


def _whole_steps(
    units: int, shape: Shape, last: Last, resumed: bool, cuts: NDArray[np.int64] | None
) -> tuple[int, int]:
    """Return (number of steps, number of places in the last step that get no unit) of a leg, a part of an epoch.

    Args:
        units: number of units that are left when the leg begins.
        shape: the ranks and the number of units of a step.
        last: what happens to units that make no whole step: "drop", "fill", "short" or "refuse" (`PackedLoader`).
        resumed: whether there were earlier legs in this epoch.
        cuts: the result of `_cuts`: where steps begin under a token cap; None: there is no cap. Under a cap, steps may
            have fewer units than ``shape.per_step``, but the last one counts as whole only if it has this many.

    Raises:
        OptionError: units are left over and `last` is "refuse"; or there is no step, and `resumed` is False.
    """
    steps, over = divmod(units, shape.per_step)
    if cuts is not None:
        steps, over = cuts.size - 1, 0
        if steps and units - int(cuts[-2]) < shape.per_step:
            steps, over = steps - 1, units - int(cuts[-2])
    if over and last == "refuse":
        raise OptionError(
            f"{units:,} units do not make whole steps of {shape.per_step:,}: {over:,} would be left over; choose "
            "last='drop', 'fill' or 'short', or another step"
        )
    if over and last in ("fill", "short"):
        return steps + 1, shape.per_step - over
    if not steps and not resumed:
        raise OptionError(
            f"{units:,} unit{'' if units == 1 else 's'} cannot make a step of {shape.per_step:,} "
            f"({shape.world_size:,} ranks x {shape.accumulation:,} micro-steps x {shape.per_rank:,}); choose "
            "last='fill' or 'short', or a smaller step"
        )
    return steps, 0
