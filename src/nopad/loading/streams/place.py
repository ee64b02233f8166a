"""How far a rank has come in a stream: where reading goes on, and every sequence that it read for a later step.

A place is the beginning of a step, and the number of its micro-steps that were taken already. If a run goes on with
another number of ranks, or another size of a step, a step that was not finished is taken again, since its gradient was
never applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.options import Counts
from nopad.errors import FormatError, OptionError
from nopad.loading.streams.packing import Packing
from nopad.loading.streams.reading import Cursor
from nopad.loading.streams.shuffling import NOTHING, Buffer
from nopad.sequences import Sequences

__all__ = ["Held", "StreamPlace", "dealt_again"]


@dataclass(frozen=True, eq=False)
class Held:
    """Sequences in memory that came to the packer; those marked `alive` are in no finished step yet.

    Attributes:
        sequences: the sequences in memory, in order of arrival; None: there are none.
        numbers: the number of each of these sequences, ascending; int64 ``[n]``.
        alive: True for each of these sequences that no finished step has taken; bool ``[n]``.
    """

    sequences: Sequences | None
    numbers: NDArray[np.int64]
    alive: NDArray[np.bool_]

    @classmethod
    def none(cls) -> Held:
        """Return an instance that holds no sequence."""
        return cls(None, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_))

    def __len__(self) -> int:
        """Number of sequences that are alive."""
        return int(np.count_nonzero(self.alive))

    @property
    def tokens(self) -> int:
        """Number of tokens of the sequences that no finished step has taken yet."""
        return 0 if self.sequences is None else int(self.sequences.seq_lengths[self.alive].sum(dtype=np.int64))

    def compact(self) -> Held:
        """Return an instance that holds only the sequences that are `alive`, so that memory is freed; O(tokens)."""
        if self.sequences is None or self.alive.all():
            return self
        kept = np.flatnonzero(self.alive)
        if not kept.size:
            return Held.none()
        return Held(self.sequences.take(kept).gathered(), self.numbers[kept], np.ones(kept.size, dtype=np.bool_))

    def and_also(self, more: Sequences, first: int) -> Held:
        """Return an instance that also holds the sequences in `more`, numbered from `first` on; O(tokens).

        Unless `more` is empty, sequences that are not alive are dropped.
        """
        if not len(more):
            return self
        here = self.compact()
        numbers = np.arange(first, first + len(more))
        alive = np.ones(len(more), dtype=np.bool_)
        if here.sequences is None:
            return Held(more, numbers, alive)
        return Held(
            Sequences.joined([here.sequences, more]),
            np.concatenate([here.numbers, numbers]),
            np.concatenate([here.alive, alive]),
        )

    def places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices in `sequences` of the sequences with these numbers; int64 ``[k]``."""
        return np.searchsorted(self.numbers, numbers)

    def without(self, numbers: NDArray[np.int64]) -> Held:
        """Return an instance in which the sequences with these numbers are not alive, since a step has taken them."""
        alive = self.alive.copy()
        alive[self.places(numbers)] = False
        return Held(self.sequences, self.numbers, alive)


