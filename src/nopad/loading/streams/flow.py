"""The stream of one rank while it runs: sequences are read in groups, shuffled, and packed into units."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from nopad.errors import SourceError
from nopad.loading.streams.packing import Packing
from nopad.loading.streams.place import Pack, StreamPlace
from nopad.loading.streams.reading import Read, Reader
from nopad.loading.streams.shuffling import NOTHING, Shuffling
from nopad.sequences import Sequences

__all__ = ["Flow"]


class Flow:
    """Reads a stream from a `StreamPlace` on, and makes the units (packs or single sequences) of one rank in order."""

    def __init__(self, place: StreamPlace, reader: Reader, packing: Packing, shuffling: Shuffling) -> None:
        """Begin at `place`; nothing is read yet.

        Reading and tokenising start when `take` first needs more units; from then on, they run ahead of the training
        loop.

        Args:
            place: how far the rank has come.
            reader: reads and tokenises the source.
            packing: how sequences become units.
            shuffling: how sequences wait for a random turn before they are packed.
        """
        self._place, self._shuffling = place, shuffling
        self._ready = deque(place.ready)
        self._groups = cast(Generator[Read, None, None], reader.groups(place.cursor))
        self._packer = packing.packer()
        waiting, held = place.waiting, place.held
        if held.sequences is not None:
            self._packer.restore(place.arrived, held.numbers[waiting], held.sequences.seq_lengths[waiting])
        else:
            self._packer.restore(place.arrived, held.numbers, np.zeros(0, dtype=np.int32))
        self._fruitless = place.cursor.passes  # number of the pass that gave the newest sequence

    def place(self) -> StreamPlace:
        """Return the place (how far this rank has come) before the units that `take` returns next."""
        return replace(self._place, ready=tuple(self._ready))

    def take(self, units: int) -> list[Pack]:
        """Return the next `units` units (packs or single sequences), or fewer at the end of a stream.

        A unit is a tuple of the numbers of its sequences. Sequences are numbered in the order in which they come to the
        packer. They stay in memory at least until the method `given` is called with these units.

        Raises:
            SourceError: reading fails, the source changed, has no record or mixes text and ids; or the last passes over
                the source gave this rank no sequence.
            RecordError: a record is bad, too long or empty, and the options do not allow it.
            LengthError: the source is a task's, and the task refuses a record.
            OptionError: a record is text, and there is no tokenizer; or the tokenizer cannot encode chats.
            FormatError: the tokenizer cannot encode a text.
        """
        while len(self._ready) < units and self._read():
            pass
        return [self._ready.popleft() for _ in range(min(units, len(self._ready)))]

    def _read(self) -> bool:
        """Read the next sequences or, at the end of the stream, pack the sequences that still wait.

        Sequences are read in groups (`Reader.groups`); one more group is read. Return False if there was nothing left
        to read or to pack.

        Raises:
            SourceError, RecordError, LengthError, OptionError, FormatError: as in `take`.
        """
        read = next(self._groups, None)
        if read is None:
            waited = self._let_on(NOTHING, 0)
            last = self._packer.finish()
            self._ready.extend(last)
            return bool(waited or last)
        found, counts, cursor = read
        if len(found) or cursor.deal.before:  # records that former ranks have read are skipped, and prove nothing
            self._fruitless = cursor.passes
        elif cursor.passes > self._fruitless + cursor.deal.world_size:
            raise SourceError(
                f"the last {cursor.deal.world_size + 1} passes over the source gave this rank not one sequence: "
                f"{counts.records:,} records, all of them skipped or empty; give a source that has texts"
            )
        self._let_on(found, self._shuffling.size)
        self._place = replace(self._place, cursor=cursor, counts=self._place.counts + counts)
        return True

    def _let_on(self, found: Sequences, wait: int) -> int:
        """Add `found` to the sequences that wait for a random turn, and pass those that are drawn to the packer.

        The sequences in `found` are added one by one. Whenever more than `wait` sequences wait, one of them is drawn at
        random. Return how many were drawn.
        """
        place, deal = self._place, self._place.cursor.deal
        found, buffer = place.buffer.after(found, wait, self._shuffling.seed, deal.world_size, deal.rank)
        # The first group is empty, so the first push only loads the compiled loops.
        self._ready.extend(self._packer.push(found.seq_lengths))
        self._place = replace(
            place,
            buffer=buffer,
            held=place.held.and_also(found, place.arrived),
            arrived=place.arrived + len(found),
        )
        return len(found)

    def sequences(self, packs: Sequence[Pack]) -> tuple[Sequences, NDArray[np.int64]]:
        """Return the sequences of the units `packs`, unit after unit, and the number of sequences of each unit.

        The numbers are int64 ``[units]``.
        """
        held = self._place.held
        assert held.sequences is not None
        numbers = np.array([number for pack in packs for number in pack], dtype=np.int64)
        return held.sequences.take(held.places(numbers)), np.array([len(pack) for pack in packs], dtype=np.int64)

    def given(self, packs: Sequence[Pack]) -> None:
        """Count one more whole step, which consists of the units `packs`.

        The memory of their sequences is freed when more sequences come.
        """
        place = self._place
        numbers = np.array([number for pack in packs for number in pack], dtype=np.int64)
        held, tokens = place.held, 0
        if held.sequences is not None and numbers.size:
            tokens = int(held.sequences.seq_lengths[held.places(numbers)].sum(dtype=np.int64))
            held = held.without(numbers)
        self._place = replace(
            place,
            held=held,
            batches=0,
            steps_seen=place.steps_seen + 1,
            sequences_here=place.sequences_here + numbers.size,
            tokens_here=place.tokens_here + tokens,
            units_here=place.units_here + len(packs),
        )

    def close(self) -> None:
        """Stop reading, and end the threads that read ahead."""
        self._groups.close()
