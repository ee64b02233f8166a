"""axolotl: `MultipackBatchSampler` as its trainer makes it: groups of 100,000, at most 200 sequences per pack, one process."""

from __future__ import annotations

import numpy as np
from axolotl.utils.samplers.multipack import MultipackBatchSampler
from common import Prepared, csr, run

MOST_IN_A_PACK = 200  # the default of sample_packing_bin_size


def prepare(lengths: np.ndarray, capacity: int, variant: str) -> Prepared:
    sampler = MultipackBatchSampler(
        range(len(lengths)),
        batch_size=1,
        batch_max_len=capacity,
        lengths=lengths,
        bin_size=MOST_IN_A_PACK,
        drop_last=False,
    )
    return sampler.generate_batches


def convert(batches: list[list[list[int]]], lengths: np.ndarray) -> dict[str, np.ndarray]:
    indptr, items = csr(members for batch in batches for members in batch)
    return {"packs": np.array(sum(map(len, batches))), "indptr": indptr, "items": items}


run(prepare, convert)
