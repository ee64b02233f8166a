"""Checks that a model fits a task: its head, its outputs, and the labels in its configuration.

A model with another head, number of classes or order of classes would train without an error, but not learn the task.
So an objective's `step` checks the model, and a trainer checks the model's configuration against the task before the
first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nopad.errors import OptionError
from nopad.model.safety import bare, state_of
from nopad.tasks.routing import AUXILIARY

if TYPE_CHECKING:
    from nopad.model.heads import Head
    from nopad.tasks.objective import Objective
    from nopad.tasks.task import Task

__all__ = ["UNNAMED", "check_head", "check_outputs", "check_rows", "fit"]

UNNAMED = "LABEL_"  # how transformers calls classes that nobody named
_HEADS = {
    "tokens": "one result per token (masked language models, token classification), or none",
    "causal": "a causal language model's",
    "classification": "one result per sequence",
    "answers": "question answering's",
}


def check_head(objective: Objective, model: Any) -> None:
    """Refuse a pack-safe model whose head the objective cannot train.

    Models whose head is not known are accepted, and so is every head if `Objective.heads` is empty.

    Raises:
        OptionError: the model has a head that is not in `Objective.heads`.
    """
    head = _head(model)
    if head is not None and objective.heads and (name := head.name) not in objective.heads:
        raise OptionError(
            f"the head of this {type(bare(model)).__name__} is {_HEADS.get(name, name)}, and what is to be learned "
            f"needs {' or '.join(_HEADS[one] for one in objective.heads)}; load the model by task.model(name)"
        )


def _head(model: Any) -> Head | None:
    """Return a pack-safe model's head; None if nopad cannot find the model inside a wrapper that it does not know."""
    try:
        return state_of(model).head
    except OptionError:  # a wrapper that nopad does not know; a batch raises an error if the model is not pack-safe
        return None


def check_outputs(objective: Objective, outputs: Any) -> None:
    """Refuse outputs that do not fit the objective.

    Raises:
        OptionError: `outputs` is not a mapping, lacks an output that the objective reads, or has another number of
            classes than the objective; or gradients are enabled, and the model computed a loss itself, other than the
            loss that balances experts (`nopad.tasks.routing`).
    """
    if not isinstance(outputs, Mapping):
        raise OptionError(
            f"the model gives a {type(outputs).__name__} without names; set model.config.return_dict = True"
        )
    missing = [name for name in objective.reads if name not in outputs]
    if missing:
        raise OptionError(
            f"the model gives {', '.join(outputs)}, and what is to be learned reads {', '.join(missing)}; load the "
            "model with its head: task.model(name)"
        )
    width = outputs[objective.reads[0]].shape[-1] if objective.reads else None
    if objective.classes is not None and width != objective.classes:
        raise OptionError(
            f"the model gives {width} logits each, and there are {objective.classes} classes; load the model by "
            f"task.model(name), or with num_labels={objective.classes}"
        )
    more = [name for name, value in outputs.items() if name.endswith("loss") and isinstance(value, Tensor)]
    if set(more) - {AUXILIARY} and torch.is_grad_enabled():
        raise OptionError(
            f"the model gives a loss of its own, {', '.join(more)}, which is no part of what is learned here; switch "
            "it off, or add it in an Objective of your own"
        )


def check_rows(model: Any, rows: int, tokenizer: Any = None) -> None:
    """Refuse batches of several rows for a pack-safe model that can run on only one row at a time.

    Args:
        model: the model.
        rows: most rows of a batch.
        tokenizer: the tokenizer from which the model will get a pad id before it runs; None: it will not get one.

    Raises:
        OptionError: `rows` is above 1, the model classifies by a row's last token, and neither it nor `tokenizer` has a
            pad id.
    """
    if rows < 2 or getattr(tokenizer, "pad_token_id", None) is not None:
        return
    head = _head(model)
    if head is not None and head.one_row:
        raise OptionError(
            f"this {type(bare(model)).__name__} has no pad id, without which transformers runs it on one row at a "
            f"time, and batches have {rows}: take flat batches, which need none (a loader with tokens=, without "
            "rows= and capacity=); or set model.config.pad_token_id to the id of a token that no text has (at the end "
            "of a text it would not be read)"
        )


def fit(task: Task, model: Any) -> None:
    """Check a model's configuration against a task, and write the task's problem type and class names into it.

    So checkpoints have the problem type and the names. If the task knows only how many classes there are, the names in
    the model's configuration are kept.

    Raises:
        OptionError: the model has another number of labels than the task, another problem type, or the same class names
            in another order, ignoring case (``LABEL_0`` and the like are not compared).
    """
    wanted, config = task.model_options(), bare(model).config
    names = [*wanted.get("id2label", {}).values()]
    number = len(names) or wanted.get("num_labels")
    advice = "load it by task.model(name), which tells it the task's"
    if number is not None and config.num_labels != number:
        raise OptionError(f"the task {task.name} has {number} labels, and the model has {config.num_labels}; {advice}")
    problem = wanted.get("problem_type")
    if problem is not None and config.problem_type not in (None, problem):
        raise OptionError(
            f"the problem_type of the task {task.name} is {problem}, and the model's is {config.problem_type}; {advice}"
        )
    if problem is not None:
        config.problem_type = problem
    if not names or names == [str(one) for one in range(len(names))]:
        return
    theirs = [config.id2label[one] for one in sorted(config.id2label)]
    one, other = ([str(name).casefold() for name in side] for side in (names, theirs))
    if one != other and sorted(one) == sorted(other) and not all(str(name).startswith(UNNAMED) for name in theirs):
        raise OptionError(
            f"the task's labels are {', '.join(names[:20])}, and the model has them as {', '.join(theirs[:20])}; give "
            "them in the model's order"
        )
    config.id2label, config.label2id = dict(wanted["id2label"]), dict(wanted["label2id"])
