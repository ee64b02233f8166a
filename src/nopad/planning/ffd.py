"""FFD, first-fit decreasing: sequences are placed longest first, each into the earliest opened pack that has room.

It runs on the histogram: equal packs that were opened one after the other form one class. Classes are kept in opening
order, in blocks of up to 512, and each block stores its largest free room. For each distinct length, blocks are looked
at in order until all its sequences are placed; a block with room for the length is searched class by class. So the time
depends on the numbers of lengths and of classes, not on the number of sequences. On Wikipedia-512 FFD needs as many
packs as LPFHP, both at depth 3 and without a depth limit.

Source: Johnson, "Near-optimal bin packing algorithms", MIT 1973; the papers' baseline FFD.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nopad.histogram import Histogram
from nopad.planning.open_packs import Content, lengths_of

__all__ = ["ffd"]

_BLOCK = 256


@dataclass(slots=True)
class _Class:
    """`count` equal packs, opened one after the other; each has `room` free tokens and holds `used` sequences.

    `content` is what one of these packs holds, a chain ``(below, length, copies)``: `copies` sequences of `length`, on
    top of the longer lengths in `below`, which is such a chain too, or None.
    """

    room: int
    count: int
    content: Content
    used: int


@dataclass(slots=True)
class _Block:
    """Some open classes that follow one another in opening order, and the largest free room among them."""

    classes: list[_Class] = field(default_factory=list)
    largest: int = 0


def ffd(histogram: Histogram, capacity: int, depth: int | None) -> list[tuple[int, tuple[int, ...]]]:
    """Return ``(count, lengths longest first)`` pairs, `count` packs of each, that cover `histogram` exactly.

    A `depth` of None is unlimited.

    >>> ffd(Histogram.from_lengths([5, 4, 3, 2, 2]), 8, None)
    [(1, (5, 3)), (1, (4, 2, 2))]
    """
    most = depth if depth is not None else capacity
    blocks: list[_Block] = []
    closed: list[_Class] = []
    for length, left in zip(histogram.lengths[::-1].tolist(), histogram.counts[::-1].tolist(), strict=True):
        at = 0
        while left and at < len(blocks):
            if blocks[at].largest >= length:
                left = _fill(blocks[at], length, left, most, closed)
                if len(blocks[at].classes) > 2 * _BLOCK:
                    blocks[at : at + 1] = _halve(blocks[at])
                    continue
            at += 1
        for opened in _open(length, left, capacity, most):
            if opened.room == 0 or opened.used == most:
                closed.append(opened)
                continue
            if not blocks or len(blocks[-1].classes) >= _BLOCK:
                blocks.append(_Block())
            blocks[-1].classes.append(opened)
            blocks[-1].largest = max(blocks[-1].largest, opened.room)
    still_open = [entry for block in blocks for entry in block.classes]
    return [(entry.count, lengths_of(entry.content)) for entry in [*closed, *still_open]]


def _fill(block: _Block, length: int, left: int, most: int, closed: list[_Class]) -> int:
    """Put up to `left` sequences of `length` into the classes of a block, earliest first; return how many are left.

    The block is changed in place. A class whose packs have no room left, or hold `most` sequences, moves to `closed`.
    """
    kept: list[_Class] = []
    for entry in block.classes:
        if not left or entry.room < length:
            kept.append(entry)
            continue
        copies = min(entry.room // length, most - entry.used)
        full, rest = divmod(left, copies)
        full = min(full, entry.count)
        left -= full * copies
        parts = [_add(entry, length, copies, full)] if full else []
        if full < entry.count:
            if left:  # fewer than `copies` remain: the next pack of this class takes them all
                parts.append(_add(entry, length, rest, 1))
            untouched = entry.count - full - (left > 0)
            if untouched:
                parts.append(_Class(entry.room, untouched, entry.content, entry.used))
            left = 0
        for part in parts:
            (closed if part.room == 0 or part.used == most else kept).append(part)
    block.classes = kept
    block.largest = max((entry.room for entry in kept), default=0)
    return left


def _add(entry: _Class, length: int, copies: int, count: int) -> _Class:
    content = (entry.content, length, copies)
    return _Class(entry.room - copies * length, count, content, entry.used + copies)


def _open(length: int, left: int, capacity: int, most: int) -> list[_Class]:
    """Return at most two classes of new packs for `left` sequences of `length`.

    Every pack holds as many of them as fit, but at most `most`; the last pack may hold fewer.
    """
    copies = min(capacity // length, most)
    full, rest = divmod(left, copies)
    sizes = [(full, copies)] * (full > 0) + [(1, rest)] * (rest > 0)
    return [_Class(capacity - n * length, count, (None, length, n), n) for count, n in sizes]


def _halve(block: _Block) -> list[_Block]:
    middle = len(block.classes) // 2
    halves = (block.classes[:middle], block.classes[middle:])
    return [_Block(half, max(entry.room for entry in half)) for half in halves]
