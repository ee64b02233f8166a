"""Read a packed dataset: any pack by its number, all in order, or all in an order of your own.

Row groups are decoded whole, cached, and read ahead by Arrow's threads while iterating, so a pass runs at the speed of
Parquet decoding. Random access costs one row group (about 2^18 tokens) when it is not cached, a slice when it is. Files
are opened when they are needed. Every row group is held against the manifest before anybody sees it, so a file that is
missing, damaged, or written by something else is a `CorruptError` and never fewer packs. Framework-neutral: a row is
flat NumPy arrays, and `PackedDataset` has what map-style loaders ask for (``__len__``, ``__getitem__``, picklable for
workers) without importing any of them.
"""

from __future__ import annotations

import os
import threading
import warnings
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import accumulate, repeat, tee
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad import random
from nopad.errors import CorruptError
from nopad.options import Option
from nopad.packs import index_dtype
from nopad.store.index import Index, read_index
from nopad.store.manifest import Manifest
from nopad.store.row_groups import PackedRow, RowGroup, row_group_problems
from nopad.store.shard_files import ShardFiles

__all__ = ["PackedDataset", "PackedRow", "RowGroup", "open_packed"]

_LOOK_EVERY = 64  # decoded row groups: how often it is asked whether rows are read at random
_FEW = 2  # rows of each decoded row group
_CACHED = Option(default=16, low=0, help="decoded row groups to keep")
_SEED = Option(default=0, low=0, high=2**64 - 1, help="of an order")
_ALIVE: WeakSet[Any] = WeakSet()  # datasets, which a forked child has too


def open_packed(path: str | Path, *, cached_row_groups: int = 16) -> PackedDataset:
    """Open a packed or index-only dataset folder; the last `cached_row_groups` (about 1 MiB each) are kept decoded.

    Nothing but the manifest is read before the first pack is. Reading checks pages by their checksums and packs by
    their lengths, not files by their SHA-256: `nopad.verify` does.

    Raises:
        FormatError: the folder is no packed dataset, or of an unknown format version.
        CorruptError: its job has not finished, or its manifest is damaged.
    """
    return PackedDataset(path, cached_row_groups=cached_row_groups)


