"""The compiled loops that place sequences, beside slow ones of a few lines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
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


def check_best_fit(load, strategies):
    """Check that placing all sequences, longest first, each into one of the fullest packs with room, makes these packs.

    Of equally full packs any may be chosen: they may have different rests of cost and places, so that what follows
    differs. Which one was chosen, the packs themselves say.
    """
    number = {length: item for item, length in enumerate(load.lengths.tolist())}
    packs = [[*load.limits.tolist(), [number[n] for n in held]] for count, held in strategies for _ in range(count)]
    begun = []
    for item in range(load.counts.size - 1, -1, -1):
        size, cost = int(load.sizes[item]), int(load.costs[item])
        for _ in range(int(load.counts[item])):
            fitting = [pack for pack in begun if pack[0] >= size and pack[1] >= cost and pack[2] >= 1]
            if fitting:
                least = min(pack[0] for pack in fitting)
                takers = [pack for pack in fitting if pack[0] == least and pack[3][:1] == [item]]
            else:
                takers = [pack for pack in packs if all(pack is not one for one in begun) and pack[3][0] == item]
            assert takers, f"{load.lengths[item]} is in none of the fullest packs"
            pack = max(takers, key=lambda one: one[3].count(item))  # one that gets fewer is the last of this item
            if not fitting:
                begun.append(pack)
            pack[:] = pack[0] - size, pack[1] - cost, pack[2] - 1, pack[3][1:]
    assert all(not pack[3] for pack in packs)


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
@example(lengths=[3, 26, 27, 27, 54], depth=None, squares=3600, sparse=False)  # equally full, of other costs
def test_the_fullest_class_is_found(capacity, lengths, depth, squares, sparse):
    scale = capacity // 120
    lengths = [length * scale - (index % 7 if sparse and scale > 7 else 0) for index, length in enumerate(lengths)]
    load = load_of(Histogram.from_lengths(lengths), capacity, depth, squares * scale**2)
    classes, links = np.empty((1, 5), dtype=np.int64), np.empty((1, 3), dtype=np.int64)
    classes, number, links, linked, _ = _kernels.best_fit(
        load.sizes, load.costs, load.counts.copy(), classes, 0, links, 0, load.limits, 10**6
    )
    made = Packed(classes[:number], links[:linked])
    held = made.strategies(load.lengths)
    assert sorted(n for count, lengths in held for n in lengths * count) == sorted(lengths)
    check_best_fit(load, held)


def test_what_is_not_best_fit_is_found():
    load = load_of(Histogram.from_lengths([60, 50, 30, 30]), 120, None, 120**2)
    check_best_fit(load, [(1, (60, 50)), (1, (30, 30))])
    for other in ([(1, (60, 30, 30)), (1, (50,))], [(1, (60, 50)), (1, (30,)), (1, (30,))]):
        with pytest.raises(AssertionError, match="is in none of the fullest packs"):
            check_best_fit(load, other)


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
