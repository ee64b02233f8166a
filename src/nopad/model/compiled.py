"""What a compiled model is fed: the same shapes for every batch, so that one graph serves a whole dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nopad.errors import BatchError, UnsupportedModelError
from nopad.model.safety import state_of

if TYPE_CHECKING:
    from nopad.batch import PackedBatch

__all__ = ["static_inputs"]


def static_inputs(model: Any, batch: PackedBatch) -> dict[str, Any]:
    """Return a batch for a compiled pack-safe model: tensors of fixed shapes, and nothing else that differs by batch.

    The mask is the sequence numbers, ``[R, 1, 1, L]``; the compiled attention makes a block mask of it. One graph
    serves all batches of the same rows. Only for rows, and for models that give a result per token: what is pooled per
    sequence is not compiled (of a base model, ``pooler_output`` is left out).

    Raises:
        BatchError: the batch is flat, or its rows are filled end to end.
        OptionError: the model is not pack-safe.
        UnsupportedModelError: it gives results per sequence, or its attention is its own.

    >>> import nopad, torch
    >>> from transformers import BertConfig, BertModel
    >>> from nopad.model import static_inputs
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(BertModel(BertConfig(**sizes)).eval())
    >>> batch = nopad.PackedBatch.from_sequences([[5, 6], [7]], form="rows", capacity=4)
    >>> found = model(**static_inputs(model, batch)).last_hidden_state  # or torch.compile(model)
    >>> torch.allclose(found[:, :3], model(**batch).last_hidden_state[:, :3], atol=1e-6)
    True
    """
    state = state_of(model)
    if batch.layout.form == "flat" or batch.layout.crossing:
        raise BatchError("a compiled model takes rows, each sequence in one of them; build the batch with form='rows'")
    if not state.head.static or state.family.encoder_decoder or state.family.mask_at == "encoder":
        raise UnsupportedModelError(
            f"{type(state.model).__name__} is not compiled on packs: it gives results per sequence, or its attention "
            "is its own; compile its layers one by one instead, each with layer.compile()"
        )
    ids = torch.from_numpy(batch.sequence_ids).to(batch["input_ids"].device)
    named: dict[str, Any] = {name: batch[name] for name in batch if name in state.takes}
    named["attention_mask"] = ids[:, None, None, :].contiguous()
    if "position_ids" in named:
        named["position_ids"] = named["position_ids"] + state.family.offset(state.model.config) * (ids != 0)
    if "labels" in named:
        named["labels"] = state.head.static_labels(named["labels"], batch["position_ids"])
    if "use_cache" in state.takes:
        named["use_cache"] = False
    return named
