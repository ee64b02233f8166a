"""`to_dataset`: packs of a `datasets.Dataset` -> a packed one, in memory. O(tokens)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from nopad.arrow import list_array, list_parts
from nopad.errors import LengthError, MissingExtraError, OptionError, PlanMismatchError
from nopad.packs import Packs

__all__ = ["to_dataset"]


def to_dataset(packs: Packs, dataset: Any) -> Any:
    """Return the packs of a `datasets.Dataset` as another one, in memory, one row per pack.

    Sequence i is row i of `dataset`, whose ``input_ids`` are the tokens. Columns with one value per token become flat
    lists, columns with one value per row lists of them; ``seq_lengths`` and ``seq_index`` come first.

    Raises:
        PlanMismatchError: `dataset` has more or fewer rows than there are sequences.
        LengthError: a pack would exceed the capacity: these are packs of something else.
        OptionError: there is no column ``input_ids``.
        MissingExtraError: `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("to_dataset needs: pip install datasets") from error
    if "input_ids" not in dataset.column_names:
        raise OptionError(f"the dataset has no column 'input_ids'; it has {', '.join(dataset.column_names)}")
    if len(dataset) != packs.sequences:
        raise PlanMismatchError(f"the packs hold {packs.sequences:,} sequences, the dataset has {len(dataset):,} rows")
    return datasets.Dataset(_gathered(packs, dataset.with_format("arrow")[:]))


def _gathered(packs: Packs, table: pa.Table) -> pa.Table:
    """Return the rows of a table by pack: columns of one value a token flat, all others as lists."""
    table = table.take(pa.array(packs.sequence))
    arrays = {name: table.column(name).combine_chunks() for name in table.column_names}
    lists = [
        name for name, array in arrays.items() if pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    ]
    parts = {name: list_parts(arrays[name]) for name in lists}
    lengths = np.diff(parts["input_ids"][0]).astype(np.int32)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[packs.indptr]
    over = np.flatnonzero(np.diff(ends) > packs.capacity)
    if over.size:
        raise LengthError(
            f"pack {over[0]} would hold {np.diff(ends)[over[0]]} tokens, above the capacity of {packs.capacity}: "
            "these are not the packs of this dataset"
        )
    kind = pa.LargeListArray if packs.indptr.dtype == np.int64 else pa.ListArray
    out = {"seq_lengths": list_array(packs.indptr, lengths), "seq_index": list_array(packs.indptr, packs.sequence)}
    for name, array in arrays.items():
        if name in parts and np.array_equal(np.diff(parts[name][0]), lengths):
            out[name] = list_array(ends, parts[name][1])
        else:
            out[name] = kind.from_arrays(pa.array(packs.indptr), array)
    return pa.table(out)
