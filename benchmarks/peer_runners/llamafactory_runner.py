"""LLaMA-Factory: `greedy_knapsack`; variant "rows" is its default of 1,000 rows per batch, "all" one call.

It returns lengths. Its dataset processor then takes for each the last item of that length; the same is done here, and
timed. The file with the function is loaded by itself, because the package imports all of its training stack.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from common import Prepared, csr, run

ROWS = 1000

package = importlib.util.find_spec("llamafactory")
assert package is not None
assert package.submodule_search_locations is not None
file = Path(package.submodule_search_locations[0]) / "data" / "processor" / "processor_utils.py"
spec = importlib.util.spec_from_file_location("processor_utils", file)
assert spec is not None
assert spec.loader is not None
processor_utils = importlib.util.module_from_spec(spec)
sys.modules["processor_utils"] = processor_utils  # its dataclasses look themselves up
spec.loader.exec_module(processor_utils)


def prepare(lengths: np.ndarray, capacity: int, variant: str) -> Prepared:
    rows = ROWS if variant == "rows" else len(lengths)
    numbers = lengths.tolist()

    def pack() -> list[list[int]]:
        packs = []
        for begin in range(0, len(numbers), rows):
            batch = numbers[begin : begin + rows]
            items = defaultdict(list)
            for item, length in enumerate(batch, start=begin):
                items[length].append(item)
            for knapsack in processor_utils.greedy_knapsack(batch, capacity):
                packs.append([items[length].pop() for length in knapsack])
        return packs

    return pack


def convert(packs: list[list[int]], lengths: np.ndarray) -> dict[str, np.ndarray]:
    indptr, items = csr(packs)
    return {"packs": np.array(len(packs)), "indptr": indptr, "items": items}


run(prepare, convert)
