"""Check that packs hold each sequence exactly once, within capacity and depth, as the plan assigns them.

Memory: at most 30 bytes per sequence, 8 more per sequence for each column compared with a source, and about 100 MB for
the row groups that Arrow decodes ahead, whatever the size of the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.assignment import assign, pack
from nopad.corpus.selection import OWN
from nopad.errors import InputError, NopadError
from nopad.histogram import Histogram
from nopad.packs import index_dtype
from nopad.planning.plan import Plan
from nopad.planning.registry import ARRIVAL_ALGORITHMS
from nopad.sequences import Sequences, as_integers
from nopad.store.manifest import MANIFEST, PLAN, Manifest
from nopad.store.monitor import Monitor
from nopad.store.reader import PackedDataset
from nopad.store.row_groups import RowGroup, row_group_problems

LOST = ("dropped", "empty_skipped", "bad_skipped", "other_split")  # counts of records not packed
_CHUNK = 1 << 16  # sequences processed together

__all__ = ["Content", "content_problems", "dealing_problems", "hashes_of", "read_content"]


@dataclass(kw_only=True)
class Content:
    """All sequences of a dataset, in source order, and how they are packed.

    Attributes:
        sequences: the sequences' lengths, without tokens. The column ``place`` says where each sequence comes from: its
            record number times `width`, plus its start within the record; ascending, int64 ``[n]``.
        width: a number greater than every start.
        hashes: for each column (``input_ids`` and those packed along), a hash of each sequence's values, uint64
            ``[n]``, by name; empty if they are not compared with a source.
        sequence: number (in source order) of each packed sequence, pack after pack; ``[n]``.
        sizes: number of sequences in each pack; int32 ``[packs]``.
    """

    sequences: Sequences
    width: int
    hashes: dict[str, NDArray[np.uint64]]
    sequence: NDArray[Any]
    sizes: NDArray[np.int32]

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.sequences)

    def record(self, here: slice) -> NDArray[np.int64]:
        """Return the record number of each sequence in the slice `here`; int64."""
        return self._places[here] // self.width

    def start(self, here: slice) -> NDArray[np.int64]:
        """Return where each sequence in the slice `here` begins in the tokens of its record; int64."""
        return self._places[here] % self.width

    def between(self, first: int, last: int) -> slice:
        """Return the slice of sequences that come from records `first` to `last` (exclusive)."""
        places = self._places
        beyond = int(places[-1]) + 1 if places.size else 0  # a damaged manifest may state any number
        begin, end = (int(np.searchsorted(places, min(at * self.width, beyond))) for at in (first, last))
        return slice(begin, end)

    def forget_places(self) -> None:
        """Free the memory of the column ``place`` and of the hashes; the sequences' lengths and the packs stay."""
        self.sequences, self.hashes = replace(self.sequences, values={}), {}

    @property
    def _places(self) -> NDArray[np.int64]:
        places: NDArray[np.int64] = self.sequences.values["place"]
        return places

    def chunks(self, here: slice | None = None) -> Iterator[slice]:
        """Yield slices of at most 65,536 sequences that together cover the slice `here` (None: all sequences)."""
        begin, end, _ = (here or slice(None)).indices(len(self))
        for at in range(begin, end, _CHUNK):
            yield slice(at, min(at + _CHUNK, end))

    def distinct(self, here: slice) -> int:
        """Return the number of different records from which the sequences in the slice `here` were made."""
        count, before = 0, -1
        for chunk in self.chunks(here):
            record = self.record(chunk)
            count += int(np.count_nonzero(np.diff(record, prepend=before)))
            before = int(record[-1])
        return count


