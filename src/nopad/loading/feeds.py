"""Feeds list what a loader deals in an epoch: packs over stored tokens, sequences, groups, or rows of a packed dataset.

The things dealt are called units. A feed lists the units of an epoch. It also gathers the sequences of given units, in
columns. Packs over stored tokens ("virtual packs") are only an index. A plan is made once; for a mixture of sources, it
is made anew in every epoch. In every epoch, each sequence is dealt to one of the plan's packs, in O(sequences). So
capacity, depth, algorithm and seed can change without writing tokens again.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad import _kernels, random
from nopad.assignment import assign, check_cover
from nopad.balance import round_up
from nopad.batch.columns import narrowed
from nopad.errors import CorruptError, LengthError, OptionError, PlanMismatchError
from nopad.histogram import as_lengths
from nopad.loading.groups import Groups, Together
from nopad.loading.sources import TokenSource
from nopad.loading.units import Taken, Units, narrow
from nopad.packs import index_dtype
from nopad.planning import Plan
from nopad.planning import plan as new_plan
from nopad.sequences import Sequences
from nopad.store import PackedDataset
from nopad.store.manifest import Manifest

__all__ = ["Feed", "SourceFeed", "StoredRows", "StoredTokens", "check_fits", "planned"]


class Feed(ABC):
    """Base class of feeds: lists the units that a loader deals, and gathers their sequences.

    Attributes:
        unit: what a unit is called in messages and summaries: "pack" (also for a row), "sequence" or "group".
        group_size: number of sequences per unit, if units are groups; 1 for all other units.
        capacity: maximum number of tokens of a pack; if sequences are not packed, the length of the longest sequence.
        sequences: number of sequences in the data.
        packs: number of packs of an epoch; None: sequences are not packed, or the number differs between epochs.
        tokens: number of tokens of an epoch; None: not known without counting.
        seed: the seed of all random choices.
        apart: whether the sequences of a unit may go to different ranks of a step.
        steady: whether every epoch has the same number of units.
        phased: whether units must be dealt in the order in which `units` lists them, since sources of a mixture run out
            during the epoch. The loader's balance must then have ``draw="random"``, which takes units in the listed
            order (random already). Any other draw would change this order, and the loader raises OptionError.
    """

    apart: bool = False
    steady: bool = True
    phased: bool = False
    unit: str
    group_size: int = 1
    capacity: int
    sequences: int
    packs: int | None = None
    tokens: int | None = None
    seed: int

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return, by name, what a saved run and the run that resumes it must share, such as a fingerprint of the data.

        All values can be written as JSON.
        """

    @abstractmethod
    def units(self, epoch: int) -> Units:
        """Return the units (packs, rows, sequences or groups) of epoch number `epoch`; they are the same on every rank.

        Epochs are numbered from 0.
        """

    def notes(self, epoch: int) -> tuple[str, ...]:
        """Return further lines for the summary of epoch number `epoch`; () if there are none."""
        return ()

    @abstractmethod
    def gather(self, taken: Taken) -> Sequences:
        """Return the sequences of the units in `taken` (packs, rows, single sequences or groups), unit after unit.

        Their per-sequence columns include ``seq_index``: the column of that name in the data if there is one, else the
        number of each sequence in the source.

        Raises:
            CorruptError, SourceError: the data changed since the feed was opened, or are damaged.
            BatchError: a finite float64 in the data is too large for float32.
            StorageError: the data cannot be read.
            PlanMismatchError: for an index-only dataset, a sequence has other tokens than those that were packed.
        """

    @abstractmethod
    def check_unchanged(self) -> None:
        """Refuse data that changed since the feed was opened; called whenever a loop over the batches begins.

        Raises:
            SourceError, CorruptError, FormatError, StorageError: the data changed, or are not there any more.
        """


class SourceFeed(Feed):
    """Base class of feeds whose sequences are read from `_source`, a `TokenSource` (stored tokens, read by number)."""

    _source: TokenSource

    def gather(self, taken: Taken) -> Sequences:
        """Return the sequences of the units in `taken`, unit after unit.

        Their per-sequence columns include ``seq_index``: the column of that name in the data if there is one, else the
        number of each sequence in the source.

        Raises:
            SourceError: the data changed since the source was opened, or are damaged.
            BatchError: a finite float64 in the data is too large for float32.
            PlanMismatchError: for an index-only dataset, a sequence has other tokens than those that were packed.
        """
        found = self._source.gather(taken.sequences, wide=True)
        values = {"seq_index": taken.sequences.copy(), **found.values}  # copied, since the step keeps `taken`
        return Sequences(seq_lengths=found.seq_lengths, tokens=found.tokens, values=values, begin=found.begin)

    def check_unchanged(self) -> None:
        """Refuse tokens that changed since the source was opened.

        Raises:
            SourceError: a file changed; the message names it.
        """
        self._source.check_unchanged()


