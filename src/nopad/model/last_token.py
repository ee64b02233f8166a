"""From which token a result per sequence is read, where the token ids tell.

A decoder's sequence classification reads a sequence's last token that is not the pad id.

That is the rule of transformers for rows, and so for a sequence by itself. It tells where `pad_token_id` is a token of
texts too, such as the eos. A sequence of nothing else is read at its first token. Without ids (`inputs_embeds`), or
without a `pad_token_id`, it is the last token. CLIP's text model reads the first end-of-sequence token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nopad.batch.device import Placement
from nopad.errors import BatchError

__all__ = ["eos_tokens", "last_tokens", "static_last_tokens"]


def last_tokens(config: Any, ids: Tensor | None, placed: Placement, pads_inside: bool = True) -> Tensor:
    """Return the place of each sequence's token in the rows end to end; int64 ``[S]``.

    Args:
        config: of the model.
        ids: token ids ``[R, L]``, or None.
        placed: the batch's layout.
        pads_inside: whether pad ids may stand before a sequence's last token that is no pad id.

    Raises:
        BatchError: pad ids stand there and may not.
    """
    padding = config.get_text_config().pad_token_id
    if ids is None or padding is None:
        return placed.last
    places = torch.arange(placed.layout.tokens, device=ids.device) if placed.index is None else placed.index
    real = torch.where(placed.stream(ids) != padding, places, 0)
    found = placed.first.scatter_reduce(0, placed.owner, real, "amax")
    if not pads_inside:
        reals = torch.zeros_like(found).index_add(0, placed.owner, (placed.stream(ids) != padding).long())
        wrong = (reals - 1 != found - placed.first).tolist()
        if any(wrong):
            raise BatchError(
                f"sequence {wrong.index(True)} has the pad id {padding} inside, and versions of "
                "transformers read different tokens of it; take pad ids out"
            )
    return found


def eos_tokens(config: Any, ids: Tensor, placed: Placement) -> Tensor:
    """Return the place of the token that CLIP's text model reads of each sequence; int64 ``[S]``.

    Its first end-of-sequence token, or its first token where there is none; in configurations from before
    transformers 4.31, whose `eos_token_id` is 2, the first of its largest ids.
    """
    padded = placed.to_padded(placed.stream(ids), fill=-1)
    inside = padded.argmax(1) if config.eos_token_id == 2 else (padded == config.eos_token_id).int().argmax(1)
    return placed.first + inside


def static_last_tokens(config: Any, ids: Tensor | None, sequence_ids: Tensor, most: int) -> Tensor:
    """The same of sequence numbers ``[R, 1, 1, L]``, in shapes that depend on no batch: int64 ``[most]``."""
    padding = config.get_text_config().pad_token_id
    numbers = torch.arange(1, most + 1, device=sequence_ids.device, dtype=sequence_ids.dtype)
    mine = sequence_ids.reshape(1, -1) == numbers[:, None]
    places = torch.arange(mine.shape[1], device=mine.device)
    first = mine.int().argmax(1)
    real = mine if ids is None or padding is None else mine & (ids.reshape(1, -1) != padding)
    return torch.maximum(torch.where(real, places, 0).amax(1), first)