class _Gathering:
    """Builds a `Content` from the row groups of a dataset, which must be added in the order of the packs.

    Args:
        m: the dataset's manifest; its totals say how much memory to reserve for sequences and packs.
        hashes: whether the values of each sequence are hashed.

    Attributes:
        packs: number of packs added so far.
    """

    def __init__(self, m: Manifest, *, hashes: bool) -> None:
        self._size, self._packs = m.sequences, m.packs
        self._hashed = hashes
        self._columns: dict[str, NDArray[Any]] = {}
        self._at = 0
        self.packs = 0

    def add(self, row_group: RowGroup) -> None:
        """Add the sequences of a row group, with hashes of their values if the constructor was called with `hashes`."""
        lens, values = row_group.sequences.seq_lengths, row_group.sequences.values
        found = {"lengths": lens, "record": values["seq_index"]}
        if "seq_start" in values:
            found["start"] = values["seq_start"]
        if self._hashed:
            found |= {f"hash {name}": hashes for name, hashes in hashes_of(row_group.sequences).items()}
        for name, column in found.items():
            self._put(name, column, self._at, self._size)
        self._put("sizes", np.diff(row_group.indptr).astype(np.int32), self.packs, self._packs)
        self._at += lens.size
        self.packs += len(row_group)

    def _put(self, name: str, values: NDArray[Any], at: int, size: int) -> None:
        """Write `values` into the array called `name`, from index `at` on.

        If there is no such array yet, it is created with `size` entries. If the values do not fit, the array is made
        longer.
        """
        column = self._columns.get(name)
        if column is None:
            column = np.empty(size, dtype=values.dtype)
        if at + values.size > column.size:
            column = np.concatenate([column[:at], np.empty(at + 2 * values.size, dtype=values.dtype)])
        column[at : at + values.size] = values
        self._columns[name] = column

    def in_source_order(self) -> Content:
        """Return the `Content`, its sequences sorted by record and by start in the record; call this only once.

        Raises:
            ValueError: the numbers of records and starts are too large to be combined into 64 bits.
        """
        n, columns = self._at, self._columns
        none = np.zeros(0, dtype=np.int64)
        places = columns.pop("record", none)[:n]
        start = columns.pop("start", none)[:n]
        lengths = columns.pop("lengths", none.astype(np.int32))[:n]
        width = int(start.max(initial=0)) + 1
        if (int(places.max(initial=0)) + 1) * width >= 2**63:
            raise ValueError(f"a record has the number {places.max():,}, a piece of one begins at token {width - 1:,}")
        # One integer per (record, start), so that a single sort orders by both.
        if width > 1:
            places *= width
            places += start
        del start
        order = np.argsort(places).astype(index_dtype(n))
        places.sort()
        # To keep peak memory low, each column is freed before the next is sorted, and `sequence` is made last.
        hashes: dict[str, NDArray[np.uint64]] = {}
        for name in [name for name in columns if name.startswith("hash ")]:
            hashes[name.removeprefix("hash ")] = _permuted(columns.pop(name)[:n], order)
        lengths = _permuted(lengths, order)
        sequence = np.empty_like(order)
        for begin in range(0, n, _CHUNK):
            here = order[begin : begin + _CHUNK]
            sequence[here] = np.arange(begin, begin + here.size, dtype=order.dtype)
        return Content(
            sequences=Sequences(seq_lengths=lengths, values={"place": places}),
            width=width,
            hashes=hashes,
            sequence=sequence,
            sizes=columns.pop("sizes", none.astype(np.int32))[: self.packs],
        )


def _permuted(values: NDArray[Any], order: NDArray[Any]) -> NDArray[Any]:
    """Return ``values[order]``, computed in chunks, since NumPy would copy the whole of `order` as int64."""
    out = np.empty_like(values)
    for begin in range(0, order.size, _CHUNK):
        out[begin : begin + _CHUNK] = values[order[begin : begin + _CHUNK]]
    return out


def hashes_of(sequences: Sequences) -> dict[str, NDArray[np.uint64]]:
    """Return, for each column by name, a hash of each sequence's values; uint64 ``[n]``.

    Columns per token, such as ``input_ids``, and columns per sequence that come from the source are hashed. Columns
    that nopad itself makes, such as ``seq_index``, are left out.
    """
    carried = {name: column for name, column in sequences.values.items() if name not in OWN}
    return {
        **{name: _hash_tokens(column, sequences.seq_lengths) for name, column in sequences.tokens.items()},
        **{name: _hash_values(column) for name, column in carried.items()},
    }


