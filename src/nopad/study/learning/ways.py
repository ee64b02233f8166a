"""Feed a model with packs as in nopad, with one sequence per row, or wrongly, as in the papers' ablations.

The way "packed" goes through `nopad.packed`. All others go through the bare model, with an attention mask that is
computed here. Positions that are not reset are computed here too. So a wrong way has no faults but those under study.

Source: arXiv 2107.02027, section 3.2 (positions, masks, loss per sequence), section 4.2.1 (ablations), and section 5,
which asks whether the two segments of a sequence should be kept apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import nopad
from nopad.batch import PackedBatch
from nopad.model.safety import is_packed

__all__ = ["WAYS", "Way", "feeding", "seen_by"]

Way = Literal["packed", "one per row", "no mask", "no reset", "neither", "segments"]
WAYS: tuple[Way, ...] = ("packed", "one per row", "no mask", "no reset", "neither", "segments")

Feed = Callable[[PackedBatch], dict[str, Tensor]]


def feeding(model: Any, way: Way) -> Feed:
    """Prepare the model in place for one of `WAYS`, and return a function that runs it on a batch of rows.

    `nopad.study.learning.runs.Recipe` describes the ways. The function returns two outputs: ``prediction_logits``
    ``[R, L, V]`` for R rows of L tokens and a vocabulary of V, and ``seq_relationship_logits`` ``[S, 2]`` for S
    sequences, in the batch's order.
    """
    if way == "packed":
        return _packed(model if is_packed(model) else nopad.packed(model, backend="mask"))
    if is_packed(model):
        nopad.unpacked(model)

    def run(batch: PackedBatch) -> dict[str, Tensor]:
        return _bare(model, batch, way)

    return run


def _packed(model: Any) -> Feed:
    def run(batch: PackedBatch) -> dict[str, Tensor]:
        names = ("input_ids", "attention_mask", "position_ids", "token_type_ids")
        outputs = model(**{name: batch[name] for name in names})
        return {name: outputs[name] for name in ("prediction_logits", "seq_relationship_logits")}

    return run


def _bare(model: Any, batch: PackedBatch, way: Way) -> dict[str, Tensor]:
    positions: Tensor = batch["position_ids"]
    if way in ("no reset", "neither"):
        positions = torch.arange(positions.shape[1]).expand(positions.shape)
    kinds: Tensor = batch["token_type_ids"]
    seen = seen_by(torch.from_numpy(batch.layout.sequence_ids), kinds, way)
    mask = torch.zeros(seen.shape, dtype=model.dtype).masked_fill(~seen, torch.finfo(model.dtype).min)[:, None]
    states = model.bert(batch["input_ids"], mask, kinds, positions).last_hidden_state
    # [CLS] of every sequence; the pooler reads the first token of each row, so each gets a row of its own
    first = torch.from_numpy(np.ascontiguousarray(batch.layout.position_ids == 0) & (batch.layout.sequence_ids > 0))
    tokens, follows = model.cls(states, model.bert.pooler(states[first][:, None]))
    return {"prediction_logits": tokens, "seq_relationship_logits": follows}


def seen_by(sequence_ids: Tensor, segments: Tensor, way: Way) -> Tensor:
    """Return which tokens each token attends to, bool ``[R, L, L]``: ``[row, query, key]``.

    Padding attends to padding, since a query with no keys would give NaN.

    Args:
        sequence_ids: number of each token's sequence, from 1, and 0 in padding; ``[R, L]``.
        segments: 0 for a sequence's first side, 1 for its second; ``[R, L]``.
        way: with "no mask" and "neither", a token attends to all real tokens of its row. With "segments", the first
            token of a sequence attends to the whole sequence, since it predicts whether one side follows the other.
            Every other token attends to its own side, without that first token. With all other ways, a token attends to
            its own sequence.
    """
    real = sequence_ids > 0
    seen = sequence_ids[:, :, None] == sequence_ids[:, None, :]
    if way in ("no mask", "neither"):
        return seen | (real[:, :, None] & real[:, None, :])
    if way == "segments":
        begins = torch.zeros_like(real)
        begins[:, 0] = real[:, 0]
        begins[:, 1:] = real[:, 1:] & (sequence_ids[:, 1:] != sequence_ids[:, :-1])
        sides = torch.where(begins, 2, segments)  # first tokens: a third side, which other tokens do not see
        seen = seen & ((sides[:, :, None] == sides[:, None, :]) | begins[:, :, None])
    return seen