class StoredTokens(SourceFeed):
    """Lists what a loader deals from stored tokens: packs made by a plan, single sequences, or groups of sequences.

    The plan is the same in all epochs; which sequences share a pack is chosen anew in each epoch. Without a plan,
    single sequences or groups are dealt.
    """

    def __init__(
        self,
        source: TokenSource,
        plan: Plan | None,
        *,
        groups: Groups | None = None,
        together: Together = "rank",
        align: int = 1,
        seed: int = 0,
    ) -> None:
        """Keep the arguments, and choose what a unit is: a pack, a sequence or a group.

        Args:
            source: the tokens.
            plan: a plan for exactly the lengths of the sequences or, with `groups`, of the groups (see `planned`);
                None: nothing is packed.
            groups: which sequences share a step, a rank or a pack; None: there are no groups.
            together: without a plan, what the sequences of a group share: a "step" or a "rank". With a plan, they share
                a pack.
            align: where groups are packed, each sequence takes a multiple of this many slots (a slot holds a token or
                padding).
            seed: the seed of all random choices.

        Raises:
            OptionError: groups differ in size, and there is no plan.
        """
        self._source, self._plan, self._groups, self._align, self.seed = source, plan, groups, align, seed
        self.apart = plan is None and groups is not None and together == "step"
        self.sequences = len(source)
        self.capacity = int(source.seq_lengths.max(initial=1)) if plan is None else plan.capacity
        self.unit = "pack" if plan is not None else "sequence" if groups is None else "group"
        if plan is not None:
            self.packs, self.tokens = plan.packs, int(source.seq_lengths.sum(dtype=np.int64))
        if plan is None and groups is not None:
            self.group_size = groups.one_size()

    def facts(self) -> dict[str, Any]:
        """Return, by name, what a saved run and the run that resumes it must share.

        These are the kind of the units ("pack", "sequence" or "group"), the seed and the fingerprint of the data. With
        groups, the fingerprint of the groups is added and, if there is no plan, what the sequences of a group share.
        With a plan, its fingerprint and capacity are added.
        """
        found: dict[str, Any] = {"unit": self.unit, "seed": self.seed, "data": self._source.fingerprint}
        if self._groups is not None:
            found["groups"] = self._groups.fingerprint
            if self._plan is None:
                found["together"] = "step" if self.apart else "rank"
        if self._plan is not None:
            found |= {"capacity": self.capacity, "plan": self._plan.fingerprint}
        return found

    def units(self, epoch: int) -> Units:
        """Return the packs of an epoch or, without a plan, its sequences or groups in random order.

        Which sequences share a pack is chosen anew in each epoch.
        """
        lengths, groups = self._source.seq_lengths, self._groups
        key = random.key(self.seed, random.STREAM_EPOCH, epoch)
        indptr = sequence = order = None
        if self._plan is not None:
            packs = assign(self._plan, lengths if groups is None else groups.slots(lengths, self._align), seed=key)
            indptr, sequence = (packs.indptr, packs.sequence) if groups is None else groups.expanded(packs)
        else:
            order = np.arange(lengths.size if groups is None else len(groups), dtype=index_dtype(lengths.size))
            _kernels.shuffle(order, np.uint64(key))
            if groups is not None:
                indptr, sequence = groups.indptr, groups.sequence
        self._source.release()
        return Units(seq_lengths=narrow(lengths), indptr=indptr, sequence=sequence, order=order, apart=self.apart)


def planned(
    source: TokenSource,
    capacity: int,
    *,
    groups: Groups | None = None,
    plan: Plan | None = None,
    align: int = 1,
    **options: Any,
) -> Plan:
    """Return a plan for the sequences of `source`: `plan` if it fits them; a new one (`nopad.plan`) if `plan` is None.

    Args:
        source: the sequences.
        capacity: maximum number of tokens per pack.
        groups: groups of sequences that share a pack; the plan is then for groups, each as long as its sequences
            together (with the padding for `align`). None: the plan is for single sequences.
        plan: a plan made before; None: a new one.
        align: every sequence takes a multiple of this many slots (a slot holds a token or padding).
        options: options of a new plan, as in `nopad.plan`.

    Raises:
        LengthError: a sequence or group is longer than `capacity`; the message counts them.
        PlanMismatchError: `plan` is for other lengths or another capacity; or it has a pack that does not fit into the
            capacity if each sequence takes a multiple of `align` slots.
        OptionError: an option has an invalid value, `plan` is not a `nopad.Plan`, `depth` is given with `groups`, or
            options are given with `plan`.
    """
    lengths = source.seq_lengths if groups is None else groups.slots(source.seq_lengths, align)
    check_fits(lengths, capacity, "sequence" if groups is None else "group")
    if groups is not None and options.get("depth") is not None:
        raise OptionError("depth limits sequences per pack, and packs are made of whole groups; leave it out")
    if plan is None:
        return new_plan(lengths, capacity, **(options if align == 1 else {**options, "align": align}))
    if options:
        raise OptionError(
            f"a plan is given, and {', '.join(options)} as well, which are for a new one; give one of both"
        )
    if not isinstance(plan, Plan):
        raise OptionError(f"plan is a {type(plan).__name__}; it is what nopad.plan returns")
    if plan.capacity != capacity:
        raise PlanMismatchError(f"the plan is for a capacity of {plan.capacity:,}, and {capacity:,} is given")
    check_cover(plan, as_lengths(lengths))
    if align > 1 and int(np.add.reduceat(round_up(plan.lengths, align), plan.indptr[:-1]).max()) > capacity:
        raise PlanMismatchError(
            f"the plan has packs that do not fit into {capacity} where each sequence takes a multiple of {align}; "
            f"make it with align={align}"
        )
    return plan