def _hash_tokens(tokens: NDArray[Any], lengths: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return a hash of each run of values in `tokens`, uint64 ``[n]``; `lengths` are the lengths of the n runs.

    The values may have 1, 2, 4 or 8 bytes.
    """
    from nopad.store._kernels import token_hashes

    out = np.empty(lengths.size, dtype=np.uint64)
    token_hashes(as_integers(tokens), lengths, out)
    return out


def _hash_values(column: Any) -> NDArray[np.uint64]:
    """Return a hash of each number, boolean or string in a NumPy or Arrow array; uint64 ``[n]``."""
    values = column if isinstance(column, np.ndarray) else column.to_numpy(zero_copy_only=False)
    if values.dtype != object:
        return _hash_tokens(np.ascontiguousarray(values), np.ones(values.size, dtype=np.int32))
    encoded = [text.encode() for text in values]
    lengths = np.fromiter(map(len, encoded), np.int32, len(encoded))
    return _hash_tokens(np.frombuffer(b"".join(encoded), np.int8), lengths)


def read_content(folder: Path, m: Manifest, monitor: Monitor, *, hashes: bool) -> tuple[Content | None, list[str]]:
    """Decode and check every pack of the dataset in `folder`, whose manifest is `m`; return ``(content, problems)``.

    `content` is None if a pack cannot be read, or if record numbers are too large to be combined with starts into 64
    bits. `problems` has one sentence for each problem. `hashes` says whether the values of every sequence are hashed,
    to be compared with the source.
    """
    problems: list[str] = []
    dataset = PackedDataset(folder)
    monitor.stage("reading packs", m.tokens, "tokens")
    found = _Gathering(m, hashes=hashes)
    misplaced: set[int] = set()
    try:
        for row_group in dataset.unchecked_row_groups(range(dataset.row_groups)):
            problems += row_group_problems(row_group, found.packs, m)
            misplaced |= _misplaced(row_group, m)
            found.add(row_group)
            tokens = int(row_group.sequences.seq_lengths.sum(dtype=np.int64))
            monitor.advance(tokens, tokens)
        for number in sorted(misplaced):
            name = m.sources[number]["name"]
            problems.append(f"a sequence of {name!r} has another number than {number} in seq_source")
        _release_row_groups()
        if found.packs != m.packs:
            problems.append(f"{MANIFEST} states {m.packs:,} packs, the files hold {found.packs:,}")
        return found.in_source_order(), problems
    except (NopadError, ValueError, IndexError) as error:
        problems.append(f"cannot be read: {error}")
        return None, problems


def _release_row_groups() -> None:
    """Free the memory of decoded row groups, which Arrow would otherwise keep for later ones."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def _misplaced(row_group: RowGroup, m: Manifest) -> set[int]:
    """Return the numbers of the named sources that have a sequence whose ``seq_source`` states another source.

    The record number of a sequence and the manifest `m` determine the source to which it belongs.
    """
    record = row_group.sequences.values["seq_index"]
    source = row_group.sequences.values.get("seq_source", np.zeros(record.size, dtype=np.int32))
    return {
        number
        for number, part in enumerate(m.sources)
        if (
            (record >= part["first_record"]) & (record < part["first_record"] + part["records"]) & (source != number)
        ).any()
    }


def content_problems(content: Content, m: Manifest, plan: Plan) -> list[str]:
    """Return the problems of a dataset's content, one sentence each.

    It is a problem if a sequence occurs more than once. It is also a problem if there is a gap: a record's first piece
    does not begin at its token 0, or another piece does not begin where the piece before it ends. At most three of each
    are listed. The sequences must be those that were packed, by their checksum, and must have the lengths that the plan
    covers. Each record must be packed or counted as left out. The numbers in the manifest must agree with the packs and
    with each other.

    If a sequence has no token, nothing is checked, and the list is empty: `read_content` has reported it.
    """
    if content.sequences.seq_lengths.min(initial=1) < 1:
        return []
    special = len(m.tokenizer["prefix"]) + len(m.tokenizer["suffix"]) if m.tokenizer else 0
    problems, gaps, checksum = _sequence_problems(content, special if m.options["special_tokens"] else 0)
    if len(content) != m.sequences:
        problems.append(f"{MANIFEST} states {m.sequences:,} sequences, the packs hold {len(content):,}")
    if Histogram.from_lengths(content.sequences.seq_lengths) != plan.histogram:
        problems.append(f"the lengths in the packs are not those that {PLAN} covers")
    if checksum != m.sequence_checksum:
        problems.append(
            f"the packs hold other sequences than were packed: checksum {checksum}, expected {m.sequence_checksum}"
        )
    for name, stated in (("records", m.source["records"]), ("sequences", m.sequences), ("tokens", m.tokens)):
        if m.counts[name] != stated:
            problems.append(f"{MANIFEST} states {stated:,} {name}, and {m.counts[name]:,} in its counts")
    return problems + _accounting_problems(content, m) + gaps


def _sequence_problems(content: Content, special: int) -> tuple[list[str], list[str], str]:
    """Return ``(repeated, gaps, checksum)`` of the dataset's sequences.

    `repeated` has a sentence for each time that a sequence occurs again. `gaps` has one for each piece of a record that
    does not begin at the end of the piece before it, or at 0 if it is the first. Each list has at most three.
    `checksum` is that of all sequences, 16 hex digits, for comparison with the manifest's. `special` is the number of
    special tokens in each sequence.
    """
    from nopad.store._kernels import tag_sum

    twice: list[str] = []
    gaps: list[str] = []
    checksum, last = 0, (-1, 0, 0)  # record, start and end of the sequence before
    for here in content.chunks():
        record, start, lengths = content.record(here), content.start(here), content.sequences.seq_lengths[here]
        ends = start + lengths - special
        first = np.diff(record, prepend=last[0]) != 0
        same = ~first & (np.diff(start, prepend=last[1]) == 0)
        for i in np.flatnonzero(same)[: 3 - len(twice)]:
            twice.append(f"record {record[i]}, piece from token {start[i]}: more than once")
        # A piece begins where the piece before it ends, and a record's first piece at 0.
        joined = np.where(first, 0, np.append(last[2], ends[:-1]))
        for i in np.flatnonzero(start != joined)[: 3 - len(gaps)]:
            gaps.append(f"record {record[i]}: a piece begins at token {start[i]}, the one before ends at {joined[i]}")
        checksum += int(tag_sum(record, start, lengths))
        last = (int(record[-1]), int(start[-1]), int(ends[-1]))
    return twice, gaps, f"{checksum % 2**64:016x}"


def _accounting_problems(content: Content, m: Manifest) -> list[str]:
    """Return one sentence for each count that does not add up.

    In the dataset, and in each named source, each record must be packed or counted as left out. If there are named
    sources, each count of the dataset must be the sum of their counts.
    """
    problems: list[str] = []
    parts = [("", m.counts, slice(0, len(content)))]
    for part in m.sources:
        here = content.between(part["first_record"], part["first_record"] + part["records"])
        parts.append((f"of {part['name']!r} ", part, here))
    for name, counts, here in parts:
        present = content.distinct(here)
        lost = sum(counts[why] for why in LOST)
        if present + lost != counts["records"]:
            problems.append(
                f"{name}{present:,} records are packed and {lost:,} left out, but the source had {counts['records']:,}"
            )
    for key in m.counts if m.sources else ():
        if sum(part[key] for part in m.sources) != m.counts[key]:
            problems.append(f"{MANIFEST} states {m.counts[key]:,} {key}, and others for its named sources")
    return problems


def dealing_problems(content: Content, m: Manifest, plan: Plan) -> list[str]:
    """Assign the sequences to packs again; return [] if this gives the packs of the dataset in the same order.

    Otherwise the list has one problem.
    """
    if _dealt_as_stated(content, m, plan):
        return []
    how = f"{m.algorithm}, seed {m.seed} and order {m.order}"
    return [f"these are not the packs that {how} give for these sequences"]


def _dealt_as_stated(content: Content, m: Manifest, plan: Plan) -> bool:
    how: dict[str, Any] = {"seed": m.seed, "order": m.order}
    try:
        if m.algorithm in ARRIVAL_ALGORITHMS:
            what = {"depth": m.depth, "algorithm": m.algorithm, **plan.options}
            packs = pack(content.sequences.seq_lengths, m.capacity, **what, **how)
        else:
            packs = assign(plan, content.sequences.seq_lengths, **how)
    except InputError:  # the manifest states an invalid seed or order
        return False
    return np.array_equal(packs.sequence, content.sequence) and np.array_equal(np.diff(packs.indptr), content.sizes)
