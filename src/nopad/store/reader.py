"""Read a packed dataset: random access to any pack, sequential and block-shuffled iteration.

A block is a row group: decoded whole, cached, and read ahead by Arrow's threads while iterating, so a pass runs at
the speed of Parquet decoding. Random access costs one block (about 2^18 tokens) when it is not cached, a slice when it
is. Framework-neutral: a row is flat NumPy arrays, and `PackedDataset` has what map-style loaders ask for (``__len__``,
``__getitem__``, picklable for workers) without importing any of them.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import accumulate, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.arrow import list_parts
from nopad.errors import CorruptError
from nopad.store.index import read_index
from nopad.store.manifest import Manifest

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Block", "PackedDataset", "PackedRow", "open_packed"]

_AHEAD = 8
_PER_SEQUENCE = ("seq_lengths", "seq_index", "seq_start", "seq_source")


class Block:
    """Some packs in a row, as flat arrays.

    Attributes:
        indptr: where each pack begins in the per-sequence columns; ``[packs + 1]``.
        token_indptr: where each pack begins in the per-token columns; ``[packs + 1]``.
        sequences: per-sequence columns: ``seq_lengths``, ``seq_index``, ``seq_start`` when records were split,
            ``seq_source`` when sources were named.
        tokens: per-token columns, without padding; none in an index-only dataset.
        bounds, token_bounds: the two index arrays as lists: slicing with their integers is three times as fast.
    """

    __slots__ = ("bounds", "indptr", "sequences", "token_bounds", "token_indptr", "tokens")

    def __init__(
        self,
        indptr: NDArray[Any],
        token_indptr: NDArray[Any],
        sequences: dict[str, NDArray[Any]],
        tokens: dict[str, NDArray[Any]],
    ) -> None:
        """Keep the arrays, without a copy."""
        self.indptr, self.token_indptr = indptr, token_indptr
        self.sequences, self.tokens = sequences, tokens
        self.bounds: list[int] = indptr.tolist()
        self.token_bounds: list[int] = token_indptr.tolist()

    def __len__(self) -> int:
        """Number of packs."""
        return self.indptr.size - 1


class PackedRow(Mapping[str, NDArray[Any]]):
    """One pack: a mapping of its stored columns, flat arrays that are views into its block.

    >>> import tempfile, nopad
    >>> from nopad.corpus import CorpusOptions, IterableSource
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = nopad.pack_corpus(IterableSource([[7, 8, 9], [5]]), out, CorpusOptions(capacity=4))
    ...     row = nopad.open_packed(out)[0]
    ...     row.input_ids.tolist(), row.seq_lengths.tolist(), row.position_ids.tolist(), row.sequence_ids.tolist()
    ([7, 8, 9, 5], [3, 1], [0, 1, 2, 0], [1, 1, 1, 2])
    """

    __slots__ = ("_at", "_block")

    def __init__(self, block: Block, at: int) -> None:
        """Row `at` of `block`."""
        self._block = block
        self._at = at

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a stored column of this pack: per token or per sequence."""
        block, at = self._block, self._at
        column = block.tokens.get(name)
        if column is not None:
            return column[block.token_bounds[at] : block.token_bounds[at + 1]]
        column = block.sequences.get(name)
        if column is not None:
            return column[block.bounds[at] : block.bounds[at + 1]]
        have = ", ".join([*block.sequences, *block.tokens])
        hint = "" if block.tokens else "; an index-only dataset leaves the tokens in its source"
        raise KeyError(f"no column {name!r}; there are: {have}{hint}")

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the stored columns."""
        return iter([*self._block.sequences, *self._block.tokens])

    def __len__(self) -> int:
        """Number of stored columns."""
        return len(self._block.sequences) + len(self._block.tokens)

    @property
    def column_names(self) -> tuple[list[str], list[str]]:
        """Names of the stored columns: those with a value a token, and those with one a sequence."""
        return list(self._block.tokens), list(self._block.sequences)

    __eq__ = object.__eq__  # arrays do not compare to one truth
    __hash__ = object.__hash__

    @property
    def seq_lengths(self) -> NDArray[np.int32]:
        """Length of each sequence in tokens; ``[sequences]``."""
        block, at = self._block, self._at
        return block.sequences["seq_lengths"][block.bounds[at] : block.bounds[at + 1]]

    @property
    def seq_index(self) -> NDArray[np.int64]:
        """Record number of each sequence in the source; ``[sequences]``."""
        return self["seq_index"]

    @property
    def seq_start(self) -> NDArray[np.int64]:
        """Where each sequence begins in its record's content: 0 unless the record was split; ``[sequences]``."""
        if "seq_start" in self._block.sequences:
            return self["seq_start"]
        return np.zeros(self.seq_lengths.size, dtype=np.int64)

    @property
    def input_ids(self) -> NDArray[np.int32]:
        """Token ids, sequence after sequence, without padding; ``[tokens]``."""
        block, at = self._block, self._at
        if "input_ids" not in block.tokens:
            return self["input_ids"]  # says which columns there are
        return block.tokens["input_ids"][block.token_bounds[at] : block.token_bounds[at + 1]]

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Cumulative lengths with a leading 0; int32 ``[sequences + 1]``."""
        out = np.zeros(self.seq_lengths.size + 1, dtype=np.int32)
        np.cumsum(self.seq_lengths, out=out[1:])
        return out

    @property
    def position_ids(self) -> NDArray[np.int32]:
        """Position of each token in its sequence, from 0; int32 ``[tokens]``."""
        bounds = self.cu_seqlens
        return np.arange(bounds[-1], dtype=np.int32) - np.repeat(bounds[:-1], self.seq_lengths)

    @property
    def sequence_ids(self) -> NDArray[np.int32]:
        """Number of each token's sequence in the pack, from 1 (0 is padding's); int32 ``[tokens]``."""
        return np.repeat(np.arange(1, self.seq_lengths.size + 1, dtype=np.int32), self.seq_lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle this row alone, not the block it is a view into."""
        block, at = self._block, self._at
        row = Block(
            indptr=block.indptr[at : at + 2] - block.indptr[at],
            token_indptr=block.token_indptr[at : at + 2] - block.token_indptr[at],
            sequences={name: self[name].copy() for name in block.sequences},
            tokens={name: self[name].copy() for name in block.tokens},
        )
        return PackedRow, (row, 0)

    def __repr__(self) -> str:
        """One line."""
        return f"PackedRow({self.seq_lengths.size} sequences, {int(self.seq_lengths.sum())} tokens)"


