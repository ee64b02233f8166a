"""The compiled loops that place sequences, beside slow ones of a few lines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram
from nopad._bit_kernels import empty_set
from nopad.planning.costs import _gather_kernels, _kernels, load_of
from nopad.planning.costs.spread import Packed


class Slow:
    """Packs as rows of ``[free tokens, free cost, free places, packs, what each holds]``, like classes and links."""

    def __init__(self, load, packs):
        self.load, self.left = load, load.counts.tolist()
        self.rows = [[*load.limits.tolist(), packs, ()]]

    def place(self, row, item, copies):
        size, cost = int(self.load.sizes[item]), int(self.load.costs[item])
        row[0], row[1], row[2] = row[0] - copies * size, row[1] - copies * cost, row[2] - copies
        row[4] += (int(self.load.lengths[item]),) * copies

    def fits(self, row, item):
        return row[0] >= self.load.sizes[item] and row[1] >= self.load.costs[item] and row[2] >= 1

    def spread_out(self, first, kind, weight):
        for item in range(len(self.left) - 1, first - 1, -1):
            while self.left[item]:
                scores = [_kernels.score(np.array(row[:3]), self.load.limits, kind, weight) for row in self.rows]
                row = self.rows[int(np.argmax(scores))]
                if not self.fits(row, item):
                    break
                if row[3] > self.left[item]:
                    row[3] -= self.left[item]
                    row = [*row[:3], self.left[item], row[4]]
                    self.rows.append(row)
                self.left[item] -= row[3]
                self.place(row, item, 1)

    def best_fit(self):
        """Like `spread_out`, into one of the fullest packs; return the free tokens of each that was chosen."""
        chosen = []
        for item in range(len(self.left) - 1, -1, -1):
            while self.left[item]:
                fitting = [row for row in self.rows if self.fits(row, item) and row[3]]
                if fitting:
                    row = min(fitting, key=lambda row: row[0])
                    chosen.append(row[0])
                else:
                    row = [*self.load.limits.tolist(), 1, ()]
                    self.rows.append(row)
                if row[3] > 1:
                    row[3] -= 1
                    row = [*row[:3], 1, row[4]]
                    self.rows.append(row)
                self.left[item] -= 1
                self.place(row, item, 1)
        return chosen


LOADS = {
    "lengths": st.lists(st.integers(1, 60), min_size=1, max_size=80),
    "depth": st.none() | st.integers(1, 8),
    "squares": st.integers(3600, 9000),
}


@given(**LOADS, packs=st.integers(1, 30), kind=st.sampled_from([0, 1, 2]), weight=st.sampled_from([0.5, 1.0, 3.0]))
def test_the_emptiest_class_is_found(lengths, depth, squares, packs, kind, weight):
    load = load_of(Histogram.from_lengths(lengths), 120, depth, squares)
    slow, left = Slow(load, packs), load.counts.copy()
    first = left.size // 3
    slow.spread_out(first, kind, weight)
    classes, links = np.array([[*load.limits, packs, -1]]), np.empty((1, 3), dtype=np.int64)
    classes, number, links, linked, _ = _kernels.spread_out(
        load.sizes, load.costs, left, classes, 1, links, 0, load.limits, first, kind, weight, 10**6
    )
    assert left.tolist() == slow.left
    assert classes[:number, :4].tolist() == [row[:4] for row in slow.rows]
    made = Packed(classes[:number], links[:linked]).strategies(load.lengths)
    assert made == [(row[3], row[4]) for row in slow.rows if row[4]]


@pytest.mark.parametrize("capacity", [120, 10**5, 10**9])  # one free token a shelf, some, and very many
@given(**LOADS, sparse=st.booleans())
def test_the_fullest_class_is_found(capacity, lengths, depth, squares, sparse):
    """Each sequence alone in its class: equal packs are chosen in another order, so only fullness is compared."""
    scale = capacity // 120
    lengths = [length * scale - (index % 7 if sparse and scale > 7 else 0) for index, length in enumerate(lengths)]
    load = load_of(Histogram.from_lengths(lengths), capacity, depth, squares * scale**2)
    slow = Slow(load, 0)
    slow.rows.clear()
    slow.best_fit()
    classes, links = np.empty((1, 5), dtype=np.int64), np.empty((1, 3), dtype=np.int64)
    classes, number, _, _, _ = _kernels.best_fit(
        load.sizes, load.costs, load.counts.copy(), classes, 0, links, 0, load.limits, 10**6
    )
    free = sorted((row[0], row[3]) for row in slow.rows)
    found = sorted((int(tokens), int(count)) for tokens, _, _, count, _ in classes[:number] if count)
    assert [tokens for tokens, count in free for _ in range(count)] == [t for t, count in found for _ in range(count)]


def test_a_sweep_goes_on_after_a_pack_it_filled():
    """The first pack exchanges 40 for the 20 of the second, which is then full; still the third one must be emptied."""
    packs = [(40,), (20, 50), (80, 2), (85,)]
    value = {40: 40, 20: 10, 50: 60, 80: 0, 2: 74, 85: 100}
    length = np.array([length for pack in packs for length in pack], dtype=np.int32)
    ends = np.cumsum([0, *(len(pack) for pack in packs)])
    pack, limits = np.empty(length.size, dtype=np.int32), np.array([100, 100**2, 9])
    values = np.array([value[number] for number in length.tolist()])
    state = _gather_kernels.opened(length, length, values, ends, limits, empty_set(85), pack)
    assert _gather_kernels.sweep(state, 4, 0, 9, 100, 10**6) == 3
    assert [sorted(length[pack == p].tolist()) for p in range(4)] == [[20, 80], [2, 40, 50], [], [85]]
