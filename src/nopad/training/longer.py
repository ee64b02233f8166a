"""Make a run longer when it resumes: check the change of its length, and set the learning rates of the new length.

Data, packs and batches do not depend on the number of steps, so a longer run begins with the steps of the shorter one.
The learning rates of all steps depend on that number if the schedule has an end (linear, cosine). From the checkpoint
on, a longer run has the rates that it would have had if it had always been that long. Only a schedule that depends on
evaluations goes on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState

from nopad.training.checkpoint import trainer_state
from nopad.training.counted import CountedLR

__all__ = ["LENGTHS", "Longer", "compared"]

_lib: Any = transformers
_USUAL = {"max_steps": -1, "num_train_epochs": 3.0}
LENGTHS = tuple(_USUAL)


def compared(began: Mapping[str, Any], mine: Mapping[str, Any]) -> tuple[bool, str]:
    """Compare the table ``[trainer]`` at the beginning of a run (`began`) with that of the resumed run (`mine`).

    Return whether `mine` makes the run longer, and a text that says what is wrong with the change ("": nothing).

    >>> compared({"num_train_epochs": 2.0}, {"num_train_epochs": 4.0}), compared({"max_steps": 9}, {"max_steps": 9})
    ((True, ''), (False, ''))
    >>> compared({"num_train_epochs": 2.0}, {"num_train_epochs": 1.0})[1]
    'trainer.num_train_epochs is 1.0 and was 2.0 (a run may get longer, not shorter)'
    """
    (name, before), (field, now) = _length(began), _length(mine)
    if name != field:
        return False, f"trainer.{field} is {now} and the length was trainer.{name} {before} (change the value of that)"
    if now < before:
        return False, f"trainer.{name} is {now} and was {before} (a run may get longer, not shorter)"
    return now > before, ""


def _length(trainer: Mapping[str, Any]) -> tuple[str, float]:
    given = {**_USUAL, **trainer}
    name = "max_steps" if given["max_steps"] > 0 else "num_train_epochs"
    return name, given[name]


class Longer(TrainerCallback):
    """If a run was made longer, sets its learning rates to those of the new length; reports the old and the new rate.

    A schedule that depends on evaluations is not changed. Nor is a `CountedLR`, which has set its rates already.

    Args:
        checkpoint: folder of the checkpoint from which the run resumes.
        say: called with one line of text for the user.
    """

    def __init__(self, checkpoint: Path, say: Callable[[str], None]) -> None:
        self.before = trainer_state(checkpoint).max_steps
        self.say = say

    def on_train_begin(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **_: Any,
    ) -> None:
        """If the run is longer than its checkpoint planned, set the learning rates of the new length, and report them.

        A run is longer if it has more steps, or if its `CountedLR` has another length. A `CountedLR` has set its rates
        already, so they are only reported. A schedule that depends on evaluations goes on unchanged, and only this is
        reported.
        """
        now, step = state.max_steps, state.global_step
        schedule = getattr(lr_scheduler, "scheduler", lr_scheduler)
        counted = schedule if isinstance(schedule, CountedLR) else None
        if optimizer is None or (now <= self.before and (counted is None or counted.before == counted.total)):
            return
        said = f"longer   {now:,} steps in place of {self.before:,}"
        if counted is not None:
            self.say(f"{said}; {_counted(counted, args.learning_rate, step)}")
            return
        rates = getattr(schedule, "lr_lambdas", None)
        name = f"the learning rate ({getattr(args.lr_scheduler_type, 'value', args.lr_scheduler_type)})"
        if rates is None:  # it depends on evaluations
            self.say(f"{said}; {name} goes on as the schedule stands")
            return
        for group, usual, rate in zip(optimizer.param_groups, schedule.base_lrs, rates, strict=True):
            group["lr"] = usual * rate(step)
        schedule._last_lr = [group["lr"] for group in optimizer.param_groups]  # which is what is logged
        old = _rate(args, self.before)
        was, here = args.learning_rate * old(step), args.learning_rate * rates[0](step)
        if all(old(one) == rates[0](one) for one in range(self.before + 1)):
            self.say(f"{said}; {name} of each step stays as it was, {here:g} in the next one")
            return
        last = f"that of the last step is {args.learning_rate * rates[0](now - 1):g}"
        self.say(f"{said}; {name} {_changed(step, here, was, last)}")


def _counted(counted: CountedLR, usual: float, step: int) -> str:
    """Return a text about the change of the rates of a `CountedLR`, which has its new length already.

    `usual` is the learning rate that the schedule multiplies, and `step` the number of steps taken.
    """
    schedule, seen, total = counted.schedule, counted.seen, counted.total
    name, here = f"the learning rate (counts {schedule.counts})", usual * schedule.ratio(seen, total)
    if counted.before in (None, total):
        ended = f", since the schedule ended at {total:,} {schedule.counts} (schedule.total)" if seen >= total else ""
        return f"{name} stays as it was, {here:g} in the next step{ended}"
    last = f"it falls to {usual * schedule.end:g} at {total:,} {schedule.counts}"
    return f"{name} {_changed(step, here, usual * schedule.ratio(seen, counted.before), last)}"


def _changed(step: int, here: float, was: float, last: str) -> str:
    return (
        f"of step {step + 1:,} is {here:g}, where the shorter run had {was:g}, and {last}: the steps taken so far had "
        "the rates of the shorter run"
    )


def _rate(args: Any, steps: int) -> Callable[[int], float]:
    """Return a function from the number of a step to the learning rate of that step, as a share of the peak rate.

    `steps` is the number of steps of the run.
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=args.learning_rate)
    how = {"num_warmup_steps": args.get_warmup_steps(steps), "num_training_steps": steps}
    schedule = _lib.get_scheduler(
        args.lr_scheduler_type, optimizer, **how, scheduler_specific_kwargs=args.lr_scheduler_kwargs
    )
    found: Callable[[int], float] = schedule.lr_lambdas[0]
    return found
