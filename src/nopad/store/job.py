"""A packing job: read a source, keep its sequences in a spool (`nopad.store.spool`), plan, pack, and write a dataset.

Unfinished files are in ``OUT/.work``; the manifest is written last, so a folder with a manifest is complete. Repeat the
call to resume a killed job: it continues after its last commit and writes the same bytes as an uninterrupted job. An
output folder is refused if it has other content, such as an unfinished job of other inputs or settings. Memory: about
16 bytes per sequence, plus a few row groups; tokens stay on disk.
"""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nopad.corpus import CHAIN_START, CorpusOptions, Counts, Source, Tokenizer, chain, sequences
from nopad.corpus.lengths import LengthsFile
from nopad.errors import (
    InputError,
    InterruptedJobError,
    LengthError,
    OptionError,
    RecordError,
    ResumeError,
)
from nopad.files import local_path
from nopad.histogram import as_lengths
from nopad.options import check_number
from nopad.properties import cached_property
from nopad.sequences import Sequences
from nopad.store.build import Builder
from nopad.store.choice import check_divisible, choose
from nopad.store.manifest import POLICIES, SPLITS, Manifest, tool_versions
from nopad.store.monitor import Monitor, Silent
from nopad.store.options import PackOptions
from nopad.store.spool import Progress, Spool
from nopad.store.workspace import Workspace, check_outside
from nopad.wording import counted

__all__ = ["pack_corpus"]

SUSPICIOUS = 16  # if at least this many sequences all have one length, they may be padded


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
    """Pack a corpus into a dataset folder, and return its manifest.

    If an earlier run of the same call was stopped, it is resumed; if it finished, its dataset is checked and reused. If
    a share is held out, two datasets are written, ``OUT/train`` and ``OUT/validation``, and the manifest of ``train``
    is returned.

    Args:
        source: where the records come from; see `nopad.corpus`.
        out: the dataset folder: new, empty, or left by the same call.
        corpus: capacity of the packs, and how records become sequences.
        tokenizer: the tokenizer of text; ready-made ids need none.
        packing: algorithm, depth, seed, order, and the share to hold out; None: the defaults of `PackOptions`.
        index_only: whether to write only which sequence is in which pack; the tokens then stay in the source.
        monitor: receives the progress; None: nothing is reported.
        commit_every_s: minimum number of seconds between two commits of finished work to disk; a killed job loses its
            work since the last commit. ``float("inf")``: all is committed at the end.

    Raises:
        RecordError: a record is bad, empty or over-long and `corpus` says "error" for such records; a CSV, TSV or JSON
            file is broken; or no sequence is left to pack or to train on. The unfinished job is removed.
        LengthError: a task (`nopad.tasks.source.TaskSource`) refuses a record, for example because it is too long; or a
            file of lengths has an invalid length, or one above the capacity; or the square of a length is above the
            condition `max_squares`. The unfinished job is removed.
        SourceError: the source cannot be read, was changed meanwhile, or mixes text and ready-made ids.
        FormatError: the tokenizer cannot encode a text, or the dataset in `out` has another format version.
        OptionError: an argument has the wrong type, or an option an invalid value; `out` is a URL, or lies in a folder
            of the source; there is text and no tokenizer; `source` is a file of lengths and `index_only` is False;
            records of this source cannot be held out; the algorithm cannot plan these sequences, or a condition on the
            packs cannot be met (`nopad.plan`); or a column of strings has more text in a row group than fits (2^31 - 1
            bytes).
        OutputExistsError: `out` has other content, or a dataset made with other settings or from another source.
        ResumeError: the unfinished job in `out` was started with other inputs or settings, its source has changed
            since, or its own files are damaged.
        OutputBusyError: another process is writing to `out`.
        CorruptError: the dataset in `out` is finished, but one of its files is missing or damaged.
        StorageError: the disk is full, or a file cannot be read or written; call again to resume.
        InterruptedJobError: SIGINT was received; call again to resume.

    >>> import tempfile, nopad
    >>> from nopad.corpus import CorpusOptions, IterableSource
    >>> with tempfile.TemporaryDirectory() as out:
    ...     made = pack_corpus(IterableSource([[7, 8, 9], [5], [1, 2]]), out, CorpusOptions(capacity=4))
    ...     made.packs, made.tokens
    (2, 6)
    """
    _check_kinds(source, out, corpus, tokenizer, packing, index_only, monitor)
    if not (isinstance(commit_every_s, float) and commit_every_s == math.inf):
        check_number("commit_every_s", commit_every_s, low=0)
    if source.kind == "ids":
        tokenizer = None  # ids need no tokenizer, so the manifest must not name one
    workspace = Workspace(local_path(out))
    check_outside(source.folders, workspace.out)
    packing = (packing or PackOptions()).checked(corpus.capacity)
    check_divisible(source, packing.validation)
    job = _Job(workspace, source, corpus, tokenizer, packing, index_only, monitor or Silent())
    if job.is_finished():
        manifest = job.finished()
        workspace.tidy()
        return manifest
    with workspace.claim(job.settings(), source):
        try:
            manifest = job.run(commit_every_s)
            workspace.clear()
            return manifest
        except KeyboardInterrupt as error:
            raise InterruptedJobError(
                f"stopped; what is done is kept in {workspace.work}: run the same command again to go on"
            ) from error
        except InputError as error:
            # Resuming is useless: these records can never be packed with these settings, or nothing was committed yet.
            if isinstance(error, RecordError | LengthError | OptionError) or not Spool.begun(workspace.work):
                workspace.abandon()
            raise


