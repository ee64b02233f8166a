"""Check the types, shapes and values of a packed call's arguments against the batch's layout and the model.

A bad argument is refused before the model runs. Whether ids and labels are in range is checked only for tensors on a
CPU: on an accelerator the check would wait for the device, whose own kernels report ids out of range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nopad.batch.guard import PackedMask, is_of_batch, layout_of
from nopad.batch.layout import Layout
from nopad.errors import BatchError
from nopad.losses.checks import check_classes, check_places
from nopad.model.embedded import input_embeddings

__all__ = ["check_inputs", "check_labels", "check_range", "classes_of"]

PER_TOKEN = ("token_type_ids", "position_ids")
# Arguments that the head checks, or that need not have one value per slot.
OTHERS = (
    "labels",
    "next_sentence_label",
    "sentence_order_label",
    "start_positions",
    "end_positions",
    "logits_to_keep",
)


def check_inputs(model: Any, takes: Sequence[str], stock: bool, named: Mapping[str, Any], layout: Layout) -> None:
    """Check the model's inputs: ids or embeddings, token types, positions, `encoder_outputs` and the decoder's inputs.

    Args:
        model: the transformers model, without wrappers.
        takes: names of the model's arguments. Tensors in `named` with one of these names must be on the model's device,
            and have one value per slot (`_check_known` lists the exceptions).
        stock: whether the model is one of transformers' own classes.
        named: the arguments of the call by name.
        layout: the batch's layout.

    Raises:
        BatchError: one of these:

            * ids, token types or positions are not integer tensors, or embeddings are not a tensor
            * an argument has a wrong shape, or is on another device than the model
            * ids or token types on a CPU are outside the model's range
            * positions differ from those of the layout
            * the encoder or the decoder gets neither ids nor embeddings, or gets both
            * embeddings are given, and the model does not take them
    """
    _check_devices(model, takes, named)
    _check_side(model, takes, named, "", layout)
    for name in PER_TOKEN:
        value = named.get(name)
        if value is not None:
            _check_per_token(name, value, layout)
    types = named.get("token_type_ids")
    kinds = getattr(model.config, "type_vocab_size", None)
    if types is not None and kinds:
        check_range("token_type_ids", types, kinds, "token types", layout)
    if named.get("position_ids") is not None:
        _check_positions(named["position_ids"], layout)
    guard = named.get("decoder_attention_mask")
    target = layout_of(guard) if isinstance(guard, PackedMask) else None
    if target is not None:
        _check_side(model, takes, named, "decoder_", target)
    _check_states(named.get("encoder_outputs"), layout)
    for name in takes:
        if isinstance(named.get(name), Tensor):
            _check_known(model, stock, name, named[name], target if name.startswith("decoder_") else layout, layout)


def _check_devices(model: Any, takes: Sequence[str], named: Mapping[str, Any]) -> None:
    device = next(model.parameters()).device
    for name in takes:
        value = named.get(name)
        if isinstance(value, Tensor) and value.dim() and value.device != device:
            raise BatchError(f"{name} are on {value.device} and the model on {device}; use batch.to({str(device)!r})")


def _check_known(model: Any, stock: bool, name: str, value: Tensor, at: Layout | None, source: Layout) -> None:
    """Check that an argument has one value per slot; a value per row would hold for several sequences.

    `name` is the argument's name, and `value` its value. The shape of `value` must begin with the shape of the layout
    `at`; if `at` is None, nothing is checked. Scalars, labels and `logits_to_keep` are not checked here.

    `stock` says whether the model's class is transformers' own. If it is not, two other shapes are allowed: a single
    number, and one entry per sequence of the batch, whose layout is `source`. One entry per sequence is refused if the
    batch has as many rows as sequences.

    Raises:
        BatchError: the argument has another shape.
    """
    if not value.dim() or name in OTHERS or at is None or tuple(value.shape[:2]) == at.shape:
        return
    if not stock and (value.numel() == 1 or value.shape[0] == source.sequences != source.shape[0]):
        return  # one value for all, or one per sequence; such a class's results are checked instead (`check_output`)
    raise BatchError(
        f"{name} are {_told(value)}, which {type(model).__name__} would read once per row, and a row holds several "
        f"sequences; give one value for each slot, {[*at.shape, '...']}, or leave it out"
    )


def _check_positions(value: Tensor, layout: Layout) -> None:
    if value.device.type != "cpu" and is_of_batch(value):
        return  # the batch's own tensor, unchanged
    wrong = (value != torch.from_numpy(layout.position_ids).to(value.device)).nonzero()
    if not len(wrong):
        return
    row, slot = wrong[0].tolist()
    raise BatchError(
        f"position_ids hold {int(value[row, slot])} at slot {slot} of row {row}, and by its layout the batch has "
        f"{layout.position_ids[row, slot]} there; leave them out, or run these sequences without packs to give "
        "positions of your own"
    )


def _check_states(given: Any, layout: Layout) -> None:
    """Check that an encoder's states are ``[R, L, H]``, where R and L are those of the batch.

    `given` is the argument `encoder_outputs`: a tuple that begins with the states, or an object that holds them as
    `last_hidden_state`. Anything else is not checked.

    Raises:
        BatchError: the states have another shape.
    """
    found = given[0] if isinstance(given, tuple) and given else getattr(given, "last_hidden_state", None)
    if isinstance(found, Tensor) and tuple(found.shape[:2]) != layout.shape:
        raise BatchError(f"encoder_outputs are {_told(found)}; expected {[*layout.shape, 'H']}, one per slot")


def _check_side(model: Any, takes: Sequence[str], named: Mapping[str, Any], side: str, layout: Layout) -> None:
    ids, embeds = named.get(f"{side}input_ids"), named.get(f"{side}inputs_embeds")
    if embeds is not None and f"{side}inputs_embeds" not in takes:
        raise BatchError(f"{type(model).__name__} takes no {side}inputs_embeds; give {side}input_ids")
    if ids is None and embeds is None:
        made = ", and the model would shift labels along rows to make them" if side else ""
        raise BatchError(f"no {side}input_ids were given{made}; the batch is laid out in {list(layout.shape)}")
    if ids is not None and embeds is not None:
        raise BatchError(f"{side}input_ids and {side}inputs_embeds were both given; give one of the two")
    table = input_embeddings(model)
    if embeds is not None:
        width = getattr(table, "embedding_dim", None)
        fits = isinstance(embeds, Tensor) and embeds.dim() == 3 and width in (None, embeds.shape[2])
        if not fits or tuple(embeds.shape[:2]) != layout.shape:
            wanted = [*layout.shape, width or "H"]
            raise BatchError(f"{side}inputs_embeds are {_told(embeds)}; expected a tensor {wanted}")
        return
    _check_per_token(f"{side}input_ids", ids, layout)
    rows = getattr(table, "num_embeddings", None)
    if rows is not None and isinstance(ids, Tensor):
        check_range(f"{side}input_ids", ids, rows, "tokens", layout)


def _check_per_token(name: str, value: Any, layout: Layout) -> None:
    if not isinstance(value, Tensor) or value.dtype not in (torch.int64, torch.int32):
        raise BatchError(f"{name} are {_told(value)}; expected a tensor of integers {list(layout.shape)}")
    if tuple(value.shape) != layout.shape:
        raise BatchError(f"{name} have the shape {tuple(value.shape)}; the batch is laid out in {layout.shape}")


def check_range(name: str, value: Tensor, most: int, what: str, layout: Layout) -> None:
    """Check that values ``[R, L]`` are from 0 to `most` - 1; values on another device than a CPU are not checked.

    The message of the error has `name`, the name of the argument, and `what`, a word for the numbers, such as "tokens".

    Raises:
        BatchError: a value is out of range. The message gives the first such value, and where it is: its place in its
            sequence, or in padding.
    """
    if value.device.type != "cpu":
        return
    low, high = (int(side) for side in value.aminmax())
    if low >= 0 and high < most:
        return
    row, slot = ((value < 0) | (value >= most)).nonzero()[0].tolist()
    number = int(layout.sequence_ids[row, slot]) - 1
    where = f"place {layout.position_ids[row, slot]} of sequence {number}" if number >= 0 else "padding (pad_id)"
    raise BatchError(f"{name} hold {int(value[row, slot])} at {where}, and the model has {most} {what}, from 0")


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of the shape {list(value.shape)}"
    return f"of type {type(value).__name__}"


def check_labels(model: Any, by_token: bool, named: dict[str, Any]) -> None:
    """Check that the labels in `named` are classes that the model has, and convert integer labels to int64 in `named`.

    `by_token` says whether there is one label per token. If there is one per sequence, labels for regression are not
    checked. Of `start_positions` and `end_positions`, only the dtype is checked.

    Raises:
        BatchError: labels are not a tensor; labels that must be classes or positions are not integers; labels on a CPU
            have a number that is not a class; or labels per sequence have a wrong dtype or number of dimensions.
    """
    for name in ("labels", "next_sentence_label", "sentence_order_label", "start_positions", "end_positions"):
        value = named.get(name)
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise BatchError(f"{name} are {_told(value)}; expected a tensor")
        if not value.is_floating_point() and value.dtype != torch.bool:
            value = named[name] = value.long()  # losses, and a model's choice of a loss, accept no other integers
        if name in ("start_positions", "end_positions"):
            check_places(**{name: value})
        elif name in ("next_sentence_label", "sentence_order_label"):
            check_classes(value, 2, name)
        elif by_token:
            check_classes(value, classes_of(model))
        else:
            _check_sequence_labels(model.config, value)


def classes_of(model: Any) -> int:
    """Return the number of classes of a head that gives one result per token.

    This is the size of the vocabulary if the model has output embeddings (a language model), else `config.num_labels`.
    """
    out = getattr(model.get_output_embeddings(), "weight", None)
    return int(model.config.num_labels if out is None else out.shape[0])


def _check_sequence_labels(config: Any, labels: Tensor) -> None:
    """Check the labels of a head with one result per sequence.

    Labels are numbers (regression), one class of each sequence, or several classes of each. `config.problem_type` says
    which of these. If that is None, the number of classes and the dtype of the labels decide. Labels for regression are
    not checked.

    Raises:
        BatchError: labels for classes have a wrong dtype or number of dimensions; or, with one class per sequence, a
            label on a CPU is not one of the classes.
    """
    classes, problem = config.num_labels, config.problem_type
    if problem == "regression" or (problem is None and classes == 1):
        return
    several = problem == "multi_label_classification" or (problem is None and labels.is_floating_point())
    if not several and labels.dim() == 1:
        check_classes(labels, classes)
    elif not several or not labels.is_floating_point() or labels.dim() != 2:
        raise BatchError(
            f"labels are {_told(labels)}, and there are {classes} classes; give integers [S] for one class of each "
            f"sequence, or floats [S, {classes}] (sequence_columns of from_sequences) for several"
        )
