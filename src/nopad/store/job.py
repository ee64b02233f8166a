"""A packing job: source -> spool -> plan -> packs -> packed dataset, resumable at every step.

Everything unfinished lives in ``OUT/.work``; the manifest is written last, so a folder with a manifest is whole. A
killed job goes on where its last commit was when the same call is made again, and gives the same bytes as one that was
never interrupted. Other inputs or settings than those it was started with are refused, as is a folder that holds
anything else. Memory: about 16 bytes a sequence, plus a few row groups; tokens stay on disk.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np

from nopad.assignment import Order, assign, pack
from nopad.corpus import CHAIN_START, CorpusOptions, Counts, Source, Tokenizer, chain, sequences
from nopad.errors import (
    InterruptedJobError,
    LengthError,
    OptionError,
    OutputBusyError,
    OutputExistsError,
    PlanMismatchError,
    RecordError,
    ResumeError,
)
from nopad.files import PARTIAL_SUFFIX, fsync_folder, storage_errors, write_atomic
from nopad.histogram import as_lengths
from nopad.packs import Packs
from nopad.planning.front import ARRIVAL_ALGORITHMS, check_options, plan, summarise
from nopad.planning.plan import Plan
from nopad.store.index import write_index
from nopad.store.lengths import LengthsFile
from nopad.store.manifest import MANIFEST, PLAN, Manifest, Shard, tool_versions
from nopad.store.shards import SHARD_TOKENS, Columns, Layout, write_shards
from nopad.store.spool import Progress, Spool

__all__ = ["Monitor", "PackOptions", "Silent", "pack_corpus"]

WORK = ".work"


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """How sequences are packed; see `nopad.pack` for the meaning of each, `nopad.store.shards` for the file sizes."""

    depth: int | None = None
    algorithm: str = "lpfhp"
    seed: int = 0
    order: Order = "random"
    shard_tokens: int = SHARD_TOKENS

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            raise OptionError(f"unknown order {self.order!r}; it is 'random' or 'source'")
        if type(self.shard_tokens) is not int or self.shard_tokens < 1:
            raise OptionError(f"shard_tokens must be an integer of at least 1, got {self.shard_tokens!r}")


class Monitor(Protocol):
    """Is told how a job gets on."""

    def stage(self, name: str, total: int | None, unit: str) -> None:
        """A stage of `total` units begins; it ends when the next one begins."""

    def advance(self, units: int, tokens: int = 0) -> None:
        """Some units of the stage are done, and `tokens` tokens with them."""


class Silent:
    """A monitor that says nothing."""

    def stage(self, name: str, total: int | None, unit: str) -> None:
        """Say nothing."""

    def advance(self, units: int, tokens: int = 0) -> None:
        """Say nothing."""


def pack_corpus(
    source: Source,
    out: str | Path,
    corpus: CorpusOptions,
    *,
    tokenizer: Tokenizer | None = None,
    packing: PackOptions | None = None,
    reader: Mapping[str, Any] | None = None,
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
        reader: how `source` was opened (field names, units), recorded so that `verify --deep` can repeat it.
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
    job = _Job(
        Path(out), source, corpus, tokenizer, packing or PackOptions(), reader or {}, index_only, monitor or Silent()
    )
    check_options(corpus.capacity, job.packing.depth, job.packing.algorithm, job.packing.seed)
    existing = job.existing()
    if existing is not None:
        return existing
    with job.claim():
        try:
            return job.existing() or job.run(commit_every_s)  # another process may just have finished it
        except KeyboardInterrupt as error:
            raise InterruptedJobError(
                f"stopped; what is done is kept in {job.work}: run the same command again to go on"
            ) from error
        except (RecordError, LengthError, OptionError):
            job.abandon()  # this source can never be packed with these settings: nothing here is worth keeping
            raise


@dataclass(frozen=True)
class _Job:
    """The arguments of `pack_corpus`, and its steps."""

    out: Path
    source: Source
    corpus: CorpusOptions
    tokenizer: Tokenizer | None
    packing: PackOptions
    reader: Mapping[str, Any]
    index_only: bool
    monitor: Monitor

    @property
    def work(self) -> Path:
        return self.out / WORK

    def settings(self) -> dict[str, Any]:
        """Everything but the input that the result depends on: the part of the manifest that is known beforehand."""
        tokenizer = self.tokenizer and {
            "sha256": self.tokenizer.fingerprint,
            "vocab_size": self.tokenizer.vocab_size,
            "prefix": self.tokenizer.prefix.tolist(),
            "suffix": self.tokenizer.suffix.tolist(),
        }
        options = {
            name: getattr(self.corpus, name) for name in ("special_tokens", "over_long", "empty", "on_bad_record")
        }
        return {
            "kind": "index" if self.index_only else "packed",
            "capacity": self.corpus.capacity,
            "depth": self.packing.depth and int(self.packing.depth),
            "algorithm": self.packing.algorithm,
            "seed": int(self.packing.seed),
            "order": self.packing.order,
            "tokenizer": tokenizer,
            "options": {**options, **self.reader, "shard_tokens": self.packing.shard_tokens},
            "tool_versions": tool_versions("numpy", "pyarrow", "tokenizers"),
        }

    def existing(self) -> Manifest | None:
        """Return the manifest of a finished dataset that this very job would make; None when there is no dataset."""
        if not (self.out / MANIFEST).exists():
            return None
        manifest = Manifest.load(self.out)
        settings = {name: value for name, value in self.settings().items() if name != "tool_versions"}
        changed = _differences({name: getattr(manifest, name) for name in settings}, settings)
        if changed:
            raise OutputExistsError(
                f"{self.out} already holds a packed dataset made with other settings ({changed}); choose another folder"
            )
        digest = CHAIN_START
        self.monitor.stage("checking the source", self.source.total_bytes, "bytes")
        for block in self.source.blocks():
            digest = chain(digest, block)
            self.monitor.advance(len(block.data))
        if digest.hex() != manifest.source["sha256"]:
            raise OutputExistsError(
                f"{self.out} already holds a packed dataset of another source; choose another folder"
            )
        shutil.rmtree(self.work, ignore_errors=True)  # a job killed between its manifest and its clean-up leaves it
        return manifest

    def holds_something_else(self) -> bool:
        """Whether `out` is anything but a new or empty folder or one that a job of ours has left unfinished."""
        if not self.out.exists() or (self.work / "job.json").is_file():
            return False
        if not self.out.is_dir():
            return True
        beside = {path.name for path in self.out.iterdir()}
        if not self.work.is_dir():
            return bool(beside)
        inside = {path.name for path in self.work.iterdir()}
        return bool(beside - {WORK} or inside - {"lock", "job.json" + PARTIAL_SUFFIX})

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Make or enter the work folder, alone, after proving that an unfinished job in it is this one."""
        if self.holds_something_else():
            raise OutputExistsError(f"{self.out} already holds something else; choose a new or empty folder")
        started = {"settings": self.settings(), "inventory": [list(entry) for entry in self.source.inventory()]}
        with storage_errors("creating", self.work):
            self.work.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.work / "lock", os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.fstat(lock).st_nlink:
                    raise BlockingIOError  # the other one removes its work folder at this moment
            except BlockingIOError as error:
                raise OutputBusyError(
                    f"another process is packing into {self.out}; wait for it, or choose another folder"
                ) from error
            job_file = self.work / "job.json"
            if job_file.exists():
                _check_same_job(json.loads(job_file.read_text()), json.loads(json.dumps(started)), self.out)
            else:
                write_atomic(job_file, (json.dumps(started, indent=2) + "\n").encode())
            yield
        finally:
            os.close(lock)

    def abandon(self) -> None:
        """Remove what a job that can never finish has left."""
        shutil.rmtree(self.work, ignore_errors=True)
        if not any(self.out.iterdir()):
            self.out.rmdir()

    def run(self, commit_every_s: float) -> Manifest:
        """Do what is left to do; every step finds out by itself."""
        progress, columns = self._lengths() if isinstance(self.source, LengthsFile) else self._spool(commit_every_s)
        made, packs = self._plan_and_assign(columns)
        layout = Layout.of(len(packs), self.corpus.capacity, self.packing.shard_tokens)
        shards = self._write(packs, columns, layout)
        return self._publish(progress, made, columns, layout, shards)

    def _spool(self, commit_every_s: float) -> tuple[Progress, Columns]:
        """Tokenise what is not in the spool yet."""
        spool = Spool(self.work, commit_every_s=commit_every_s)
        self.monitor.stage("tokenising", self.source.total_bytes, "bytes")
        blocks = spool.remaining(self.source, self.monitor.advance)
        try:
            if spool.progress.complete:
                for _ in blocks:
                    raise ResumeError(
                        f"the source became longer since this job started; delete {self.out} to start over"
                    )
            else:
                first = spool.progress.counts.records
                for group in sequences(blocks, self.tokenizer, self.corpus, first_record=first):
                    spool.append(group.batch, group.counts, group.blocks)
                    self.monitor.advance(sum(len(block.data) for block in group.blocks), group.counts.tokens)
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
        stored = self.work / PLAN
        how: dict[str, Any] = {"seed": self.packing.seed, "order": self.packing.order}
        capacity, depth, algorithm = self.corpus.capacity, self.packing.depth, self.packing.algorithm
        if algorithm in ARRIVAL_ALGORITHMS:
            packs = pack(columns.lengths, capacity, depth=depth, algorithm=algorithm, **how)
            made = summarise(packs, columns.lengths, algorithm=algorithm)
        else:
            made = (
                Plan.load(stored)
                if stored.exists()
                else plan(columns.lengths, capacity, depth=depth, algorithm=algorithm)
            )
            try:
                packs = assign(made, columns.lengths, **how)
            except PlanMismatchError as error:  # lengths that are not spooled are free to change under a stored plan
                raise ResumeError(
                    f"the source changed since the job in {self.out} started: {error}; "
                    "put it back as it was, or delete the folder to start over"
                ) from error
        if not stored.exists():
            made.save(stored)
        return made, packs

    def _write(self, packs: Packs, columns: Columns, layout: Layout) -> tuple[Shard, ...]:
        """Write the shards that are not there yet, or the index."""
        if self.index_only:
            self.monitor.stage("writing the index", None, "")
            return write_index(packs, columns, self.work)
        self.monitor.stage("writing", int(columns.lengths.sum(dtype=np.int64)), "tokens")
        journaled = _read_shard_journal(self.work)
        if (self.out / "shards").exists():  # killed while publishing: all shards are finished and in place
            if len(journaled) != layout.shards:
                raise ResumeError(f"{self.work / 'shards.jsonl'} is damaged; delete {self.out} to start over")
            return journaled
        with storage_errors("creating", self.work / "shards"):
            (self.work / "shards").mkdir(exist_ok=True)
        finished = {shard.file: shard for shard in journaled}
        self.monitor.advance(*2 * (sum(shard.tokens for shard in finished.values()),))

        def note(shard: Shard) -> None:
            with storage_errors("writing", self.work), open(self.work / "shards.jsonl", "ab") as journal:
                journal.write(b"\n" + json.dumps(vars(shard)).encode() + b"\n")  # first end a line torn by a kill
                journal.flush()
                os.fsync(journal.fileno())

        return write_shards(
            packs,
            columns,
            self.work,
            layout,
            finished=finished,
            on_shard=note,
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
            },
            counts=progress.counts.to_dict(),
            plan_sha256=made.fingerprint,
            sequence_checksum=f"{int(checksum):016x}",
            columns={} if self.index_only else {f.name: str(f.type) for f in columns.schema()},
            rows_per_group=layout.rows_per_group,
            shards=shards,
        )
        with storage_errors("publishing", self.out):
            for name in {shard.file.split("/")[0] for shard in shards}:
                if (self.work / name).exists():
                    os.replace(self.work / name, self.out / name)
            fsync_folder(self.out)
        made.save(self.out / PLAN)
        manifest.save(self.out)
        shutil.rmtree(self.work, ignore_errors=True)
        return manifest


