"""`CountedLR`: a torch scheduler that sets learning rates by how many sequences, tokens or steps were seen.

It applies a `Schedule` to an optimiser.

Call ``step()`` after each optimiser step; ``state_dict()`` and ``get_last_lr()`` work as usual. The loader counts the
sequences and tokens of whole steps on all ranks, and keeps these counts in its own state. So a resumed run has exactly
the same learning rates as an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from nopad.errors import FormatError, OptionError
from nopad.loading import PackedLoader
from nopad.loading.summary import Summary
from nopad.training.checks import is_split_stream
from nopad.training.schedules import Schedule

__all__ = ["CountedLR", "whole"]


class CountedLR(LRScheduler):
    """Sets the learning rates of an optimiser by how many sequences, tokens or steps were seen.

    Args:
        optimizer: a torch optimiser; the ``lr`` of each of its groups is the peak rate, which the schedule multiplies.
        schedule: the learning rate as a function of the number of sequences, tokens or steps seen.
        loader: the loader of the training data; not needed if the schedule counts "steps", and `steps` or
            ``schedule.total`` is given. Batches that the loader gave before this object was created do not count.
        epochs: length of training in epochs, counted from the loader's first epoch. If ``schedule.total`` is None,
            `epochs` or `steps` is needed.
        steps: length of training in optimiser steps, counted from now; takes precedence over `epochs`.

    Attributes:
        total: length of the whole schedule, in the unit that the schedule counts.
        before: the `total` in the state that was loaded; None: no state was loaded.

    Raises:
        OptionError: the length of training is not known, below 1, or shorter than the warm-up; or sequences or tokens
            are counted without a loader, or with a stream on several ranks, where each rank knows only its own part. If
            the loader has given batches already, and too few are left for the warm-up, ``step()`` raises it: a state
            that is loaded before may have another length.

    >>> import nopad, torch
    >>> from nopad.training import CountedLR, Schedule
    >>> loader = nopad.PackedLoader([[1, 2, 3], [4], [5, 6], [7, 8, 9]], capacity=4, rows=1, rank=0, world_size=1)
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> schedule = CountedLR(optimizer, Schedule(counts="sequences"), loader, epochs=1)
    >>> rates = []
    >>> for batch in loader:
    ...     rates.append((batch.layout.sequences, *schedule.get_last_lr()))
    ...     optimizer.step()
    ...     schedule.step()
    >>> sorted(rates, key=lambda one: -one[1])[0][1], schedule.total, schedule.get_last_lr()
    (1.0, 4, [0.0])

    The first batch gets the peak rate, 1. After the epoch's 4 sequences, the rate is 0.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        loader: PackedLoader | None = None,
        *,
        epochs: float | None = None,
        steps: int | None = None,
    ) -> None:
        if schedule.counts != "steps":
            if loader is None:
                raise OptionError(f"a schedule that counts {schedule.counts} asks a PackedLoader how many; give it one")
            if is_split_stream(loader):
                raise OptionError(
                    f"a rank of a stream knows only its own {schedule.counts}; on several ranks, count steps"
                )
        self.schedule, self._loader = schedule, loader
        self._asked = {**asdict(schedule), "epochs": epochs, "most_steps": steps}
        self._begun = self._least = 0 if loader is None else self._seen_by(loader)
        self._whole = whole(schedule, loader, epochs=epochs, steps=steps)
        self._from_first = schedule.total is None and steps is None  # epochs are counted from the loader's first epoch
        self.total = self._whole - self._begun * self._from_first
        self.before: int | None = None
        schedule.checked(self._whole)  # not what is left: a state may follow, with the length of which that is the end
        super().__init__(optimizer)

    def _seen_by(self, loader: PackedLoader) -> int:
        """Return how many sequences, tokens or whole steps (`schedule.counts`) the loader has given.

        Raises:
            OptionError: sequences or tokens are counted, the data are a stream, and there are several ranks.
        """
        seen: int = getattr(loader, f"{self.schedule.counts}_seen")
        return seen

    @property
    def seen(self) -> int:
        """Number of sequences, tokens or steps seen since the schedule began.

        Raises:
            OptionError: a state was loaded into this schedule, but none into its loader, so the loader has given less
                than the schedule's state says.
        """
        if self.schedule.counts == "steps" or self._loader is None:
            return max(self.last_epoch, 0)
        found = self._seen_by(self._loader)
        if found < self._least:
            raise OptionError(
                f"the loader stands at {found:,} {self.schedule.counts}, and the schedule went on from "
                f"{self._least:,}; load the loader's state too"
            )
        return found - self._begun

    def get_lr(self) -> list[float | torch.Tensor]:
        """Return the learning rate of each parameter group, given what was seen so far.

        Raises:
            OptionError: as for `seen`; or what the loader had left when the schedule began is shorter than the warm-up.
        """
        seen = self.seen
        try:
            ratio = self.schedule.ratio(seen, self.total if seen else self._whole)  # the same at the beginning
        except OptionError as error:  # no state was loaded, and too little is left
            raise OptionError(
                f"{error} (the loader had given {self._begun:,} {self.schedule.counts} before this schedule was made: "
                "load the schedule's state too, or give steps)"
            ) from error
        return [base * ratio for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule's state, as plain values. Save the loader's state too, which has the counts.

        Raises:
            OptionError: as for `seen`.
        """
        return {
            "asked": dict(self._asked),
            "total": self.total,
            "begun": self._begun,
            "seen": self.seen,
            "last_epoch": self.last_epoch,
            "base_lrs": list(self.base_lrs),
            "last_lr": list(self._last_lr),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Load the optimiser's state before this one, since it holds learning rates as well. Load the loader's state too.
        If this object was made with the same `schedule`, `epochs` and `steps` as the saved one, it takes over the saved
        length and learning rates. Otherwise, its own arguments give the length, and the rates follow this length. The
        peak rates are the saved ones in both cases.

        Raises:
            FormatError: `state_dict` is not the state of a `CountedLR`.
            OptionError: the saved schedule counted something else, or the new length is below 1 or shorter than the
                warm-up.
        """
        wanted = ("asked", "total", "begun", "seen", "last_epoch", "base_lrs", "last_lr")
        missing = [name for name in wanted if name not in state_dict]
        if missing:
            raise FormatError(
                f"this is no state of a schedule that counts: it has no {missing[0]!r}; the checkpoint is of a run "
                "with another kind of schedule"
            )
        asked = state_dict["asked"]
        if not isinstance(asked, Mapping) or "counts" not in asked:
            raise FormatError(
                f"this is no state of a schedule that counts: its 'asked' is {asked!r}; take another checkpoint"
            )
        if asked["counts"] != self.schedule.counts:
            raise OptionError(
                f"the schedule counts {self.schedule.counts}, and the one that is to go on counted {asked['counts']}; "
                "give the same"
            )
        self._begun, self.last_epoch = int(state_dict["begun"]), int(state_dict["last_epoch"])
        self._least = self._begun + int(state_dict["seen"])
        same = asked == self._asked
        self.before = int(state_dict["total"])
        self.total = self.before if same else self._whole - self._begun * self._from_first
        self.schedule.checked(self.total)
        self.base_lrs, self._last_lr = list(state_dict["base_lrs"]), list(state_dict["last_lr"])
        if not same:
            ratio = self.schedule.ratio(int(state_dict["seen"]), self.total)
            self._last_lr = [base * ratio for base in self.base_lrs]
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


def whole(
    schedule: Schedule, loader: PackedLoader | None, *, epochs: float | None = None, steps: int | None = None
) -> int:
    """Return the length of training in the unit that a schedule counts: sequences, tokens or steps.

    The length is ``schedule.total`` if that is given, else that of `steps` optimiser steps, else that of `epochs`
    epochs. Numbers of sequences or tokens in steps, and lengths of epochs, are estimated from the loader's `summary` of
    the current epoch, as if all epochs were equally long; the result is rounded up. If the number of ranks changed in
    this epoch, the summary describes only the part after the change.

    Raises:
        OptionError: the length is not known: `total`, `steps` and `epochs` are all None; or the summary is needed, and
            `loader` is None or a stream.
    """
    if schedule.total is not None:
        return schedule.total
    if steps is not None and schedule.counts == "steps":
        return steps
    summary = None if loader is None else loader.summary()
    if not isinstance(summary, Summary) or (steps is None and epochs is None):
        raise OptionError(
            f"how many {schedule.counts} all of training has is not known"
            + (" of a stream" if loader is not None and loader.is_stream else "")
            + "; give schedule.total"
        )
    parts = steps / summary.steps if steps is not None else float(epochs or 0)
    return math.ceil(parts * int(getattr(summary, schedule.counts)))
