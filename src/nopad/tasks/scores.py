"""Score the sequences of a batch with a causal language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.errors import OptionError
from nopad.losses.checks import check_batch
from nopad.model.heads import Causal
from nopad.model.safety import bare, state_of

__all__ = ["sequence_logprobs"]


def sequence_logprobs(model: Any, batch: PackedBatch, *, mean: bool = False) -> Tensor:
    """Return the log-probability of each sequence, in the order in which they were given; float32 or wider, ``[S]``.

    This is the sum of the log-probabilities of its tokens except the first, which nothing predicts (so 0 for a sequence
    of one token); with `mean`, the sum is divided by the number of predicted tokens.

    Raises:
        OptionError: the model is not pack-safe, or is no causal language model.
        BatchError: the batch is no `PackedBatch`.

    >>> import nopad
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from nopad.tasks import sequence_logprobs
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)).eval())
    >>> sequence_logprobs(model, nopad.PackedBatch.from_sequences([[5, 6, 7], [8]])).shape
    torch.Size([2])
    """
    if not isinstance(state_of(model).head, Causal):
        raise OptionError(f"{type(bare(model)).__name__} is no causal language model, so it predicts no next token")
    check_batch(batch)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs).logits
    flat = logits.reshape(-1, logits.shape[-1])
    flat = flat.float() if flat.dtype.itemsize < 4 else flat
    at = batch.layout
    ids = batch["input_ids"].reshape(-1)
    number = torch.from_numpy(at.sequence_ids).to(ids.device).reshape(-1).long()
    index = torch.from_numpy(at.index).to(ids.device)
    stream, tokens, owner = flat[index], ids[index], number[index] - 1
    inside = owner[1:] == owner[:-1]  # the next token belongs to the same sequence
    each = torch.log_softmax(stream[:-1], dim=-1).gather(-1, tokens[1:, None])[:, 0]
    total: Tensor = flat.new_zeros(at.sequences).index_add(0, owner[1:][inside], each[inside])
    if mean:
        total = total / torch.from_numpy(at.seq_lengths - 1).to(total).clamp(min=1)
    return total
