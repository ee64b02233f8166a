"""Prove a plan file or a packed dataset by reading all of it again.

For a dataset: every file is there and has its checksum, every sequence is in exactly one pack, no pack is above
capacity or depth, pieces of split records join without a gap, the lengths are exactly those of the plan, and every
number in the manifest is true. With its source at hand (`deep`), every token is compared too. O(sequences) memory,
about 30 bytes each; speed of Parquet decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad import _kernels
from nopad.corpus import CHAIN_START, CorpusOptions, Counts, Group, Source, Tokenizer, chain, sequences
from nopad.errors import CorruptError, FormatError, NopadError, RecordError
from nopad.files import sha256_file
from nopad.histogram import Histogram
from nopad.planning.plan import Plan
from nopad.store.index import PACKS, SEQUENCES
from nopad.store.job import Monitor, Silent
from nopad.store.lengths import LengthsFile
from nopad.store.manifest import MANIFEST, PLAN, Manifest, Shard
from nopad.store.reader import Block, PackedDataset
from nopad.store.shards import Layout

__all__ = ["verify"]

_MOST = 20


def verify(
    path: str | Path,
    *,
    source: Source | None = None,
    tokenizer: Tokenizer | None = None,
    monitor: Monitor | None = None,
) -> list[str]:
    """Return everything that is wrong with a plan file or a packed dataset; an empty list proves it whole.

    Args:
        path: a ``*.plan.json`` file, or a dataset folder.
        source: what the dataset was packed from: compare every token with it.
        tokenizer: the one it was packed with, when `source` is text.
        monitor: is told the progress.

    Raises:
        FormatError: `path` is neither.
        SourceError: `source` cannot be read.

    >>> import tempfile, nopad
    >>> from nopad.corpus import CorpusOptions, IterableSource
    >>> source = IterableSource([[7, 8, 9], [5], [1, 2]])
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = nopad.pack_corpus(source, out, CorpusOptions(capacity=4))
    ...     nopad.verify(out), nopad.verify(out, source=source)
    ([], [])
    """
    path = Path(path)
    if path.is_dir():
        return _Verification(path, monitor or Silent()).run(source, tokenizer)
    return Plan.load(path).problems()


@dataclass
class _Found:
    """What the packs hold, gathered block by block."""

    record: list[NDArray[np.int64]] = field(default_factory=list)
    start: list[NDArray[np.int64]] = field(default_factory=list)
    lengths: list[NDArray[np.int32]] = field(default_factory=list)
    hashes: list[NDArray[np.uint64]] = field(default_factory=list)

    def add(self, block: Block, *, hashes: bool) -> None:
        """Keep the sequences of a block, and the hashes of their tokens when those will be compared."""
        lens, record = block.sequences["seq_lens"], block.sequences["seq_index"]
        self.lengths.append(lens)
        self.record.append(record)
        self.start.append(block.sequences.get("seq_start", np.zeros(record.size, dtype=np.int64)))
        if hashes:
            self.hashes.append(_hashes(block.tokens["input_ids"], lens))

    def sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.uint64]]:
        """Return record, start, lengths and hashes in source order."""
        record, start = (np.concatenate([np.zeros(0, dtype=np.int64), *parts]) for parts in (self.record, self.start))
        lengths = np.concatenate([np.zeros(0, dtype=np.int32), *self.lengths])
        hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *self.hashes])
        order = np.lexsort((start, record))
        return record[order], start[order], lengths[order], hashes[order] if hashes.size == order.size else hashes


class _Verification:
    """One verification of one dataset folder; collects problems."""

    def __init__(self, folder: Path, monitor: Monitor) -> None:
        self.folder = folder
        self.monitor = monitor
        self.problems: list[str] = []

    def say(self, problem: str) -> None:
        self.problems.append(problem)

    def run(self, source: Source | None, tokenizer: Tokenizer | None) -> list[str]:
        try:
            self.manifest = Manifest.load(self.folder)
        except CorruptError as error:
            return [str(error)]
        plan = self.check_plan()
        readable = self.check_files()
        if plan is None or not readable:
            return self.problems
        deep = source is not None and self.manifest.kind == "packed"
        found = self.read(deep=deep)
        if found is None:
            return self.problems
        record, start, lengths, hashes = found.sorted()
        self.check_set(record, start, lengths, plan)
        if source is not None and not self.problems:
            self.compare(source, tokenizer, record, start, lengths, hashes if deep else None)
        return self.problems[:_MOST]

    def check_plan(self) -> Plan | None:
        """The stored plan is the one the manifest names, proves itself, and has the manifest's totals."""
        m = self.manifest
        try:
            plan = Plan.load(self.folder / PLAN)
        except FormatError as error:
            self.say(str(error))
            return None
        digest = sha256_file(self.folder / PLAN)
        if digest != m.plan_sha256:
            self.say(f"{PLAN} is not the plan that {MANIFEST} names: SHA-256 {digest}, expected {m.plan_sha256}")
        for problem in plan.problems():
            self.say(f"{PLAN}: {problem}")
        for name in ("capacity", "depth", "algorithm", "packs", "sequences", "tokens"):
            if getattr(plan, name) != getattr(m, name):
                self.say(f"{MANIFEST} states {name} {getattr(m, name)}, {PLAN} has {getattr(plan, name)}")
        return plan

    def check_files(self) -> bool:
        """All files are there with their checksums, and no others; True when all can be read."""
        m = self.manifest
        listed = [shard.file for shard in m.shards]
        one_pack_each = Layout(len(listed), 1, 1)
        names = [PACKS, SEQUENCES] if m.kind == "index" else [one_pack_each.name(i) for i in range(len(listed))]
        if listed != names:
            wrong = next(i for i, (name, wanted) in enumerate(zip_longest(listed, names)) if name != wanted)
            self.say(f"{MANIFEST} lists other files than such a dataset has, or in another order, from number {wrong}")
        folder = self.folder / "shards"
        present = {f"shards/{path.name}" for path in folder.iterdir()} if folder.is_dir() else set()
        for name in sorted(present - set(listed)):
            self.say(f"{name} does not belong to this dataset")
        self.monitor.stage("checksums", sum(shard.bytes for shard in m.shards), "bytes")
        whole = True
        for shard in m.shards:
            path = self.folder / shard.file
            if not path.is_file():
                self.say(f"{shard.file} is missing")
                whole = False
            elif (size := path.stat().st_size) != shard.bytes:
                self.say(f"{shard.file} has {size:,} bytes, expected {shard.bytes:,}")
                whole = False
            elif (digest := sha256_file(path)) != shard.sha256:
                self.say(f"{shard.file} is damaged: SHA-256 {digest}, expected {shard.sha256}")
                whole = False
            elif m.kind == "packed":
                whole = self.check_footer(shard) and whole
            self.monitor.advance(shard.bytes)
        for name in ("packs", "sequences", "tokens"):
            parts = [getattr(shard, name) for shard in m.shards]
            if m.kind == "packed" and sum(parts) != getattr(m, name):
                self.say(f"{MANIFEST} states {getattr(m, name):,} {name}, its shards add up to {sum(parts):,}")
            if m.kind == "index" and set(parts) != {getattr(m, name)}:
                self.say(f"{MANIFEST} states {getattr(m, name):,} {name}, and for its files {parts}")
        return whole

    def check_footer(self, shard: Shard) -> bool:
        """A shard has the columns, the row groups and the totals that the manifest states; True when it is readable."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        m = self.manifest
        try:
            with pq.ParquetFile(self.folder / shard.file) as file:
                metadata, schema = file.metadata, file.schema_arrow
        except (OSError, pa.ArrowException) as error:
            self.say(f"{shard.file} cannot be read: {error}")
            return False
        if {field.name: str(field.type) for field in schema} != m.columns:
            self.say(
                f"{shard.file} has the columns {', '.join(schema.names)}, or types, that {MANIFEST} does not state"
            )
            return False
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        rest = metadata.num_rows % m.rows_per_group if shard is m.shards[-1] else 0
        regular = [m.rows_per_group] * (metadata.num_rows // m.rows_per_group) + [rest] * bool(rest)
        if [group.num_rows for group in groups] != regular:
            self.say(f"{shard.file} has row groups of other than {m.rows_per_group} packs")
        columns = {"sequences": schema.names.index("seq_lens"), "tokens": len(schema.names) - 1}
        held = {name: sum(group.column(at).num_values for group in groups) for name, at in columns.items()}
        for name, number in {"packs": metadata.num_rows, **held}.items():
            if number != getattr(shard, name):
                self.say(f"{MANIFEST} states {getattr(shard, name):,} {name} in {shard.file}, it holds {number:,}")
        return True

    def read(self, *, deep: bool) -> _Found | None:
        """Decode every pack and check it on its own; None when that is not possible."""
        found = _Found()
        dataset = PackedDataset(self.folder)
        self.monitor.stage("reading packs", self.manifest.tokens, "tokens")
        packs = 0
        try:
            for block in dataset.iter_blocks(range(dataset.blocks)):
                self.check_block(block, packs)
                found.add(block, hashes=deep and not self.problems)
                packs += len(block)
                tokens = int(block.sequences["seq_lens"].sum(dtype=np.int64))
                self.monitor.advance(tokens, tokens)
        except (NopadError, ValueError, IndexError) as error:
            self.say(f"cannot be read: {error}")
            return None
        if packs != self.manifest.packs:
            self.say(f"{MANIFEST} states {self.manifest.packs:,} packs, the files hold {packs:,}")
        return found

    def check_block(self, block: Block, first: int) -> None:
        """Capacity, depth, and as many tokens as the lengths say."""
        m, lens = self.manifest, block.sequences["seq_lens"]
        sizes = np.diff(block.indptr)
        if sizes.min(initial=1) < 1 or lens.min(initial=1) < 1:
            self.say(f"a pack from {first} on is empty, or a sequence in it is")
            return
        tokens = np.add.reduceat(lens.astype(np.int64), block.indptr[:-1]) if sizes.size else sizes
        if m.kind == "packed":
            for p in np.flatnonzero(tokens != np.diff(block.token_indptr))[:3]:
                held = np.diff(block.token_indptr)[p]
                self.say(f"pack {first + p}: seq_lens add up to {tokens[p]}, it holds {held} tokens")
        for p in np.flatnonzero(tokens > m.capacity)[:3]:
            self.say(f"pack {first + p} holds {tokens[p]} tokens, above the capacity of {m.capacity}")
        if m.depth is not None:
            for p in np.flatnonzero(sizes > m.depth)[:3]:
                self.say(f"pack {first + p} holds {sizes[p]} sequences, above the depth of {m.depth}")

    def check_set(
        self, record: NDArray[np.int64], start: NDArray[np.int64], lengths: NDArray[np.int32], plan: Plan
    ) -> None:
        """Every sequence exactly once, of the lengths that the plan covers, pieces without a gap."""
        m = self.manifest
        if lengths.min(initial=1) < 1:
            return
        same = (record[1:] == record[:-1]) & (start[1:] == start[:-1])
        for i in np.flatnonzero(same)[:3]:
            self.say(f"record {record[i]}, piece from token {start[i]}: more than once")
        if record.size != m.sequences:
            self.say(f"{MANIFEST} states {m.sequences:,} sequences, the packs hold {record.size:,}")
        if Histogram.from_lengths(lengths) != plan.histogram:
            self.say(f"the lengths in the packs are not those that {PLAN} covers")
        checksum = f"{int(_kernels.tag_sum(record, start, lengths)):016x}"
        if checksum != m.sequence_checksum:
            self.say(
                f"the packs hold other sequences than were packed: checksum {checksum}, expected {m.sequence_checksum}"
            )
        counts = m.counts
        for name, stated in (("records", m.source["records"]), ("sequences", m.sequences), ("tokens", m.tokens)):
            if counts[name] != stated:
                self.say(f"{MANIFEST} states {stated:,} {name}, and {counts[name]:,} in its counts")
        lost = counts["dropped"] + counts["empty_skipped"] + counts["bad_skipped"]
        present = int(np.count_nonzero(np.diff(record, prepend=-1)))
        if present + lost != counts["records"]:
            self.say(f"{present:,} records are packed and {lost:,} left out, but the source had {counts['records']:,}")
        special = len(m.tokenizer["prefix"]) + len(m.tokenizer["suffix"]) if m.tokenizer else 0
        content = lengths - (special if m.options["special_tokens"] else 0)
        joined = np.where(np.diff(record, prepend=-1) != 0, 0, np.roll(start + content, 1))
        for i in np.flatnonzero(start != joined)[:3]:
            self.say(f"record {record[i]}: a piece begins at token {start[i]}, the one before ends at {joined[i]}")

    def compare(
        self,
        source: Source,
        tokenizer: Tokenizer | None,
        record: NDArray[np.int64],
        start: NDArray[np.int64],
        lengths: NDArray[np.int32],
        hashes: NDArray[np.uint64] | None,
    ) -> None:
        """Make the sequences again from their source and compare each one."""
        m = self.manifest
        if isinstance(source, LengthsFile):
            if not np.array_equal(lengths, source.lengths):
                self.say("the lengths in the packs are not those of the source")
            return
        if source.kind == "ids":
            tokenizer = None
        expected = m.tokenizer and m.tokenizer["sha256"]
        if tokenizer is not None and tokenizer.fingerprint != expected:
            self.say(f"packed with another tokenizer: SHA-256 {expected}, this one has {tokenizer.fingerprint}")
            return
        names = ("special_tokens", "over_long", "empty", "on_bad_record")
        options = CorpusOptions(capacity=m.capacity, **{name: m.options[name] for name in names})
        self.monitor.stage("comparing with the source", source.total_bytes, "bytes")
        digest, at, size, counts = CHAIN_START, 0, 0, Counts()
        for group in self.groups(source, tokenizer, options):
            counts += group.counts
            for block in group.blocks:
                digest = chain(digest, block)
                size += len(block.data)
                self.monitor.advance(len(block.data))
            batch = group.batch
            here = slice(at, at + batch.lengths.size)
            pairs: list[tuple[NDArray[Any], NDArray[Any]]] = [
                (record[here], batch.record),
                (start[here], batch.start),
                (lengths[here], batch.lengths),
            ]
            if hashes is not None:
                pairs.append((hashes[here], _hashes(batch.tokens, batch.lengths)))
            for i in _first_difference(pairs):
                self.say(
                    f"record {batch.record[i]}, piece from token {batch.start[i]}: not the tokens that the source gives"
                )
                return
            at += batch.lengths.size
        if at != record.size:
            self.say(f"the source gives {at:,} sequences, the packs hold {record.size:,}")
        if digest.hex() != m.source["sha256"]:
            self.say(
                f"this is not the source that was packed: fingerprint {digest.hex()}, expected {m.source['sha256']}"
            )
            return
        for name, made in {**counts.to_dict(), "bytes": size}.items():
            stated = m.source["bytes"] if name == "bytes" else m.counts[name]
            if stated != made:
                self.say(f"{MANIFEST} states {stated:,} {name}, the source gives {made:,}")

    def groups(self, source: Source, tokenizer: Tokenizer | None, options: CorpusOptions) -> Iterator[Group]:
        """Make the sequences again; a record that was packed and no longer can be is a problem, not an error."""
        try:
            yield from sequences(source.blocks(), tokenizer, options)
        except RecordError as error:
            self.say(f"this is not the source that was packed: {error}")


def _hashes(tokens: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.uint64]:
    out = np.empty(lengths.size, dtype=np.uint64)
    _kernels.token_hashes(tokens, lengths, out)
    return out


def _first_difference(pairs: list[tuple[NDArray[Any], NDArray[Any]]]) -> Iterator[int]:
    """Yield the first index at which two arrays of a pair differ, if any."""
    n = min(packed.size for packed, _ in pairs)
    different = np.zeros(pairs[0][1].size, dtype=bool)
    different[n:] = True
    for packed, made in pairs:
        different[:n] |= packed[:n] != made[:n]
    if different.any():
        yield int(different.argmax())
