"""A buffer in which a stream's sequences wait for a random turn before they are packed.

A sequence that arrives joins those that wait. While more than `Shuffling.size` sequences wait, one of them, drawn at
random, goes on to be packed. At the end of a stream, all of them go on in random order. Draw number k of a rank depends
only on the seed, the number of ranks, the rank and k (`nopad.random`). The loader's state holds all sequences that
wait, so a resumed run makes the same draws.

Cost: O(tokens), each copied about twice. Memory: at most twice the tokens that wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.options import Option
from nopad.sequences import Sequences

__all__ = ["NOTHING", "SHUFFLE", "Buffer", "Shuffling"]

SHUFFLE = Option(default=None, none=True, high=1 << 24, help="sequences that wait for a random turn")
NOTHING = Sequences(seq_lengths=np.zeros(0, dtype=np.int32))
_EPOCHS, _DRAWS = 1 << 22, 1 << 40  # epochs that have draws of their own, and draws of each epoch
_SLACK = 2  # most tokens in memory, as a multiple of the tokens that wait


@dataclass(frozen=True, kw_only=True)
class Shuffling:
    """Settings by which a stream is shuffled.

    Attributes:
        size: number of sequences that wait for a random turn; 0: the stream is not shuffled.
        seed: the seed of the draws.
    """

    size: int = 0
    seed: int = 0

    def facts(self) -> dict[str, Any]:
        """Return the settings that a saved run and the run that resumes it must share, by name; {} if not shuffled."""
        return {"shuffle_buffer": self.size, "seed": self.seed} if self.size else {}


@dataclass(frozen=True, eq=False, kw_only=True)
class Buffer:
    """The sequences that wait for a random turn.

    Attributes:
        parts: the sequences in memory, in the parts in which they arrived; some may have been drawn already.
        waiting: the sequences that wait, as indices counted over all parts; int64 ``[n]``. A draw picks an index into
            this array.
        drawn: number of the next draw; the result of a draw depends on its number. Each draw adds 1. Each epoch begins
            with another number.
    """

    parts: tuple[Sequences, ...] = ()
    waiting: NDArray[np.int64]
    drawn: int = 0

    @classmethod
    def of(cls, sequences: Sequences | None = None, drawn: int = 0) -> Buffer:
        """Return a buffer in which these sequences wait (None: none), and whose next draw has number `drawn`."""
        if sequences is None or not len(sequences):
            return cls(waiting=np.zeros(0, dtype=np.int64), drawn=drawn)
        return cls(parts=(sequences.gathered(),), waiting=np.arange(len(sequences)), drawn=drawn)

    @classmethod
    def of_epoch(cls, epoch: int) -> Buffer:
        """Return the empty buffer with which an epoch begins; its draws depend on the number of the epoch."""
        return cls.of(drawn=epoch % _EPOCHS * _DRAWS)

    def __len__(self) -> int:
        """Number of sequences that wait."""
        return self.waiting.size

    @property
    def tokens(self) -> int:
        """Number of tokens of the sequences that wait."""
        return int(_lengths(self.parts)[self.waiting].sum(dtype=np.int64))

    def sequences(self) -> Sequences:
        """Return the sequences that wait, in the order of `waiting`."""
        return _taken(self.parts, self.waiting)

    def after(self, more: Sequences, size: int, *where: int) -> tuple[Sequences, Buffer]:
        """Add the sequences `more` one by one; whenever more than `size` sequences wait, draw one of them at random.

        Return the sequences that were drawn, in the order of the draws, and the buffer that is left. The draws are the
        same whether sequences are added in one call or in several. `where` is (seed, number of ranks, rank).
        """
        if not size and not len(self):
            return more, self
        parts = (*self.parts, more.gathered()) if len(more) else self.parts
        end = sum(map(len, parts))
        waiting, gone = self.waiting.tolist(), []
        total = max(len(waiting) + len(more) - size, 0)
        turns = np.arange(self.drawn, self.drawn + total)
        seed, *rank = where
        draws = iter(random.keys(turns, seed, random.STREAM_SHUFFLE, *rank).tolist())

        def shrink() -> None:
            while len(waiting) > size:
                at = random.bounded(next(draws), len(waiting))
                waiting[at], waiting[-1] = waiting[-1], waiting[at]
                gone.append(waiting.pop())

        shrink()  # after a change of ranks, more than `size` may wait
        for number in range(end - len(more), end):
            waiting.append(number)
            shrink()
        kept = Buffer(parts=parts, waiting=np.array(waiting, dtype=np.int64), drawn=self.drawn + total)
        return _taken(parts, np.array(gone, dtype=np.int64)), kept._compact()

    def _compact(self) -> Buffer:
        """Return a buffer without the sequences already drawn, if these have more tokens than those that wait.

        Otherwise, return this buffer.
        """
        lengths = _lengths(self.parts)
        if int(lengths.sum(dtype=np.int64)) <= _SLACK * int(lengths[self.waiting].sum(dtype=np.int64)):
            return self
        return Buffer.of(self.sequences(), self.drawn)


def _lengths(parts: Sequence[Sequences]) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(0, dtype=np.int32), *(part.seq_lengths for part in parts)])


def _taken(parts: Sequence[Sequences], numbers: NDArray[np.int64]) -> Sequences:
    """Return the sequences with these numbers, concatenated; O(their tokens).

    The numbers count the sequences of all parts, one part after the other.
    """
    if not numbers.size:
        return NOTHING
    begin = np.cumsum([0, *map(len, parts)])
    of = np.searchsorted(begin, numbers, side="right") - 1
    found = [parts[part].take(numbers[of == part] - begin[part]).gathered() for part in np.unique(of).tolist()]
    place = np.empty(numbers.size, dtype=np.int64)  # where each one is in `found`
    place[np.argsort(of, kind="stable")] = np.arange(numbers.size)
    return Sequences.joined(found).take(place).gathered()
