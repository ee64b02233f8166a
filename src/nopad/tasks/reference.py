"""Log-probabilities of pairs' answers under the reference model, computed once before DPO, on packs.

TRL keeps the reference in memory and runs it in every step, or computes the same log-probabilities beforehand from
padded batches (``precompute_ref_log_probs``). Here each sequence has its log-probability as the per-sequence value
``reference_logp`` (float64). So every batch that has the sequence also has this value, on any rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nopad.assignment import pack
from nopad.batch import PackedBatch, Rows
from nopad.errors import BatchError, OptionError
from nopad.loading import causal
from nopad.losses import label_logprobs
from nopad.model.modes import evaluated
from nopad.options import Option
from nopad.tasks.examples import Examples, check_examples
from nopad.tasks.meters import over_all_ranks
from nopad.tasks.pairing import REFERENCE
from nopad.tasks.scores import check_causal

__all__ = ["reference_logprobs"]

_ROWS = Option(default=1, help="packs at once")


def reference_logprobs(model: Any, examples: Examples, capacity: int | None = None, *, rows: int = 1) -> Examples:
    """Return the examples with ``reference_logp``: the model's log-probability of the labelled tokens of each sequence.

    With a process group, every rank must call this; each rank runs its share of the sequences, and every rank gets all
    results. The model runs without dropout and without gradients. If only adapters are trained, the reference is the
    model without them: call this function in ``with model.disable_adapter():``. Use the same precision (autocast) as in
    training, so that model and reference are equal at the first step.

    Args:
        model: a pack-safe causal language model, as it is before training.
        examples: examples of `nopad.tasks.DPO`, or other examples with ``labels``.
        capacity: most tokens per pack; None: the length of the longest sequence.
        rows: number of packs run at a time.

    Raises:
        OptionError: the model is not pack-safe, or is not a causal language model; `examples` are no `Examples`, or
            have no ``labels``; or `capacity` or `rows` is not an integer of at least 1.
        LengthError: a sequence is longer than the capacity.
        BatchError: the model's log-probability of a sequence is NaN or infinite.

    >>> import nopad
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)))
    >>> pairs = nopad.tasks.DPO(tokenizer).encode([{"prompt": "is it red ?", "chosen": " no", "rejected": " yes"}])
    >>> examples = nopad.tasks.reference_logprobs(model, pairs, capacity=32)
    >>> examples.sequences.values["reference_logp"].shape
    (2,)
    """
    check_causal(model)
    check_examples(examples)
    sequences = examples.sequences
    if "labels" not in sequences.tokens:
        raise OptionError("the examples have no labels, so what the answers are is not known; encode them with DPO")
    rows = int(_ROWS.check("rows", rows))
    lengths = sequences.seq_lengths
    capacity = int(lengths.max(initial=1)) if capacity is None else capacity
    packs = pack(lengths, capacity)
    steps = [packs[first : first + rows] for first in range(0, len(packs), rows)]
    rank, ranks = _place()
    device = next(model.parameters()).device
    found = np.full(len(sequences), np.nan)
    with evaluated(model), torch.no_grad():
        # All ranks run the same number of steps, since sharded models communicate in every step.
        for step in range(rank, -(-len(steps) // ranks) * ranks, ranks):
            part = steps[step % len(steps)]
            numbers = np.concatenate(list(part)).astype(np.int64)
            per_row = np.array([len(one) for one in part], np.int64)
            batch = causal(replace(sequences, values={}).take(numbers), Rows(capacity), per_row)
            found[numbers] = _scored(model, batch.to(device))
    found = _first_of(over_all_ranks(found))
    if not np.isfinite(found).all():
        at = int(np.argmin(np.isfinite(found)))
        raise BatchError(
            f"the model gives {found[at]} for sequence {at} (record {examples.record[at]}); a reference gives finite "
            "log-probabilities: check its weights, or run it in float32"
        )
    values = {**sequences.values, REFERENCE: found}
    return replace(examples, sequences=replace(sequences, values=values))


def _first_of(each: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return, for each sequence, the value of the first rank that has one; NaN: no rank has one.

    ``each[r]`` has the values of rank r, NaN for sequences that this rank has not run. Two ranks may have run the same
    sequence, with last digits that differ between kinds of hardware. All ranks must take the same value, since they
    compare fingerprints of their data.
    """
    found = each[0]
    for other in each[1:]:
        found = np.where(np.isnan(found), other, found)
    return found


def _scored(model: Any, batch: PackedBatch) -> Any:
    """Return the log-probability of the labelled tokens of each sequence; float64 ``[S]``, on the host."""
    outputs = model(**{name: batch[name] for name in batch if name != "labels"})
    return label_logprobs(outputs["logits"], batch["labels"], batch)[0].double().cpu().numpy()


def _place() -> tuple[int, int]:
    """Return this process's rank, and the number of ranks; (0, 1) without a process group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
