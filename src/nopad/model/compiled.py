"""Give compiled models inputs of the same shapes for every batch, so that one graph serves a whole dataset.

`static_inputs` makes the inputs of a batch. `CompiledRows` wraps a compiled model: it takes packed batches, and returns
what the model would return without compilation.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from nopad.batch import PackedBatch
from nopad.errors import BatchError, OptionError, UnsupportedModelError
from nopad.losses.checks import check_batch
from nopad.model.admission import check_layout, device_of
from nopad.model.arguments import check_inputs
from nopad.model.fronts import refuse_static_front
from nopad.model.mixers import refuse_compiled
from nopad.model.positions import positions
from nopad.model.postconditions import declared
from nopad.model.safety import bare, state_of
from nopad.threads import check_free, new_lock

__all__ = ["CompiledRows", "check_static_model", "is_compiled", "static_inputs"]

TYPES = "token_type_ids"
_step = new_lock()


def static_inputs(model: Any, batch: PackedBatch) -> dict[str, Any]:
    """Return the inputs, by name, with which a compiled pack-safe model runs on `batch`.

    Their shapes depend only on the shape of the rows. So one compiled graph serves all batches with the same number and
    width of rows. If the model takes `use_cache`, the inputs have it as False.

    The mask holds the number of each slot's sequence, int32 ``[R, 1, 1, L]``, from which the compiled attention makes a
    block mask. Pass these inputs to a pack-safe model only: unlike a batch's own `attention_mask`, this mask raises no
    error in another model.

    A model with one result per sequence needs a limit, ``nopad.packed(model, max_sequences=K)``. Its results have the
    shape ``[K, ...]``. For a batch of S sequences, the first S are real (``logits[:batch.layout.sequences]``). Labels
    per sequence are left out: compute the loss from the results with `nopad.losses`. A base model needs no limit, but
    without one its ``pooler_output`` is None. The ``pooler_output`` of CLIP's text model is always None.

    Raises:
        BatchError: one of these:

            * the batch is not a `PackedBatch`, has targets or is flat
            * a sequence may go on in the next row (rows filled end to end)
            * the batch has no token or too many sequences, or a sequence is too long for the model
            * rows are too wide for the model, or its rotary frequencies would depend on the longest sequence
            * a column of the batch does not fit the model (`nopad.model.arguments`)
        OptionError: the model is not pack-safe, or it gives results per sequence and has no `max_sequences`.
        UnsupportedModelError: the model is one of these:

            * a class of your own, or an encoder–decoder
            * a model that takes images, or counts positions along the row
            * a model with mixing modules (state-space models, linear attention, own attention as in BLOOM or GPT-J)
            * a model that gets its mask inside the base model (DeBERTa, MPNet, ESM)
            * a model whose head averages states under the mask (ModernBERT, if so configured)
            * a model to which, after `nopad.packed`, a module was added that nopad refuses
            * a model to whose input PEFT adds tokens (prompt or prefix tuning)

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
    check_static_model(model)
    check_layout(state.model, state.family, state.most, batch.layout)
    check_inputs(state.model, state.takes, True, dict(batch), batch.layout)
    ids = torch.from_numpy(batch.sequence_ids).to(batch["position_ids"].device)
    left_out = {*state.head.per_sequence, *(() if state.head.by_token else ("labels",))}
    named: dict[str, Any] = {name: batch[name] for name in batch if name in state.takes and name not in left_out}
    named["attention_mask"] = ids[:, None, None, :].contiguous()
    if "position_ids" in named:
        first = torch.from_numpy(batch.layout.starts).to(ids.device)
        counted = positions(state.model, state.family, named["position_ids"], named.get("input_ids"), ids, first)
        named["position_ids"] = counted
    state.check_proven_arguments(named)  # a compiled call does not see whose loss the model computes
    if "labels" in named:
        named["labels"] = state.head.static_labels(named["labels"], batch["position_ids"])
    if "use_cache" in state.takes:
        named["use_cache"] = False
    return named


