"""OLMo-core: `InstancePacker`, best-fit decreasing over all documents. The capacity must be a power of two."""

from __future__ import annotations

from typing import Any

import numpy as np
from common import Prepared, csr, run
from olmo_core.data.utils import InstancePacker


def prepare(lengths: np.ndarray, capacity: int, variant: str) -> Prepared:
    ends = np.cumsum(lengths, dtype=np.int64)
    documents = np.stack([ends - lengths, ends], axis=1)
    return lambda: InstancePacker(capacity).pack_documents(documents)


def convert(result: Any, lengths: np.ndarray) -> dict[str, np.ndarray]:
    instances, documents, _ = result
    indptr, places = csr(instances)
    begins = np.cumsum(lengths, dtype=np.int64) - lengths
    items = np.searchsorted(begins, documents[:, 0])[places]
    return {"packs": np.array(len(instances)), "indptr": indptr, "items": items}


run(prepare, convert)
