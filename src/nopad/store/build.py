"""Write one dataset of a packing job: its plan, its shards or its index, and its manifest.

A stopped job that is run again reuses the plan and the shards that were finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nopad.assignment import assign, pack
from nopad.files import storage_errors
from nopad.packs import Packs
from nopad.planning.front import plan
from nopad.planning.plan import Plan
from nopad.planning.registry import ARRIVAL_ALGORITHMS, complete_options
from nopad.planning.summary import summarise
from nopad.sequences import Sequences
from nopad.store.index import selection, write_index
from nopad.store.manifest import PLAN, Manifest, Shard
from nopad.store.monitor import Monitor
from nopad.store.options import PackOptions
from nopad.store.shards import ShardLayout, schema_of, write_shards
from nopad.store.workspace import Workspace

__all__ = ["Builder"]


@dataclass(frozen=True)
class Builder:
    """Writes one dataset of a job; the attributes are the settings for this.

    Attributes:
        workspace: the dataset's folders.
        origin: fingerprint of the source. If a stopped run made files from another source, `build` raises ResumeError.
        capacity: maximum number of tokens in a pack.
        packing: algorithm, its options, depth, seed, order, and number of tokens per shard.
        index_only: whether to write an index instead of shards: which sequence is in which pack, without tokens.
        monitor: receives the progress.
    """

    workspace: Workspace
    origin: str
    capacity: int
    packing: PackOptions
    index_only: bool
    monitor: Monitor

    def build(self, sequences: Sequences, **known: Any) -> Manifest:
        """Write a dataset of these sequences, and return the dataset's manifest.

        Files that an earlier run of the job has finished are used again. `known` has those fields of the `Manifest`, by
        name, that do not depend on the packs, such as `counts` and `tokenizer`.

        Raises:
            ResumeError: a stopped run made a file of this dataset from another source; or there are shards both in the
                dataset folder and in the work folder.
            LengthError: the square of a length is above the condition `max_squares`.
            OptionError: the algorithm cannot plan these sequences, or a condition on the packs cannot be met
                (`nopad.plan`); or a column of strings has more text in a row group than fits (2^31 - 1 bytes).
            StorageError: the disk is full, or a file cannot be read or written.
        """
        with storage_errors("creating", self.workspace.work):
            self.workspace.work.mkdir(parents=True, exist_ok=True)
        if not self.index_only:
            self.workspace.take_back("shards")
        finished = self.workspace.finished_files(self.origin)
        made, packs = self._plan_and_assign(sequences, PLAN in finished)
        packs = replace(packs, selection=selection(known["counts"], known["tokenizer"]))
        layout = ShardLayout.of(len(packs), self.capacity, self.packing.shard_tokens)
        shards = self._write(packs, sequences, layout, finished)
        return self._publish(made, sequences, layout, shards, known)

    def _plan_and_assign(self, sequences: Sequences, stored: bool) -> tuple[Plan, Packs]:
        """Return the plan, and the packs with the sequences in them.

        With a histogram algorithm, the plan is read from disk if it is `stored` already, and made otherwise; then
        sequences are assigned to its packs. An arrival-order algorithm makes the packs from the sequences as they come,
        again at each call; the plan that is returned describes these packs. Unless a plan is `stored`, the plan is
        saved and noted in the journal.
        """
        self.monitor.stage("planning", None, "")
        path = self.workspace.work / PLAN
        how: dict[str, Any] = {"seed": self.packing.seed, "order": self.packing.order}
        what: dict[str, Any] = {"depth": self.packing.depth, "algorithm": self.packing.algorithm}
        capacity, options = self.capacity, self.packing.options
        if self.packing.algorithm in ARRIVAL_ALGORITHMS:
            packs = pack(sequences.seq_lengths, capacity, **what, **how, **options)
            made = self._summary(packs, sequences)
        else:
            made = Plan.load(path) if stored else plan(sequences.seq_lengths, capacity, **what, **options)
            packs = assign(made, sequences.seq_lengths, **how)
        if not stored:
            made.save(path)
            self.workspace.note(PLAN, self.origin, sha256=made.fingerprint)
        return made, packs

    def _summary(self, packs: Packs, sequences: Sequences) -> Plan:
        """Return the plan that describes `packs`, which an arrival-order algorithm has made of `sequences`."""
        algorithm = self.packing.algorithm
        own, conditions = complete_options(algorithm, self.packing.options)
        return summarise(packs, sequences.seq_lengths, algorithm=algorithm, options={**own, **conditions})

    def _write(
        self, packs: Packs, sequences: Sequences, layout: ShardLayout, finished: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Shard, ...]:
        """Write the shards that are not `finished` yet, or the index; return a `Shard` for each file of the dataset.

        The result is in the order of `Manifest.shards`. `layout` says which packs are in which shard. `finished` has
        what the journal says about each file that an earlier run has finished, by path: for a shard, the fields of its
        `Shard`. Other files in the folder of shards are deleted first.
        """
        work = self.workspace.work
        if self.index_only:
            self.monitor.stage("writing the index", None, "")
            return write_index(packs, sequences, work)
        self.monitor.stage("writing", int(sequences.seq_lengths.sum(dtype=np.int64)), "tokens")
        names = {layout.name(number) for number in range(layout.shards)}
        done = {name: Shard(**finished[name]) for name in names & finished.keys()}
        with storage_errors("creating", work / "shards"):
            (work / "shards").mkdir(exist_ok=True)
            # Other files are left from a killed run or another tool, and must not become part of the dataset
            for path in (work / "shards").iterdir():
                if f"shards/{path.name}" not in done:
                    path.unlink()
        tokens = sum(shard.tokens for shard in done.values())
        self.monitor.advance(tokens, tokens)
        return write_shards(
            packs,
            sequences,
            work,
            layout,
            finished=done,
            on_shard=lambda shard: self.workspace.note(**vars(shard), origin=self.origin),
            on_tokens=lambda tokens: self.monitor.advance(tokens, tokens),
        )

    def _publish(
        self, made: Plan, sequences: Sequences, layout: ShardLayout, shards: tuple[Shard, ...], known: Mapping[str, Any]
    ) -> Manifest:
        """Move the finished files to the dataset folder, write plan and manifest there, and return the manifest.

        `made` is the plan, `layout` says which packs are in which shard, and `shards` describes the data files. `known`
        has the fields of the manifest that do not depend on the packs, by name.
        """
        from nopad.store import _kernels

        zeros = np.zeros(1, dtype=np.int64)
        record, start = sequences.values["seq_index"], sequences.values.get("seq_start")
        start = np.broadcast_to(zeros, record.shape) if start is None else start
        checksum = _kernels.tag_sum(record, start, sequences.seq_lengths)
        manifest = Manifest(
            **known,
            packs=made.packs,
            sequences=made.sequences,
            tokens=made.tokens,
            plan_sha256=made.fingerprint,
            sequence_checksum=f"{int(checksum):016x}",
            columns={} if self.index_only else {f.name: str(f.type) for f in schema_of(sequences)},
            rows_per_group=layout.rows_per_group,
            shards=shards,
        )
        with storage_errors("creating", self.workspace.out):
            self.workspace.out.mkdir(exist_ok=True)
        self.workspace.move_into_place(sorted({shard.file.split("/")[0] for shard in shards}))
        made.save(self.workspace.out / PLAN)
        manifest.save(self.workspace.out)
        return manifest
