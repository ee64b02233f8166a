"""`Schedule`: a learning rate as a function of the number of sequences, tokens or optimiser steps seen.

With p sequences per pack, a step has p times as many sequences as without packs. So a warm-up in steps then takes p
times as many sequences. A schedule that counts sequences or tokens means the same with and without packs.
This module computes the rate, in plain Python; `nopad.training.CountedLR` applies it to a torch optimiser.

Source: the warm-up from an initial rate and the polynomial decay to an end ratio are those of MLPerf's BERT; Table 4 of
"Breaking MLPerf Training" has tuned values of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from nopad.errors import OptionError
from nopad.options import check_choice, check_number, shown

__all__ = ["Counts", "Schedule"]

Counts = Literal["sequences", "tokens", "steps"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A learning rate that depends on how many sequences, tokens or steps were seen.

    It is a multiple of the optimiser's rate. The multiple rises linearly from `initial` to 1 during the warm-up. Then
    it falls from 1 to `end`, as ``end + (1 - end) * (1 - progress) ** power``, and stays at `end`. Here `progress` is 0
    at the end of the warm-up and 1 at the end of the schedule.

    Attributes:
        counts: the unit that is counted, over all ranks: "sequences", "tokens" or "steps" (of the optimiser).
        warmup: length of the warm-up, a whole number of units of `counts`; a value below 1 is a share of the whole
            schedule.
        total: length of the whole schedule, warm-up included, in units of `counts`; None: the length of training.
        initial: multiple at the beginning of the warm-up, from 0 to 1. In MLPerf, a warm-up of w steps may begin s
            steps before the first one ("LR init" -s); here, this is ``warmup=w - s, initial=s / w``.
        end: multiple at the end of the schedule, from 0 to 1.
        power: exponent of the decay; 1: linear; 0: the rate stays, and drops to `end` at the end.

    Raises:
        OptionError: a value is invalid, `total` is below 1, or the warm-up is longer than `total`.

    >>> schedule = Schedule(counts="tokens", warmup=1000, total=5000, initial=0.1, end=0.2)
    >>> [round(schedule.ratio(seen), 3) for seen in (0, 500, 1000, 3000, 5000, 6000)]
    [0.1, 0.55, 1.0, 0.6, 0.2, 0.2]
    """

    counts: Counts = "sequences"
    warmup: float = 0
    total: int | None = None
    initial: float = 0.0
    end: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        check_choice("schedule.counts", self.counts, Counts)
        for name, low, high in (("warmup", 0, None), ("initial", 0, 1), ("end", 0, 1), ("power", 0, None)):
            check_number(f"schedule.{name}", getattr(self, name), low=low, high=high)
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise OptionError(
                f"schedule.warmup is {shown(self.warmup)}; it is a whole number of {self.counts}, or a share of the "
                "whole from 0 to below 1"
            )
        if self.total is not None:
            if isinstance(self.total, bool) or not isinstance(self.total, int):
                raise OptionError(
                    f"schedule.total is {shown(self.total)}; it is a whole number of {self.counts}, or None"
                )
            self.checked(self.total)

    def checked(self, total: int) -> int:
        """Return the length of the warm-up, in units of `counts`, if the whole schedule has length `total`.

        A warm-up that is given as a share is rounded up.

        Raises:
            OptionError: `total` is below 1, or less than the warm-up.
        """
        if total < 1:
            raise OptionError(f"the schedule has {total} {self.counts}, and needs at least 1")
        warmup = int(self.warmup) if self.warmup >= 1 else math.ceil(self.warmup * total)
        if warmup > total:
            raise OptionError(
                f"schedule.warmup is {warmup:,} {self.counts}, and all of training has {total:,}; give fewer, or a "
                "share of the whole, such as 0.1"
            )
        return warmup

    def ratio(self, seen: int, total: int | None = None) -> float:
        """Return the learning rate after `seen` sequences, tokens or steps, as a multiple of the optimiser's rate.

        Args:
            seen: number of sequences, tokens or steps before the step that takes this rate.
            total: length of the whole schedule; used only if the schedule's own `total` is None.

        Raises:
            OptionError: neither this call nor the schedule gives a `total`, or it is below 1 or less than the warm-up.
        """
        whole = self.total if self.total is not None else total
        if whole is None:
            raise OptionError("schedule.total is None: how long is the whole? Give it")
        warmup = self.checked(whole)
        if seen < warmup:
            return self.initial + (1 - self.initial) * seen / warmup
        if seen >= whole:
            return self.end
        left = 1 - (seen - warmup) / (whole - warmup)
        return self.end + (1 - self.end) * float(left**self.power)

    def described(self, total: int) -> str:
        """Return one line of text that describes the schedule, if its whole length is `total`.

        Raises:
            OptionError: `total` is below 1, or less than the warm-up.
        """
        warmup = self.checked(total)
        falls = "falls" if self.power == 1 else f"falls with power {self.power:g}"
        rises = f"rises from {self.initial:g} of the rate to 1 over {warmup:,}, then " if warmup else ""
        return f"counts {self.counts}: {rises}{falls} to {self.end:g} at {total:,}"
