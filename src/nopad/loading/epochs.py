"""`Epochs`: the units that a loader deals in an epoch, the steps of the current leg, and the position after a batch.

Units are packs, rows, single sequences or groups of sequences. A leg is a part of an epoch in which the numbers of
ranks and nodes, the size of a step (units per rank, accumulation, token cap) and the balancing of ranks stay the same
(`nopad.loading.legs`). Near the end of an epoch, the next one is dealt in the background (`Epochs.deal_ahead`).
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from nopad.balance import CostModel
from nopad.balance.costs import fingerprint
from nopad.errors import FormatError, OptionError
from nopad.loading.feeds import Feed
from nopad.loading.legs import Course, Last, ordered
from nopad.loading.sharing import HostArrays
from nopad.loading.state import Position
from nopad.loading.units import Units
from nopad.options import shown

__all__ = ["Epochs"]

_KEPT = 2  # how many epochs keep their shared arrays
_NEARLY = 0.9  # the fraction of an epoch after which the next one is dealt

# The units of an epoch, and its first leg with the key from `_which`; None: that leg is not dealt yet.
_Begun = tuple[Units, tuple[tuple[Any, ...], Course] | None]


def _which(at: Position) -> tuple[Any, ...]:
    return at.epoch, at.past, replace(at.leg, steps=0)


class Epochs:
    """The epochs of a feed; only one epoch is in memory at a time, besides one that is being dealt in the background.

    Attributes:
        feed: lists the units (packs, rows, single sequences or groups) of each epoch.
        cost: the cost model by which ranks are balanced.
        last: what happens to units that are too few for a whole step: "drop", "fill", "short" or "refuse"
            (`PackedLoader`).
    """

    def __init__(self, feed: Feed, cost: CostModel, last: Last, shared: HostArrays | None = None) -> None:
        """Keep the arguments; nothing is dealt yet.

        `shared` holds the arrays that the ranks of this host share. None: each rank makes arrays of its own.

        Raises:
            OptionError: `cost` is not a cost model.
        """
        if not isinstance(cost, CostModel):
            raise OptionError(
                f"cost is {shown(cost)}; it is a nopad.balance.CostModel, such as Tokens() or "
                "Attention(hidden_size=4096)"
            )
        self.feed, self.cost, self.last, self._shared = feed, cost, last, shared
        self._forget()

    def _forget(self) -> None:
        self._units: tuple[int, Units] | None = None
        self._course: tuple[tuple[Any, ...], Course] | None = None
        self._ahead: tuple[int, int, Future[_Begun]] | None = None  # (process, epoch)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that another process gets: `feed`, `cost` and `last`.

        What is dealt, and the shared arrays, are left out: each process deals its own epochs.
        """
        return {"feed": self.feed, "cost": self.cost, "last": self.last, "_shared": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the attributes in another process; no epoch is dealt there yet."""
        vars(self).update(state)
        self._forget()

    def units(self, epoch: int) -> Units:
        """Return the units (packs, rows, single sequences or groups) that are dealt in an epoch.

        They are kept in memory until this method is called for another epoch. If the epoch is being dealt in the
        background, this method waits for the result; an error that ended the dealing is raised here.
        """
        kept = self._units  # a reference of its own: a thread of an earlier iteration may replace the attribute
        if kept is None or kept[0] != epoch:
            ahead, self._ahead = self._ahead, None
            self._units = kept = None  # free the last epoch's units before the next are made
            # A forked process has the future, but not the thread that would fulfil it.
            if ahead and ahead[:2] == (os.getpid(), epoch):
                found, self._course = ahead[2].result()
            else:
                found = self._made(epoch)
            self._units = kept = epoch, found
        return kept[1]

    def _made(self, epoch: int) -> Units:
        if self._shared is None:
            return self.feed.units(epoch)
        arrays = self._shared.arrays(f"epoch-{epoch:010d}", lambda: self.feed.units(epoch).arrays())
        if epoch >= _KEPT:
            self._shared.forget(f"epoch-{epoch - _KEPT:010d}*")
        return Units(**arrays, apart=self.feed.apart, phased=self.feed.phased)

    def course(self, at: Position) -> Course:
        """Return the steps (`Course`) of the leg to which the position `at` belongs.

        A leg is a part of an epoch in which the ranks, the size of a step and the balancing stay the same.

        Raises:
            OptionError: the units left do not make whole steps and `last` is "refuse"; or, in the first leg of an
                epoch, they do not make a single step; or the balance would reorder units whose order must stay
                (`Units.phased`).
            BalanceError: the balance cannot draw these units, a unit does not fit under the token cap, or the cost
                model gives an invalid cost.
            FormatError: an earlier leg had a token cap, and cannot have taken its steps from the units of this epoch.
        """
        which = _which(at)
        kept = self._course  # a reference of its own, as in `units`
        if kept is None or kept[0] != which:
            units = self.units(at.epoch)  # this may also set `_course`, to what was dealt ahead
            kept = self._course
        if kept is None or kept[0] != which:
            self._course = kept = which, self._dealt(units, at)
        return kept[1]

    def _dealt(self, units: Units, at: Position) -> Course:
        order = self._ordered(units, at)
        return Course(units, order, at.leg, cost=self.cost, last=self.last, resumed=bool(at.past))

    def _begun(self, at: Position) -> _Begun:
        """Return ``(units, first)`` for the epoch that begins at `at`: its units and, with a token cap, its first leg.

        With a token cap, `first` is ``(key, steps)``: `key` is the result of `_which`, by which the method `course`
        finds the steps again; `steps` is the `Course` of the first leg. Without a token cap, `first` is None, and steps
        are made when they are needed.
        """
        units = self._made(at.epoch)
        return units, None if at.leg.token_cap is None else (_which(at), self._dealt(units, at))

    def _ordered(self, units: Units, at: Position) -> NDArray[Any] | None:
        def order() -> NDArray[Any] | None:
            return ordered(units, at.leg, at.past, seed=self.feed.seed, epoch=at.epoch, cost=self.cost)

        if self._shared is None or (at.leg.balance.draw == "random" and not at.past):
            return order()
        costs = fingerprint(self.cost, int(units.seq_lengths.max()))
        key = hashlib.sha256(repr((at.past, at.leg.shape, at.leg.balance, costs)).encode()).hexdigest()[:16]

        def make() -> dict[str, NDArray[Any]]:
            found = order()
            assert found is not None
            return {"order": found}

        return self._shared.arrays(f"epoch-{at.epoch:010d}-{key}", make)["order"]

    def is_over(self, at: Position) -> bool:
        """Return whether no batch of the position's epoch comes after the position."""
        return at.leg.steps >= self.course(at).steps

    def check_within(self, at: Position) -> None:
        """Refuse a position that lies beyond the end of its epoch.

        Raises:
            FormatError: the position counts more units or steps than the epoch has.
            FormatError, OptionError, BalanceError: the steps of the epoch cannot be made, as in `course`.
        """
        taken = sum(leg.steps * leg.shape.per_step for leg in at.past if leg.token_cap is None)
        if taken > len(self.units(at.epoch)):
            raise FormatError(f"this state took {taken} units of an epoch that has {len(self.units(at.epoch))}")
        steps = self.course(at).steps
        if at.leg.steps + bool(at.batches) > steps:
            raise FormatError(f"this state took {at.leg.steps + bool(at.batches)} steps of an epoch that has {steps}")

    def after(self, at: Position) -> Position:
        """Return the position after one more batch of the same epoch.

        Raises:
            OptionError: the epoch has no more batches.
        """
        if self.is_over(at):
            raise OptionError(f"epoch {at.epoch} has no batch after its {at.leg.steps} steps")
        if at.batches + 1 < at.leg.shape.accumulation:
            return replace(at, batches=at.batches + 1)
        return at.after_step(*self.course(at).seen(at.leg.steps))

    def deal_ahead(self, at: Position) -> None:
        """Start dealing the next epoch in the background, if `at` lies in the last tenth (about) of its leg's steps.

        A leg is a part of an epoch in which the ranks, the size of a step and the balancing stay the same. Once the
        dealing was started, further calls do nothing until `units` is called for another epoch. An error in the
        background is raised when `units` is called for the next epoch.
        """
        if self._ahead is None and at.leg.steps >= int(_NEARLY * self.course(at).steps):
            pool = ThreadPoolExecutor(1, thread_name_prefix="nopad-deal")
            self._ahead = os.getpid(), at.epoch + 1, pool.submit(self._begun, at.at_start_of(at.epoch + 1))
            pool.shutdown(wait=False)
