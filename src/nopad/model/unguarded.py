"""Refuse calls in which sequences would see each other, before the model runs.

These are calls with a packed batch's tensors but without its own `attention_mask`, and calls of models whose head mixes
the tokens of a row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from nopad.batch.guard import is_of_batch
from nopad.errors import BatchError, UnsupportedModelError

__all__ = ["check_rows", "refuse_marked", "refuse_unguarded"]

MIXING = (nn.RNNBase, nn.modules.conv._ConvNd, nn.MultiheadAttention, nn.TransformerEncoderLayer)


def refuse_unguarded(named: Mapping[str, Any]) -> None:
    """Refuse a call that has a packed batch's tensors; call this only if the batch's own `attention_mask` is missing.

    This function does not check that the mask is missing: it refuses a complete batch too. `named` are the arguments by
    name. The tensors are recognised in two ways: by an attribute that `PackedBatch` sets on them; or by positions that
    begin again inside a row, if there is no mask or only an ordinary padding mask.

    Raises:
        BatchError: such a tensor was given.
    """
    refuse_marked(named)
    if _begin_again(named.get("position_ids"), named.get("attention_mask")):
        raise BatchError(
            "position_ids begin again inside a row and attention_mask does not keep apart what they begin: sequences "
            "would see each other. Build the batch with nopad.PackedBatch, and call model(**batch); for rows of a "
            "packed dataset, data_collator=dataset.collator(causal=True) does so, and packing=True, padding_free=True, "
            "max_length= and other collators do not: the length of a pack is the capacity= that it was packed with"
        )


def refuse_marked(named: Mapping[str, Any]) -> None:
    """Refuse a call that is given ids, embeddings or positions of a `PackedBatch`.

    The caller has found that the batch's own `attention_mask` is missing. `named` are the arguments by name. A
    `PackedBatch` sets an attribute on its tensors, by which they are recognised.

    Raises:
        BatchError: such a tensor was given.
    """
    for name in ("input_ids", "inputs_embeds", "position_ids", "decoder_input_ids"):
        if is_of_batch(named.get(name)):
            raise BatchError(
                f"{name} is of a packed batch, and its attention_mask is not there: sequences would see each other. "
                "Call model(**batch), or give attention_mask=batch['attention_mask'] too"
            )


def check_rows(model: nn.Module, base: Any, mixers: Collection[str] = ()) -> None:
    """Check that the head of a model does not mix the tokens of a row, and so of several sequences.

    The head is all of `model` outside of the base model `base`. Modules whose class names are in `mixers` may mix
    tokens, since nopad runs them sequence by sequence (`nopad.model.mixers`).

    Raises:
        UnsupportedModelError: the head has one of PyTorch's recurrent, convolution or attention layers.
    """
    for child in model.children() if base is not model else ():
        alone = {part for one in child.modules() if type(one).__name__ in mixers for part in one.modules()}
        for name, module in child.named_modules() if child is not base else ():
            if isinstance(module, MIXING) and module not in alone:
                raise UnsupportedModelError(
                    f"the head of {type(model).__name__} has a {type(module).__name__}{f' ({name})' if name else ''}, "
                    "which goes along a row, across the borders of sequences; run the base model, and the head on each "
                    "sequence's states (batch.unpack_tokens)"
                )


def _begin_again(positions: Any, mask: Any) -> bool:
    """Return whether positions ever fail to rise between two neighbouring real tokens of a row.

    `mask` says which slots hold real tokens: a padding mask ``[R, L]`` (0: padding), or None if all slots do. The
    result is False if `positions` is not a tensor ``[R, L]`` with at least two slots per row, or if `mask` is something
    else.
    """
    if not isinstance(positions, Tensor) or positions.dim() != 2 or positions.shape[1] < 2:
        return False
    again = positions[:, 1:] <= positions[:, :-1]
    if mask is None:
        return bool(again.any())
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[1] != positions.shape[1]:
        return False  # a mask for pairs of tokens, or one that includes cached tokens
    return bool((again & (mask[:, 1:] != 0) & (mask[:, :-1] != 0)).any())
