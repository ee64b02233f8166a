"""`Example`: one sequence of a step, read from a dataset's dict, and turned into a model's arguments."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nopad.auditing.steps.quiet import inner
from nopad.batch.images import COLUMNS, VIDEOS, one_row
from nopad.errors import FOREIGN, BatchError, LengthError
from nopad.sequences import IGNORED

__all__ = ["Example", "examples_of", "loss_of", "merged", "predicts_next", "shifts_labels"]

LABELS = ("label", "label_ids")
LAYOUT = ("attention_mask", "position_ids", "seq_lengths")


@dataclass(frozen=True, eq=False)
class Example:
    """One sequence of a step.

    Attributes:
        columns: the sequence's columns in the dataset by name, as tensors without a batch dimension and without
            padding. ``input_ids`` and other columns per token are ``[length]``; columns per sequence have any shape.
            Images and videos (``pixel_values``, ``image_grid_thw``, ...) keep the first dimension that their processor
            gives them.
        per_token: names of the columns per token.
    """

    columns: Mapping[str, Tensor]
    per_token: frozenset[str]

    @property
    def ids(self) -> Tensor:
        """Token ids ``[length]``."""
        return self.columns["input_ids"]

    @property
    def labels(self) -> Tensor | None:
        """Labels per token ``[length]``, or per sequence in any other shape; None: there are none."""
        return self.columns.get("labels")

    def with_columns(self, columns: Mapping[str, Tensor], per_token: Iterable[str] = ()) -> Example:
        """Return this example with some columns replaced or added.

        `per_token` names the new columns that have a value per token. Columns that were per token stay per token.
        """
        return Example({**self.columns, **columns}, self.per_token | frozenset(per_token))

    def cut(self, begin: int, length: int) -> Example:
        """Return an example with only the `length` tokens from token `begin` on; fewer if the sequence ends before."""
        end = begin + length
        cut = {name: value[begin:end] if name in self.per_token else value for name, value in self.columns.items()}
        return replace(self, columns=cut)

    def items(self, causal: bool) -> int:
        """Return the number of labelled items: the labels that are not -100.

        With `causal`, the label of the first token does not count. A sequence without labels counts as 1 item, and so
        does one whose labels are floats.
        """
        labels = self.labels
        if labels is None:
            return 1
        if labels.is_floating_point():
            return 1
        if "labels" in self.per_token and causal:
            labels = labels[1:]
        return int((labels != IGNORED).sum())

    def inputs(self, model: Any) -> dict[str, Tensor | bool]:
        """Return the arguments for running this sequence alone: the columns that the model's forward method takes.

        A column that is not of images gets a batch dimension: ``[1, length]`` per token, else ``[1, ...]``. Columns of
        images keep their shape, except that the pixel values of one image, ``[C, height, width]``, become
        ``[1, C, height, width]``.

        The tensors are on the device of the model's first parameter. Floats have its dtype, except the seconds of
        videos, from which positions are computed. ``use_cache`` is added as False if the forward method and the
        configuration know it.
        """
        forward = inspect.signature(type(_named(model)).forward).parameters
        takes = set(forward)
        parameter = next(model.parameters())
        found: dict[str, Tensor | bool] = {}
        for name, value in self.columns.items():
            if name in takes:
                fits = value.is_floating_point() and name != VIDEOS.seconds  # positions are computed from these
                value = value.to(parameter.dtype) if fits else value
                own = name in COLUMNS and value.dim() != 3  # one image [C, height, width] gets it too
                found[name] = (value if own else value[None]).to(parameter.device)
        if "use_cache" in takes and getattr(getattr(_named(model), "config", None), "use_cache", None) is not None:
            found["use_cache"] = False
        return found


def examples_of(features: Sequence[Mapping[str, Any]]) -> list[Example]:
    """Return the sequences in a dataset's dicts: one per dict, or several if the dict has ``seq_lengths``.

    A column is per token if it has one value per token in every dict that has the column. Padding is left out, by the
    attention mask. Columns that are not numbers are left out, too, and so are ``attention_mask``, ``position_ids`` and
    ``seq_lengths``.

    Raises:
        BatchError: an entry is not a dict, has no ``input_ids``, or its ``input_ids`` are not a list of integers.
        LengthError: a sequence is empty, or ``seq_lengths`` do not add up to the number of tokens.
    """
    rows = [_tensors(number, feature) for number, feature in enumerate(features)]
    names = {name for row in rows for name in row}
    per_token = frozenset(
        name
        for name in names
        if all(name not in row or (row[name].dim() == 1 and len(row[name]) == len(row["input_ids"])) for row in rows)
    ) - {"seq_lengths"}
    found = []
    for number, row in enumerate(rows):
        mask = row.get("attention_mask")
        if mask is not None and "attention_mask" in per_token:
            row = {name: value[mask != 0] if name in per_token else value for name, value in row.items()}
        lengths = row["seq_lengths"].tolist() if "seq_lengths" in row else [len(row["input_ids"])]
        _check_lengths(number, lengths, len(row["input_ids"]))
        begin = 0
        for length in lengths:
            cut = {n: v[begin : begin + length] if n in per_token else v for n, v in row.items() if n not in LAYOUT}
            found.append(Example(cut, per_token - set(LAYOUT)))
            begin += length
    return found


def _check_lengths(number: int, lengths: list[int], tokens: int) -> None:
    """Check the `lengths` of the sequences in dict `number` of a dataset; `tokens` is its number of real tokens.

    Raises:
        LengthError: a sequence is empty, or the lengths do not add up to the number of tokens.
    """
    if min(lengths, default=0) < 1:
        raise LengthError(f"sequence {number} has no tokens; each needs at least 1: leave empty ones out")
    if sum(lengths) != tokens:
        raise LengthError(
            f"seq_lengths of sequence {number} add up to {sum(lengths):,}, and it has {tokens:,} tokens (padding not "
            "counted); every token belongs to one sequence"
        )


def merged(model: Any, examples: Sequence[Example], ends: frozenset[int] = frozenset()) -> list[str]:
    """Return a list with one note if an example seems to hold several texts, joined in one sequence; else ``[]``.

    This is so if an id that ends a text (the configuration's ``eos_token_id``, or one of `ends`) has other tokens
    before and after it. Texts in one example see each other, and an audit that takes each example as one sequence
    cannot show it.
    """
    told = getattr(getattr(_named(model), "config", None), "eos_token_id", None)
    found = ends.union(told if isinstance(told, list) else [] if told is None else [told])
    inside = 0
    for example in examples:
        other = [at for at, token in enumerate(example.ids.tolist()) if token not in found]
        inside += bool(other) and len(other) < other[-1] - other[0] + 1
    if not inside:
        return []
    return [
        f"{inside} of {len(examples)} sequences hold an end of text before their own end: where these are several "
        'texts laid one after another (TRL\'s packing_strategy "wrapped", group_texts of run_clm.py), they see each '
        "other, which no audit of such rows can show"
    ]


def shifts_labels(model: Any) -> bool:
    """Return whether the model's own loss predicts next tokens, by the rule of transformers' Trainer."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    named = _named(model)
    if getattr(getattr(named, "config", None), "is_encoder_decoder", False):
        return False
    loss = LOSS_MAPPING.get(getattr(named, "loss_type", None) or "")
    return loss is ForCausalLMLoss or type(named).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def predicts_next(model: Any, examples: Sequence[Example]) -> bool:
    """Return whether a label is predicted by the token before it, in the loss of the model's ``forward``.

    If `shifts_labels` is True, or the class is one of transformers, the answer is that of `shifts_labels`. Otherwise, a
    copy of the model computes the loss of an example, once with and once without the first label. The answer is True if
    the loss is the same, since a model that shifts labels does not use the first one. If no example has enough labels
    for this, or if the copy fails or gives no loss, the answer is False.
    """
    known = shifts_labels(model)
    if known or type(_named(model)).__module__.startswith("transformers."):
        return known
    for example in examples:
        labels = example.labels
        if labels is None or "labels" not in example.per_token or labels.is_floating_point():
            continue
        if len(labels) < 3 or int(labels[0]) == IGNORED or int((labels[1:] != IGNORED).sum()) == 0:
            continue
        others = torch.cat([torch.full_like(labels[:1], IGNORED), labels[1:]])
        try:
            alone = copy.deepcopy(inner(model)).eval()
            with torch.no_grad():
                losses = [
                    loss_of(alone(**one.inputs(alone))) for one in (example, example.with_columns({"labels": others}))
                ]
        except FOREIGN:  # of the user's model
            return known
        return losses[0] is not None and bool(torch.equal(losses[0], losses[1]))
    return known


def loss_of(output: Any) -> Any:
    """Return the loss in a model's output, a dict or an object with a `loss`; None: there is none."""
    return output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)


