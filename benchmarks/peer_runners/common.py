"""What every runner does: load lengths, warm the packer, time one call, report memory, then hand over the packs.

`python RUNNER.py LENGTHS.npy CAPACITY VARIANT OUT.npz` prints one JSON object. Runs in the peer's environment: needs
nothing but NumPy. The peak memory is read before the packs are converted for the driver. The call that warms packs the
first sequences of the same input: fewer would leave kernels of ours to be compiled while the clock runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

WARM = 20_000
Prepared = Callable[[], Any]  # packs; the only thing timed
Prepare = Callable[[np.ndarray, int, str], Prepared]
Convert = Callable[[Any, np.ndarray], dict[str, np.ndarray]]  # {"packs": how many, "indptr", "items"}


def run(prepare: Prepare, convert: Convert) -> None:
    """Time one packing call of the command line's input, after one of a small input."""
    path, capacity, variant, out = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    lengths = np.load(path)
    prepare(lengths[:WARM], capacity, variant)()
    pack = prepare(lengths, capacity, variant)
    begun = time.perf_counter()
    result = pack()
    seconds = time.perf_counter() - begun
    peak = _peak_bytes()
    np.savez(out, **convert(result, lengths))
    print(json.dumps({"seconds": seconds, "peak_bytes": peak}))


def _peak_bytes() -> int:
    """Most resident memory so far; not getrusage's, which begins with that of the process that started this one."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def csr(packs: Iterable[Iterable[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Turn nested lists into begins of packs and a flat array."""
    sizes = [0]
    flat: list[int] = []
    for members in packs:
        flat.extend(members)
        sizes.append(len(flat))
    return np.array(sizes, dtype=np.int64), np.array(flat, dtype=np.int64)