def _check_any(counts: Counts) -> None:
    """Refuse to make a dataset without a sequence."""
    if not counts.sequences:
        raise RecordError(
            f"nothing to pack: {counts.records:,} records gave no sequence ({counts.empty_skipped:,} empty, "
            f"{counts.bad_skipped:,} bad, {counts.dropped:,} dropped as over-long)"
        )


def _check_same_job(stored: Mapping[str, Any], started: Mapping[str, Any], out: Path) -> None:
    """Refuse to go on with a job that was started differently; name the first differences."""
    changed = _differences(stored["settings"], started["settings"])
    if changed:
        raise ResumeError(
            f"{out} holds an unfinished job with other settings ({changed}); "
            "use the same settings to finish it, or delete the folder to start over"
        )
    before, now = (dict(map(tuple, job["inventory"])) for job in (stored, started))
    for name in [*before, *now]:
        if before.get(name) != now.get(name):
            what = "is gone" if name not in now else "is new" if name not in before else "changed its size"
            raise ResumeError(
                f"the source changed since the job in {out} started: {name} {what}; "
                "put it back as it was, or delete the folder to start over"
            )


def _differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say which settings differ, "capacity was 512, now 384"; empty when none does."""
    groups = {"options": None, "tool_versions": None}
    flat = [{**s, **s["options"], **s.get("tool_versions", {}), **groups} for s in (stored, now)]
    names = [name for name in {**flat[0], **flat[1]} if flat[0].get(name) != flat[1].get(name)]
    short = [f"{name} was {_short(flat[0].get(name))}, now {_short(flat[1].get(name))}" for name in names]
    return "; ".join(short)


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and "sha256" in value:
        return f"{value['sha256'][:8]}…"
    return "none" if value is None else str(value)


def _read_shard_journal(work: Path) -> tuple[Shard, ...]:
    """Return the shards known to be finished; a torn last line is ignored and its shard written again."""
    path = work / "shards.jsonl"
    finished: dict[str, Shard] = {}
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            shard = Shard(**json.loads(line))
        except (ValueError, TypeError):
            continue
        finished[shard.file] = shard
    return tuple(finished[name] for name in sorted(finished))
