"""From which token a decoder's sequence classification reads: a sequence's last one that is not the pad id.

That is the rule of transformers for rows, and so for a sequence by itself. It tells where `pad_token_id` is a token of
texts too, such as the eos. A sequence of nothing else is read at its first token. Without ids (`inputs_embeds`), or
without a `pad_token_id`, it is the last token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nopad.batch.device import Placement

__all__ = ["last_tokens", "static_last_tokens"]


def last_tokens(config: Any, ids: Tensor | None, placed: Placement) -> Tensor:
    """Return the place of each sequence's token in the rows end to end; int64 ``[S]``.

    Args:
        config: of the model.
        ids: token ids ``[R, L]``, or None.
        placed: the batch's layout.
    """
    padding = config.get_text_config().pad_token_id
    if ids is None or padding is None:
        return placed.last
    counts = placed.stream(placed.ids).long() - 1  # number of each token's sequence, from 0
    places = torch.arange(counts.numel(), device=counts.device)
    starts = placed.cu_seqlens[:-1].long()
    real = torch.where(placed.stream(ids) != padding, places, 0)
    found = starts.scatter_reduce(0, counts, real, "amax")
    return found if placed.index is None else placed.index[found]


def static_last_tokens(config: Any, ids: Tensor | None, sequence_ids: Tensor, most: int) -> Tensor:
    """The same of sequence numbers ``[R, 1, 1, L]``, in shapes that depend on no batch: int64 ``[most]``."""
    padding = config.get_text_config().pad_token_id
    numbers = torch.arange(1, most + 1, device=sequence_ids.device, dtype=sequence_ids.dtype)
    mine = sequence_ids.reshape(1, -1) == numbers[:, None]
    places = torch.arange(mine.shape[1], device=mine.device)
    first = mine.int().argmax(1)
    real = mine if ids is None or padding is None else mine & (ids.reshape(1, -1) != padding)
    return torch.maximum(torch.where(real, places, 0).amax(1), first)
