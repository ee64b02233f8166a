"""`PackCollator`: make batches of rows of a packed dataset, for training loops that sample rows themselves.

transformers' `Trainer`, TRL's `SFTTrainer` and torch's `DataLoader` call it with the rows that they chose. Batches are
made by the same functions as those of a `PackedLoader`: `nopad.loading.causal` for causal language models,
`nopad.tasks.Masking` for masked ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch import Flat, PackedBatch
from nopad.batch.columns import from_rows
from nopad.batch.features import from_features
from nopad.batch.form import Form, check_form
from nopad.errors import BatchError, OptionError, load_torch
from nopad.loading.collate import causal as causal_batch
from nopad.loading.collate import plain
from nopad.loading.supply import Collate, EpochCollate
from nopad.options import Option
from nopad.sequences import Sequences
from nopad.store.row_groups import PackedRow

__all__ = ["PackCollator"]

_EPOCH = Option(default=0, low=0, high=2**63 - 1, help="of the masks")
LENGTHS, POSITIONS = "seq_lengths", "position_ids"


class PackCollator:
    """Makes a `PackedBatch` of rows of a packed dataset; `PackedDataset.collator` returns a `PackCollator`.

    A row is an item of a `PackedDataset`, or of the result of its `to_hf`. If a trainer has removed the column
    ``seq_lengths``, the lengths of the sequences are found from ``position_ids``. A column ``label`` or ``label_ids``
    becomes ``labels``.

    Args:
        form: shape of the batch: `nopad.Flat()`, one row without padding, or `nopad.Rows(capacity)`; None: flat.
        causal: whether to make labels for a causal language model. They are the labels of the rows or, if the rows have
            none, the tokens. The first label of each sequence becomes -100.
        masking: a `nopad.tasks.Masking`, for masked language models; None: nothing is masked.
        per_sequence: names of columns with one value per sequence. They are needed only where every sequence of a batch
            has one token: there, shapes do not tell such columns from columns with one value per token.

    Raises:
        OptionError: `form` is invalid, or both `causal` and `masking` are given.

    >>> import nopad
    >>> from nopad.loading import PackCollator
    >>> packed = nopad.pack_dataset([[7, 8, 9], [5]], 4)
    >>> PackCollator(causal=True)([packed[0]])["labels"].tolist()  # the row holds both sequences
    [[-100, 8, 9, -100]]
    """

    def __init__(
        self,
        *,
        form: Form | None = None,
        causal: bool = False,
        masking: EpochCollate | None = None,
        per_sequence: Sequence[str] = (),
    ) -> None:
        if causal and masking is not None:
            raise OptionError("a causal language model has no masks; give causal=True or mlm_probability=, not both")
        self.form, self.causal, self.masking = check_form(form or Flat()), causal, masking
        self.per_sequence = tuple(per_sequence)
        self.epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """From the next batch on, draw masks that depend only on the seed, `epoch` and each sequence's number.

        A `PackedLoader` with the same `Masking` draws the same masks in that epoch. Before the first call of
        `set_epoch`, masks are drawn anew for each batch, by torch's random generator, as in transformers' collators.

        Raises:
            OptionError: `epoch` is not an integer from 0 to 2^63 - 1.
        """
        self.epoch = _EPOCH.check("epoch", epoch)

    def __call__(self, features: Sequence[Any]) -> PackedBatch:
        """Make a batch of the rows in `features`.

        Raises:
            BatchError: a row has neither ``seq_lengths`` nor ``position_ids``; a row has no ``seq_lengths``, and its
                ``position_ids`` do not begin at 0; there is `masking`, and the rows have labels; there is `masking`,
                and the rows lack ``seq_index``; or there is another reason, as in `PackedBatch.from_features`.
            LengthError: the sequences of a row take more slots than the form's capacity, a sequence has no token, or
                the attention mask of a row is all 0.
            OptionError: the form has `depth`, `packs` or `end_to_end`, which would move sequences to other rows; or it
                has fewer rows than `features`.
            MissingExtraError: there is `masking`, `set_epoch` was not called, and torch is not installed.
        """
        sequences, per_row = self._sequences(features)
        return self._collate()(sequences, self.form, per_row)

    def _collate(self) -> Collate:
        if self.masking is not None:
            if self.epoch is not None:
                return self.masking.at(self.epoch)
            return self.masking.at(int(load_torch("masking at random").randint(2**62, ())))
        return causal_batch if self.causal else plain

    def _sequences(self, features: Sequence[Any]) -> tuple[Sequences, NDArray[np.int64]]:
        """Return the sequences of the rows, and the number of sequences in each row, int64 ``[rows]``.

        The columns that say where each sequence comes from, such as ``seq_index``, are included if the rows have them.

        Raises:
            BatchError: the rows are not rows of a packed dataset, do not say where sequences begin, or have values that
                cannot be used; or there is `masking`, and they have labels or lack ``seq_index``.
            LengthError: a sequence has no token, or the attention mask of a row is all 0.
        """
        if len(features) and all(isinstance(one, PackedRow) for one in features):
            sequences, records, per_row = from_rows(features)
        else:
            rows = [_with_lengths(one, number) for number, one in enumerate(features)]
            sequences, records, _ = from_features(rows, self.per_sequence)
            per_row = np.array([len(row[LENGTHS]) for row in rows], dtype=np.int64)
        tokens, values = dict(sequences.tokens), {**sequences.values, **records}
        if self.masking is not None:
            _check_maskable(tokens, values)
        return replace(sequences, tokens=tokens, values=values), per_row


def _with_lengths(feature: Any, number: int) -> Mapping[str, Any]:
    """Return a row with ``seq_lengths``; where these are missing, they are computed from ``position_ids``.

    `number` is the row's number in messages.

    Raises:
        BatchError: the row is not a dict of columns, has neither ``seq_lengths`` nor ``position_ids``, or its
            ``position_ids`` do not begin at 0.
    """
    if not isinstance(feature, Mapping):
        raise BatchError(f"row {number} is a {type(feature).__name__}; expected a row of a packed dataset")
    if LENGTHS in feature:
        return feature
    if POSITIONS not in feature:
        raise BatchError(
            f"row {number} has neither {LENGTHS} nor {POSITIONS}, only {', '.join(feature)}; nothing says where its "
            "sequences begin: train with remove_unused_columns=False"
        )
    positions = np.asarray(feature[POSITIONS])
    begins = np.flatnonzero(positions == 0)
    if not begins.size or begins[0]:
        raise BatchError(f"{POSITIONS} of row {number} do not begin at 0; expected a row of a packed dataset")
    return {**feature, LENGTHS: np.diff(begins, append=positions.size)}


def _check_maskable(tokens: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    if "labels" in tokens:
        raise BatchError(
            "masks are to be drawn, and the rows have labels: they are masked already, or of a causal language model; "
            "make them with to_hf(causal=False)"
        )
    if "seq_index" not in values:
        raise BatchError(
            "masks are drawn by the number of each sequence, and the rows have no seq_index; train with "
            "remove_unused_columns=False"
        )
