"""Make inputs for compiled models, with the same shapes for every batch, so that one graph serves a whole dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nopad.errors import BatchError, OptionError, UnsupportedModelError
from nopad.losses.checks import check_batch
from nopad.model.admission import check_layout
from nopad.model.arguments import check_inputs
from nopad.model.fronts import refuse_static_front
from nopad.model.positions import positions
from nopad.model.safety import state_of

if TYPE_CHECKING:
    from nopad.batch import PackedBatch

__all__ = ["static_inputs"]


def static_inputs(model: Any, batch: PackedBatch) -> dict[str, Any]:
    """Return the inputs of a compiled pack-safe model by name: tensors whose shapes depend only on the rows' shape.

    One graph serves all batches with the same number and width of rows. If the model takes `use_cache`, it is False.

    The mask holds the number of each slot's sequence, int32 ``[R, 1, 1, L]``, from which the compiled attention makes a
    block mask. Pass these inputs to a pack-safe model only: unlike a batch's own `attention_mask`, this mask raises no
    error in another model.

    Results per sequence need a limit, ``nopad.packed(model, max_sequences=K)``, and have the shape ``[K, ...]``: with S
    sequences, the first S are real (``logits[:batch.layout.sequences]``). Labels per sequence are left out: compute the
    loss from the results with `nopad.losses`. Without a limit, a base model's ``pooler_output`` is left out.

    Raises:
        BatchError: the batch is flat, a sequence may go on in the next row (rows filled end to end), there are too many
            or too long sequences, or the items do not fit the model.
        OptionError: the model is not pack-safe, or it gives results per sequence and has no `max_sequences`.
        UnsupportedModelError: the model is a class of your own, is an encoder–decoder, has a front end for images,
            gets its mask inside the base model (DeBERTa, MPNet, ESM), or its head averages states under the mask
            (ModernBERT, if so configured).

    >>> import nopad, torch
    >>> from transformers import BertConfig, BertModel
    >>> from nopad.model import static_inputs
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(BertModel(BertConfig(**sizes)).eval())
    >>> batch = nopad.PackedBatch.from_sequences([[5, 6], [7]], form=nopad.Rows(4))
    >>> found = model(**static_inputs(model, batch)).last_hidden_state  # or torch.compile(model)
    >>> torch.allclose(found[:, :3], model(**batch).last_hidden_state[:, :3], atol=1e-6)
    True
    """
    state = state_of(model)
    check_batch(batch)
    if batch.layout.form == "flat" or batch.layout.crossing:
        raise BatchError(
            "a compiled model takes rows, each sequence in one of them; build the batch with nopad.Rows(capacity)"
        )
    state.cell.settle()
    state.renew()
    state.tell_cell()
    name, most = type(state.model).__name__, state.most
    if not state.head.stock:
        raise UnsupportedModelError(
            f"{name} is a class of your own, and what it hands on cannot be checked in a compiled graph; compile its "
            "layers one by one instead, each with layer.compile()"
        )
    refuse_static_front(state.model, state.family)
    if state.family.encoder_decoder or state.family.mask_at == "encoder":
        raise UnsupportedModelError(
            f"{name} is not compiled on packs: its attention is its own, or it has a decoder; compile its layers one "
            "by one instead, each with layer.compile()"
        )
    if not state.head.by_token and state.family.pooled == "config" and state.head.pooling() in ("mean", "late"):
        raise UnsupportedModelError(
            f"{name} takes means by its own mask, which static shapes do not give; set config.classifier_pooling to "
            "'cls' ('bos' in EuroBERT), or compile its layers one by one, each with layer.compile()"
        )
    if most is None and not state.head.by_token:
        raise OptionError(
            f"{name} gives a result per sequence, of which static shapes want a limit: "
            "nopad.packed(model, max_sequences=...)"
        )
    check_layout(state.model, state.family, most, batch.layout)
    check_inputs(state.model, state.takes, True, dict(batch), batch.layout)
    ids = torch.from_numpy(batch.sequence_ids).to(batch["position_ids"].device)
    left_out = {*state.head.per_sequence, *(() if state.head.by_token else ("labels",))}
    named: dict[str, Any] = {name: batch[name] for name in batch if name in state.takes and name not in left_out}
    named["attention_mask"] = ids[:, None, None, :].contiguous()
    if "position_ids" in named:
        first = torch.from_numpy(batch.layout.starts).to(ids.device)
        counted = positions(state.model, state.family, named["position_ids"], named.get("input_ids"), ids, first)
        named["position_ids"] = counted
    if "labels" in named:
        named["labels"] = state.head.static_labels(named["labels"], batch["position_ids"])
    if "use_cache" in state.takes:
        named["use_cache"] = False
    return named
