"""What the packs hold: every sequence exactly once, nothing above capacity or depth, just as the plan deals it out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.assignment import assign, pack
from nopad.errors import InputError, NopadError
from nopad.histogram import Histogram
from nopad.planning.front import ARRIVAL_ALGORITHMS
from nopad.planning.plan import Plan
from nopad.store import _kernels
from nopad.store.blocks import Block, block_problems
from nopad.store.manifest import MANIFEST, PLAN, Manifest
from nopad.store.monitor import Monitor
from nopad.store.reader import PackedDataset
from nopad.store.shards import as_integers

LOST = ("dropped", "empty_skipped", "bad_skipped", "other_split", "left_by_weight")  # counts of records not packed

__all__ = ["Content", "content_problems", "dealing_problems", "hash_tokens", "hash_values", "read_content"]


@dataclass(frozen=True, kw_only=True)
class Content:
    """All sequences of a dataset, in source order, and how they are packed.

    Attributes:
        record, start: where each sequence comes from; int64 ``[n]``, ascending.
        lengths: int32 ``[n]``.
        source: number of the source that each comes from; int32 ``[n]``; zeros where they are not named.
        hashes: of the tokens and of each carried column, name -> uint64 ``[n]``; empty when not asked for.
        sequence: number (place in source order) of the sequence in each slot, pack after pack; int64 ``[n]``.
        sizes: sequences in each pack; ``[packs]``.
    """

    record: NDArray[np.int64]
    start: NDArray[np.int64]
    lengths: NDArray[np.int32]
    source: NDArray[np.int32]
    hashes: Mapping[str, NDArray[np.uint64]]
    sequence: NDArray[np.int64]
    sizes: NDArray[np.int64]


@dataclass
class _Gathered:
    """The same, gathered block by block in the order of the packs."""

    record: list[NDArray[np.int64]] = field(default_factory=list)
    start: list[NDArray[np.int64]] = field(default_factory=list)
    lengths: list[NDArray[np.int32]] = field(default_factory=list)
    source: list[NDArray[np.int32]] = field(default_factory=list)
    hashes: dict[str, list[NDArray[np.uint64]]] = field(default_factory=lambda: defaultdict(list))
    sizes: list[NDArray[np.int64]] = field(default_factory=list)

    def add(self, block: Block, *, hashes: bool) -> None:
        """Keep the sequences of a block, and the hashes of their tokens when those will be compared."""
        lens, record = block.sequences["seq_lengths"], block.sequences["seq_index"]
        self.lengths.append(lens)
        self.record.append(record)
        self.start.append(block.sequences.get("seq_start", np.zeros(record.size, dtype=np.int64)))
        self.source.append(block.sequences.get("seq_source", np.zeros(record.size, dtype=np.int32)))
        self.sizes.append(np.diff(block.indptr).astype(np.int64))
        if hashes:
            for name, column in block.tokens.items():
                self.hashes[name].append(hash_tokens(column, lens))
            for name in block.sequences.keys() - {"seq_lengths", "seq_index", "seq_start", "seq_source"}:
                self.hashes[name].append(hash_values(block.sequences[name]))

    def in_source_order(self) -> Content:
        """Sort everything by record and start."""
        none = np.zeros(0, dtype=np.int64)
        record, start, sizes = (np.concatenate([none, *parts]) for parts in (self.record, self.start, self.sizes))
        lengths, source = (
            np.concatenate([np.zeros(0, dtype=np.int32), *parts]) for parts in (self.lengths, self.source)
        )
        order = np.lexsort((start, record))
        sequence = np.empty(order.size, dtype=np.int64)
        sequence[order] = np.arange(order.size)
        return Content(
            record=record[order],
            start=start[order],
            lengths=lengths[order],
            source=source[order],
            hashes={name: np.concatenate(parts)[order] for name, parts in self.hashes.items()},
            sequence=sequence,
            sizes=sizes,
        )


def hash_tokens(tokens: NDArray[Any], lengths: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each run of values of any fixed width."""
    out = np.empty(lengths.size, dtype=np.uint64)
    _kernels.token_hashes(as_integers(tokens), lengths, out)
    return out


