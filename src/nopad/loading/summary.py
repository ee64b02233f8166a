"""`Summary`: what an epoch will take in steps, sequences and tokens, and how evenly its ranks will work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nopad.balance import Balance, CostModel, Report, Shape, Tokens, floor, needs_context_parallelism, report
from nopad.loading import _kernels
from nopad.loading.legs import Course, Last
from nopad.loading.units import Units
from nopad.wording import counted

__all__ = ["Summary", "summarise"]

_SAMPLED = 32  # at most so many steps are dealt, to see how even they are
_NAMED = 5  # sequences that a message names


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The size of an epoch, or of what was left of it when ranks, step or balance changed; print it to read it.

    Attributes:
        unit: what is dealt: "pack", "sequence" or "group".
        takes: what a rank takes in a micro-step, in words, such as "8 packs".
        shape, balance, cost: the numbers of ranks and units of a step, how units are drawn and dealt to ranks, and the
            cost model by which ranks are balanced.
        steps: number of optimiser steps.
        sequences, tokens: number of sequences and tokens in these steps, on all ranks together.
        slots: number of slots in these steps, tokens and padding together; None: the loader was not given `rows`.
        steps_not_packed: number of optimiser steps that the same sequences would take with one sequence per row; None:
            the loader was not given `rows`.
        left_out: numbers of units, of sequences and of tokens that are in no step of this epoch, since they make no
            whole step.
        empty: number of places in the last step that get no unit, since there are too few units.
        last: what happens to units that make no whole step: "drop", "fill" (the step is filled with empty rows),
            "short" (the step takes fewer rows) or "refuse" (an error).
        balanced: how evenly the ranks share the work of a step (of a micro-step, if they wait for one another there),
            measured over up to 32 steps.
        token_cap: maximum number of tokens per rank and micro-step; None: no limit.
        most_tokens: the largest number of tokens of a rank's micro-step in the steps measured; 0 if there is no cap.
        cut_short: number of steps with fewer units than usual, because more would not fit under the token cap.
        notes: further lines of the summary, such as what each source of a mixture gives.
        too_long: (number, tokens) of each sequence that alone costs over 10 % more than the mean cost of a rank in the
            same step (in the same micro-step, if ranks wait there). The longest comes first. No balance can even these
            out, only context parallelism. Only measured steps count, without the last one if it lacks units (`empty`).
        longest: number of tokens of the longest sequence in the data.
    """

    unit: str
    takes: str
    shape: Shape
    balance: Balance
    cost: CostModel
    steps: int
    sequences: int
    tokens: int
    slots: int | None
    steps_not_packed: int | None
    left_out: tuple[int, int, int]
    empty: int
    last: Last
    balanced: Report
    too_long: tuple[tuple[int, int], ...]
    token_cap: int | None = None
    most_tokens: int = 0
    cut_short: int = 0
    notes: tuple[str, ...] = ()
    longest: int = 0

    def __str__(self) -> str:
        """Return the summary as a few lines of text."""
        s, units = self.shape, f"{self.unit}s"
        lines = [
            f"step     {counted(s.world_size, 'rank')} x {counted(s.accumulation, 'micro-step')} x {self.takes}: "
            f"{self.sequences / self.steps:,.0f} sequences, {self.tokens / self.steps:,.0f} tokens on average",
            f"epoch    {counted(self.steps, 'step')}: {counted(self.sequences, 'sequence')}, "
            f"{counted(self.tokens, 'token')}{self._share()}",
        ]
        if self.steps_not_packed is not None:
            lines.append(
                f"         one sequence per row would take {counted(self.steps_not_packed, 'step')}: a schedule in "
                f"steps sees {self.steps_not_packed / self.steps:.2f} times as many sequences per step"
            )
        if any(self.left_out):
            left, sequences, tokens = self.left_out
            lines.append(f"left out {left:,} {units} ({sequences:,} sequences, {tokens:,} tokens): no whole step")
        if self.empty:
            whole = f"{self.empty:,} of its {counted(s.per_step, self.unit)}"
            lines.append(
                f"filled   the last step has {whole} empty"
                if self.last == "fill"
                else f"short    the last step lacks {whole}"
            )
        if self.token_cap is not None:
            lines.append(
                f"cap      at most {self.token_cap:,} tokens per rank and micro-step, the most looked at has "
                f"{self.most_tokens:,}; {self.cut_short:,} of {self.steps:,} steps take fewer {units} for it"
            )
        where = "micro-step" if self.balance.wait == "micro" else "step"
        b = self.balanced
        if s.world_size > 1:  # a rank alone waits for nobody
            lines.append(
                f"balance  the slowest rank of a {where} costs {b.waste:.2%} more than the mean (floor {b.floor:.2%}), "
                + ("in tokens" if isinstance(self.cost, Tokens) else f"by {self.cost!r}")
            )
        if self.too_long:
            named = ", ".join(f"{number:,} ({tokens:,} tokens)" for number, tokens in self.too_long[:_NAMED])
            lines.append(
                f"too long {len(self.too_long):,} sequences, in {b.steps:,} {where}s looked at, each cost a rank more "
                f"than the mean; only context parallelism helps: {named}"
            )
        return "\n".join([*lines, *(f"source   {note}" for note in self.notes)])

    def _share(self) -> str:
        return "" if self.slots is None else f" ({self.tokens / self.slots:.2%} of the slots)"


