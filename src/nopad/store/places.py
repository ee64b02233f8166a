"""Compute from a manifest where packs lie: which row group holds a pack, and which file holds a row group.

All row groups have the same number of packs, except that the last one of a file may have fewer. An index counts as one
file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad import random
from nopad.errors import CorruptError
from nopad.packs import index_dtype
from nopad.properties import cached_property
from nopad.store.manifest import Manifest

__all__ = ["Places"]


class Places:
    """Says in which file and row group each pack of a dataset lies.

    Attributes:
        files: number of files.
        packs: number of packs.
        row_groups: number of row groups.
    """

    def __init__(self, folder: Path, m: Manifest) -> None:
        """Compute where packs lie from the manifest `m`; `folder` is for error messages."""
        self._folder, self._rows_per_group = folder, m.rows_per_group
        packs_of = [m.packs] if m.kind == "index" else [shard.packs for shard in m.shards]
        self._first_pack_of_file = [0, *accumulate(packs_of)]
        self._first_of_file = [0, *accumulate(-(-packs // m.rows_per_group) for packs in packs_of)]
        self._odd_total = _odd_total(m)
        self.files, self.packs, self.row_groups = len(packs_of), m.packs, self._first_of_file[-1]

    def check_totals(self) -> None:
        """Refuse a manifest in which a total is not the sum over its shards, since reading would miss packs.

        Raises:
            CorruptError: a total is not the sum.
        """
        if self._odd_total:
            raise CorruptError(f"{self._folder} is damaged: {self._odd_total}; see `nopad verify`")

    def of_pack(self, pack: int) -> tuple[int, int]:
        """Return the row group of a pack, and the pack's number within the row group."""
        file = bisect_right(self._first_pack_of_file, pack) - 1
        group, row = divmod(pack - self._first_pack_of_file[file], self._rows_per_group)
        return self._first_of_file[file] + group, row

    def of_row_group(self, number: int) -> tuple[int, int]:
        """Return the number of a row group's file, and the row group's number within the file.

        Raises:
            IndexError: there is no such row group.
        """
        if not 0 <= number < self.row_groups:
            raise IndexError(f"row group {number} of {self.row_groups} row groups")
        file = bisect_right(self._first_of_file, number) - 1
        return file, number - self._first_of_file[file]

    def first_pack(self, number: int) -> int:
        """Return the number of a row group's first pack.

        Raises:
            IndexError: there is no such row group.
        """
        file, group = self.of_row_group(number)
        return self._first_pack_of_file[file] + group * self._rows_per_group

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """The first pack number of each row group, then the number of packs; int64 ``[row_groups + 1]``.

        Raises:
            CorruptError: the totals in the manifest are not the sums over its shards.
        """
        self.check_totals()
        parts = [
            np.arange(begin, end, self._rows_per_group, dtype=np.int64)
            for begin, end in pairwise(self._first_pack_of_file)
        ]
        return np.append(np.concatenate(parts), self.packs)

    def checked(self, numbers: ArrayLike) -> NDArray[Any]:
        """Check pack numbers, and return them as an array ``[n]``.

        Raises:
            IndexError: there is no such pack; negative numbers are not allowed.
            TypeError: `numbers` is not a list of integers.
        """
        wanted = np.asarray(numbers)
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise TypeError(f"pack numbers are a list of integers, got {wanted.dtype} {list(wanted.shape)}")
        if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < self.packs:
            raise IndexError(f"pack numbers are in 0..{self.packs - 1}, got {wanted.min()}..{wanted.max()}")
        return wanted

    def runs(self, wanted: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield ``(row group, rows)`` for adjacent entries of `wanted` that lie in the same row group.

        `wanted` are pack numbers ``[n]`` in any order, which may repeat. `rows` are the positions of these packs in the
        row group, from 0. If there are more of them than packs in the row group, they are yielded in several parts.

        Raises:
            CorruptError: the totals in the manifest are not the sums over its shards.
        """
        bounds, begin = self.bounds, 0
        while begin < wanted.size:
            row_group = int(np.searchsorted(bounds, wanted[begin], side="right")) - 1
            first, last = int(bounds[row_group]), int(bounds[row_group + 1])
            # At most one row group: a longer run repeats packs, and is read as two runs
            here = wanted[begin : begin + last - first]
            outside = np.flatnonzero((here < first) | (here >= last))
            rows = here[: int(outside[0])] if outside.size else here
            yield row_group, rows - first
            begin += rows.size

    def order(self, seed: int, epoch: int) -> NDArray[Any]:
        """Return all pack numbers in a random order that depends on `seed` and `epoch`; integers ``[packs]``.

        The row groups are shuffled, and the packs within each row group, so the order is fast to read.

        Raises:
            CorruptError: the totals in the manifest are not the sums over its shards.
        """
        from nopad import _deal_kernels, _kernels

        dtype = index_dtype(self.packs)
        bounds = self.bounds.astype(dtype)
        numbers = np.arange(self.packs, dtype=dtype)
        keys = random.keys(np.arange(self.row_groups), seed, random.STREAM_BLOCK_ORDER, epoch)
        _deal_kernels.shuffle_segments(numbers, bounds.astype(np.int64), keys)
        row_groups = np.arange(self.row_groups)
        _kernels.shuffle(row_groups, np.uint64(random.key(seed, random.STREAM_BLOCK_ORDER, epoch)))
        out = np.empty_like(numbers)
        # A row group is a list of packs as a pack is a list of sequences, so the same kernel reorders both.
        _kernels.permute_packs(bounds, numbers, row_groups, np.zeros(self.row_groups + 1, dtype=dtype), out)
        return out


def _odd_total(m: Manifest) -> str:
    """Return a sentence on the first total in the manifest that is not the sum over the shards; "" if all agree.

    The totals of an index are not compared.
    """
    for name in ("packs", "sequences", "tokens") if m.kind == "packed" else ():
        total, held = getattr(m, name), sum(getattr(shard, name) for shard in m.shards)
        if total != held:
            return f"its nopad.json states {total:,} {name}, and those of its shards add up to {held:,}"
    return ""
