"""TRL: `pack_dataset(strategy="bfd")`; variant "rows" is its default of 1,000 rows a batch, "all" one batch.

The rows hold nulls: their lengths are real, their tokens weigh nothing. TRL returns packed rows and each sequence's
length in them, not which sequence it was.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from common import Prepared, run
from datasets import Dataset, disable_progress_bars
from trl import pack_dataset

disable_progress_bars()


def prepare(lengths: np.ndarray, capacity: int, variant: str) -> Prepared:
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    small = offsets[-1] < 2**31  # Arrow's usual lists have 32-bit offsets
    kind, width = (pa.ListArray, pa.int32()) if small else (pa.LargeListArray, pa.int64())
    rows = kind.from_arrays(pa.array(offsets, width), pa.nulls(int(offsets[-1])))
    dataset = Dataset(pa.table({"input_ids": rows}))
    options = {} if variant == "rows" else {"batch_size": len(lengths)}
    return lambda: pack_dataset(dataset, seq_length=capacity, strategy="bfd", map_kwargs=options)


def convert(packed: Dataset, lengths: np.ndarray) -> dict[str, np.ndarray]:
    column = packed.data.column("seq_lengths")
    sizes = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks])
    flat = np.concatenate([chunk.flatten().to_numpy() for chunk in column.chunks])
    return {"indptr": np.concatenate([[0], np.cumsum(sizes)]), "packs": np.array(1), "lengths": flat}


run(prepare, convert)
