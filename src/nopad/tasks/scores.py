"""Log-probabilities of the sequences of a batch under a causal language model; `nopad.tasks.CausalLM` scores texts."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nopad.batch import PackedBatch
from nopad.errors import OptionError
from nopad.losses import label_logprobs
from nopad.losses.checks import check_batch
from nopad.model.heads import Causal
from nopad.model.safety import bare, state_of

__all__ = ["check_causal", "sequence_logprobs"]


def sequence_logprobs(model: Any, batch: PackedBatch, *, mean: bool = False) -> Tensor:
    """Return the log-probability of each sequence, in the order of the batch's sequences; float32 or wider, ``[S]``.

    This is the sum of the log-probabilities (natural logarithm) of all tokens of the sequence but the first, which
    nothing predicts; 0 for a sequence of one token. With `mean`, the sum is divided by the number of predicted tokens.

    Raises:
        OptionError: the model is not pack-safe, or is not a causal language model.
        BatchError: the batch is not a `PackedBatch`, is for an encoder-decoder model, or does not fit the model.

    >>> import nopad
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from nopad.tasks import sequence_logprobs
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)).eval())
    >>> sequence_logprobs(model, nopad.PackedBatch.from_sequences([[5, 6, 7], [8]])).shape
    torch.Size([2])
    """
    check_causal(model)
    check_batch(batch)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    total, counts = label_logprobs(model(**inputs).logits, batch["input_ids"], batch)
    return total / counts.to(total).clamp(min=1) if mean else total


def check_causal(model: Any) -> None:
    """Refuse a model that is not a causal language model.

    Raises:
        OptionError: the model has another head, or is not pack-safe.
    """
    if not isinstance(state_of(model).head, Causal):
        raise OptionError(f"{type(bare(model)).__name__} is no causal language model, so it predicts no next token")