def open_packed(path: str | Path, *, cached_blocks: int = 16) -> PackedDataset:
    """Open a packed or index-only dataset folder; at most `cached_blocks` decoded blocks (about 1 MiB each) are kept.

    Reading checks what decoding needs, not checksums: `nopad.verify` does.

    Raises:
        FormatError: the folder is no packed dataset, or of an unknown format version.
        CorruptError: its job has not finished, or its manifest is damaged.
    """
    return PackedDataset(path, cached_blocks=cached_blocks)


class PackedDataset:
    """A packed dataset on disk; see the module for costs. Threads and processes may share it.

    Attributes:
        path: its folder.
        manifest: the content of ``nopad.json``.
    """

    def __init__(self, path: str | Path, *, cached_blocks: int = 16) -> None:
        """Open `path`; at most `cached_blocks` decoded blocks (about 1 MiB each) are kept."""
        self.path = Path(path).absolute()  # pyarrow takes a relative one such as run-12:30 for a URL
        self.manifest = Manifest.load(path)
        self._cached_blocks = cached_blocks
        m = self.manifest
        packs_of = [m.packs] if m.kind == "index" else [shard.packs for shard in m.shards]
        # (file, first pack) of every block: row groups have the same number of packs but for the last of a file.
        self._first_pack_of_file = [0, *accumulate(packs_of)]
        groups = [-(-packs // m.rows_per_group) for packs in packs_of]
        self._first_block_of_file = [0, *accumulate(groups)]
        self._reset()

    def _reset(self) -> None:
        self._cache: OrderedDict[int, Block] = OrderedDict()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._index: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave open files and decoded blocks behind: a worker opens its own."""
        private = {"_cache", "_lock", "_local", "_index"}
        return {name: value for name, value in vars(self).items() if name not in private}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore without open files."""
        vars(self).update(state)
        self._reset()

    def __len__(self) -> int:
        """Number of packs."""
        return self.manifest.packs

    @property
    def blocks(self) -> int:
        """Number of blocks (row groups)."""
        return self._first_block_of_file[-1]

    def __getitem__(self, at: int) -> PackedRow:
        """Return pack `at`; negative numbers count from the end."""
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
        return PackedRow(self.block(self._first_block_of_file[file] + group), row)

    def __getitems__(self, indices: list[int]) -> list[PackedRow]:
        """Return several packs; torch's loader calls this with a whole batch."""
        return [self[at] for at in indices]

    def __iter__(self) -> Iterator[PackedRow]:
        """Iterate over all packs in stored order, reading ahead."""
        for block in self.iter_blocks(range(self.blocks)):
            yield from map(PackedRow, repeat(block), range(len(block)))

    def shuffled(self, seed: int, epoch: int = 0) -> Iterator[PackedRow]:
        """Iterate over all packs once: blocks in a seeded random order, packs shuffled within each block.

        A pure function of (dataset, seed, epoch); see `nopad.random`.
        """
        from nopad import _kernels

        order = np.arange(self.blocks)
        _kernels.shuffle(order, np.uint64(random.key(seed, random.STREAM_BLOCK_ORDER, epoch)))
        numbers = order.tolist()
        for number, block in zip(numbers, self.iter_blocks(numbers), strict=True):
            rows = np.arange(len(block))
            _kernels.shuffle(rows, np.uint64(random.key(seed, random.STREAM_BLOCK_ORDER, epoch, number)))
            yield from map(PackedRow, repeat(block), rows.tolist())

    def iter_blocks(self, numbers: range | list[int]) -> Iterator[Block]:
        """Iterate over whole blocks in this order; the fastest way to read everything.

        Arrow's own threads decode a few blocks ahead. (Python threads would wait for the interpreter, which the loop
        over rows keeps busy: that read a quarter slower.)

        Raises:
            CorruptError: a shard is missing or damaged.
        """
        if self.manifest.kind == "index":
            yield from map(self.block, numbers)
            return
        import pyarrow as pa

        rows = self.manifest.rows_per_group
        try:
            found = self._scan(numbers, rows)
            for number, batch in zip(numbers, found, strict=True):
                file = bisect_right(self._first_block_of_file, number) - 1
                yield self._to_block(pa.Table.from_batches([batch]), file)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise CorruptError(f"a shard of {self.path} is missing or damaged ({error}); see `nopad verify`") from error

    def _scan(self, numbers: range | list[int], rows: int) -> Iterator[pa.RecordBatch]:
        """Decode row groups in this order, one batch each."""
        import pyarrow.dataset as ds

        kind = ds.ParquetFileFormat()
        files = [str(self.path / shard.file) for shard in self.manifest.shards]
        whole = ds.dataset(files, format=kind)
        groups = [group for file in whole.get_fragments() for group in file.split_by_row_group()]
        wanted = ds.FileSystemDataset([groups[number] for number in numbers], schema=whole.schema, format=kind)
        scanner = wanted.scanner(batch_size=rows, batch_readahead=_AHEAD, fragment_readahead=_AHEAD)
        yield from scanner.to_batches()

    def block(self, number: int) -> Block:
        """Return one decoded block, from the cache when it is there."""
        with self._lock:
            found = self._cache.get(number)
            if found is not None:
                self._cache.move_to_end(number)
                return found
        block = self._index_block(number) if self.manifest.kind == "index" else self._read(number)
        with self._lock:
            self._cache[number] = block
            while len(self._cache) > self._cached_blocks:
                self._cache.popitem(last=False)
        return block

    def _read(self, number: int) -> Block:
        """Decode block `number` from its file."""
        import pyarrow as pa

        file = bisect_right(self._first_block_of_file, number) - 1
        try:
            group = number - self._first_block_of_file[file]
            return self._to_block(self._reader(file).read_row_group(group, use_threads=False), file)
        except (OSError, pa.ArrowException) as error:
            name = self.path / self.manifest.shards[file].file
            raise CorruptError(f"{name} is missing or damaged ({error}); see `nopad verify`") from error

    def _to_block(self, table: pa.Table, file: int) -> Block:
        """View the columns of a decoded row group as NumPy arrays."""
        missing = [name for name in self.manifest.columns if name not in table.column_names]
        if missing:
            name = self.path / self.manifest.shards[file].file
            raise CorruptError(f"{name} has no column {missing[0]}; see `nopad verify`")
        parts = {name: list_parts(table.column(name).combine_chunks()) for name in table.column_names}
        indptr = parts["seq_lengths"][0]
        per_sequence = [*_PER_SEQUENCE, *(name for name, per in self.manifest.carried.items() if per == "sequence")]
        sequences = {name: parts.pop(name)[1] for name in per_sequence if name in parts}
        token_indptr = next(iter(parts.values()))[0]
        return Block(indptr, token_indptr, sequences, {name: values for name, (_, values) in parts.items()})

    def _reader(self, file: int) -> Any:
        """Return this thread's open reader of a shard: Parquet readers are not safe to share."""
        import pyarrow.parquet as pq

        readers: OrderedDict[int, Any] = getattr(self._local, "readers", None) or OrderedDict()
        self._local.readers = readers
        if file not in readers:
            readers[file] = pq.ParquetFile(self.path / self.manifest.shards[file].file)
            if len(readers) > 8:
                readers.popitem(last=False)[1].close()
        readers.move_to_end(file)
        return readers[file]

    def _index_block(self, number: int) -> Block:
        """Cut block `number` out of the mapped index."""
        with self._lock:
            if self._index is None:
                self._index = read_index(self.path)
            packs, columns = self._index
        rows = self.manifest.rows_per_group
        chosen = packs[number * rows : (number + 1) * rows]
        sequences = {
            "seq_lengths": columns.lengths[chosen.sequence].astype(np.int32),
            "seq_index": columns.record[chosen.sequence],
        }
        if columns.start is not None:
            sequences["seq_start"] = columns.start[chosen.sequence]
        if columns.source is not None:
            sequences["seq_source"] = columns.source[chosen.sequence]
        return Block(chosen.indptr, np.zeros(len(chosen) + 1, dtype=np.int64), sequences, {})
