"""Read a packed dataset: single packs by number, or all packs, in stored order or another one.

A row group is always decoded as a whole. Iterating reads row groups ahead in Arrow's threads, so a pass runs at the
speed of Parquet decoding. Random access decodes one row group (about 2^18 tokens), or takes it from a cache. Files are
opened when they are first needed. Every row group is checked against the manifest before it is returned, except by
`PackedDataset.unchecked_row_groups`. If a file is missing or damaged, or was written anew with another size or layout,
reading raises `CorruptError` instead of returning fewer packs. A row consists of flat NumPy arrays. `PackedDataset`
works as a map-style dataset (``__len__``, ``__getitem__``, pickling for workers) and imports no framework.
"""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import repeat, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, finalize

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.errors import CorruptError, OptionError
from nopad.options import Option
from nopad.sequences import LABELS, Sequences
from nopad.store.described import described
from nopad.store.index import IndexFiles
from nopad.store.manifest import Manifest
from nopad.store.places import Places
from nopad.store.row_groups import PackedRow, RowGroup, row_group_problems
from nopad.store.sampling import Reads, refuse_stacking
from nopad.store.shard_files import ShardFiles
from nopad.threads import new_lock

if TYPE_CHECKING:
    from nopad.batch.form import Form
    from nopad.loading.collator import PackCollator

__all__ = ["PackedDataset", "PackedRow", "RowGroup", "open_packed"]

_ALIVE: WeakSet[Any] = WeakSet()  # open datasets, which a forked child has too
_CACHED = Option(default=16, low=0, help="decoded row groups to keep")
_SEED = Option(default=0, low=0, high=2**64 - 1, help="of an order")


def open_packed(path: str | Path, *, cached_row_groups: int = 16) -> PackedDataset:
    """Open and return a packed or index-only dataset.

    Only the manifest is read at first. Reading packs checks the checksums of pages and the lengths of packs; only
    `nopad.verify` checks the SHA-256 of shards. The files of an index-only dataset are checked by SHA-256 when read.

    Args:
        path: the dataset folder.
        cached_row_groups: maximum number of decoded row groups (about 1 MiB each) that random access keeps.

    Raises:
        FormatError: the folder is not a packed dataset, has an unknown format version, or holds two datasets
            (``train`` and ``validation``).
        CorruptError: the job that writes the dataset has not finished, only one of ``train`` and ``validation`` is
            there, or the manifest is damaged.
        StorageError: the manifest cannot be read.
        OptionError: `cached_row_groups` is not an integer of at least 0.

    >>> import nopad, tempfile
    >>> out = tempfile.mkdtemp()
    >>> _ = nopad.pack_corpus(nopad.open_source([[7, 8, 9], [5], [1, 2]]), out, nopad.CorpusOptions(capacity=4))
    >>> dataset = nopad.open_packed(out)
    >>> len(dataset), dataset[0].input_ids.size
    (2, 4)
    """
    return PackedDataset(path, cached_row_groups=cached_row_groups)


