"""Convert a packed dataset to a `datasets.Dataset`, whose rows transformers' `Trainer` and TRL's `SFTTrainer` accept.

All row groups are decoded once, into Arrow arrays in memory. These take 8 bytes per token for the ids and positions,
and 4 more if labels are made from the ids. All other columns, such as labels that the dataset holds, take their size.
After that, reading a row at random costs no more than reading the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nopad.arrow import list_array
from nopad.batch.columns import without_computed
from nopad.corpus.masks import MASKABLE
from nopad.errors import MissingExtraError, OptionError
from nopad.sequences import IGNORED, Sequences, labelled
from nopad.store.row_groups import RowGroup

if TYPE_CHECKING:
    from nopad.store.reader import PackedDataset

__all__ = ["to_hf"]


def to_hf(dataset: PackedDataset, *, causal: bool | None = None) -> Any:
    """Return the packs of a dataset as a `datasets.Dataset` in memory, one row per pack.

    `causal` says which ``labels`` the rows get. `PackedDataset.to_hf` calls this, and describes `causal` and the
    errors.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("to_hf needs: pip install datasets") from error
    if dataset.manifest.kind == "index":
        raise OptionError(f"{dataset.path} is an index without tokens; pack the dataset without index_only=True")
    groups = dataset.iter_row_groups(range(dataset.row_groups))
    return datasets.Dataset(pa.concat_tables([_table(group, causal) for group in groups]))


def _table(group: RowGroup, causal: bool | None) -> pa.Table:
    """Return the packs of a row group as a table, one row per pack, with ``position_ids`` added.

    Labels are added or changed as `_labelled` describes for this value of `causal`.
    """
    found = without_computed(_labelled(group.sequences, causal))
    lengths = found.seq_lengths
    positions = np.arange(int(lengths.sum(dtype=np.int64)), dtype=np.int32) - np.repeat(
        found.begins.astype(np.int32), lengths
    )
    per_token = {"input_ids": found.tokens["input_ids"], "position_ids": positions, **found.tokens}
    per_sequence = {"seq_lengths": lengths, **found.values}
    ends, token_ends = group.indptr.astype(np.int32), group.token_indptr.astype(np.int32)
    arrays = {name: _lists(ends, column) for name, column in per_sequence.items()}
    return pa.table(arrays | {name: _lists(token_ends, column) for name, column in per_token.items()})


def _lists(ends: NDArray[np.int32], column: Any) -> pa.Array:
    values = np.asarray(column)
    if values.dtype == object:
        return pa.ListArray.from_arrays(pa.array(ends), pa.array(values.tolist()))
    return list_array(ends, values)


def _labelled(found: Sequences, causal: bool | None) -> Sequences:
    """Return the sequences with the column ``labels`` that `PackedDataset.to_hf` gives them.

    If there is no column ``labels``, a column ``label`` or ``label_ids`` gets this name. What follows depends on the
    labels and on `causal`:

    * one label per sequence: labels stay as they are
    * one label per token: the label of each sequence's first token becomes -100, unless `causal` is False
    * no labels: a copy of ``input_ids`` is added, with -100 for first tokens, if `causal` is True, or if `causal` is
      None and there is no column ``maskable``

    Raises:
        OptionError: labels are per sequence and `causal` is True; or `causal` is None, and the label of some first
            token is neither this token nor -100.
        BatchError: there are both ``label`` and ``label_ids``, and no ``labels``.
    """
    found = labelled(found)
    tokens, values = dict(found.tokens), dict(found.values)
    if "labels" in values:
        if causal:
            raise OptionError("the labels are one per sequence, and a causal language model has one per token")
    elif "labels" in tokens and causal is not False:
        ids, labels, begins = tokens["input_ids"], np.array(tokens["labels"]), found.begins
        first = labels[begins]
        if causal is None and ((first != IGNORED) & (first != ids[begins])).any():
            raise OptionError(
                "the labels of some first tokens are not these tokens; say to_hf(causal=True) for a causal language "
                "model, which predicts no first token, and to_hf(causal=False) for labels of each token itself"
            )
        labels[begins] = IGNORED
        tokens["labels"] = labels
    elif causal or (causal is None and not {"labels", MASKABLE} & tokens.keys()):
        tokens["labels"] = np.array(tokens["input_ids"])
        tokens["labels"][found.begins] = IGNORED
    return Sequences(seq_lengths=found.seq_lengths, tokens=tokens, values=values)