Pack = tuple[int, ...]  # numbers of its sequences


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamPlace:
    """How far one rank of a loader over a stream has come.

    Attributes:
        cursor: where in the source reading goes on, and which records belong to this rank.
        buffer: the sequences that were read and wait for a random turn.
        held: the sequences in memory that have come to the packer; those marked `alive` are in no finished step yet.
        ready: the units (packs or single sequences) that are complete, in the order in which batches take them. The
            other sequences marked `alive` in `held` still wait in the packer.
        arrived: how many sequences have come to the packer since the packer began to number them from 0.
        accumulation, per_rank: number of micro-steps per step; number of units (packs or single sequences) per rank and
            micro-step.
        batches: number of micro-batches of the next step that were taken already.
        steps_seen: number of whole steps taken.
        sequences_here, tokens_here, units_here: number of sequences, tokens and units that this rank took in the whole
            steps.
        left_sequences, left_tokens: number of sequences and tokens that this rank read and left out at the ends of
            passes.
        counts: how many of the records that this rank read were kept, skipped, truncated and so on.
    """

    cursor: Cursor
    buffer: Buffer
    held: Held
    ready: tuple[Pack, ...] = ()
    arrived: int = 0
    accumulation: int
    per_rank: int
    batches: int = 0
    steps_seen: int = 0
    sequences_here: int = 0
    tokens_here: int = 0
    units_here: int = 0
    left_sequences: int = 0
    left_tokens: int = 0
    counts: Counts

    @property
    def epoch(self) -> int:
        """Number of the pass over the source that this rank reads, from 0.

        If the stream stops at the end of its source (`exhausted` "stop"), this number is the same on all ranks.
        """
        return self.cursor.passes

    @property
    def sequences_seen(self) -> int:
        """Number of sequences in the whole steps taken so far.

        Raises:
            OptionError: there are other ranks, whose numbers this rank does not know.
        """
        return self._alone(self.sequences_here, "sequences")

    @property
    def tokens_seen(self) -> int:
        """Number of tokens in the whole steps taken so far.

        Raises:
            OptionError: there are other ranks, whose numbers this rank does not know.
        """
        return self._alone(self.tokens_here, "tokens")

    def _alone(self, here: int, what: str) -> int:
        if self.cursor.deal.world_size > 1:
            raise OptionError(
                f"how many {what} the other ranks of a stream have seen is not known without asking them; let "
                f"schedules count steps_seen, which is the same on all ranks, or all_reduce the {what} of each batch"
            )
        return here

    @property
    def waiting(self) -> NDArray[np.bool_]:
        """For each sequence in `held`, whether it waits in the packer and is in no complete pack yet; bool ``[n]``."""
        waiting = self.held.alive.copy()
        waiting[self.held.places(np.array([n for pack in self.ready for n in pack], dtype=np.int64))] = False
        return waiting


def dealt_again(
    places: Sequence[StreamPlace], packing: Packing, world_size: int, rank: int, accumulation: int, per_rank: int
) -> StreamPlace:
    """Return the place from which one of `world_size` new ranks goes on, after the former ranks stopped at `places`.

    Records that no rank has read are dealt anew. Sequences that had come to a former rank's packer, and are in no
    finished step, go to the new ranks in turn, and are packed anew. Sequences that still waited for a random turn go to
    the new ranks in turn, and wait again. What former rank r has counted goes to new rank ``r % world_size``.

    Args:
        places: the places of all former ranks, in the order of ranks.
        packing: how sequences are packed.
        world_size: the new number of ranks.
        rank: the new rank, from 0.
        accumulation: micro-steps per step of the new run.
        per_rank: units (packs or single sequences) per rank and micro-step of the new run.

    Raises:
        FormatError: the places were not saved after the same step.
    """
    steps = sorted({place.steps_seen for place in places})
    if len(steps) > 1:
        raise FormatError(f"these states are of steps {steps}, not of one moment; give those that were saved together")
    reached = tuple(place.cursor.reached for place in places)
    least = places[reached.index(min(reached))].cursor
    length = next((place.cursor.length for place in places if place.cursor.length), None)
    cursor = replace(least, length=length, deal=least.deal.again(reached, world_size, rank))
    mine = places[rank::world_size]
    held = Held.none()
    pool = [held_ for place in places if (held_ := place.held.compact()).sequences is not None]
    if pool:
        every = Sequences.joined([one.sequences for one in pool if one.sequences is not None])
        chosen = np.arange(rank, len(every), world_size)
        held = held.and_also(every.take(chosen).gathered(), 0) if chosen.size else held
    buffers = [place.buffer for place in places]
    waiting = Sequences.joined([found for one in buffers if len(found := one.sequences())] or [NOTHING])
    buffer = Buffer.of(waiting.take(np.arange(rank, len(waiting), world_size)), max(one.drawn for one in buffers))
    arrived = len(held)
    packer = packing.packer()
    ready = packer.push(held.sequences.seq_lengths) if held.sequences is not None else []
    return StreamPlace(
        cursor=cursor,
        buffer=buffer,
        held=held,
        ready=tuple(ready),
        arrived=arrived,
        accumulation=accumulation,
        per_rank=per_rank,
        steps_seen=places[0].steps_seen,
        sequences_here=sum(place.sequences_here for place in mine),
        tokens_here=sum(place.tokens_here for place in mine),
        units_here=sum(place.units_here for place in mine),
        left_sequences=sum(place.left_sequences for place in mine),
        left_tokens=sum(place.left_tokens for place in mine),
        counts=sum((place.counts for place in mine), Counts()),
    )
