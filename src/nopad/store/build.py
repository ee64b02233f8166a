"""One dataset of a job: columns -> plan -> packs -> shards or index -> manifest, resumable at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nopad.assignment import assign, pack
from nopad.errors import FormatError, PlanMismatchError, ResumeError
from nopad.files import storage_errors
from nopad.packs import Packs
from nopad.planning.front import ARRIVAL_ALGORITHMS, complete_options, plan, summarise
from nopad.planning.plan import Plan
from nopad.store.index import selection, write_index
from nopad.store.manifest import PLAN, Manifest, Shard
from nopad.store.monitor import Monitor
from nopad.store.options import PackOptions
from nopad.store.shards import Columns, Layout, write_shards
from nopad.store.workspace import Workspace

__all__ = ["Builder"]


@dataclass(frozen=True)
class Builder:
    """What a dataset is built with.

    Attributes:
        workspace: of this dataset.
        capacity: most tokens a pack may hold.
        packing: algorithm, depth, seed, order.
        index_only: write which sequence goes where, and no tokens.
        monitor: is told the progress.
    """

    workspace: Workspace
    capacity: int
    packing: PackOptions
    index_only: bool
    monitor: Monitor

    def build(self, columns: Columns, **known: Any) -> Manifest:
        """Do what is left to do of the dataset of these sequences; `known` are the other fields of its manifest."""
        with storage_errors("creating", self.workspace.work):
            self.workspace.work.mkdir(parents=True, exist_ok=True)
        made, packs = self._plan_and_assign(columns)
        packs = replace(packs, selection=selection(known["counts"], known["tokenizer"]))
        layout = Layout.of(len(packs), self.capacity, self.packing.shard_tokens)
        shards = self._write(packs, columns, layout)
        return self._publish(made, columns, layout, shards, known)

    def _plan_and_assign(self, columns: Columns) -> tuple[Plan, Packs]:
        """Plan, or reread the stored plan; then deal the sequences out."""
        self.monitor.stage("planning", None, "")
        stored = self.workspace.work / PLAN
        how: dict[str, Any] = {"seed": self.packing.seed, "order": self.packing.order}
        what: dict[str, Any] = {"depth": self.packing.depth, "algorithm": self.packing.algorithm}
        capacity, options = self.capacity, self.packing.options
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
        self, made: Plan, columns: Columns, layout: Layout, shards: tuple[Shard, ...], known: Mapping[str, Any]
    ) -> Manifest:
        """Move the finished files into place and write the manifest last."""
        from nopad.store import _kernels

        zeros = np.zeros(1, dtype=np.int64)
        start = np.broadcast_to(zeros, columns.record.shape) if columns.start is None else columns.start
        checksum = _kernels.tag_sum(columns.record, start, columns.lengths)
        manifest = Manifest(
            **known,
            packs=made.packs,
            sequences=made.sequences,
            tokens=made.tokens,
            plan_sha256=made.fingerprint,
            sequence_checksum=f"{int(checksum):016x}",
            columns={} if self.index_only else {f.name: str(f.type) for f in columns.schema()},
            rows_per_group=layout.rows_per_group,
            shards=shards,
        )
        with storage_errors("creating", self.workspace.out):
            self.workspace.out.mkdir(exist_ok=True)
        self.workspace.move_into_place(sorted({shard.file.split("/")[0] for shard in shards}))
        made.save(self.workspace.out / PLAN)
        manifest.save(self.workspace.out)
        self.workspace.clear()
        return manifest
