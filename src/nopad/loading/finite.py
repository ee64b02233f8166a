"""`EpochSupply`: the batches of one rank over stored tokens, epoch after epoch.

Ranks do not communicate: from the lengths, the options and the number of the epoch, each computes which sequences are
its own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import islice
from typing import Any

import numpy as np

from nopad.balance import Balance, Shape
from nopad.balance.costs import fingerprint
from nopad.batch import PackedBatch
from nopad.loading.epochs import Epochs
from nopad.loading.legs import Leg, check_cap
from nopad.loading.state import Position, check_same, read_state
from nopad.loading.summary import Summary, summarise
from nopad.loading.supply import Serving, Supply
from nopad.threads import Pool
from nopad.wording import counted

__all__ = ["EpochSupply"]

log = logging.getLogger("nopad")


class EpochSupply(Supply):
    """The batches of one rank over stored tokens, epoch after epoch.

    The places that the methods take and return are `Position` objects: positions of a loader among its batches.
    """

    def __init__(self, epochs: Epochs, serving: Serving, balance: Balance) -> None:
        """Keep the arguments, and check that epoch 0 can be divided into steps.

        Args:
            epochs: the units of each epoch: packs, rows, single sequences or groups.
            serving: the rank for which batches are built, the size of a step, and how batches are built.
            balance: how units are drawn into steps and dealt to ranks.

        Raises:
            OptionError: the units do not make a single step, or do not make whole steps and ``epochs.last`` is
                "refuse"; or the balance would reorder units whose order must stay.
            BalanceError: the balance cannot draw these units, or the cost model gives an invalid cost.
            LengthError: a unit does not fit under ``serving.token_cap``.
        """
        self._epochs, self._serving = epochs, serving
        shape = Shape(
            world_size=serving.ranks.world_size,
            node_size=serving.ranks.node_size,
            accumulation=serving.accumulation,
            per_rank=serving.per_rank,
        )
        self._leg = Leg(shape=shape, balance=balance, steps=0, token_cap=serving.token_cap)
        check_cap(epochs.units(0), self._leg, epochs.feed.unit)
        epochs.course(self.begin())  # so that an impossible step is refused now
        self._cost = fingerprint(epochs.cost, int(epochs.units(0).seq_lengths.max()))

    def begin(self) -> Position:
        """Return the position at the beginning of epoch 0."""
        return Position(leg=self._leg)

    def epoch_begin(self, at: Position, epoch: int) -> Position:
        """Return the position at the beginning of epoch number `epoch`.

        The steps, sequences and tokens seen stay as in `at`.
        """
        return at.at_start_of(epoch)

    def described(self) -> str:
        """Return a phrase that says what is dealt, and what a rank takes in a micro-step.

        An example is "4 sequences in 3 packs of at most 4 tokens with 25.00% padding, 1 pack per rank and micro-step".
        """
        feed = self._epochs.feed
        number = "packs" if feed.packs is None else counted(feed.packs, "pack")
        packs = f" in {number} of at most {feed.capacity:,} tokens" if feed.unit == "pack" else ""
        if feed.packs and feed.tokens is not None:
            packs += f" with {1 - feed.tokens / (feed.packs * feed.capacity):.2%} padding"
        return f"{counted(feed.sequences, 'sequence')}{packs}, {self._serving.takes(feed.unit)} per rank and micro-step"

    def facts(self) -> dict[str, Any]:
        """Return, by name, what a saved run and the run that resumes it must share.

        These are the facts of the feed, the settings of the loader's `collate`, and a fingerprint of the cost model.
        """
        return {**self._serving.facts(), **self._epochs.feed.facts(), "cost": self._cost}

    def agreed(self, at: Position) -> dict[str, Any]:
        """Return, by name, what all ranks must agree on.

        These are the facts that the method `facts` returns, the number of ranks, how many of them share a node, the
        size of a step, the `Balance`, the token cap, `last`, the position `at`, and the earlier legs of the epoch (its
        parts with other ranks, step or balance).
        """
        leg = at.leg
        return {
            **self.facts(),
            "world_size": leg.shape.world_size,
            "node_size": leg.shape.node_size,
            "the step": f"{leg.shape.accumulation} x {leg.shape.per_rank}",
            "balance": repr(leg.balance),
            "token_cap": leg.token_cap,
            "last": self._epochs.last,
            "the position": (at.epoch, len(at.past), leg.steps, at.batches),
            "earlier ranks of this epoch": repr(at.past),
        }

    def length(self, at: Position) -> int:
        """Return how many batches a rank takes in the whole epoch of this position, those already taken included.

        If the ranks, the step or the balance changed during the epoch, only the batches after the last change count.
        """
        return self._epochs.course(at).steps * at.leg.shape.accumulation

    def steps_in(self, at: Position, epoch: int) -> int:
        """Return the number of optimiser steps in epoch number `epoch`, with the ranks and settings of `at`.

        If epochs may differ in length (with a mixture or a token cap), the epoch is dealt to count its steps; this
        takes O(units).
        """
        same = self._epochs.feed.steady and at.leg.token_cap is None
        return self._epochs.course(at.at_start_of(at.epoch if same else epoch)).steps

    def summary(self, at: Position) -> Summary:
        """Return the summary of the epoch of this position.

        If the ranks, the step or the balance changed within the epoch, the summary covers only the part of the epoch
        after the last change.
        """
        epochs = self._epochs
        capacity = epochs.feed.capacity if self._serving.rows else None
        feed, notes = epochs.feed, epochs.feed.notes(at.epoch)
        takes = self._serving.takes(feed.unit)
        return summarise(epochs.course(at), epochs.units(at.epoch), feed.unit, takes, epochs.cost, capacity, notes)

    def state(self, at: Position, batches: int) -> dict[str, Any]:
        """Return the state of a loader `batches` batches after the position `at`; a dict that can be written as JSON.

        After the last batch of an epoch, the state is that of the beginning of the next epoch.

        Raises:
            OptionError: the epoch has fewer than `batches` batches left.
        """
        for _ in range(batches):
            at = self._epochs.after(at)
        return self.settled(at).state(self.facts())

    def settled(self, at: Position) -> Position:
        """Return `at`; or the beginning of the next epoch, if no batch of this epoch comes after `at`."""
        return at.at_start_of(at.epoch + 1) if self._epochs.is_over(at) else at

    def placed(self, state: Any) -> Position:
        """Return the position from which a loader goes on, given a saved state.

        If the ranks, the step or the balance changed since the state was saved, a new leg begins at this position. A
        leg is a part of an epoch in which the ranks, the size of a step and the balancing stay the same. If the units
        left of the epoch do not make a single step, the result is the beginning of the next epoch, and a warning is
        logged.

        Raises:
            FormatError: `state` is not a state of such a loader, or it does not fit the data.
            PlanMismatchError: the state is for other data or other options.
            OptionError: the units left do not make whole steps, and `last` is "refuse".
            BalanceError: the balance cannot draw the units, or the cost model gives an invalid cost.
        """
        position, facts = read_state(state)
        check_same(facts, self.facts())
        there = position.resumed(self._leg)
        self._epochs.check_within(there)
        if self._epochs.is_over(there):
            course = self._epochs.course(there)
            left = course.units_left - course.bounds(there.leg.steps)[0]
            log.warning(
                "nopad: %s %s left of epoch %s and make no step of %s; going on with the next epoch",
                *(counted(left, self._epochs.feed.unit), "is" if left == 1 else "are", there.epoch),
                f"{there.leg.shape.per_step:,}",
            )
        return self.settled(there)

    def check_workers(self, workers: int) -> None:
        """Accept any number of worker processes: each of them can compute any batch."""

    def batches(self, at: Position, worker: int = 0, workers: int = 1) -> Iterator[tuple[Position, PackedBatch]]:
        """Yield (position after the batch, batch) for each batch left of the epoch, from the position `at` on.

        With several worker processes, only the batches that process number `worker` builds are yielded: those with the
        numbers `worker`, ``worker + workers``, and so on, counted from 0.

        Raises:
            SourceError, CorruptError, FormatError: the data changed since they were opened, or are not there any more.
            StorageError: the data cannot be read.
            BatchError: a finite float64 in the data is too large for float32, or `collate` refuses the sequences.
            PlanMismatchError: a sequence of an index-only dataset has other tokens than those that were packed.
            OptionError: the units do not make whole steps, and `last` is "refuse"; or `collate` did not return a
                `PackedBatch` of at most `token_cap` tokens.
            BalanceError: the balance cannot draw the units, or the cost model gives an invalid cost.
        """
        self._epochs.feed.check_unchanged()
        pairs = islice(self._pairs(at, deal_ahead=workers == 1), worker, None, workers)
        if not self._serving.prefetch:
            for before, after in pairs:
                yield after, self._built(before)
            return
        building: deque[tuple[Position, Future[PackedBatch]]] = deque()
        with Pool(1, thread_name_prefix="nopad-batch") as pool:
            try:
                for before, after in pairs:
                    building.append((after, pool.submit(self._built, before)))
                    if len(building) > self._serving.prefetch:
                        done, batch = building.popleft()
                        yield done, batch.result()
                while building:
                    done, batch = building.popleft()
                    yield done, batch.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def places(self, at: Position) -> Iterator[Position]:
        """Yield the position after each remaining batch of the epoch, beginning with the batch after `at`."""
        return (after for _, after in self._pairs(at))

    def _pairs(self, at: Position, *, deal_ahead: bool = True) -> Iterator[tuple[Position, Position]]:
        """Yield (position before, position after) for each remaining batch of the epoch.

        If `deal_ahead` is True, the next epoch is dealt in the background near the end of this one
        (`Epochs.deal_ahead`).
        """
        while not self._epochs.is_over(at):
            if deal_ahead:
                self._epochs.deal_ahead(at)
            after = self._epochs.after(at)
            yield at, after
            at = after

    def _built(self, at: Position) -> PackedBatch:
        """Return this rank's batch after the position `at`.

        If this rank has no unit (mostly in the last step of an epoch), the batch is a stand-in
        (`PackedBatch.as_stand_in`): a single sequence, with weight 0 in the loss.
        """
        units, course, serving = self._epochs.units(at.epoch), self._epochs.course(at), self._serving
        taken = course.part(at.leg.steps, serving.ranks.rank, at.batches)
        idle = not taken.units.size  # mostly in a last step with fewer units than micro-steps of all ranks
        if idle:
            step = course.step(at.leg.steps)
            taken = units.taken((step.sequences if units.apart else step.units)[:1])
        sequences = self._epochs.feed.gather(taken)
        units.check_lengths(taken, sequences.seq_lengths)
        if idle:
            return serving.batch(sequences.part(0, 1), np.ones(1, dtype=np.int64), at.epoch).as_stand_in()
        return serving.batch(sequences, taken.sizes, at.epoch)