class PackedDataset:
    """A packed dataset on disk; see the module for costs. Threads and processes may share it.

    Attributes:
        path: its folder.
        manifest: the content of ``nopad.json``.
    """

    def __init__(self, path: str | Path, *, cached_row_groups: int = 16) -> None:
        """Open `path`; at most `cached_row_groups` decoded row groups (about 1 MiB each) are kept."""
        self.path = Path(path).absolute()  # pyarrow takes a relative one such as run-12:30 for a URL
        self.manifest = Manifest.load(path)
        self._cached_row_groups = _CACHED.check("cached_row_groups", cached_row_groups)
        m = self.manifest
        packs_of = [m.packs] if m.kind == "index" else [shard.packs for shard in m.shards]
        # (file, first pack) of every row group: they have the same number of packs but for the last of a file.
        self._first_pack_of_file = [0, *accumulate(packs_of)]
        groups = [-(-packs // m.rows_per_group) for packs in packs_of]
        self._first_of_file = [0, *accumulate(groups)]
        self._reset()

    def _reset(self) -> None:
        self._cache: OrderedDict[int, RowGroup] = OrderedDict()
        self._unlock()
        self._files = ShardFiles(self.path, self.manifest)
        _ALIVE.add(self)
        self._index: Index | None = None
        self._rows = self._decoded = 0  # since it was last asked whether rows are read at random
        self._warned = False

    def _unlock(self) -> None:
        """Make a new lock: in a forked child, no thread is left that would open the one that it held."""
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Leave open files and decoded row groups behind: a worker opens its own."""
        private = {"_cache", "_lock", "_files", "_index"}
        return {name: value for name, value in vars(self).items() if name not in private}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore without open files."""
        vars(self).update(state)
        self._reset()

    def __len__(self) -> int:
        """Number of packs."""
        return self.manifest.packs

    @property
    def row_groups(self) -> int:
        """Number of row groups."""
        return self._first_of_file[-1]

    @property
    def capacity(self) -> int:
        """Most tokens that a pack may hold."""
        return self.manifest.capacity

    def __getitem__(self, at: int) -> PackedRow:
        """Return pack `at`; negative numbers count from the end.

        Raises:
            IndexError: there is no such pack.
            CorruptError: its file is missing or damaged.
        """
        if not isinstance(at, int | np.integer):
            raise TypeError(
                f"a packed dataset is indexed by pack number, got {at!r}; a column is dataset[number][name]"
            )
        packs = len(self)
        if not -packs <= at < packs:
            raise IndexError(f"pack {at} of {packs} packs")
        at = int(at) % packs
        file = bisect_right(self._first_pack_of_file, at) - 1
        group, row = divmod(at - self._first_pack_of_file[file], self.manifest.rows_per_group)
        row_group = self.row_group(self._first_of_file[file] + group)
        self._rows += 1
        if self._decoded >= _LOOK_EVERY:
            self._look_for_random_reads()
        return PackedRow(row_group, row)

    def _look_for_random_reads(self) -> None:
        """Warn once where most rows cost the decoding of a whole row group."""
        rows, self._rows, decoded, self._decoded = self._rows, 0, self._decoded, 0
        if self._warned or rows >= _FEW * decoded or self.manifest.rows_per_group <= _FEW:
            return
        self._warned = True
        warnings.warn(
            f"packs are read at random: the last {rows:,} of them cost the decoding of {decoded:,} row groups of "
            f"{self.manifest.rows_per_group:,} packs, a hundred times what it costs in order. Read "
            "dataset.read(dataset.order(seed, epoch)) instead, or give that order to your loader as its sampler; or "
            "read in order (shuffle=False): packs are stored in random order unless they were packed with another",
            UserWarning,
            stacklevel=3,
        )

    def __getitems__(self, indices: list[int]) -> list[PackedRow]:
        """Return several packs; torch's loader calls this with a whole batch."""
        return [self[at] for at in indices]

    def __iter__(self) -> Iterator[PackedRow]:
        """Iterate over all packs in stored order, reading ahead."""
        for row_group in self.iter_row_groups(range(self.row_groups)):
            yield from map(PackedRow, repeat(row_group), range(len(row_group)))

    def order(self, seed: int, epoch: int = 0) -> NDArray[Any]:
        """Return all pack numbers in a random order that is quick to read: shuffled row groups, and packs in each.

        A pure function of the dataset's layout, `seed` and `epoch` (see `nopad.random`): int32 (int64 from 2^31 packs
        on) ``[packs]``. What is left of an epoch after `n` packs is ``order(seed, epoch)[n:]``.

        >>> import tempfile, nopad
        >>> from nopad.corpus import CorpusOptions, IterableSource
        >>> with tempfile.TemporaryDirectory() as out:
        ...     _ = nopad.pack_corpus(IterableSource([[i] * 4 for i in range(6)]), out, CorpusOptions(capacity=4))
        ...     dataset = nopad.open_packed(out)
        ...     epoch = dataset.order(seed=1)
        ...     sorted(epoch.tolist()), [row.seq_index.tolist() for row in dataset.read(epoch[4:])]
        ([0, 1, 2, 3, 4, 5], [[3], [4]])
        """
        from nopad import _deal_kernels, _kernels

        seed, epoch = _SEED.check("seed", seed), _SEED.check("epoch", epoch)
        dtype = index_dtype(len(self))
        bounds = self._bounds().astype(dtype)
        numbers = np.arange(len(self), dtype=dtype)
        keys = random.keys(np.arange(self.row_groups), seed, random.STREAM_BLOCK_ORDER, epoch)
        _deal_kernels.shuffle_segments(numbers, bounds.astype(np.int64), keys)
        row_groups = np.arange(self.row_groups)
        _kernels.shuffle(row_groups, np.uint64(random.key(seed, random.STREAM_BLOCK_ORDER, epoch)))
        out = np.empty_like(numbers)
        _kernels.permute_packs(bounds, numbers, row_groups, np.zeros(self.row_groups + 1, dtype=dtype), out)
        return out

    def read(self, numbers: ArrayLike) -> Iterator[PackedRow]:
        """Iterate over the packs of these numbers, in this order, reading ahead.

        Each run of numbers of one row group costs one decoding of it: an `order`, or any part of one, is read at the
        speed of plain iteration.

        Raises:
            IndexError: there is no such pack.
            CorruptError: a shard is missing or damaged.
        """
        wanted = np.asarray(numbers)
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise TypeError(f"pack numbers are a list of integers, got {wanted.dtype} {list(wanted.shape)}")
        if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(self):
            raise IndexError(f"pack numbers are in 0..{len(self) - 1}, got {wanted.min()}..{wanted.max()}")
        return self._read(wanted)

    def _read(self, wanted: NDArray[Any]) -> Iterator[PackedRow]:
        runs, ahead = tee(self._runs(wanted))
        for (_, rows), row_group in zip(runs, self.iter_row_groups(number for number, _ in ahead), strict=True):
            yield from map(PackedRow, repeat(row_group), rows.tolist())

    def _runs(self, wanted: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (row group, which of its packs) for each run of pack numbers that lie in one row group."""
        bounds, begin = self._bounds(), 0
        while begin < wanted.size:
            row_group = int(np.searchsorted(bounds, wanted[begin], side="right")) - 1
            first, last = int(bounds[row_group]), int(bounds[row_group + 1])
            here = wanted[begin : begin + last - first]  # a longer run repeats packs: then it is read as two
            outside = np.flatnonzero((here < first) | (here >= last))
            rows = here[: int(outside[0])] if outside.size else here
            yield row_group, rows - first
            begin += rows.size

    def _bounds(self) -> NDArray[np.int64]:
        """Where each row group begins, in packs; ``[row_groups + 1]``."""
        rows, parts = self.manifest.rows_per_group, []
        for begin, end in zip(self._first_pack_of_file, self._first_pack_of_file[1:], strict=False):
            parts.append(np.arange(begin, end, rows, dtype=np.int64))
        return np.append(np.concatenate(parts), len(self))

    def seq_lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the lengths of all sequences, reading nothing else: ``(indptr, seq_lengths)``.

        Pack p holds sequences of ``seq_lengths[indptr[p]:indptr[p + 1]]`` tokens; ``[packs + 1]`` and ``[sequences]``.

        Raises:
            CorruptError: a shard is missing or damaged.
        """
        if self.manifest.kind == "index":
            index = self._opened_index()
            return index.packs.indptr.astype(np.int64), index.lengths[index.packs.sequence].astype(np.int32)
        bounds, parts, at = [np.zeros(1, dtype=np.int64)], [np.zeros(0, dtype=np.int32)], 0
        for file in range(len(self.manifest.shards)):
            offsets, values = self._files.lengths(file)
            bounds.append(offsets[1:] + at)
            parts.append(values)
            at += values.size
        indptr, lengths = np.concatenate(bounds), np.concatenate(parts)
        if (indptr.size - 1, at) != (len(self), self.manifest.sequences) or lengths.min(initial=1) < 1:
            raise CorruptError(f"{self.path} holds other sequences than its manifest states; see `nopad verify`")
        return indptr, lengths

    def iter_row_groups(self, numbers: Iterable[int]) -> Iterator[RowGroup]:
        """Iterate over whole row groups in this order; the fastest way to read everything.

        Raises:
            CorruptError: a shard is missing or damaged.
        """
        numbers, ahead = tee(numbers)
        for number, row_group in zip(numbers, self.unchecked_row_groups(ahead), strict=True):
            yield self._checked(row_group, number)

    def unchecked_row_groups(self, numbers: Iterable[int]) -> Iterator[RowGroup]:
        """Iterate over row groups as they are decoded, wrong packs and all: for `nopad.verify`, which says what is.

        Raises:
            CorruptError: a shard is missing, or cannot be decoded.
        """
        if self.manifest.kind == "index":
            return map(self._index_row_group, numbers)
        return self._files.scan(self._place(number) for number in numbers)

    def row_group(self, number: int) -> RowGroup:
        """Return one decoded row group, from the cache when it is there.

        Raises:
            CorruptError: its file is missing or damaged.
        """
        with self._lock:
            found = self._cache.get(number)
            if found is not None:
                self._cache.move_to_end(number)
                return found
        if self.manifest.kind == "index":
            row_group = self._index_row_group(number)
        else:
            row_group = self._decode(number)
            self._decoded += 1
        self._checked(row_group, number)
        with self._lock:
            self._cache[number] = row_group
            while len(self._cache) > self._cached_row_groups:
                self._cache.popitem(last=False)
        return row_group

    def _decode(self, number: int) -> RowGroup:
        return self._files.read(*self._place(number))

    def _place(self, number: int) -> tuple[int, int]:
        """Return the file of a row group, and its row group there."""
        if not 0 <= number < self.row_groups:
            raise IndexError(f"row group {number} of {self.row_groups} row groups")
        file = bisect_right(self._first_of_file, number) - 1
        return file, number - self._first_of_file[file]

    def _checked(self, row_group: RowGroup, number: int) -> RowGroup:
        """Return a row group that is what the manifest says of it."""
        file, group = self._place(number)
        first = self._first_pack_of_file[file] + group * self.manifest.rows_per_group
        problems = row_group_problems(row_group, first, self.manifest)
        if problems:
            raise CorruptError(f"{self.path} is damaged: {problems[0]}; see `nopad verify`")
        return row_group

    def _opened_index(self) -> Index:
        with self._lock:
            if self._index is None:
                self._index = read_index(self.path, self.manifest)
            return self._index

    def _index_row_group(self, number: int) -> RowGroup:
        """Cut row group `number` out of the mapped index."""
        first = number * self.manifest.rows_per_group
        return self._opened_index().row_group(first, first + self.manifest.rows_per_group)


def _after_fork() -> None:
    for dataset in list(_ALIVE):
        dataset._unlock()
        dataset._files.unlock()


os.register_at_fork(after_in_child=_after_fork)
