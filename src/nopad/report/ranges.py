"""Group integers into ranges for a chart: at most about 24 ranges, none of them empty."""

from __future__ import annotations

from itertools import count, takewhile

__all__ = ["in_ranges"]

MOST = 24
SEVERAL = 12  # up to this many different numbers, each has its own bar, however far apart they are


def in_ranges(counts: dict[int, int]) -> list[tuple[int, int]]:
    """Return ascending ranges, as (first, last) pairs, that cover the numbers (at least 1) in `counts`.

    `counts` maps each number to how often it occurs; if it is empty, there are no ranges.
    There are three cases:

    * If there are at most 12 different numbers, or the largest is less than 24 above the smallest, each number is a
      range of its own.
    * Otherwise, if the largest number is more than 8 times the median, there are two ranges for each doubling, which
      end at 1, 2, 3, 4, 6, 8, 12, ... If this would make more than 24, there is one for each doubling.
    * Otherwise, ranges end at the multiples of a width: the smallest of 1, 2 or 5 times a power of ten for which there
      are at most 24 ranges.

    The first range begins at the smallest number, and the last one ends at the largest. Ranges without a number are
    left out.

    >>> in_ranges({5: 1, 500: 2}), in_ranges(dict.fromkeys(range(1, 101), 1))[:3]
    ([(5, 5), (500, 500)], [(1, 5), (6, 10), (11, 15)])
    >>> in_ranges({1: 50, 2: 30, **dict.fromkeys(range(3, 90, 4), 1)})[:5]
    [(1, 1), (2, 2), (3, 3), (7, 8), (9, 12)]
    """
    numbers = sorted(counts)
    if not numbers:
        return []
    low, high = numbers[0], numbers[-1]
    if len(numbers) <= SEVERAL or high - low < MOST:
        return [(number, number) for number in numbers]
    tops = _growing(low, high) if high > 8 * _median(numbers, counts) else _even(low, high)
    found, at, before = [], 0, low - 1
    for top in tops:
        begin = at
        while at < len(numbers) and numbers[at] <= top:
            at += 1
        if at > begin:
            found.append((before + 1, min(top, high)))
        before = top
    return found


def name_of(first: int, last: int) -> str:
    """Return the label of a range on a chart's axis.

    >>> name_of(3, 3), name_of(1025, 1536)
    ('3', '1,025–1,536')
    """
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"


def _median(numbers: list[int], counts: dict[int, int]) -> int:
    half, seen = sum(counts.values()) / 2, 0
    for number in numbers:
        seen += counts[number]
        if seen >= half:
            return number
    return numbers[-1]


def _even(low: int, high: int) -> list[int]:
    """Return the upper ends of at most 24 equally wide ranges that cover `low` to `high`.

    The width is 1, 2 or 5 times a power of ten, and the ends are its multiples.
    """
    widths = (digit * 10**power for power in count() for digit in (1, 2, 5))
    width = next(w for w in widths if (high - 1) // w - (low - 1) // w < MOST)
    return [top * width for top in range((low - 1) // width + 1, (high - 1) // width + 2)]


def _growing(low: int, high: int) -> list[int]:
    """Return the upper ends of ranges that cover `low` to `high`; the last end is `high`.

    The other ends are the numbers 1, 2, 3, 4, 6, 8, 12, 16, ... from `low` to below `high`. If these would make more
    than 24 ranges, only powers of two are taken.
    """
    powers = [1 << power for power in range(high.bit_length() + 1)]
    tops = sorted({*powers, *(power * 3 // 2 for power in powers if power > 1)})
    for ends in (tops, powers):
        upto = [*takewhile(lambda top: top < high, ends), high]
        found = [top for top in upto if top >= low]
        if len(found) <= MOST:
            return found
    return found
