"""Memory of `nopad verify`: how the peak of a process grows with the sequences of a dataset.

Run: python benchmarks/verification.py. Packs 0.5 M and 3 M sequences of 1 to 11 tokens (capacity 64), and verifies each
in a new process, alone and against its source. Printed: the difference of the two peaks of memory, per sequence.
Targets: at most 30 bytes alone, and 38 with the source (one column is compared).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import nopad

FEW, MANY = 500_000, 3_000_000
# VmHWM and not ru_maxrss, which starts from the peak of the process that began this one.
CHILD = """
import sys, nopad
against = {"source": nopad.open_source(sys.argv[2])} if sys.argv[2:] else {}
assert nopad.verify(sys.argv[1], **against) == []
line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(int(line.split()[1]) << 10)
"""


def write(path: Path, sequences: int) -> None:
    """Write a Parquet file with the token ids of so many `sequences` of 1 to 11 tokens, column `input_ids`."""
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 12, sequences))])
    ids = pa.array(rng.integers(0, 999, offsets[-1]).astype(np.int32))
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), ids)})
    pq.write_table(table, path, row_group_size=100_000)


def main() -> None:
    """Print the bytes per sequence."""
    peak = {}
    with tempfile.TemporaryDirectory() as folder:
        for n in (FEW, MANY):
            source, packed = Path(folder) / f"{n}.parquet", Path(folder) / str(n)
            write(source, n)
            nopad.pack_corpus(nopad.open_source(source), packed, nopad.CorpusOptions(capacity=64))
            for against in ((), (str(source),)):
                child = [sys.executable, "-c", CHILD, str(packed), *against]
                peak[n, bool(against)] = int(subprocess.run(child, stdout=subprocess.PIPE, check=True).stdout)
    for compared, target in ((False, 30), (True, 38)):
        few, many = peak[FEW, compared], peak[MANY, compared]
        what = "with its source" if compared else "alone"
        print(
            f"  verify {what}: peak {few / 1e6:.0f} MB at {FEW:,} sequences, {many / 1e6:.0f} MB at {MANY:,}: "
            f"{(many - few) / (MANY - FEW):.0f} bytes per sequence (target <= {target})"
        )


if __name__ == "__main__":
    main()
