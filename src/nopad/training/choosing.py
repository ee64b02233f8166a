"""Choose what a configuration leaves out: classes, capacity, rows, and the most tokens of a sequence.

These depend on the data and the model, so `nopad.training.ready.prepare` chooses them when it has read both. Lines of
text say what was chosen and why; they are printed before training begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nopad.corpus.record_stream import RecordStream
from nopad.errors import OptionError
from nopad.tasks import Examples, Task
from nopad.tasks.classes import classes_found
from nopad.tasks.registry import options_of
from nopad.training.tables import TrainConfig
from nopad.training.toml import as_toml

__all__ = ["CAPACITY", "SEQUENCES", "Chosen"]

CAPACITY = 2048  # most tokens of a pack, unless the configuration or a sequence needs more
SEQUENCES = 8  # of a rank and micro-step: the default of transformers (per_device_train_batch_size)
_TOLD = ("learning_rate", "num_train_epochs", "lr_scheduler_type", "seed")  # fields of [trainer] that are always said


class Chosen:
    """A configuration of `nopad train`, in which methods fill in fields that the user left out.

    Attributes:
        config: the configuration, with what has been chosen so far.
        lines: lines of text that say what has been chosen, and why.
        usual_sequences: the number of sequences per rank and micro-step from which the method `rows` computed the
            number of rows; None: it did not compute one.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.lines: list[str] = []
        self.usual_sequences: int | None = None

    def labels(self, kind: type[Task], records: Any, known: Sequence[str]) -> None:
        """Set ``task.labels`` to the classes in the training records, unless it is given or the task has no classes.

        The value is the number of classes if the labels in the records are numbers, and else a list of the class names.
        If the data are stored tokens, nothing is set.

        Args:
            kind: the type of the task, a subclass of `Task`.
            records: the training data.
            known: class names stored with the weights from which training starts; () if there are none. If the names
                in the records are exactly these, ``task.labels`` has them in this order.

        Raises:
            InputError: the records cannot be read, have no labels, or their labels are no classes.
        """
        options = self.config.task.options
        if "labels" in options or "labels" not in options_of(kind) or not isinstance(records, RecordStream):
            return
        found = classes_found(kind, records, options, known)
        self._task(labels=found)
        order = "in the model's order" if found == known else "sorted"
        self._say("task.labels", found, "the classes in data.train" + ("" if isinstance(found, int) else f", {order}"))

    def head(self, task: Task, known: Sequence[str]) -> None:
        """Compare the task's class names with `known`, those stored with the weights from which training starts.

        If there are equally many but different names, each class starts with what another class has learned. This may
        be intended, so only a line is added to `lines`; and none if the configuration gives only the number of classes.
        `known` is () if no names are stored.

        Raises:
            OptionError: the names are the same, but in another order, so they would be mixed up.
        """
        names: Sequence[str] = getattr(task, "names", ())
        if len(names) != len(known) or list(names) == list(known):
            return
        if set(names) == set(known):
            raise OptionError(
                f"task.labels = {as_toml(list(names))}, and the weights with which training begins have these classes "
                f"as {as_toml(list(known))}: what was learned for one class would count for another; give them in the "
                "order of the weights"
            )
        if not isinstance(self.config.task.options.get("labels"), int):
            self.lines.append(f"the weights with which training begins are of other classes: {as_toml(list(known))}")

    def capacity(self, records: Any, positions: int | None) -> None:
        """Set ``packing.capacity`` for records of a task, if nothing in the configuration limits packs.

        The capacity is the smaller of 2,048 and the model's number of positions, or ``task.max_length`` if that is
        larger. `positions` is the model's number of positions; None: unlimited. Nothing is set if ``packing.capacity``,
        ``packing.tokens`` or ``packing.sequences`` is given, or if the data are stored tokens.
        """
        packing, name = self.config.packing, self.config.task.name
        if packing.capacity or packing.tokens or packing.sequences or name is None:
            return
        if not isinstance(records, RecordStream):
            return
        capacity, why = CAPACITY, "packs may be longer than sequences"
        if positions is not None and positions < capacity:
            capacity, why = positions, "the model's positions"
        longest = self.config.task.options.get("max_length")
        if longest is not None and longest > capacity:
            capacity, why = longest, "task.max_length"
        self.config = replace(self.config, packing=replace(packing, capacity=capacity))
        self._say("packing.capacity", capacity, why)

    def length(self, task: Task, positions: int | None) -> bool:
        """If `task` has no `max_length`, set ``task.max_length``; return whether it was set.

        The value is the least of ``packing.capacity``, ``packing.tokens`` and `positions`, the model's number of
        positions (None: unlimited). If all three are None, nothing is set.

        Raises:
            OptionError: the task has a `max_length` that exceeds the model's positions.
        """
        packing = self.config.packing
        most = [one for one in (packing.capacity, packing.tokens, positions) if one is not None]
        if task.max_length is not None:
            if positions is not None and task.max_length > positions:
                raise OptionError(f"task.max_length is {task.max_length}, and the model has {positions} positions")
            return False
        if not most:
            return False
        self._task(max_length=min(most))
        self._say("task.max_length", min(most), "the least of packing.capacity and the model's positions")
        return True

    def rows(self, examples: Examples | None) -> None:
        """Set ``packing.rows`` to the number of rows that hold 8 sequences of average length, rounded up.

        Sequences that stay together, such as the two of a pair, count as one. The number of rows is 1 if
        ``packing.capacity`` is not set, or if `examples` is None (the data are stored tokens). Otherwise, the attribute
        `usual_sequences` is set as well. Nothing is set if ``packing.rows``, ``packing.tokens`` or
        ``packing.sequences`` is given.
        """
        packing = self.config.packing
        if packing.rows or packing.tokens or packing.sequences:
            return
        rows = 1
        if examples is not None and packing.capacity is not None:
            each = examples.tokens / (len(examples) / examples.group)
            rows = max(math.ceil(SEQUENCES * each / packing.capacity), 1)
            what = "sequences" if examples.group == 1 else "records"
            self.usual_sequences = SEQUENCES * examples.group
            enough = f"enough for {SEQUENCES} {what} per rank and micro-step"
            self._say("packing.rows", rows, f"{enough}, which have {each:,.0f} tokens on average")
        else:
            self._say("packing.rows", rows, "per rank and micro-step")
        self.config = replace(self.config, packing=replace(packing, rows=rows))

    def usual(self, task: Task | None, args: Any) -> None:
        """Add a line with some defaults of the task and of `args`: those that decide what is learned, such as the seed.

        `args` are `transformers.TrainingArguments`. The line leaves out values that the user gave, the number of epochs
        if ``max_steps`` is given, and the type of the Trainer's schedule if there is a table ``[schedule]``.
        """
        given: Mapping[str, Any] = self.config.trainer
        found = {}
        if task is not None and "over_long" not in self.config.task.options:
            found["task.over_long"] = task.over_long
        for name in _TOLD:
            elsewhere = (name == "num_train_epochs" and args.max_steps > 0) or (
                name == "lr_scheduler_type" and self.config.schedule is not None
            )
            if name not in given and not elsewhere:
                value = getattr(args, name)
                found[f"trainer.{name}"] = getattr(value, "value", value)
        if found:
            self.lines.append(", ".join(f"{name} = {as_toml(value)}" for name, value in found.items()))

    def _task(self, **options: Any) -> None:
        table = replace(self.config.task, options={**self.config.task.options, **options})
        self.config = replace(self.config, task=table)

    def _say(self, name: str, value: Any, why: str) -> None:
        self.lines.append(f"{name} = {as_toml(value)}: {why}")

    def __str__(self) -> str:
        """Return `lines` as one text, whose first line begins with "chosen"."""
        return "\n".join(f"{'' if number else 'chosen':<9}{line}" for number, line in enumerate(self.lines))
