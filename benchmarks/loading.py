"""Loading: never the bottleneck.

From mapped tokens to batches at >= 0.7 of NumPy's gathering of the same tokens by one index, on one thread (a loop over
slices, which is faster where sequences are long, beside it); a batch of stored rows, in order, in <= 80 us beside
Parquet's own decoding; an epoch of 16 M sequences dealt in <= 1 s; <= 200 MB for 16 M sequences on a host, however many ranks. `python loading.py [MILLIONS OF SEQUENCES]`.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
from inputs import machine, shuffled_lengths, wikipedia
from numpy.typing import NDArray

import nopad
from nopad import Flat, Histogram, PackedBatch, PackedLoader
from nopad.corpus import CorpusOptions, IterableSource
from nopad.loading.feeds import StoredTokens
from nopad.loading.sources import open_tokens

RANKS = (1, 4)
AT_ONCE = 25  # batches, before it is NumPy's turn


def corpus(folder: Path, lengths: NDArray[np.int32], *, holes: bool = False) -> Path:
    """Write ids.npy (uint16) and offsets.npy; with `holes`, ids take no space on disk and are all 0."""
    folder.mkdir()
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    np.save(folder / "offsets.npy", offsets)
    total = int(offsets[-1])
    if holes:
        np.save(folder / "ids.npy", np.zeros(0, np.uint16))
        with open(folder / "ids.npy", "r+b") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<u2", "fortran_order": False, "shape": (total,)})
            file.truncate(file.tell() + 2 * total)
    else:
        np.save(folder / "ids.npy", np.random.default_rng(0).integers(0, 30_000, total, dtype=np.uint16))
    return folder


def plain(folder: Path) -> dict[str, Callable[[NDArray[np.int64]], NDArray[np.int64]]]:
    """Return NumPy's two ways to gather the sequences with some numbers as int64."""
    flat, offsets = np.asarray(np.load(folder / "ids.npy", mmap_mode="r")), np.load(folder / "offsets.npy")

    def fancy(chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        begins = offsets[chosen]
        lengths = offsets[chosen + 1] - begins
        ends = np.cumsum(lengths)
        return flat[np.arange(ends[-1]) + np.repeat(begins - ends + lengths, lengths)].astype(np.int64)

    def slices(chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        pairs = zip(offsets[chosen].tolist(), offsets[chosen + 1].tolist(), strict=True)
        return np.concatenate([flat[begin:end] for begin, end in pairs]).astype(np.int64)

    flat.max()  # maps all pages, for both
    return {"one index": fancy, "slices": slices}


def batches(folder: Path, capacity: int, rows: int, form: Flat | None, name: str) -> None:
    """Print how fast batches come, and NumPy gathers the same tokens in turns; medians over all batches."""
    loader = PackedLoader(open_tokens(folder), capacity, rows=rows, form=form, prefetch=0)
    taken, limits = iter(loader), plain(folder)
    for _ in range(5):
        next(taken)
    seconds: dict[str, list[float]] = {name: [] for name in ("ours", *limits)}
    tokens = 0
    while sum(seconds["ours"]) < 0.2:
        numbers = []
        for _ in range(AT_ONCE):
            start = time.perf_counter()
            batch = next(taken, None)
            if batch is None:
                taken = iter(loader)
                break
            seconds["ours"].append(time.perf_counter() - start)
            tokens += batch.layout.tokens
            numbers.append(batch.records["seq_index"])
        for how, read in limits.items():
            for chosen in numbers:
                start = time.perf_counter()
                read(chosen)
                seconds[how].append(time.perf_counter() - start)
    took = {how: float(np.median(of)) for how, of in seconds.items()}
    each = tokens / len(seconds["ours"])
    beside = ", ".join(f"{took[how] / took['ours']:.2f} of {each / took[how] / 1e6:,.0f} by {how}" for how in limits)
    print(
        f"  {name:34} {took['ours'] * 1e6:6.0f} us a batch of {each:7,.0f} tokens: "
        f"{each / took['ours'] / 1e6:5.0f} M tokens/s; NumPy's gathering: {beside}"
    )


def stored_rows(folder: Path) -> None:
    """Print what a batch of stored rows costs, in order and dealt, beside decoding alone."""
    lengths = np.clip(np.random.default_rng(0).lognormal(5, 0.8, 60_000), 1, 512).astype(int)
    rng = np.random.default_rng(1)
    source = IterableSource([rng.integers(0, 30_000, length) for length in lengths])
    nopad.pack_corpus(source, folder, CorpusOptions(capacity=512))
    dataset = nopad.open_packed(folder)
    list(dataset.iter_row_groups(range(dataset.row_groups)))
    start = time.perf_counter()
    list(dataset.iter_row_groups(range(dataset.row_groups)))
    decoding = (time.perf_counter() - start) / len(dataset) * 8 * 1e6
    rows = iter(dataset)
    start = time.perf_counter()
    count = 0
    while taken := list(islice(rows, 8)):
        PackedBatch.from_rows(taken)
        count += 1
    took = (time.perf_counter() - start) / count * 1e6
    print(
        f"  8 stored rows of 512, in order     {took:6.0f} us a batch (target <= 80), of which decoding {decoding:.0f}"
    )
    for form, name in ((Flat(), "one stream"), (None, "rows")):
        loader = PackedLoader(folder, rows=8, form=form, prefetch=0)
        next(iter(loader))
        start = time.perf_counter()
        count = sum(1 for _ in loader)
        took = (time.perf_counter() - start) / count * 1e6
        print(f"  the same, dealt by a loader, {name:10}{took:5.0f} us a batch")


def ranks_of_a_host(folder: Path, histogram: Histogram, lengths: NDArray[np.int32]) -> None:
    """Print what dealing an epoch costs, and the memory of a host with some numbers of ranks."""
    plan = nopad.plan(histogram, 512)
    plan.save(folder / "plan.json")
    corpus(folder / "all", lengths, holes=True)
    for ranks in RANKS:
        command = [sys.executable, __file__, "--rank", str(folder), str(ranks)]
        processes = [
            subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        ready = [json.loads(process.stdout.readline()) for process in processes]
        for process in processes:  # all are ready: measure together
            process.stdin.write("\n")
            process.stdin.flush()
        found = [json.loads(process.stdout.readline()) for process in processes]
        for process in processes:
            process.stdin.close()
            process.wait()
        steady, peak = sum(one["steady"] for one in found), max(one["peak"] for one in ready)
        print(
            f"  {ranks} ranks: {steady:4.0f} MB on the host steadily (target <= 200), "
            f"of which private {sum(one['private'] for one in found):.0f}; at most {peak:.0f} MB more in a process while "
            f"dealing; the epoch dealt in {min(one['dealt'] for one in ready):.2f} s (target <= 1)"
        )


def one_rank(folder: Path, ranks: int, rank: int) -> None:
    """Be one rank: deal 16 M sequences, take some batches, and state memory when asked."""
    plan = nopad.Plan.load(folder / "plan.json")
    small = [np.zeros(3, np.int32)] * 64
    list(PackedLoader(small, 8, rows=1, rank=0, world_size=2))  # imports and compiled loops are no part of it
    tokens = folder / "all"
    before, private = memory(tokens)
    watch = Peak()
    source = open_tokens(tokens)
    loader = PackedLoader(source, 512, rows=8, plan=plan, rank=rank, world_size=ranks)
    for _ in zip(range(20), loader, strict=False):
        pass
    watch.over = True
    start = time.perf_counter()
    StoredTokens(source, plan).units(1)  # each rank for itself: the time, not the memory
    print(json.dumps({"dealt": time.perf_counter() - start, "peak": watch.most - private}), flush=True)
    sys.stdin.readline()
    gc.collect()
    here, anonymous = memory(tokens)
    print(json.dumps({"steady": here - before, "private": anonymous - private}), flush=True)
    sys.stdin.readline()


def memory(tokens: Path) -> tuple[float, float]:
    """Return this process's memory but for the pages of the token files, and the private part; MB.

    Pages that n processes share count 1/n in each.
    """
    total = anonymous = 0
    counted = True
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name.split()[0]:
            counted = str(tokens.resolve()) not in line
        elif counted and name == "Pss":
            total += int(value.split()[0])
        elif counted and name == "Anonymous":
            anonymous += int(value.split()[0])
    return total / 1024, anonymous / 1024


class Peak(threading.Thread):
    """Watches the private memory of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0.0, False
        self.start()

    def run(self) -> None:
        while not self.over:
            lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            self.most = max(self.most, int(lines["RssAnon"].split()[0]) / 1024)
            time.sleep(0.01)


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-") as name:
        folder = Path(name)
        histogram, told = wikipedia()
        lengths = shuffled_lengths(histogram)
        if len(sys.argv) > 1:
            lengths = lengths[: int(float(sys.argv[1]) * 1e6)]
            histogram = Histogram.from_lengths(lengths)
        print(f"loading: {told}, {lengths.size:,} sequences; {machine()}; target >= 0.7 of NumPy's gathering")
        corpus(folder / "short", lengths[:400_000])
        drawn = np.random.default_rng(0).lognormal(np.log(600), 0.9, 100_000)
        corpus(folder / "long", np.clip(drawn, 1, 4096).astype(np.int32))
        for form, what in ((Flat(), "one stream"), (None, "rows")):
            batches(folder / "short", 512, 64, form, f"64 packs of 512, {what}")
            batches(folder / "long", 4096, 8, form, f"8 packs of 4,096, {what}")
            batches(folder / "long", 4096, 32, form, f"32 packs of 4,096, {what}")
        stored_rows(folder / "rows")
        ranks_of_a_host(folder, histogram, lengths)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        one_rank(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
