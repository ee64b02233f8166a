"""Find the token from which a result per sequence is read, if that depends on the token ids.

A decoder's sequence classification reads the last token that is not the pad id. transformers applies this rule to each
row, and so to a sequence run alone. The rule matters if the pad id also occurs in texts, for example as the
end-of-sequence id. A sequence that consists of pad ids is read at its first token. Without ids (`inputs_embeds`) or
without a `pad_token_id`, the last token is read. CLIP's text model reads the first end-of-sequence token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nopad.batch.device import Placement
from nopad.errors import BatchError
from nopad.model.pooling import mine

__all__ = ["eos_tokens", "last_tokens", "static_last_tokens"]


def last_tokens(config: Any, ids: Tensor | None, placed: Placement, pads_inside: bool = True) -> Tensor:
    """Return the index of the token from which each sequence's result is read; int64 ``[S]``.

    This is the last token that is not the pad id, or the first token if there is none. Without ids or a pad id, it is
    the last token. The index is that in the concatenated rows.

    Args:
        config: the model's configuration.
        ids: token ids ``[R, L]``, or None.
        placed: the batch's layout.
        pads_inside: whether to accept sequences of which different versions of transformers read different tokens. Such
            a sequence has a pad id before another id, or consists of several pad ids.

    Raises:
        BatchError: `pads_inside` is False, and there is such a sequence.
    """
    padding = config.get_text_config().pad_token_id
    if ids is None or padding is None:
        return placed.last
    places = torch.arange(placed.layout.tokens, device=ids.device) if placed.index is None else placed.index
    real = torch.where(placed.stream(ids) != padding, places, 0)
    # The last index that does not hold the pad id; `first`, if a sequence consists of pad ids.
    found = placed.first.scatter_reduce(0, placed.owner, real, "amax")
    if not pads_inside:
        reals = torch.zeros_like(found).index_add(0, placed.owner, (placed.stream(ids) != padding).long())
        # Older versions read token number `reals - 1`, and so the last token (-1) of a sequence of pad ids.
        older = (reals - 1) % (placed.last - placed.first + 1)
        wrong = (older != found - placed.first).tolist()
        if any(wrong):
            raise BatchError(
                f"sequence {wrong.index(True)} has the pad id {padding} inside, or nothing else, and versions of "
                "transformers read different tokens of it; take pad ids out"
            )
    return found


def eos_tokens(config: Any, ids: Tensor, placed: Placement) -> Tensor:
    """Return the index of the token that CLIP's text model reads in each sequence; int64 ``[S]``.

    The index is that in the concatenated rows. CLIP reads the first end-of-sequence token, or the first token if there
    is none. With a configuration from before transformers 4.31, whose `eos_token_id` is 2, it reads the first token
    that has the sequence's largest id.
    """
    padded = placed.to_padded(placed.stream(ids), fill=-1)
    inside = padded.argmax(1) if config.eos_token_id == 2 else (padded == config.eos_token_id).int().argmax(1)
    return placed.first + inside


def static_last_tokens(config: Any, ids: Tensor | None, sequence_ids: Tensor, most: int) -> Tensor:
    """Return the index of the token from which each sequence's result is read; int64 ``[most]``, whatever the batch.

    This is the last token that is not the pad id, or the first token if there is none. Without ids or a pad id, it is
    the last token. The index is that in the concatenated rows.

    Args:
        config: the model's configuration.
        ids: token ids ``[R, L]``, or None.
        sequence_ids: the number of each token's sequence, from 1, and 0 in padding; ``[R, 1, 1, L]``.
        most: largest number of sequences that a batch may have; entries after the batch's last sequence are 0.
    """
    padding = config.get_text_config().pad_token_id
    owned = mine(sequence_ids, most)
    places = torch.arange(owned.shape[1], device=owned.device)
    first = owned.int().argmax(1)
    real = owned if ids is None or padding is None else owned & (ids.reshape(1, -1) != padding)
    return torch.maximum(torch.where(real, places, 0).amax(1), first)
