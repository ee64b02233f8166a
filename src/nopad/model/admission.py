"""Check that a batch fits a model before the model runs.

A batch that does not fit is refused; the message says what to do.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

from nopad.batch.guard import PackedMask, layout_of
from nopad.batch.images import held
from nopad.batch.layout import Layout
from nopad.errors import BatchError
from nopad.model.arguments import check_inputs
from nopad.model.batchwide import check_arguments, check_embeddings, check_layers, check_rope
from nopad.model.families import Family
from nopad.model.positions import padding_index

__all__ = ["check_call", "check_layout", "device_of", "leave_columns", "positions_of", "refuse_attentions"]

log = logging.getLogger("nopad")

RELATIVE = (
    "t5",
    "mt5",
    "umt5",
    "deberta-v2",
    "deberta",
)  # no absolute positions, unless config.position_biased_input is set


def check_call(
    model: Any,
    family: Family,
    most: int | None,
    takes: Sequence[str],
    stock: bool,
    named: Mapping[str, Any],
    layout: Layout,
) -> None:
    """Check the arguments of a packed call (a call with a `PackedBatch`) against the batch's layout and the model.

    Args:
        model: the transformers model, without wrappers.
        family: the facts about its model type.
        most: largest number of sequences that a batch may have; None: unlimited.
        takes: names of the model's arguments.
        stock: whether the model is one of transformers' own classes.
        named: the arguments of the call, by name.
        layout: the batch's layout.

    Raises:
        BatchError: one of these:

            * an argument has a wrong type, shape, device or value (`check_inputs`)
            * the batch has too many sequences or too long ones (`check_layout`)
            * attention weights are asked for, or a cache of earlier tokens is given
            * `inputs_embeds` have another dtype than the model, or the weights are on the meta device
            * mask tokens are given to a model that rescales embeddings by the share of mask tokens in a row
              (`token_dropout`)
            * the batch has images or videos, and the model takes none
        UnsupportedModelError: a layer quantises the activations of a whole batch together, or gets one value per row
            from PEFT (`check_layers`); or NEFTune adds noise to the embeddings (`check_embeddings`).
    """
    check_layers(model)  # first: it removes hooks that PEFT leaves behind in a call with any error
    refuse_attentions(model, named)
    check_arguments(named)
    check_embeddings(model)
    if device_of(model).type == "meta":
        raise BatchError(
            f"weights of this {type(model).__name__} are on no device (offloaded, or not loaded), so nopad cannot tell "
            "where it runs; load it whole on one device"
        )
    check_inputs(model, takes, stock, named, layout)
    pictured = held(layout)
    if pictured and family.images is None:
        raise BatchError(
            f"the batch has {pictured}, and {type(model).__name__} takes none; give the "
            "features without pixel_values, or make the whole model pack-safe, with its vision tower"
        )
    ids, embeds, dtype = named.get("input_ids"), named.get("inputs_embeds"), next(model.parameters()).dtype
    if embeds is not None and embeds.dtype != dtype:
        raise BatchError(f"inputs_embeds are {embeds.dtype} and the model is {dtype}; convert one of them")
    check_layout(model, family, most, layout)
    target = named.get("decoder_attention_mask")
    if isinstance(target, PackedMask):
        check_layout(model, family, most, layout_of(target), "target")
    rescales = ids is not None and getattr(model.config, "token_dropout", False)
    if rescales and bool((ids == model.config.mask_token_id).any()):
        raise BatchError(
            "this model rescales embeddings by the share of masked tokens in a row (token_dropout), which is not "
            "that of a sequence; set config.token_dropout = False, or run sequences with <mask> alone"
        )


def refuse_attentions(model: Any, named: Mapping[str, Any]) -> None:
    """Refuse a call that asks for attention weights, which nopad's attention never returns.

    Raises:
        BatchError: the argument `output_attentions` is true; or it is not given, and the configuration's value is true.
    """
    asked = named.get("output_attentions")
    if asked or (asked is None and getattr(model.config, "output_attentions", False)):
        raise BatchError(
            "output_attentions was asked for, and attention on packs makes no matrix of weights; run these sequences "
            "without packs: nopad.unpacked(model), then model.set_attn_implementation('eager')"
        )


def leave_columns(model: Any, takes: Sequence[str], named: dict[str, Any]) -> None:
    """Remove from `named` the columns of the batch that the model does not accept, and log a warning that names them.

    `named` holds the arguments of the call by name; it is changed in place. `takes` has the names of the arguments that
    the model accepts. A column is a NumPy array, or a tensor with at least one dimension. Other values, such as the
    denominator of a loss, stay. The same warning is logged only once. If the ``forward`` of a user's own module calls
    the model, there is no warning, since that module may use these columns itself.

    Raises:
        BatchError: the name of a column that the model does not accept resembles an argument that was not given, so it
            is probably misspelt. Or a column that the model accepts is a NumPy array (of strings; columns of numbers
            are tensors). Or `shift_labels` (labels already shifted) are given, and the model has no such argument.
    """
    if named.get("shift_labels") is not None and "shift_labels" not in takes:
        raise BatchError(
            "shift_labels were given, and a pack-safe model shifts labels by itself, within each sequence; give "
            "unshifted labels"
        )
    left = [name for name, value in named.items() if name not in takes and _is_column(value)]
    for name in left:
        meant = next((one for one in get_close_matches(name, takes, 3, 0.8) if one not in named), None)
        if meant is not None:
            raise BatchError(
                f"the batch has a column {name!r}, and {type(model).__name__} takes {meant!r}; name it so, or leave it "
                "out of the call"
            )
        del named[name]
    for name, value in named.items():
        if isinstance(value, np.ndarray):
            raise BatchError(
                f"column {name!r} holds no numbers, and {type(model).__name__} takes a tensor; leave it out"
            )
    if left and not _inside_own_code(model):
        _say_left(type(model).__name__, tuple(left))


def _inside_own_code(model: Any) -> bool:
    """Return whether the model is called from the ``forward`` of a user's own module.

    Such a module has the whole batch, and may itself use the columns that the model does not accept.
    """
    from nopad.admitting.marks import is_library  # which imports this package

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "forward":
            caller = next(iter(frame.f_locals.values()), None)  # self
            if isinstance(caller, nn.Module) and caller is not model and not is_library(type(caller).__module__):
                return True
        frame = frame.f_back
    return False


@lru_cache(maxsize=64)
def _say_left(model: str, left: tuple[str, ...]) -> None:
    log.warning(f"{model} takes no {', '.join(left)}: these columns of the batch are not given to it")


def _is_column(value: Any) -> bool:
    """Return whether a value is a column of a batch: a NumPy array, or a tensor with at least one dimension."""
    return isinstance(value, np.ndarray) or (isinstance(value, torch.Tensor) and value.dim() > 0)


def check_layout(model: Any, family: Family, most: int | None, layout: Layout, what: str = "sequence") -> None:
    """Check that a batch has neither too many sequences nor too long ones for the model.

    `family` holds the facts about the model type. `most` is the largest number of sequences that a batch may have;
    None: unlimited. `what` is the word for a sequence in messages, such as "target".

    Raises:
        BatchError: the batch has no token, or more than `most` sequences; a sequence has more tokens than the model has
            positions; the rows are wider than the model accepts; or the rotary frequencies would depend on the longest
            sequence.
    """
    if not layout.tokens:
        raise BatchError("the batch has no token at all; leave it out")
    if most is not None and layout.sequences > most:
        raise BatchError(
            f"the batch has {layout.sequences} sequences, and this model was made pack-safe for {most}; "
            "plan with a smaller depth, take fewer rows, or raise max_sequences in nopad.packed"
        )
    check_rope(model, layout)
    limit = positions_of(model, family)
    if limit is not None and layout.max_seqlen > limit:
        at = int(layout.seq_lengths.argmax())
        raise BatchError(
            f"{what} {at} has {layout.max_seqlen} tokens, and {type(model).__name__} has {limit} positions; "
            "truncate it or split it"
        )
    if family.narrow and limit is not None and layout.shape[1] > limit:
        raise BatchError(
            f"rows of this batch are {layout.shape[1]} slots wide, and {type(model).__name__} takes none wider than "
            f"its {limit} positions; build the batch with form=nopad.Rows(capacity), and a capacity of at most {limit}"
        )


def positions_of(model: Any, family: Family) -> int | None:
    """Return the number of tokens that a sequence may have before the model runs out of positions; None: no limit.

    In models that count positions as RoBERTa does, no token gets the first position numbers. So the result is smaller
    than the configuration's ``max_position_embeddings``.

    The result is also None for models with three axes of positions (`nopad.model.images`). There, an image takes fewer
    positions than tokens, and `check_images` checks the positions themselves.
    """
    config = model.config
    if family.images is not None:
        if family.images.axes:
            return None
        config = config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    relative = getattr(config, "model_type", "") in RELATIVE and not getattr(config, "position_biased_input", False)
    if limit is None or relative:
        return None
    padding = padding_index(model, family)
    return int(limit) if padding is None else int(limit) - padding - 1


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's first parameter."""
    return next(module.parameters()).device
