"""Functions that make a batch of a loader's sequences, for use as `collate` in place of `PackedBatch.from_columns`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nopad.batch import PackedBatch
from nopad.batch.form import Form
from nopad.errors import BatchError
from nopad.sequences import Sequences

__all__ = ["causal"]

LABELS = frozenset({"label", "label_ids", "labels"})


def causal(sequences: Sequences, form: Form, per_row: NDArray[np.int64]) -> PackedBatch:
    """Make a batch for a causal language model, as the `collate` of a `PackedLoader`.

    If there is no column ``labels``, the labels are a copy of ``input_ids``. The first label of each sequence becomes
    -100: no token predicts it, and training loops must not count it.

    Raises:
        BatchError: ``labels`` has one value per sequence instead of one per token.

    >>> import nopad
    >>> loader = nopad.PackedLoader([[7, 8, 9], [5, 6]], 5, rows=1, collate=nopad.loading.causal)
    >>> [batch["labels"].tolist() for batch in loader]
    [[[-100, 8, 9, -100, 6]]]
    """
    if found := LABELS.intersection(sequences.values):
        raise BatchError(f"{min(found)} has one value per sequence; a causal language model has a label per token")
    if not LABELS.intersection(sequences.tokens):
        labels = sequences.tokens["input_ids"].astype(np.int64)
        sequences = replace(sequences, tokens={**sequences.tokens, "labels": labels})
    return PackedBatch.from_columns(sequences, form, per_row=per_row, causal=True)
