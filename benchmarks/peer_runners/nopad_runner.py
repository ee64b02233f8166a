"""nopad: `nopad.pack`, histogram, plan, proof and assignment included. The variant is the algorithm."""

from __future__ import annotations

import numpy as np
from common import Prepared, run

import nopad


def prepare(lengths: np.ndarray, capacity: int, variant: str) -> Prepared:
    return lambda: nopad.pack(lengths, capacity, algorithm=variant)


def convert(packs: nopad.Packs, lengths: np.ndarray) -> dict[str, np.ndarray]:
    return {"packs": np.array(len(packs)), "indptr": packs.indptr, "items": packs.sequence}


run(prepare, convert)