def summarise(
    course: Course,
    units: Units,
    unit: str,
    takes: str,
    cost: CostModel,
    capacity: int | None,
    notes: tuple[str, ...] = (),
) -> Summary:
    """Return the `Summary` of the steps in `course`.

    They are a whole epoch, or what was left of it when the ranks, the step or the balance changed.

    This takes O(units). Up to 32 steps are dealt, to measure how evenly the ranks share the work.

    Args:
        course: the steps, at least one: which units each rank gets.
        units: the units of the epoch.
        unit: what is dealt: "pack", "sequence" or "group".
        takes: what a rank takes in a micro-step, in words, such as "8 packs".
        cost: the cost model by which ranks are balanced.
        capacity: slots per row, if the loader was given `rows`; else None.
        notes: further lines for the text of the summary, such as what each source of a mixture gives.

    Raises:
        BalanceError: the cost model gives an invalid cost, or costs whose sum does not fit into 64 bits.
    """
    shape, places = course.shape, course.units_at(0, course.units_left)
    taken = places[: course.bounds(course.steps)[0]]
    sequences, tokens = _counts(units, taken)
    left = places[taken.size :]
    sampled = np.unique(np.linspace(0, course.steps - 1, min(course.steps, _SAMPLED)).astype(np.int64)).tolist()
    deals = {step: course.dealt(step) for step in sampled}
    waits = [wait for step, dealt in deals.items() for wait in _waits(course, units, cost, step, dealt)]
    return Summary(
        unit=unit,
        takes=takes,
        shape=shape,
        balance=course.balance,
        cost=cost,
        steps=course.steps,
        sequences=sequences,
        tokens=tokens,
        slots=None if capacity is None else _rows(course, deals) * capacity,
        steps_not_packed=None if capacity is None else -(-sequences // shape.per_step),
        left_out=(left.size, *_counts(units, left)),
        empty=course.empty,
        last=course.last,
        longest=int(units.seq_lengths.max(initial=0)),
        balanced=_report(waits),
        too_long=_too_long(units, [wait.too_long for wait in waits]),
        token_cap=course.token_cap,
        most_tokens=max((_most_tokens(units, dealt) for dealt in deals.values() if course.token_cap), default=0),
        cut_short=course.cut_short,
        notes=notes,
    )


def _rows(course: Course, deals: dict[int, NDArray[np.int64]]) -> int:
    """Return the number of rows that all ranks take in all steps.

    With `last` "fill", the empty rows of the last step count too. With "short", they do not; but in the last step, each
    micro-step in which a rank has no unit counts as one row of this rank.

    `deals` maps the numbers of some steps, the last one among them, to the units that each rank gets. These are unit
    numbers, int64 ``[ranks, micro-steps, places]``, -1 in an empty place.
    """
    rows = course.steps * course.shape.per_step
    if course.last != "short" or not course.empty:
        return rows
    taken = (deals[course.steps - 1] >= 0).sum(axis=2)
    return rows - course.shape.per_step + int(np.maximum(taken, 1).sum())  # without a unit, one row stands in


def _counts(units: Units, chosen: NDArray[np.int64]) -> tuple[int, int]:
    numbers, _ = units.members(chosen)
    return numbers.size, _kernels.sum_at(units.seq_lengths, numbers)


def _most_tokens(units: Units, dealt: NDArray[np.int64]) -> int:
    """Return the largest number of tokens that a rank takes in a micro-step of one step.

    `dealt` has the numbers of the units of this step (with `Units.apart`, of its sequences), int64
    ``[ranks, micro-steps, places]``; -1: the place is empty.
    """
    tokens = np.zeros(dealt.shape, dtype=np.int64)
    _, numbers, sizes = units.taken(dealt[dealt >= 0])
    tokens[dealt >= 0] = np.add.reduceat(units.seq_lengths[numbers].astype(np.int64), np.cumsum(sizes) - sizes)
    return int(tokens.sum(axis=2).max())


class _Wait(NamedTuple):
    """The work between two points where ranks wait for one another: a step, or a micro-step.

    Attributes:
        ranks: cost of each rank; int64 ``[ranks]``.
        floor: a lower bound on the waste, however the sequences are dealt (`nopad.balance.floor`). The waste is how far
            the cost of the costliest rank is above the mean cost of the ranks, as a fraction of this mean.
        too_long: numbers of the sequences that alone cost over 10 % more than the mean cost of a rank; int64 ``[k]``.
            It is empty for a last step that lacks units (`Summary.empty`).
    """

    ranks: NDArray[np.int64]
    floor: float
    too_long: NDArray[np.int64]


def _waits(course: Course, units: Units, cost: CostModel, step: int, dealt: NDArray[np.int64]) -> Iterator[_Wait]:
    """Yield a `_Wait` for step number `step`; or, if the balance has ``wait="micro"``, for each of its micro-steps.

    A step or micro-step whose costs are all 0 is left out. `course` holds the steps and `units` the units of the epoch.
    `dealt` has the numbers of the units of this step (with `Units.apart`, of its sequences), int64
    ``[ranks, micro-steps, places]``; -1: the place is empty.
    """
    whole = not (course.empty and step == course.steps - 1)
    world_size, accumulation, per_rank = dealt.shape
    if course.balance.wait == "step":
        dealt = dealt.reshape(world_size, 1, accumulation * per_rank)
    for micro in range(dealt.shape[1]):
        places = dealt[:, micro]
        costs = np.zeros(places.shape, dtype=np.int64)
        _, numbers, sizes = units.taken(places[places >= 0])
        costs[places >= 0] = units.costs_of(numbers, sizes, cost)
        if not costs.any():  # in the last step, a micro-step in which no rank has a unit
            continue
        single = cost.checked(units.seq_lengths[numbers])
        alone = numbers[needs_context_parallelism(single, world_size)]
        if not whole:  # empty places make the mean low; that does not make a sequence too long
            alone = alone[:0]
        yield _Wait(costs.sum(axis=1), floor(single, world_size), alone)


def _report(waits: list[_Wait]) -> Report:
    """Return how evenly the ranks share the work, as a mean over `waits`; all zeros if `waits` is empty."""
    if not waits:
        return Report(steps=0, least=0.0, most=0.0, mean=0.0, waste=0.0, abr=0.0, floor=0.0)
    return report(np.stack([wait.ranks for wait in waits]), [wait.floor for wait in waits])


def _too_long(units: Units, found: list[NDArray[np.int64]]) -> tuple[tuple[int, int], ...]:
    """Return (number, tokens) of each sequence whose number is in an array of `found`, once; the longest first."""
    numbers = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *found]))
    lengths = units.seq_lengths[numbers].astype(np.int64)
    order = np.argsort(-lengths, kind="stable")
    return tuple(zip(numbers[order].tolist(), lengths[order].tolist(), strict=True))