class PackedDataset:
    """A packed dataset on disk, opened by `open_packed`. Threads and processes may share it.

    ``dataset[number]`` is one pack (`PackedRow`). Iterating yields all packs in stored order; `read` yields those with
    given numbers.

    Attributes:
        path: the dataset folder.
        manifest: the content of ``nopad.json``.
    """

    def __init__(self, path: str | Path, *, cached_row_groups: int = 16, owned: bool = False) -> None:
        """Read the manifest in `path`; at most `cached_row_groups` decoded row groups (about 1 MiB each) are kept.

        If `owned`, the folder is removed when this object is garbage-collected, or when this process ends.
        """
        self.path = Path(path).absolute()  # pyarrow takes a relative path such as run-12:30 for a URL
        self.manifest = Manifest.load(path)
        self._cached_row_groups = _CACHED.check("cached_row_groups", cached_row_groups)
        self._places = Places(self.path, self.manifest)
        self._reads = Reads(self.manifest.rows_per_group)
        self._temporary = owned
        if owned:
            finalize(self, _remove, self.path, os.getpid())
        self._reset()

    def _reset(self) -> None:
        self._cache: OrderedDict[int, RowGroup] = OrderedDict()
        self._unlock()
        kind = IndexFiles if self.manifest.kind == "index" else ShardFiles
        self._files: IndexFiles | ShardFiles = kind(self.path, self.manifest)
        self._reads.begin_again()
        _ALIVE.add(self)

    def _unlock(self) -> None:
        """Make a new lock; a forked child needs one, since nothing there could release a lock held at the fork."""
        self._lock = new_lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without open files and decoded row groups, so that each worker opens its own."""
        private = {"_cache", "_lock", "_files"}
        return {name: value for name, value in vars(self).items() if name not in private}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the dataset without open files."""
        vars(self).update(state)
        self._reset()

    def __len__(self) -> int:
        """Return the number of packs."""
        return self.manifest.packs

    def __repr__(self) -> str:
        """Return in a few words what the dataset holds, what was left out of it, and its folder."""
        return described(self.manifest, "a temporary folder" if self._temporary else str(self.path))

    def to_hf(self, *, causal: bool | None = None) -> Any:
        """Return the packs as a `datasets.Dataset` in memory, for transformers' `Trainer` and TRL's `SFTTrainer`.

        A row is a pack. It has the dataset's columns, with one value per sequence (``seq_lengths``, ``seq_index``) or
        per token (``input_ids``). The column ``position_ids`` is added, with numbers that begin at 0 in each sequence.
        Depending on `causal`, ``labels`` are added too. If there are no ``labels``, a column ``label`` or ``label_ids``
        gets this name. The result takes 8 to 12 bytes of memory per token, and the size of all other columns; it does
        not need the folder any more. Reading rows at random is as fast as reading them in order. Also give the trainer
        the dataset's `collator` as `data_collator`.

        Args:
            causal: True: ``labels`` are for a causal language model: those of the dataset, or a copy of ``input_ids``
                if it has none, with -100 for the first token of each sequence, which no token predicts. False: labels
                are left as they are, and none are added. None: as with True if there are labels per token, or neither
                labels nor a column ``maskable`` (of pre-training pairs that are masked later); otherwise as with False.

        Raises:
            OptionError: the dataset is an index without tokens; its labels are per sequence and `causal` is True; or
                `causal` is None, and the label of some first token is neither this token nor -100.
            BatchError: the dataset has both ``label`` and ``label_ids``, and no ``labels``; its ``position_ids`` do not
                count from 0 in each sequence; or another column has the name of one that is computed, such as
                ``attention_mask``.
            CorruptError: a shard is missing or damaged.
            StorageError: a shard cannot be read.
            MissingExtraError: `datasets` is not installed.

        >>> import nopad
        >>> rows = nopad.pack_dataset([[7, 8, 9], [5, 6]], 8).to_hf()
        >>> rows[0]["input_ids"], rows[0]["position_ids"], rows[0]["labels"], rows[0]["seq_lengths"]
        ([7, 8, 9, 5, 6], [0, 1, 2, 0, 1], [-100, 8, 9, -100, 6], [3, 2])
        """
        from nopad.store.hf import to_hf

        return to_hf(self, causal=causal)

    def collator(
        self,
        *,
        causal: bool = False,
        mlm_probability: float | None = None,
        tokenizer: Any = None,
        seed: int = 0,
        form: Form | None = None,
    ) -> PackCollator:
        """Return a function that makes batches of rows; give it as `data_collator` or `collate_fn`.

        The function takes a list of rows of this dataset, or of the result of `to_hf`, and returns a `PackedBatch`. A
        column ``label`` or ``label_ids`` becomes ``labels``, as in transformers' collators.

        Args:
            causal: whether to make labels for a causal language model: those of the dataset, or the tokens if it has
                none, with -100 for the first token of each sequence (`nopad.loading.causal`).
            mlm_probability: share of the tokens to mask, for masked language models, by the rule of
                `nopad.tasks.Masking`. Masks are drawn anew at each call; after `PackCollator.set_epoch`, they depend
                only on seed, epoch and sequence. None: nothing is masked.
            tokenizer: a transformers tokenizer with a mask token; needed with `mlm_probability`, not allowed without.
            seed: random seed of the masks.
            form: shape of the batch: `nopad.Flat()`, one row without padding, or ``nopad.Rows(dataset.capacity)``, one
                row per pack; None: flat.

        Raises:
            OptionError: an option is invalid, or two contradict each other.

        >>> import nopad
        >>> dataset = nopad.pack_dataset([[7, 8, 9], [5, 6]], 8)
        >>> batch = dataset.collator(causal=True)([dataset[0]])
        >>> batch["input_ids"].tolist(), batch["labels"].tolist()
        ([[7, 8, 9, 5, 6]], [[-100, 8, 9, -100, 6]])
        """
        from nopad.loading.collator import PackCollator

        masking = None
        if mlm_probability is not None:
            from nopad.tasks import Masking

            if tokenizer is None:
                raise OptionError("mlm_probability needs the mask token: give tokenizer=, the model's tokenizer")
            masking = Masking(tokenizer, rate=mlm_probability, seed=seed)
        elif tokenizer is not None:
            raise OptionError("tokenizer is for masks; give mlm_probability too, or leave it out")
        per_sequence = [name for name, per in self.manifest.carried.items() if per == "sequence"]
        per_sequence += ["labels"] if set(LABELS).intersection(per_sequence) else []
        return PackCollator(form=form, causal=causal, masking=masking, per_sequence=per_sequence)

    @property
    def row_groups(self) -> int:
        """Number of row groups."""
        return self._places.row_groups

    @property
    def capacity(self) -> int:
        """Maximum number of tokens in a pack."""
        return self.manifest.capacity

    def __getitem__(self, at: int) -> PackedRow:
        """Return pack `at`; negative numbers count from the end.

        Raises:
            IndexError: there is no such pack.
            TypeError: `at` is not an integer.
            CorruptError: the pack's file is missing or damaged.
            StorageError: the pack's file cannot be read.
        """
        if not isinstance(at, int | np.integer):
            raise TypeError(
                f"a packed dataset is indexed by pack number, got {at!r}; a column is dataset[number][name]"
            )
        packs = len(self)
        if not -packs <= at < packs:
            raise IndexError(f"pack {at} of {packs} packs")
        number, row = self._places.of_pack(int(at) % packs)
        row_group = self.row_group(number)
        self._reads.count_row()
        return PackedRow(row_group, row)

    def __getitems__(self, indices: list[int]) -> list[PackedRow]:
        """Return the packs with these numbers; torch's `DataLoader` calls this with the numbers of a whole batch.

        From the first call on, torch's default collate function raises OptionError for packs, instead of stacking
        them (`refuse_stacking`).
        """
        refuse_stacking()
        return [self[at] for at in indices]

    def __iter__(self) -> Iterator[PackedRow]:
        """Iterate over all packs in stored order, reading ahead.

        Raises:
            CorruptError: a shard is missing or damaged.
            StorageError: a shard cannot be read.
        """
        for row_group in self.iter_row_groups(range(self.row_groups)):
            yield from map(PackedRow, repeat(row_group), range(len(row_group)))

    def order(self, seed: int, epoch: int = 0) -> NDArray[Any]:
        """Return all pack numbers in a random order that is fast to read.

        The row groups are shuffled, and the packs within each row group.

        The order depends only on the dataset's layout, `seed` and `epoch` (see `nopad.random`). The result is int32
        ``[packs]``, or int64 from 2^31 packs on. To resume an epoch after ``n`` packs, read ``order(seed, epoch)[n:]``.

        Raises:
            OptionError: `seed` or `epoch` is not an integer from 0 to 2^64 - 1.
            CorruptError: the totals in the manifest are not the sums over its shards.

        >>> import tempfile, nopad
        >>> from nopad.corpus import CorpusOptions, IterableSource
        >>> with tempfile.TemporaryDirectory() as out:
        ...     _ = nopad.pack_corpus(IterableSource([[i] * 4 for i in range(6)]), out, CorpusOptions(capacity=4))
        ...     dataset = nopad.open_packed(out)
        ...     epoch = dataset.order(seed=1)
        ...     sorted(epoch.tolist()), [row.seq_index.tolist() for row in dataset.read(epoch[4:])]
        ([0, 1, 2, 3, 4, 5], [[3], [4]])
        """
        return self._places.order(_SEED.check("seed", seed), _SEED.check("epoch", epoch))

    def read(self, numbers: ArrayLike) -> Iterator[PackedRow]:
        """Iterate over the packs with these numbers, in this order, reading ahead.

        `numbers` are integers from 0, ``[n]``. As long as consecutive numbers lie in the same row group, it is decoded
        only once. So the result of `order`, or any slice of it, is read as fast as plain iteration.

        Raises:
            IndexError: there is no such pack; negative numbers are not allowed.
            TypeError: `numbers` is not a list of integers.
            CorruptError: a shard is missing or damaged.
            StorageError: a shard cannot be read.
        """
        return self._read(self._places.checked(numbers))

    def gather(self, numbers: ArrayLike) -> tuple[Sequences, NDArray[np.int64]]:
        """Return the sequences of the packs with these numbers, in this order, and how many sequences each pack has.

        The second result is int64 ``[n]`` for n `numbers`. Cached row groups are not decoded again; nothing is read
        ahead.

        Raises:
            IndexError: there is no such pack; negative numbers are not allowed.
            TypeError: `numbers` is not a list of integers.
            CorruptError: a shard is missing or damaged.
            StorageError: a shard cannot be read.
        """
        runs = self._places.runs(self._places.checked(numbers))
        found = [self.row_group(number).take(rows) for number, rows in runs]
        if not found:
            return Sequences(seq_lengths=np.zeros(0, np.int32)), np.zeros(0, np.int64)
        return Sequences.joined([part for part, _ in found]), np.concatenate([sizes for _, sizes in found])

    def _read(self, wanted: NDArray[Any]) -> Iterator[PackedRow]:
        runs, ahead = tee(self._places.runs(wanted))
        for (_, rows), row_group in zip(runs, self.iter_row_groups(number for number, _ in ahead), strict=True):
            yield from map(PackedRow, repeat(row_group), rows.tolist())

    def seq_lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the lengths of all sequences as ``(indptr, seq_lengths)``, without reading tokens.

        The sequences of pack p have ``seq_lengths[indptr[p]:indptr[p + 1]]`` tokens. `indptr` is int64 ``[packs + 1]``,
        `seq_lengths` is int32 ``[sequences]``.

        Raises:
            CorruptError: a shard is missing or damaged.
            StorageError: a shard cannot be read.
        """
        bounds, parts, at = [np.zeros(1, dtype=np.int64)], [np.zeros(0, dtype=np.int32)], 0
        for file in range(self._places.files):
            offsets, values = self._files.lengths(file)
            bounds.append(offsets[1:] + at)
            parts.append(values)
            at += values.size
        indptr, lengths = np.concatenate(bounds), np.concatenate(parts)
        if (indptr.size - 1, at) != (len(self), self.manifest.sequences) or lengths.min(initial=1) < 1:
            raise CorruptError(f"{self.path} holds other sequences than its manifest states; see `nopad verify`")
        return indptr, lengths

    def iter_row_groups(self, numbers: Iterable[int]) -> Iterator[RowGroup]:
        """Iterate over the row groups with these numbers, in this order; the fastest way to read a whole dataset.

        Raises:
            IndexError: there is no such row group.
            CorruptError: a shard is missing or damaged.
            StorageError: a shard cannot be read.
        """
        self._places.check_totals()
        numbers, ahead = tee(numbers)
        for number, row_group in zip(numbers, self.unchecked_row_groups(ahead), strict=True):
            yield self._checked(row_group, number)

    def unchecked_row_groups(self, numbers: Iterable[int]) -> Iterator[RowGroup]:
        """Iterate over the row groups with these numbers without checking their packs, for `nopad.verify`.

        Raises:
            IndexError: there is no such row group.
            CorruptError: a shard is missing, or cannot be decoded.
            StorageError: a shard cannot be read.
        """
        return self._files.scan(self._places.of_row_group(number) for number in numbers)

    def row_group(self, number: int) -> RowGroup:
        """Return row group `number`, from the cache if it is there.

        Raises:
            IndexError: there is no such row group.
            CorruptError: the row group's file is missing or damaged.
            StorageError: the row group's file cannot be read.
        """
        self._places.check_totals()
        with self._lock:
            found = self._cache.get(number)
            if found is not None:
                self._cache.move_to_end(number)
                return found
        row_group = self._checked(self._files.read(*self._places.of_row_group(number)), number)
        if self.manifest.kind == "packed":  # row groups of an index cost little
            self._reads.count_decoded()
        with self._lock:
            self._cache[number] = row_group
            while len(self._cache) > self._cached_row_groups:
                self._cache.popitem(last=False)
        return row_group

    def _checked(self, row_group: RowGroup, number: int) -> RowGroup:
        """Return `row_group`, the content of row group `number`, after checking that it agrees with the manifest.

        Raises:
            IndexError: there is no such row group.
            CorruptError: the content does not agree with the manifest.
        """
        problems = row_group_problems(row_group, self._places.first_pack(number), self.manifest)
        if problems:
            raise CorruptError(f"{self.path} is damaged: {problems[0]}; see `nopad verify`")
        return row_group


def _remove(folder: Path, process: int) -> None:
    """Remove the folder of a dataset that is not used any more.

    This is done only in the process with the id `process`, and not in a forked child.
    """
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _after_fork() -> None:
    for dataset in list(_ALIVE):
        dataset._unlock()
        dataset._files.unlock()


os.register_at_fork(after_in_child=_after_fork)
