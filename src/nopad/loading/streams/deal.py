"""Which records of a stream belong to a rank: every rank counts the records in the same way, without communication.

Records go to the ranks in turn, one record each. When training stops, ranks may have read up to different records. If
the run goes on with another number of ranks, the records that were not read are dealt anew. Reading begins at the first
of them. Records that were read before the stop are skipped, and the others go to the new ranks in turn. The former deal
is kept until reading has passed the furthest record that one of its ranks had reached.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["Deal", "Left"]


@dataclass(frozen=True, kw_only=True)
class Left:
    """A former deal of records to ranks, in turn, and how far each of its ranks had read when the run stopped.

    Attributes:
        world_size: number of ranks of that deal.
        count: the rank to which that deal gives the next record, the first that the present run has not dealt yet.
        reached: for each rank, the number of the first record that it had not read; `world_size` integers.
    """

    world_size: int
    count: int
    reached: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Deal:
    """Says to which rank each record goes, from the next record on.

    Records go to the ranks in turn. A record that a former deal gave to a rank which had read it is skipped.

    Attributes:
        world_size, rank: the number of ranks, and the rank whose records `take` returns.
        count: the rank that gets the next record that is not skipped.
        before: former deals, the oldest first; each is dropped when the next record is beyond all that its ranks had
            read.

    >>> deal = Deal(world_size=2, rank=1)
    >>> mine, deal = deal.take(0, 5)
    >>> mine.tolist(), deal.count  # of records 0 to 4, rank 1 gets two; record 5 is its next one
    ([1, 3], 1)
    """

    world_size: int
    rank: int
    count: int = 0
    before: tuple[Left, ...] = ()

    def take(self, first: int, records: int) -> tuple[NDArray[np.int64], Deal]:
        """Return which of `records` records, from number `first` on, are this rank's, and the deal after them.

        Records are returned as offsets from `first`: 0 is record `first`; int64 ``[k]``, ascending.
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
        """Return the deal with which new rank `rank` goes on, after a run with this deal has stopped.

        The new deal begins at the same record as this deal, and skips the records that were read. Call this method on
        the deal whose next record is ``min(reached)``.

        Args:
            reached: for each rank of this deal, the number of the first record that it had not read.
            world_size: the new number of ranks.
            rank: the new rank, from 0.
        """
        left = Left(world_size=self.world_size, count=self.count, reached=reached)
        return Deal(world_size=world_size, rank=rank, before=(*self.before, left))