def _named(model: Any) -> Any:
    """Return the module whose `forward` names the model's arguments: the one inside all wrappers.

    The wrappers are those of DataParallel, DDP, torch.compile and PEFT.
    """
    model = inner(model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _tensors(number: int, feature: Any) -> dict[str, Tensor]:
    """Return the columns of one dict that are numbers, as tensors; a column of labels is renamed to "labels".

    A column ``[1, length]``, as transformers' processors give it, becomes ``[length]``. `number` is the number of the
    dict, for messages.

    Raises:
        BatchError: `feature` is not a dict with ``input_ids``, or these are not a list of integers.
        LengthError: ``input_ids`` are empty.
    """
    if not isinstance(feature, Mapping) or feature.get("input_ids") is None:
        said = f"a dict with {', '.join(map(str, feature))}" if isinstance(feature, Mapping) else type(feature).__name__
        raise BatchError(f"sequence {number} is {said}; expected a dict with input_ids, as a dataset holds it")
    found = {}
    for name, value in one_row(feature).items():
        try:
            made = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            continue
        if value is not None:
            made = made.clone() if made.is_floating_point() else made.long()
            found["labels" if name in LABELS else str(name)] = made
    ids = found.get("input_ids")
    if ids is not None and not ids.numel():
        raise LengthError(f"sequence {number} has no tokens; each needs at least 1: leave empty ones out")
    if ids is None or ids.dim() != 1 or ids.is_floating_point():
        raise BatchError(f"input_ids of sequence {number} are no list of integers; give one sequence per dict")
    return found
