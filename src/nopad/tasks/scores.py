"""Log-probabilities of texts, as a causal language model finds them: of the sequences of a batch, and as a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.errors import OptionError
from nopad.loading import causal
from nopad.loading.supply import Collate
from nopad.losses.checks import check_batch
from nopad.model.heads import Causal
from nopad.model.safety import bare, state_of
from nopad.tasks.examples import Examples, field_of, numbered
from nopad.tasks.objectives import OfTokens
from nopad.tasks.task import Task
from nopad.tasks.texts import encoded

__all__ = ["Scoring", "sequence_logprobs"]


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
    total = _logprobs(model(**inputs).logits, batch)
    if mean:
        total = total / torch.from_numpy(batch.layout.seq_lengths - 1).to(total).clamp(min=1)
    return total


def _logprobs(logits: Tensor, batch: PackedBatch) -> Tensor:
    """Return the log-probability of each sequence, ``[S]``, of logits ``[R, L, V]``."""
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
    return total


class Scoring(Task):
    """The log-probability of texts, by a causal language model; trained as such a model, each token from those before.

    A prediction has ``logprob``, the sum over all tokens but the first, which nothing predicts, and ``tokens``, how
    many these are.

    Args:
        tokenizer: the model's tokenizer; what it puts before a text (such as ``<s>``) is the first token.
        text: column of the text.
        options: `max_length` and `over_long`; see `Task`.

    Raises:
        OptionError: an option has an invalid value.

    >>> import nopad
    >>> task = nopad.tasks.Scoring(tokenizer)
    >>> task.encode([{"text": "is it ?"}], labels=False).sequences.seq_lengths.tolist()
    [5]
    """

    name = "score"
    auto = "AutoModelForCausalLM"

    def __init__(self, tokenizer: Any, *, text: str = "text", **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.text = text
        self.objective = OfTokens(causal=True)

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn records into sequences; labels are the tokens themselves, which `collate` adds; see `Task.encode`."""
        texts = [field_of(record, self.text, number) for number, record in numbered(records)]
        return encoded(self, texts, types=False)

    @property
    def collate(self) -> Collate:
        """What makes a batch whose labels are its tokens."""
        return causal

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return the log-probability of each sequence, and the number of tokens that are predicted."""
        found = _logprobs(outputs["logits"], batch).double().tolist()
        lengths = (batch.seq_lengths - 1).tolist()
        return [{"logprob": one, "tokens": n} for one, n in zip(found, lengths, strict=True)]
