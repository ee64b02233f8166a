from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import random

WORD = st.integers(0, 2**64 - 1)


def test_draws_are_splitmix64():
    # The published outputs of SplitMix64 seeded with 1234567.
    assert [random.draw(1234567, i) for i in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_pinned_forever():
    assert random.mix(0) == 0
    assert random.mix(1) == 0x5692161D100B05E5
    assert random.key() == 0
    assert random.key(0) == 16294208416658607535
    assert random.key(7, random.STREAM_PACK_ORDER) == 4414019431610648415
    assert random.key(2**64 - 1, random.STREAM_WITHIN_LENGTH, 512) == 10524046033687366902
    assert [random.bounded(random.draw(42, i), 1000) for i in range(8)] == [741, 159, 278, 344, 38, 868, 218, 800]


@pytest.mark.parametrize(
    ("key", "shuffled"),
    [(0, [5, 8, 4, 3, 0, 7, 1, 6, 2, 9]), (random.key(7), [0, 3, 4, 2, 5, 9, 6, 8, 7, 1])],
)
def test_shuffles_are_pinned_forever(key, shuffled):
    items = list(range(10))
    random.shuffle(items, key)
    assert items == shuffled


def test_streams_are_distinct():
    streams = {name: value for name, value in vars(random).items() if name.startswith("STREAM_")}
    assert len(set(streams.values())) == len(streams) == 11
    assert len({random.key(0, stream) for stream in streams.values()}) == 11


@given(WORD, WORD)
def test_mix_is_a_bijection(a, b):
    assert (random.mix(a) == random.mix(b)) == (a == b)
    assert 0 <= random.mix(a) < 2**64


@given(st.lists(WORD, max_size=4), WORD)
def test_keys_depend_on_every_part_and_on_their_order(parts, part):
    assert random.key(*parts, part) != random.key(*parts, part ^ 1)
    assert random.key(*parts, part, part ^ 1) != random.key(*parts, part ^ 1, part)


def test_keys_take_numpy_integers_and_wrap_at_64_bits():
    assert random.key(np.int64(3), np.uint64(2**64 - 1), np.int32(5)) == random.key(3, 2**64 - 1, 5)
    assert random.key(-1) == random.key(2**64 - 1) == random.key(2**65 - 1)


@given(WORD, st.integers(1, 2**63))
def test_bounded_stays_inside_and_keeps_order(u, n):
    assert random.bounded(0, n) == 0
    assert random.bounded(2**64 - 1, n) == n - 1
    assert 0 <= random.bounded(u, n) <= random.bounded(min(u + 1, 2**64 - 1), n) < n


@given(st.lists(st.integers(), max_size=30), WORD)
def test_a_shuffle_is_a_permutation_and_repeats(items, key):
    once, again = list(items), list(items)
    random.shuffle(once, key)
    random.shuffle(again, key)
    assert once == again
    assert sorted(once) == sorted(items)


def test_shuffles_are_uniform():
    seen = dict.fromkeys(permutations(range(4)), 0)
    for seed in range(4800):
        items = [0, 1, 2, 3]
        random.shuffle(items, random.key(seed, random.STREAM_PACK_ORDER))
        seen[tuple(items)] += 1
    assert sum((count - 200) ** 2 / 200 for count in seen.values()) < 49.7  # chi-square, 23 degrees, 99.9 %


def test_draws_are_uniform_within_a_key():
    key = random.key(0, random.STREAM_ARRIVAL)
    seen = [0] * 100
    for i in range(20_000):
        seen[random.bounded(random.draw(key, i), 100)] += 1
    assert sum((count - 200) ** 2 / 200 for count in seen) < 148.3  # 99 degrees, 99.9 %
