"""Which records of a stream belong to a rank: every rank counts them in the same way, without communication.

Records go to the ranks in turn, one record each. When a run goes on with another number of ranks, every former rank had
read up to a different record. The records that they left are dealt anew: a record that its former rank had read is
passed over, and the others are counted. An earlier deal is forgotten once reading has passed its furthest record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["Deal", "Left"]


@dataclass(frozen=True, kw_only=True)
class Left:
    """The records that the ranks of an earlier deal had not read.

    Attributes:
        world_size: number of ranks of that deal.
        count: the rank to which it gives the next record.
        reached: number of the first record that each rank had not read; ``[world_size]``.
    """

    world_size: int
    count: int
    reached: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Deal:
    """How records are dealt from some record on.

    Attributes:
        world_size, rank: the number of ranks, and the one whose records `take` returns.
        count: the rank to which the next record goes.
        before: earlier deals whose ranks had read further than this record, the oldest first.

    >>> deal = Deal(world_size=2, rank=1)
    >>> mine, deal = deal.take(0, 5)
    >>> mine.tolist(), deal.count
    ([1, 3], 1)
    """

    world_size: int
    rank: int
    count: int = 0
    before: tuple[Left, ...] = ()

    def take(self, first: int, records: int) -> tuple[NDArray[np.int64], Deal]:
        """Return which of `records` records, from number `first` on, are this rank's, and the deal after them.

        This rank's records are counted from `first`, as 0; int64 ``[k]``.
        """
        left = np.arange(first, first + records)
        before = []
        for old in self.before:
            owners = (old.count + np.arange(left.size)) % old.world_size
            count = (old.count + left.size) % old.world_size
            left = left[left >= np.array(old.reached)[owners]]
            if first + records < max(old.reached):
                before.append(replace(old, count=count))
        mine = left[(self.rank - self.count) % self.world_size :: self.world_size]
        count = (self.count + left.size) % self.world_size
        return mine - first, replace(self, count=count, before=tuple(before))

    def again(self, reached: tuple[int, ...], world_size: int, rank: int) -> Deal:
        """Return the deal, to `world_size` ranks, of the records that the ranks of this deal had not read.

        `reached` is the number of the first record that each rank of this deal had not read. Call it on the deal
        as it stood before the record of the smallest of these numbers; there the returned one begins.
        """
        left = Left(world_size=self.world_size, count=self.count, reached=reached)
        return Deal(world_size=world_size, rank=rank, before=(*self.before, left))