def check_fits(lengths: NDArray[Any], capacity: int, what: str) -> None:
    """Refuse lengths above the capacity; `what` is the word for one of them in the message, such as "sequence".

    Raises:
        LengthError: a length is above the capacity; the message says how many are.
    """
    over = int(np.count_nonzero(lengths > capacity))
    if over:
        raise LengthError(
            f"{over:,} of {lengths.size:,} {what}s are longer than the capacity of {capacity:,}, the first is "
            f"{what} {int(np.argmax(lengths > capacity)):,}, the longest has {int(lengths.max()):,} tokens; give a "
            "capacity of at least that, or make them shorter before: nopad.pack_dataset(data, capacity, "
            "over_long='truncate'), or max_length= of a task"
        )


class StoredRows(Feed):
    """Lists what a loader deals from a packed dataset: its rows, as they are stored.

    An epoch visits the row groups in random order, and the rows within each row group in random order too.
    """

    unit = "pack"

    def __init__(self, dataset: PackedDataset, *, seed: int = 0) -> None:
        """Read the lengths of all sequences in `dataset`; `seed` is the seed of all random choices.

        Raises:
            OptionError: the dataset is index-only, so it holds no tokens.
            CorruptError: a shard is missing or damaged.
            StorageError: a shard cannot be read.
        """
        if dataset.manifest.kind == "index":
            raise OptionError(
                f"{dataset.path} holds an index without tokens; give the source of its tokens, and a capacity"
            )
        self._dataset, self.seed = dataset, seed
        indptr, lengths = dataset.seq_lengths()
        self._lengths, self._indptr = narrow(lengths), indptr.astype(index_dtype(lengths.size))
        self.capacity, self.sequences = dataset.capacity, self._lengths.size
        self.packs, self.tokens = len(dataset), dataset.manifest.tokens

    def facts(self) -> dict[str, Any]:
        """Return, by name, what a saved run and the run that resumes it must share.

        These are the kind of the units ("row"), the seed and the fingerprint of the dataset.
        """
        return {"unit": "row", "seed": self.seed, "data": _of_shards(self._dataset)}

    def units(self, epoch: int) -> Units:
        """Return the rows of an epoch: row groups in random order, and the rows of each row group in random order."""
        return Units(seq_lengths=self._lengths, indptr=self._indptr, order=self._dataset.order(self.seed, epoch))

    def gather(self, taken: Taken) -> Sequences:
        """Return the sequences of the rows in `taken`, row after row.

        Raises:
            CorruptError: a row holds another number of sequences than was dealt, or a shard is missing or damaged.
            StorageError: a shard cannot be read.
            BatchError: a finite float64 of a column is too large for float32.
        """
        sequences, sizes = self._dataset.gather(taken.units)
        if not np.array_equal(sizes, taken.sizes):
            raise CorruptError(
                f"{self._dataset.path}: its rows hold other sequences than when it was opened; open it again"
            )
        return narrowed(sequences)

    def check_unchanged(self) -> None:
        """Refuse a dataset that was replaced by another one since it was opened.

        Only the manifest is compared. The rows themselves are checked when they are read.

        Raises:
            CorruptError: the folder holds another dataset now, or one that is damaged or not finished.
            FormatError: the folder holds no packed dataset any more.
            StorageError: the manifest cannot be read.
        """
        if Manifest.load(self._dataset.path) != self._dataset.manifest:
            raise CorruptError(f"{self._dataset.path} holds another dataset than when it was opened; open it again")


def _of_shards(dataset: PackedDataset) -> str:
    """Return the fingerprint of a packed dataset: the SHA-256 of the checksums of its shards, in hex."""
    digest = hashlib.sha256(b"nopad.rows.v1\0")
    for shard in dataset.manifest.shards:
        digest.update(bytes.fromhex(shard.sha256))
    return digest.hexdigest()
