"""TRL: `pack_dataset(strategy="bfd")`; variant "rows" is its default of 1,000 rows per batch, "all" one batch.

The rows hold nulls: their lengths are real, their tokens weigh nothing (with an id as every token, Wikipedia's would be
17 GB twice). TRL does not return which sequence went where, but it gathers each batch by one call of Arrow's `take`: the
rows it asks for are noted there, in under 1 % of its time, and compared with the lengths that it returns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from common import Prepared, run
from datasets import Dataset, disable_progress_bars
from trl import pack_dataset

disable_progress_bars()
taken: list[np.ndarray] = []  # of each batch, rows in the order of its packs
take = pc.take


def noted(values: Any, rows: Any, **options: Any) -> Any:
    """Take, and keep what was asked for where it is TRL that asks."""
    if isinstance(values, pa.Table) and "seq_lengths" in values.column_names:
        taken.append(np.fromiter(rows, dtype=np.int32, count=len(rows)))
    return take(values, rows, **options)


pc.take = noted


def prepare(lengths: np.ndarray, capacity: int, variant: str) -> Prepared:
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    small = offsets[-1] < 2**31  # Arrow's usual lists have 32-bit offsets
    kind, width = (pa.ListArray, pa.int32()) if small else (pa.LargeListArray, pa.int64())
    rows = kind.from_arrays(pa.array(offsets, width), pa.nulls(int(offsets[-1])))
    dataset = Dataset(pa.table({"input_ids": rows}))
    options = {} if variant == "rows" else {"batch_size": len(lengths)}
    taken.clear()
    return lambda: pack_dataset(dataset, seq_length=capacity, strategy="bfd", map_kwargs=options)


def convert(packed: Dataset, lengths: np.ndarray) -> dict[str, np.ndarray]:
    column = packed.data.column("seq_lengths")
    sizes = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks])
    flat = np.concatenate([chunk.flatten().to_numpy() for chunk in column.chunks])
    begins = np.cumsum([0, *(rows.size for rows in taken[:-1])])
    items = np.concatenate([begin + rows for begin, rows in zip(begins, taken, strict=True)])
    if not np.array_equal(lengths[items], flat):
        raise ValueError("TRL's rows are not the ones it took")
    return {"packs": np.array(len(packed)), "indptr": np.concatenate([[0], np.cumsum(sizes)]), "items": items}


run(prepare, convert)
