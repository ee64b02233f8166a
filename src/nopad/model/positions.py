"""Convert a batch's positions, which begin at 0 in each sequence, to the positions that a model uses.

Most models also count from 0. Models like RoBERTa begin at ``padding_idx + 1``. They do not count tokens with the id
``padding_idx``, even inside a sequence: such a token gets the position ``padding_idx``. This ``padding_idx`` belongs to
the embedding module, and need not be the configuration's `pad_token_id` (MPNet's is always 1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nopad.model.families import Family

__all__ = ["padding_index", "positions"]


def padding_index(model: Any, family: Family) -> int | None:
    """Return the `padding_idx` after which this model's positions begin.

    Return None if positions begin at 0, or the model has no table of position embeddings.
    """
    if not family.after_padding:
        return None
    embeddings = getattr(model, model.base_model_prefix, model).embeddings
    has_table = isinstance(getattr(embeddings, "position_embeddings", None), nn.Module)  # ESM's may be rotary
    return int(embeddings.padding_idx) if has_table else None


def positions(
    model: Any, family: Family, given: Tensor, ids: Tensor | None, sequence_ids: Tensor, first: Tensor
) -> Tensor:
    """Return the `position_ids` that the model gets.

    Args:
        model: the transformers model, without wrappers.
        family: the facts about its model type.
        given: positions from 0 in each sequence; int64 ``[R, L]``.
        ids: token ids, ``[R, L]``; None: embeddings are given instead, so there are no pad ids.
        sequence_ids: number of each slot's sequence, from 1, and 0 in padding; ``[R, L]``.
        first: index of each sequence's first token in the concatenated rows; int64 ``[S]``.

    Returns:
        int64 ``[R, L]``; 0 in padding.
    """
    padding = padding_index(model, family)
    if padding is None:
        return given
    counted = given + 1
    real = sequence_ids != 0
    if ids is not None:
        # Count pad ids along all rows, then subtract those of earlier sequences to count them per sequence.
        pads = ((ids == padding) & real).reshape(-1)
        seen = pads.cumsum(0)
        before = (seen - pads.long())[first]  # in earlier sequences
        inside = seen - torch.cat([before.new_zeros(1), before])[sequence_ids.reshape(-1).long()]
        counted = (counted - inside.reshape(given.shape)) * ~pads.reshape(given.shape)
    return (counted + padding) * real
