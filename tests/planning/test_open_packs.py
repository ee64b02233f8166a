from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nopad.planning.open_packs import OpenPacks, lengths_of


@given(st.data(), st.sampled_from([7, 512, 513, 2000, 300_000]))
def test_queries_equal_a_plain_list(data, capacity):
    packs, plain = OpenPacks(capacity, None), []  # (room, count): counts are all different
    for count in range(1, data.draw(st.integers(1, 30))):
        if plain and data.draw(st.booleans()):
            room, _ = data.draw(st.sampled_from(plain))
            last = max(i for i, kept in enumerate(plain) if kept[0] == room)
            assert packs.take(room)[0] == plain.pop(last)[1]
        else:
            room = data.draw(st.integers(1, capacity - 1))
            packs.put(room, count, (None, capacity - room, 1), 1)
            plain.append((room, count))
        wanted = data.draw(st.integers(1, capacity))
        assert packs.emptiest() == max((room for room, _ in plain), default=-1)
        assert packs.tightest(wanted) == min((room for room, _ in plain if room >= wanted), default=-1)


def test_within_one_room_the_class_opened_last_comes_first():
    packs = OpenPacks(8, None)
    first, second = (None, 5, 1), ((None, 4, 1), 1, 1)
    packs.put(3, 10, first, 1)
    packs.put(3, 20, second, 2)
    assert packs.take(3) == (20, second, 2)
    assert packs.take(3) == (10, first, 1)
    assert packs.emptiest() == packs.tightest(1) == -1


def test_packs_close_when_full_or_at_depth():
    packs = OpenPacks(8, 2)
    packs.put(0, 3, (None, 8, 1), 1)
    packs.put(6, 4, (None, 1, 2), 2)
    packs.put(5, 5, (None, 3, 1), 1)
    assert packs.closed == [(3, (None, 8, 1)), (4, (None, 1, 2))]
    assert packs.emptiest() == 5
    assert packs.strategies() == [(3, (8,)), (4, (1, 1)), (5, (3,))]


def test_content_lists_lengths_longest_first():
    assert lengths_of((((None, 9, 2), 4, 1), 1, 3)) == (9, 9, 4, 1, 1, 1)
