"""Packs of a Hugging Face dataset as another dataset, one row a pack, without a file in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from nopad.errors import LengthError, MissingExtraError, OptionError, PlanMismatchError
from nopad.packs import Packs, list_array, list_parts
from nopad.store.manifest import LENGTHS

__all__ = ["packed_rows"]


def packed_rows(packs: Packs, dataset: Any, columns: str = "nopad") -> Any:
    """Return a `datasets.Dataset` of packs; see `Packs.to_dataset`."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("to_dataset needs: pip install datasets") from error
    if columns not in LENGTHS:
        raise OptionError(f"unknown columns {columns!r}; they are named as {' or '.join(LENGTHS)} does")
    if "input_ids" not in dataset.column_names:
        raise OptionError(f"the dataset has no column 'input_ids'; it has {', '.join(dataset.column_names)}")
    if len(dataset) != packs.sequences:
        raise PlanMismatchError(f"the packs hold {packs.sequences:,} sequences, the dataset has {len(dataset):,} rows")
    table = dataset.with_format("arrow")[:].take(pa.array(packs.sequence))
    parts = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            parts[name] = list_parts(column)
    lengths = np.diff(parts["input_ids"][0]).astype(np.int32)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[packs.indptr]
    over = np.flatnonzero(np.diff(ends) > packs.capacity)
    if over.size:
        raise LengthError(
            f"pack {over[0]} would hold {np.diff(ends)[over[0]]} tokens, above the capacity of {packs.capacity}: "
            "these are not the packs of this dataset"
        )
    arrays = {
        LENGTHS[columns]: list_array(packs.indptr, lengths),
        "seq_index": list_array(packs.indptr, packs.sequence),
    }
    for name in table.column_names:
        per_token = name in parts and np.array_equal(np.diff(parts[name][0]), lengths)
        if per_token:
            arrays[name] = list_array(ends, parts[name][1])
        else:
            kind = pa.LargeListArray if packs.indptr.dtype == np.int64 else pa.ListArray
            arrays[name] = kind.from_arrays(pa.array(packs.indptr), table.column(name).combine_chunks())
    return datasets.Dataset(pa.table(arrays))