def _check_kinds(*given: Any) -> None:
    """Refuse an argument of the wrong type; `given` are the first seven arguments of `pack_corpus`.

    Raises:
        OptionError: an argument has the wrong type; the message says how to make one of the right type.
    """
    kinds: tuple[tuple[str, Any, str], ...] = (
        ("Source", Source, "open it with nopad.open_source"),
        ("path", str | os.PathLike, "give the dataset folder"),
        ("CorpusOptions", CorpusOptions, "give nopad.CorpusOptions(capacity=...)"),
        ("Tokenizer", Tokenizer | None, "load it with nopad.load_tokenizer"),
        ("PackOptions", PackOptions | None, "give nopad.PackOptions(...) (packing=)"),
        ("bool", bool, "give True or False (index_only=)"),
    )
    *others, monitor = given
    for value, (name, kind, way) in zip(others, kinds, strict=True):
        if not isinstance(value, kind):
            raise OptionError(f"{type(value).__name__} is no {name}; {way}")
    # Not by isinstance, which does not ask __getattr__ for methods
    if monitor is not None and not all(callable(getattr(monitor, name, None)) for name in ("stage", "advance")):
        raise OptionError(f"{type(monitor).__name__} is no Monitor; give an object with the methods stage and advance")


@dataclass
class _Job:
    """A packing job: the checked arguments of `pack_corpus`, and the steps of the job as methods.

    Attributes:
        workspace: the output folder, and its work folder for unfinished files.
        source: where the records come from.
        corpus: capacity of the packs, and how records become sequences.
        tokenizer: the tokenizer of text; None: there is none.
        packing: algorithm, depth, seed, order, and the share to hold out.
        index_only: whether to write only which sequence is in which pack.
        monitor: receives the progress.
    """

    workspace: Workspace
    source: Source
    corpus: CorpusOptions
    tokenizer: Tokenizer | None
    packing: PackOptions
    index_only: bool
    monitor: Monitor

    @property
    def splits(self) -> tuple[str | None, ...]:
        """Names of the datasets that the job makes, ``("train", "validation")``; ``(None,)`` if it makes only one."""
        return SPLITS if self.packing.validation else (None,)

    def is_finished(self) -> bool:
        """Return whether all datasets of the job have a manifest."""
        return all(self.workspace.half(split).has_manifest() for split in self.splits)

    def finished(self) -> Manifest:
        """Check the job's finished datasets, and return the first dataset's manifest.

        All datasets of the job must be finished. The check is that their files are undamaged, and that this job would
        write the same datasets.

        Raises:
            OutputExistsError: a dataset was made with other settings or from another source.
            CorruptError: a file of a dataset is missing or damaged.
            FormatError: a dataset has another format version.
            StorageError: a file cannot be read.
        """
        manifests = [
            self.workspace.half(split).finished(self.settings(split), self.fingerprint) for split in self.splits
        ]
        return manifests[0]

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the source; computing it reads the whole source."""
        digest = CHAIN_START
        self.monitor.stage("checking the source", self.source.total_bytes, "bytes")
        for block in self.source.blocks():
            digest = chain(digest, block)
            self.monitor.advance(block.progress)
        return digest.hex()

    def settings(self, split: str | None = None) -> dict[str, Any]:
        """Return the manifest fields that are known before the source is read, by name, as JSON values.

        `split` is the name of the dataset, "train" or "validation"; None: the job makes a single dataset.
        Besides the content of the source, the dataset depends on these fields only.
        """
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
            "depth": self.packing.depth,
            "algorithm": self.packing.algorithm,
            "seed": self.packing.seed,
            "order": self.packing.order,
            "tokenizer": tokenizer,
            "options": {
                **options,
                **self.source.settings(),
                "shard_tokens": self.packing.shard_tokens,
                "validation": self.packing.validation or None,
                "split": split,
                **self.packing.options,
            },
            "tool_versions": tool_versions("numpy", "pyarrow", "tokenizers"),
        }

    def run(self, commit_every_s: float) -> Manifest:
        """Run all steps, skipping what an earlier run has finished; return the manifest of the first dataset.

        `commit_every_s` is the minimum number of seconds between two commits of finished work to disk.
        """
        progress, columns = self._lengths() if isinstance(self.source, LengthsFile) else self._spool(commit_every_s)
        self._warn_of_padding(columns)
        counts = {name: progress.sources.get(name, Counts()) for name in self.source.names}
        chosen = self._choose(columns, counts)
        manifests = [self._build(split, progress, *chosen[split]) for split in self.splits]
        return manifests[0]

    def _choose(
        self, columns: Sequences, by_source: dict[str, Counts]
    ) -> dict[str | None, tuple[Sequences, dict[str, Counts]]]:
        """Divide all sequences among the job's datasets; return (sequences, counts by source) for each dataset.

        The result is a dict with the keys "train" and "validation"; its only key is None if the job makes a single
        dataset. `columns` are all sequences. `by_source` has the `Counts` of each whole source, by name.
        """
        if not self.packing.validation and self.source.names == ("",):
            return {None: (columns, by_source)}
        record, lengths = columns.values["seq_index"], columns.seq_lengths
        choice = choose(
            record,
            {name: counts.records for name, counts in by_source.items()},
            validation=self.packing.validation,
            seed=self.packing.seed,
        )
        if self.source.names != ("",):
            columns = replace(columns, values={**columns.values, "seq_source": choice.source})
        return {
            split: (columns.take(choice.of(split)), choice.counts(by_source, record, lengths, split))
            for split in self.splits
        }

    def _build(
        self, split: str | None, progress: Progress, columns: Sequences, by_source: dict[str, Counts]
    ) -> Manifest:
        """Write one dataset of the job, and return its manifest.

        `split` is "train" or "validation"; None: the job makes a single dataset. If an interrupted run has finished
        this dataset, it is checked and reused. `columns` are the dataset's sequences, and `by_source` has the `Counts`
        of each source, by name. `progress` has the fingerprint of the source, and how many of its bytes were read.
        """
        workspace = self.workspace.half(split)
        if split and workspace.has_manifest():
            return workspace.finished(self.settings(split), progress.chain)
        counts = sum(by_source.values(), Counts())
        firsts = np.cumsum([0, *(own.records for own in by_source.values())]).tolist()
        sources = [
            {"name": name, "first_record": first, **own.to_dict()}
            for first, (name, own) in zip(firsts, by_source.items(), strict=False)
        ]
        builder = Builder(workspace, progress.chain, self.corpus.capacity, self.packing, self.index_only, self.monitor)
        return builder.build(
            columns,
            **self.settings(split),
            source={
                "sha256": progress.chain,
                "records": counts.records,
                "files": len(self.source.inventory()),
                "bytes": progress.consumed_bytes,
                "ignored": len(self.source.ignored),
                "left_out": list(self.source.left_out),
            },
            counts=counts.to_dict(),
            sources=[] if self.source.names == ("",) else sources,
            carried={} if self.index_only else {column.name: column.per for column in self.source.carried},
        )

    def _warn_of_padding(self, columns: Sequences) -> None:
        """Warn if all sequences are ready-made ids of the same length: perhaps they are padded.

        There is no warning for fewer than 16 sequences (`SUSPICIOUS`), for sequences of one token, or for ids that
        nopad itself has made (`Source.made_here`).
        """
        n, first = len(columns), int(columns.seq_lengths[0])
        given = self.source.kind == "ids" and not self.source.made_here
        if given and n >= SUSPICIOUS and first > 1 and bool((columns.seq_lengths == first).all()):
            warnings.warn(
                f"all {n:,} sequences have {first} tokens: if they are padded, name the mask (mask_field=) "
                "or the padding id (pad_id=), or padding is packed as content",
                stacklevel=2,
            )

    def _spool(self, commit_every_s: float) -> tuple[Progress, Sequences]:
        """Make sequences of the blocks that are not in the spool yet, and append them to the spool.

        Returns the spool's progress, and all sequences in it. `commit_every_s` is the minimum number of seconds between
        two commits of the spool.

        Raises:
            RecordError: a record is bad, empty or too long, and the options say "error" for such records; a CSV, TSV or
                JSON file is broken; or there is no sequence.
            LengthError: a task refuses a record.
            SourceError: the source cannot be read, or mixes text and ready-made ids.
            FormatError: the tokenizer cannot encode a text.
            OptionError: there is text and no tokenizer, the tokenizer cannot encode chats, or no content token fits the
                capacity.
            ResumeError: the source changed since the job started.
            StorageError: the spool cannot be read or written.
        """
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
                    self.monitor.advance(sum(block.progress for block in group.blocks), group.counts.tokens)
            counts = spool.progress.counts
            _check_any(counts)
            spool.finish()
        finally:
            spool.close()
        return spool.progress, spool.sequences(split=counts.split > 0)

    def _lengths(self) -> tuple[Progress, Sequences]:
        """Return the progress and sequences of a file of lengths, for which nothing is tokenised or spooled.

        Raises:
            OptionError: the job is not index-only.
            SourceError: a file cannot be read, or has changed since it was opened.
            LengthError: a length is invalid, or above the capacity.
            RecordError: there is no length.
        """
        assert isinstance(self.source, LengthsFile)
        if not self.index_only:
            raise OptionError(f"{self.source.path} holds lengths, not tokens; pack it with index_only=True")
        lengths = as_lengths(self.source.lengths, self.corpus.capacity)
        digest = CHAIN_START
        for block in self.source.blocks():
            digest = chain(digest, block)
        counts = Counts(records=lengths.size, sequences=lengths.size, tokens=int(lengths.sum(dtype=np.int64)))
        _check_any(counts)
        made = Sequences(seq_lengths=lengths, values={"seq_index": np.arange(lengths.size)})
        size = self.source.total_bytes or 0
        return Progress(chain=digest.hex(), consumed_bytes=size, sources={"": counts}, complete=True), made


def _check_any(counts: Counts) -> None:
    """Refuse a job without any sequence to write.

    Raises:
        RecordError: `counts` has no sequence; the message says what became of the records.
    """
    if not counts.sequences:
        raise RecordError(
            f"nothing to pack: {counted(counts.records, 'record')} gave no sequence ({counts.empty_skipped:,} empty, "
            f"{counts.bad_skipped:,} bad, {counts.dropped:,} dropped as over-long)"
        )