def hash_values(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each value: a number, a boolean, or a string (an object array)."""
    if values.dtype != object:
        return hash_tokens(np.ascontiguousarray(values), np.ones(values.size, dtype=np.int32))
    encoded = [text.encode() for text in values]
    lengths = np.fromiter(map(len, encoded), np.int32, len(encoded))
    return hash_tokens(np.frombuffer(b"".join(encoded), np.int8), lengths)


def read_content(folder: Path, m: Manifest, monitor: Monitor, *, hashes: bool) -> tuple[Content | None, list[str]]:
    """Decode every pack and check it on its own; no content when that is not possible.

    `hashes`: also hash the tokens of every sequence, for comparing them with their source.
    """
    problems: list[str] = []
    found = _Gathered()
    dataset = PackedDataset(folder)
    monitor.stage("reading packs", m.tokens, "tokens")
    packs = 0
    try:
        for block in dataset.unchecked_blocks(range(dataset.blocks)):
            problems += block_problems(block, packs, m)
            found.add(block, hashes=hashes and not problems)
            packs += len(block)
            tokens = int(block.sequences["seq_lengths"].sum(dtype=np.int64))
            monitor.advance(tokens, tokens)
    except (NopadError, ValueError, IndexError) as error:
        problems.append(f"cannot be read: {error}")
        return None, problems
    if packs != m.packs:
        problems.append(f"{MANIFEST} states {m.packs:,} packs, the files hold {packs:,}")
    return found.in_source_order(), problems


def content_problems(content: Content, m: Manifest, plan: Plan) -> list[str]:
    """Every sequence exactly once, of the lengths that the plan covers, pieces without a gap."""
    problems: list[str] = []
    record, start, lengths = content.record, content.start, content.lengths
    if lengths.min(initial=1) < 1:
        return problems
    same = (record[1:] == record[:-1]) & (start[1:] == start[:-1])
    for i in np.flatnonzero(same)[:3]:
        problems.append(f"record {record[i]}, piece from token {start[i]}: more than once")
    if record.size != m.sequences:
        problems.append(f"{MANIFEST} states {m.sequences:,} sequences, the packs hold {record.size:,}")
    if Histogram.from_lengths(lengths) != plan.histogram:
        problems.append(f"the lengths in the packs are not those that {PLAN} covers")
    checksum = f"{int(_kernels.tag_sum(record, start, lengths)):016x}"
    if checksum != m.sequence_checksum:
        problems.append(
            f"the packs hold other sequences than were packed: checksum {checksum}, expected {m.sequence_checksum}"
        )
    counts = m.counts
    for name, stated in (("records", m.source["records"]), ("sequences", m.sequences), ("tokens", m.tokens)):
        if counts[name] != stated:
            problems.append(f"{MANIFEST} states {stated:,} {name}, and {counts[name]:,} in its counts")
    problems += _accounting_problems(content, m)
    special = len(m.tokenizer["prefix"]) + len(m.tokenizer["suffix"]) if m.tokenizer else 0
    ends = start + lengths - (special if m.options["special_tokens"] else 0)
    joined = np.where(np.diff(record, prepend=-1) != 0, 0, np.roll(ends, 1))
    for i in np.flatnonzero(start != joined)[:3]:
        problems.append(f"record {record[i]}: a piece begins at token {start[i]}, the one before ends at {joined[i]}")
    return problems


def _accounting_problems(content: Content, m: Manifest) -> list[str]:
    """Every record is packed, or counted as something else; of each named source too."""
    problems: list[str] = []
    begins = np.diff(content.record, prepend=-1) != 0
    parts = [("", m.counts, slice(0, content.record.size))]
    for number, part in enumerate(m.sources):
        bounds = [part["first_record"], part["first_record"] + part["records"]]
        here = slice(*np.searchsorted(content.record, bounds).tolist())
        parts.append((f"of {part['name']!r} ", part, here))
        if (content.source[here] != number).any():
            problems.append(f"a sequence of {part['name']!r} has another number than {number} in seq_source")
    for name, counts, here in parts:
        present = int(np.count_nonzero(begins[here]))
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
    """Assigning the sequences again gives the same packs in the same order: algorithm, seed and order are true."""
    if _dealt_as_stated(content, m, plan):
        return []
    how = f"{m.algorithm}, seed {m.seed} and order {m.order}"
    return [f"these are not the packs that {how} give for these sequences"]


def _dealt_as_stated(content: Content, m: Manifest, plan: Plan) -> bool:
    how: dict[str, Any] = {"seed": m.seed, "order": m.order}
    try:
        window = m.options.get("arrival_window")
        if m.algorithm in ARRIVAL_ALGORITHMS or window is not None:
            what = {"depth": m.depth, "algorithm": m.algorithm, "arrival_window": window, **plan.options}
            packs = pack(content.lengths, m.capacity, **what, **how)
        else:
            packs = assign(plan, content.lengths, **how)
    except InputError:  # a seed or an order that does not exist
        return False
    return np.array_equal(packs.sequence, content.sequence) and np.array_equal(np.diff(packs.indptr), content.sizes)
