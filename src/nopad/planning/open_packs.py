"""`OpenPacks`: an index by free room that quickly finds the fullest open pack with room for a length, or the emptiest.

An entry ``(count, content, used)`` stands for `count` packs of equal content. Each of these packs holds `used`
sequences, and `content` lists their lengths (`lengths_of`). Entries with the same free room are on one stack, and the
one added last is taken first, as in Krell et al., arXiv 2107.02027.

No stack is searched to find a room. Each possible room has one bit, set if its stack holds an entry; these bits are
stored in integers of 512 bits. Another integer, the summary, has one bit for each of these integers, set if that
integer is not 0. So a query reads at most three integers: two of 512 bits, and the summary.

All these are Python integers. The compiled sets of `nopad._bit_kernels` are no faster if they are called from Python: a
query takes the same time (0.2 microseconds), a change takes 1.5 times as long, and loading the compiled code takes half
a second.
"""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Content", "OpenPacks", "lengths_of"]

_SHIFT = 9
_MASK = (1 << _SHIFT) - 1


# What a pack holds, as a chain (below, length, copies): `copies` of `length` on top of `below`, which holds longer
# lengths, or None. A plain tuple: hundreds of thousands are made, and a class would double the time of planning.
Content: TypeAlias = "tuple[Content | None, int, int]"


def lengths_of(content: Content) -> tuple[int, ...]:
    """Return all lengths of a pack, longest first.

    `content` is a chain ``(below, length, copies)``: `copies` sequences of `length`, on top of the longer lengths in
    `below`, which is such a chain too, or None.

    >>> lengths_of(((None, 5, 1), 2, 3))
    (5, 2, 2, 2)
    """
    lengths: list[int] = []
    at: Content | None = content
    while at is not None:
        at, length, copies = at
        lengths += (length,) * copies
    lengths.reverse()
    return tuple(lengths)


class OpenPacks:
    """Open packs by free room, for algorithms that place lengths in descending order.

    An entry stands for packs of equal content. A pack is closed when it has no room left or holds `depth` sequences.

    Attributes:
        capacity: most tokens of a pack.
        depth: most sequences of a pack; without a limit, this is the capacity.
        closed: the closed packs, as (number of packs, content).
    """

    def __init__(self, capacity: int, depth: int | None) -> None:
        """Start with no pack open; a `depth` of None is unlimited."""
        self.capacity = capacity
        self.depth = depth if depth is not None else capacity
        self.closed: list[tuple[int, Content]] = []
        self._stacks: dict[int, list[tuple[int, Content, int]]] = {}
        self._words = [0] * ((capacity >> _SHIFT) + 1)
        self._summary = 0

    def emptiest(self) -> int:
        """Return the largest free room of any open pack; -1 if none is open."""
        if not self._summary:
            return -1
        word = self._summary.bit_length() - 1
        return (word << _SHIFT) + self._words[word].bit_length() - 1

    def tightest(self, length: int) -> int:
        """Return the free room of the fullest open pack with room for `length`; -1 if there is none."""
        word = length >> _SHIFT
        bits = self._words[word] >> (length & _MASK)
        if bits:
            return length + (bits & -bits).bit_length() - 1
        above = self._summary >> (word + 1)
        if not above:
            return -1
        word += (above & -above).bit_length()
        bits = self._words[word]
        return (word << _SHIFT) + (bits & -bits).bit_length() - 1

    def take(self, room: int) -> tuple[int, Content, int]:
        """Remove the newest entry with this free room; return (number of packs, content, sequences per pack).

        There must be such an entry.
        """
        stack = self._stacks[room]
        entry = stack.pop()
        if not stack:
            word = room >> _SHIFT
            self._words[word] ^= 1 << (room & _MASK)
            if not self._words[word]:
                self._summary ^= 1 << word
        return entry

    def put(self, room: int, count: int, content: Content, used: int) -> None:
        """Add `count` packs of equal content with this free `room` and `used` sequences each.

        These packs are closed if `room` is 0 or `used` reaches the depth.
        """
        if room == 0 or used >= self.depth:
            self.closed.append((count, content))
            return
        stack = self._stacks.get(room)
        if stack:
            stack.append((count, content, used))
            return
        self._stacks[room] = [(count, content, used)]
        word = room >> _SHIFT
        self._words[word] |= 1 << (room & _MASK)
        self._summary |= 1 << word

    def best_fit(self, length: int, left: int, *, distribute: bool = True) -> None:
        """Put `left` sequences of this length into the fullest open packs with room, and the others into new packs.

        With `distribute`, an open or new pack takes as many of these sequences as it can at once. Without `distribute`,
        an open pack takes one at a time; once no open pack has room, each sequence left opens a new pack.
        """
        most = self.depth if distribute else 1
        while left:
            room = self.tightest(length)
            available: int = left
            content: Content | None = None
            used = 0
            if room < 0:
                room = self.capacity
            else:
                available, content, used = self.take(room)
            copies = room // length
            if copies > 1:
                copies = min(copies, self.depth - used, most, left)
            count = min(available, left // copies)
            if content is not None and available > count:
                self.put(room, available - count, content, used)
            self.put(room - copies * length, count, (content, length, copies), used + copies)
            left -= count * copies

    def strategies(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return all packs, closed and open, as ``(count, lengths longest first)`` pairs."""
        still_open = [(count, content) for stack in self._stacks.values() for count, content, _ in stack]
        return [(count, lengths_of(content)) for count, content in [*self.closed, *still_open]]
