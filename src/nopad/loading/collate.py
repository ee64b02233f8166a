"""Functions that make batches from sequences; pass one to `PackedLoader` as `collate`, instead of the default."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nopad.batch import PackedBatch
from nopad.batch.form import Form
from nopad.errors import BatchError
from nopad.sequences import LABELS, Sequences

__all__ = ["causal", "plain"]


def plain(sequences: Sequences, form: Form, per_row: NDArray[np.int64]) -> PackedBatch:
    """Return a batch of `sequences` in which labels are neither added nor changed; `PackedLoader` uses it by default.

    A column ``label`` or ``label_ids`` is renamed to ``labels``.

    Args:
        sequences: the sequences of the batch, in columns; they are not changed.
        form: how the batch lies in memory: `nopad.Flat()` or `nopad.Rows(capacity)`.
        per_row: how many of the sequences lie in each row; int64 ``[rows]``.

    Raises:
        BatchError: there is no sequence, or there is another reason, as in `PackedBatch.from_columns`.
        LengthError: the sequences of a row take more slots than the capacity of `form`.
        OptionError: `form` has fewer rows than `per_row`, or has `depth`, `packs` or `end_to_end`, which would move
            sequences to other rows; or `per_row` does not add up to the number of sequences.
    """
    return PackedBatch.from_columns(sequences, form, per_row=per_row)


def causal(sequences: Sequences, form: Form, per_row: NDArray[np.int64]) -> PackedBatch:
    """Return a batch for a causal language model; pass this function to a `PackedLoader` as `collate`.

    If there is no column of labels (``labels``, ``label`` or ``label_ids``), the labels are a copy of ``input_ids``.
    The first label of each sequence becomes -100: no token predicts it, and training loops must not count it.

    Args:
        sequences: the sequences of the batch, in columns; they are not changed.
        form: how the batch lies in memory: `nopad.Flat()` or `nopad.Rows(capacity)`.
        per_row: how many of the sequences lie in each row; int64 ``[rows]``.

    Raises:
        BatchError: a column of labels has one value per sequence instead of one per token; there is no sequence; or
            there is another reason, as in `PackedBatch.from_columns`.
        LengthError: the sequences of a row take more slots than the capacity of `form`.
        OptionError: `form` has fewer rows than `per_row`, or has `depth`, `packs` or `end_to_end`, which would move
            sequences to other rows; or `per_row` does not add up to the number of sequences.

    >>> import nopad
    >>> loader = nopad.PackedLoader([[7, 8, 9], [5, 6]], 5, rows=1, collate=nopad.loading.causal)
    >>> [batch["labels"].tolist() for batch in loader]
    [[[-100, 8, 9, -100, 6]]]
    """
    if found := [name for name in LABELS if name in sequences.values]:
        raise BatchError(f"{found[0]} has one value per sequence; a causal language model has a label per token")
    if not any(name in sequences.tokens for name in LABELS):
        labels = sequences.tokens["input_ids"].astype(np.int64)
        sequences = replace(sequences, tokens={**sequences.tokens, "labels": labels})
    return PackedBatch.from_columns(sequences, form, per_row=per_row, causal=True)
