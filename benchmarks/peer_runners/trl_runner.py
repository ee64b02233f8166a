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
CHUNK_ROWS = 1_000_000  # 32-bit offsets


def prepare(lengths: np.ndarray, capacity: int, variant: str) -> Prepared:
    chunks = []
    for begin in range(0, len(lengths), CHUNK_ROWS):
        offsets = np.concatenate([[0], np.cumsum(lengths[begin : begin + CHUNK_ROWS], dtype=np.int64)])
        chunks.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.nulls(int(offsets[-1]))))
    dataset = Dataset(pa.table({"input_ids": pa.chunked_array(chunks)}))
    options = {} if variant == "rows" else {"batch_size": len(lengths)}
    return lambda: pack_dataset(dataset, seq_length=capacity, strategy="bfd", map_kwargs=options)


def convert(packed: Dataset, lengths: np.ndarray) -> dict[str, np.ndarray]:
    column = packed.data.column("seq_lengths")
    sizes = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks])
    flat = np.concatenate([chunk.flatten().to_numpy() for chunk in column.chunks])
    return {"indptr": np.concatenate([[0], np.cumsum(sizes)]), "lengths": flat}


run(prepare, convert)