def check_static_model(model: Any) -> None:
    """Check that a pack-safe model can be called with static shapes (`static_inputs`).

    Raises:
        OptionError: the model is not pack-safe, or it gives results per sequence and has no `max_sequences`.
        UnsupportedModelError: the model is one of these:

            * a class of your own, or an encoder–decoder
            * a model that takes images, or counts positions along the row
            * a model with mixing modules (state-space models, linear attention, own attention as in BLOOM or GPT-J)
            * a model that gets its mask inside the base model (DeBERTa, MPNet, ESM)
            * a model whose head averages states under the mask
            * a model to whose input PEFT adds tokens (prompt or prefix tuning)
    """
    state = state_of(model)
    name = type(state.model).__name__
    if not state.head.stock:
        raise UnsupportedModelError(
            f"{name} is a class of your own, and what it hands on cannot be checked in a compiled graph; compile its "
            "layers one by one instead, each with layer.compile()"
        )
    refuse_static_front(state.model, state.family)
    refuse_compiled(state.model, state.family)
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
    if state.most is None and not state.head.by_token:
        raise OptionError(
            f"{name} gives a result per sequence, and static shapes need a limit: "
            "nopad.packed(model, max_sequences=...)"
        )


def is_compiled(model: Any) -> bool:
    """Return whether a model is compiled as a whole, by ``torch.compile(model)`` or ``model.compile()``.

    Raises:
        OptionError: there is no transformers model inside.
        UnsupportedModelError: PEFT adds tokens to the model's input (prompt or prefix tuning).
    """
    inner = bare(model)
    whole = [one for one in model.modules() if inner in one.modules()]  # the model, and the wrappers around it
    return any("_orig_mod" in one._modules or one._compiled_call_impl is not None for one in whole)


class CompiledRows(nn.Module):
    """Wraps a compiled model: takes packed batches of one shape, and returns what the model returns uncompiled.

    Batches with the same columns give the model inputs of the same names, shapes and dtypes, so one graph is enough. If
    the model has token types and a batch has none, they are 0. The graph gives results for `max_sequences` sequences;
    only those of the batch's own sequences are returned.

    The outputs belong to the compiled model. If it runs as a CUDA graph (mode "reduce-overhead"), each call writes them
    to the same memory, so copy what you need before the next call.

    Args:
        model: a pack-safe model, compiled as a whole.

    Raises:
        OptionError: the model is not pack-safe, or it gives results per sequence and has no `max_sequences`; or
            `config.return_dict` is off.
        UnsupportedModelError: the model cannot be compiled on packs (`static_inputs` lists the reasons).
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        check_static_model(model)
        self._orig_mod = model  # by this name `nopad.model.safety.bare` finds the model, as inside torch's own wrapper
        inner = bare(model)
        if not inner.config.return_dict:
            raise OptionError(f"{type(inner).__name__} returns no named outputs; set config.return_dict = True")
        self._types = TYPES in state_of(model).takes and bool(getattr(inner.config, "type_vocab_size", 0))
        self._replays = device_of(inner).type == "cuda"

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return bare(self._orig_mod).config

    def forward(self, **batch: Any) -> Any:
        """Run the model on a `PackedBatch` of rows, ``model(**batch)``; return its output.

        Raises:
            BatchError: the batch is flat, has targets or does not fit the model, or a sequence may go on in the next
                row.
            UnsupportedModelError: the model was changed after it was made pack-safe.
            ServingError: a signal handler or finaliser calls this while it interrupts such a call in the same thread.
        """
        packed = PackedBatch(batch)
        # Copies, since a graph is for tensors made in inference mode, or for others: a batch has some of both.
        inputs = {n: one.clone() if isinstance(one, Tensor) else one for n, one in self._inputs(packed).items()}
        # A call may be two CUDA graphs, the second of which reads what the first one wrote (heads that read single
        # tokens). PyTorch frees what a step wrote when the next one begins, and counts the steps of all threads
        # together, so no other thread may begin one between the two.
        if self._replays:
            check_free(_step, "runs a compiled model")
        with _step if self._replays else nullcontext():
            output = self._orig_mod(**inputs)
        return self._of_sequences(packed, output)

    def _inputs(self, batch: PackedBatch) -> dict[str, Any]:
        found = static_inputs(self._orig_mod, batch)
        return found if not self._types else {TYPES: torch.zeros_like(batch["position_ids"]), **found}

    def _of_sequences(self, batch: PackedBatch, output: Any) -> Any:
        """Return `output` with its results per sequence cut to the sequences of the batch, as views.

        `output` is what the compiled model returned. Its results per sequence have `max_sequences` entries, of which
        the first belong to the batch's sequences. The logits of a question-answering head are also cut to the length of
        the longest sequence. Values that are None are left out.
        """
        head, layout = state_of(self._orig_mod).head, batch.layout
        found = type(output)()
        for name, value in output.items():
            if isinstance(value, Tensor) and value.dim() and declared(head, name) == "sequence":
                value = value[: layout.sequences]
                if head.name == "answers":
                    value = value[:, : layout.max_seqlen]
            if value is not None:
                found[name] = value
        return found
