"""A packing job: source -> spool -> plan -> packs -> packed dataset, resumable at every step.

Everything unfinished lives in ``OUT/.work``; the manifest is written last, so a folder with a manifest is whole. A
killed job goes on where its last commit was when the same call is made again, and gives the same bytes as one that was
never interrupted. Other inputs or settings than those it was started with are refused, as is a folder that holds
anything else. Memory: about 16 bytes a sequence, plus a few row groups; tokens stay on disk.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from nopad.assignment import Order, assign, pack
from nopad.corpus import CHAIN_START, CorpusOptions, Counts, Source, Tokenizer, chain, sequences
from nopad.errors import (
    FormatError,
    InputError,
    InterruptedJobError,
    LengthError,
    OptionError,
    PlanMismatchError,
    RecordError,
    ResumeError,
)
from nopad.files import storage_errors
from nopad.histogram import as_lengths
from nopad.packs import LENGTHS, Packs
from nopad.planning.front import ARRIVAL_ALGORITHMS, check_options, complete_options, plan, summarise
from nopad.planning.plan import Plan
from nopad.store.index import write_index
from nopad.store.lengths import LengthsFile
from nopad.store.manifest import PLAN, POLICIES, Manifest, Shard, tool_versions
from nopad.store.monitor import Monitor, Silent
from nopad.store.shards import SHARD_TOKENS, Columns, Layout, write_shards
from nopad.store.spool import Progress, Spool
from nopad.store.workspace import Workspace

__all__ = ["PackOptions", "pack_corpus"]

SUSPICIOUS = 16  # so many sequences of one length look like padding


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """How sequences are packed; see `nopad.pack` for the meaning of each, `nopad.store.shards` for the file sizes.

    `options` are those of the algorithm, and the conditions. `columns`: "trl" calls the column of lengths
    ``seq_lengths``, as TRL does, instead of ``seq_lens``.
    """

    depth: int | None = None
    algorithm: str = "auto"
    seed: int = 0
    order: Order = "random"
    arrival_window: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    shard_tokens: int = SHARD_TOKENS
    columns: str = "nopad"

    def __post_init__(self) -> None:
        if self.columns not in LENGTHS:
            raise OptionError(f"unknown columns {self.columns!r}; they are named as {' or '.join(LENGTHS)} does")
        if self.order not in get_args(Order):
            raise OptionError(f"unknown order {self.order!r}; it is 'random' or 'source'")
        if type(self.shard_tokens) is not int or self.shard_tokens < 1:
            raise OptionError(f"shard_tokens must be an integer of at least 1, got {self.shard_tokens!r}")


def pack_corpus(
    source: Source,
    out: str | Path,
    corpus: CorpusOptions,
    *,
    tokenizer: Tokenizer | None = None,
    packing: PackOptions | None = None,
    index_only: bool = False,
    monitor: Monitor | None = None,
    commit_every_s: float = 2.0,
) -> Manifest:
    """Pack a corpus into a dataset folder, or finish or reuse what an equal call left there.

    Args:
        source: where the records come from; see `nopad.corpus`.
        out: the dataset folder: new, empty, or left by an equal call.
        corpus: capacity and policies.
        tokenizer: for text; ready-made ids need none.
        packing: algorithm, depth, seed, order.
        index_only: write which sequence goes where beside an untouched source, and no tokens.
        monitor: is told the progress.
        commit_every_s: how often the spool is made durable.

    Raises:
        RecordError: a record is bad, empty or over-long and the policy for it is "error"; nothing is left behind.
        OutputExistsError: `out` holds something else, or a dataset made otherwise.
        ResumeError: the unfinished job in `out` was started from other inputs or settings.
        OutputBusyError: another process is writing there.
        StorageError: the disk is full or a write failed; run again to resume.
        InterruptedJobError: SIGINT; run again to resume.

    >>> import tempfile, nopad
    >>> from nopad.corpus import CorpusOptions, IterableSource
    >>> with tempfile.TemporaryDirectory() as out:
    ...     made = pack_corpus(IterableSource([[7, 8, 9], [5], [1, 2]]), out, CorpusOptions(capacity=4))
    ...     made.packs, made.tokens
    (2, 6)
    """
    if source.kind == "ids":
        tokenizer = None  # it would not be used, and must not stand in the manifest
    workspace = Workspace(Path(out))
    job = _Job(workspace, source, corpus, tokenizer, packing or PackOptions(), index_only, monitor or Silent())
    check_options(corpus.capacity, job.packing.depth, job.packing.algorithm, job.packing.seed)
    complete_options(job.packing.algorithm, job.packing.options)
    settings = job.settings()
    done = workspace.finished(settings, source, job.monitor)
    if done is not None:
        return done
    with workspace.claim(settings, source):
        try:
            # Another process may just have finished it.
            return workspace.finished(settings, source, job.monitor) or job.run(commit_every_s)
        except KeyboardInterrupt as error:
            raise InterruptedJobError(
                f"stopped; what is done is kept in {workspace.work}: run the same command again to go on"
            ) from error
        except InputError as error:
            # Records that can never be packed with these settings, or nothing done yet: nothing here is worth keeping.
            if isinstance(error, RecordError | LengthError | OptionError) or not Spool.begun(workspace.work):
                workspace.abandon()
            raise


@dataclass(frozen=True)
class _Job:
    """The arguments of `pack_corpus`, and its steps."""

    workspace: Workspace
    source: Source
    corpus: CorpusOptions
    tokenizer: Tokenizer | None
    packing: PackOptions
    index_only: bool
    monitor: Monitor

    def settings(self) -> dict[str, Any]:
        """Everything but the input that the result depends on: the part of the manifest that is known beforehand."""
        tokenizer = self.tokenizer and {
            "sha256": self.tokenizer.fingerprint,
            "vocab_size": self.tokenizer.vocab_size,
            "prefix": self.tokenizer.prefix.tolist(),
            "suffix": self.tokenizer.suffix.tolist(),
        }
        options = {name: getattr(self.corpus, name) for name in POLICIES}
        return {
            "kind": "index" if self.index_only else "packed",
            "capacity": self.corpus.capacity,
            "depth": self.packing.depth and int(self.packing.depth),
            "algorithm": self.packing.algorithm,
            "seed": int(self.packing.seed),
            "order": self.packing.order,
            "tokenizer": tokenizer,
            "options": {
                **options,
                **self.source.settings(),
                "shard_tokens": self.packing.shard_tokens,
                "arrival_window": self.packing.arrival_window,
                "columns": self.packing.columns,
                **self.packing.options,
            },
            "tool_versions": tool_versions("numpy", "pyarrow", "tokenizers"),
        }

    def run(self, commit_every_s: float) -> Manifest:
        """Do what is left to do; every step finds out by itself."""
        progress, columns = self._lengths() if isinstance(self.source, LengthsFile) else self._spool(commit_every_s)
        columns = replace(columns, lens_name=LENGTHS[self.packing.columns])
        self._warn_of_padding(columns)
        made, packs = self._plan_and_assign(columns)
        layout = Layout.of(len(packs), self.corpus.capacity, self.packing.shard_tokens)
        shards = self._write(packs, columns, layout)
        return self._publish(progress, made, columns, layout, shards)

    def _warn_of_padding(self, columns: Columns) -> None:
        """Say that all sequences are equally long where that looks like padding nobody has marked."""
        n, first = columns.lengths.size, int(columns.lengths[0])
        if self.source.kind == "ids" and n >= SUSPICIOUS and first > 1 and bool((columns.lengths == first).all()):
            warnings.warn(
                f"all {n:,} sequences have {first} tokens: if they are padded, name the mask (mask_field, "
                "--mask-field) or the padding id (pad_id, --pad-id), or padding is packed as content",
                stacklevel=2,
            )

    def _spool(self, commit_every_s: float) -> tuple[Progress, Columns]:
        """Tokenise what is not in the spool yet."""
        spool = Spool(
            self.workspace.work,
            keep_tokens=not self.index_only,
            carried=self.source.carried,
            commit_every_s=commit_every_s,
        )
        self.monitor.stage("tokenising", self.source.total_bytes, "bytes")
        blocks = spool.remaining(self.source, self.monitor.advance)
        try:
            if spool.progress.complete:
                for _ in blocks:
                    raise ResumeError(
                        f"the source became longer since this job started; delete {self.workspace.out} to start over"
                    )
            else:
                first = spool.progress.counts.records
                for group in sequences(blocks, self.tokenizer, self.corpus, first_record=first):
                    spool.append(group.batch, group.counts, group.blocks)
                    self.monitor.advance(sum(block.size for block in group.blocks), group.counts.tokens)
            counts = spool.progress.counts
            _check_any(counts)
            spool.finish()
        finally:
            spool.close()
        return spool.progress, spool.columns(split=counts.split > 0)

    def _lengths(self) -> tuple[Progress, Columns]:
        """Take lengths as they are: there is nothing to spool."""
        assert isinstance(self.source, LengthsFile)
        if not self.index_only:
            raise OptionError(f"{self.source.path} holds lengths, not tokens; pack it with --index-only")
        lengths = as_lengths(self.source.lengths, self.corpus.capacity)
        digest = CHAIN_START
        for block in self.source.blocks():
            digest = chain(digest, block)
        counts = Counts(records=lengths.size, sequences=lengths.size, tokens=int(lengths.sum(dtype=np.int64)))
        _check_any(counts)
        nothing = np.zeros(0, dtype=np.int64)
        columns = Columns(lengths=lengths, record=np.arange(lengths.size), start=None, begin=nothing, tokens={})
        size = self.source.total_bytes or 0
        return Progress(chain=digest.hex(), consumed_bytes=size, counts=counts, complete=True), columns

    def _plan_and_assign(self, columns: Columns) -> tuple[Plan, Packs]:
        """Plan, or reread the stored plan; then deal the sequences out."""
        self.monitor.stage("planning", None, "")
        stored = self.workspace.work / PLAN
        how: dict[str, Any] = {"seed": self.packing.seed, "order": self.packing.order}
        what: dict[str, Any] = {"depth": self.packing.depth, "algorithm": self.packing.algorithm}
        capacity, options = self.corpus.capacity, self.packing.options
        if self.packing.algorithm in ARRIVAL_ALGORITHMS or self.packing.arrival_window is not None:
            packs = pack(
                columns.lengths, capacity, arrival_window=self.packing.arrival_window, **what, **how, **options
            )
            made = self._summary(packs, columns)
        else:
            made = self._stored_plan() or plan(columns.lengths, capacity, **what, **options)
            try:
                packs = assign(made, columns.lengths, **how)
            except PlanMismatchError as error:  # lengths that are not spooled are free to change under a stored plan
                raise ResumeError(
                    f"the source changed since the job in {self.workspace.out} started: {error}; "
                    "put it back as it was, or delete the folder to start over"
                ) from error
        if not stored.exists():
            made.save(stored)
        return made, packs

    def _summary(self, packs: Packs, columns: Columns) -> Plan:
        """Describe packs that came without a plan; say what a window costs."""
        algorithm, depth = self.packing.algorithm, self.packing.depth
        own, conditions = complete_options(algorithm, self.packing.options)
        notes: tuple[str, ...] = ()
        window = self.packing.arrival_window
        if window is not None:
            free = plan(columns.lengths, packs.capacity, depth=depth, algorithm=algorithm, **self.packing.options).packs
            notes = (f"packed {window:,} sequences at a time: {len(packs) - free:+,} packs against all at once",)
        return summarise(packs, columns.lengths, algorithm=algorithm, options={**own, **conditions}, notes=notes)

    def _stored_plan(self) -> Plan | None:
        """Reread the plan that an interrupted run has made, if it got that far."""
        stored = self.workspace.work / PLAN
        try:
            return Plan.load(stored) if stored.exists() else None
        except FormatError as error:
            raise ResumeError(f"{error}; delete {self.workspace.out} to start over") from error

    def _write(self, packs: Packs, columns: Columns, layout: Layout) -> tuple[Shard, ...]:
        """Write the shards that are not there yet, or the index."""
        work = self.workspace.work
        if self.index_only:
            self.monitor.stage("writing the index", None, "")
            return write_index(packs, columns, work)
        self.monitor.stage("writing", int(columns.lengths.sum(dtype=np.int64)), "tokens")
        noted = self.workspace.noted_shards()
        if (self.workspace.out / "shards").exists():  # killed while publishing: all shards are finished and in place
            if len(noted) != layout.shards:
                raise ResumeError(f"{work / 'shards.jsonl'} is damaged; delete {self.workspace.out} to start over")
            return tuple(noted[name] for name in sorted(noted))
        with storage_errors("creating", work / "shards"):
            (work / "shards").mkdir(exist_ok=True)
        tokens = sum(shard.tokens for shard in noted.values())
        self.monitor.advance(tokens, tokens)
        return write_shards(
            packs,
            columns,
            work,
            layout,
            finished=noted,
            on_shard=self.workspace.note_shard,
            on_tokens=lambda tokens: self.monitor.advance(tokens, tokens),
        )

    def _publish(
        self, progress: Progress, made: Plan, columns: Columns, layout: Layout, shards: tuple[Shard, ...]
    ) -> Manifest:
        """Move the finished files into place and write the manifest last."""
        from nopad import _kernels

        zeros = np.zeros(1, dtype=np.int64)
        start = np.broadcast_to(zeros, columns.record.shape) if columns.start is None else columns.start
        checksum = _kernels.tag_sum(columns.record, start, columns.lengths)
        inventory = self.source.inventory()
        manifest = Manifest(
            **self.settings(),
            packs=made.packs,
            sequences=made.sequences,
            tokens=made.tokens,
            source={
                "sha256": progress.chain,
                "records": progress.counts.records,
                "files": len(inventory),
                "bytes": progress.consumed_bytes,
                "ignored": len(self.source.ignored),
                "left_out": list(self.source.left_out),
            },
            counts=progress.counts.to_dict(),
            plan_sha256=made.fingerprint,
            sequence_checksum=f"{int(checksum):016x}",
            columns={} if self.index_only else {f.name: str(f.type) for f in columns.schema()},
            carried={} if self.index_only else {column.name: column.per for column in self.source.carried},
            rows_per_group=layout.rows_per_group,
            shards=shards,
        )
        self.workspace.move_into_place(sorted({shard.file.split("/")[0] for shard in shards}))
        made.save(self.workspace.out / PLAN)
        manifest.save(self.workspace.out)
        self.workspace.clear()
        return manifest


def _check_any(counts: Counts) -> None:
    """Refuse to make a dataset without a sequence."""
    if not counts.sequences:
        raise RecordError(
            f"nothing to pack: {counts.records:,} records gave no sequence ({counts.empty_skipped:,} empty, "
            f"{counts.bad_skipped:,} bad, {counts.dropped:,} dropped as over-long)"
        )
