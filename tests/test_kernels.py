from __future__ import annotations

import copy
import importlib
import pkgutil
from types import FunctionType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher

import nopad
from nopad import _deal_kernels, _kernels, random
from nopad.store import _kernels as _store_kernels

SPACE = {**vars(_kernels), **vars(_deal_kernels), **vars(_store_kernels)}
COMPILED = {name: value for name, value in SPACE.items() if isinstance(value, Dispatcher)}
PLAIN = dict(SPACE)
# A plain kernel must call plain kernels: compiled ones hand 64-bit words back as Python integers.
PLAIN.update({name: FunctionType(kernel.py_func.__code__, PLAIN) for name, kernel in COMPILED.items()})


def words(rng, size=None):
    return rng.integers(0, 2**64, size=size, dtype=np.uint64)


def csr(rng, packs=40, most=6):
    """Random packs of every sequence once: `indptr`, `sequence`."""
    indptr = np.concatenate([[0], np.cumsum(rng.integers(1, most + 1, packs))]).astype(np.int32)
    return indptr, rng.permutation(indptr[-1]).astype(np.int32)


def case_mix(rng):
    return (words(rng),)


def case_bounded(rng):
    return words(rng), words(rng)


def case_shuffle(rng):
    return rng.integers(0, 9, 50), words(rng)


def case_shuffle_segments(rng):
    return np.arange(60), np.array([0, 0, 1, 20, 60]), words(rng, 4)


def case_group_by_rank(rng):
    ranks = rng.integers(0, 5, 80).astype(np.int32)
    return ranks, np.concatenate([[0], np.cumsum(np.bincount(ranks, minlength=5))]), np.empty(80, np.int32)


def case_look_up_ranks(rng):
    return rng.integers(1, 9, 30).astype(np.int32), words(rng, 9).astype(np.int32), np.empty(30, np.int32)


def case_deal(rng):
    strategy_of_pack = np.array([1, 0, 1, 2], np.int32)
    ranks = np.array([2, 1, 1, 0, 0, 0, 2])  # strategies [2, 1, 1], [0, 0] and [0, 2]
    free = np.array([0, 5, 7])
    return (
        strategy_of_pack,
        np.array([0, 3, 5, 7]),
        ranks,
        rng.permutation(9),
        free,
        np.zeros(5, np.int32),
        np.empty(9, np.int32),
    )


def case_even_position(rng):
    count = int(rng.integers(1, 1000))
    return int(rng.integers(0, count)), count, int(rng.integers(count, 2**30))


def case_spread(rng):
    counts = rng.integers(0, 20, 8)
    return counts, int(counts.sum()), np.empty(counts.sum(), np.int32)


def case_sort_within_packs(rng):
    return csr(rng, packs=8, most=60)  # both ways of sorting: up to 32 members and above


def case_permute_packs(rng):
    indptr, sequence = csr(rng)
    return indptr, sequence, rng.permutation(40), np.zeros(41, np.int32), np.empty_like(sequence)


def case_packs_by_rank(rng):
    # Strategies [2, 2, 0], [1, 0], [0]: rank 0 is held by all, rank 1 by the second, rank 2 by the first.
    strategy_of_pack = rng.permutation([0, 0, 1, 1, 1, 2])
    begin = np.array([0, 6, 9])
    return strategy_of_pack, np.array([0, 3, 5, 6]), np.array([2, 2, 0, 1, 0, 0]), begin, np.empty(11, np.int32)


def case_deal_in_order(rng):
    strategy_of_pack, indptr, strategy_ranks, begin, packs = case_packs_by_rank(rng)
    _deal_kernels.packs_by_rank.py_func(strategy_of_pack, indptr, strategy_ranks, begin, packs)
    ranks = rng.permutation([0] * 6 + [1] * 3 + [2] * 4)
    order, free = np.argsort(ranks, kind="stable"), np.array([0, 6, 9])
    strategies = strategy_of_pack, indptr, strategy_ranks
    return ranks, order, free, packs, begin, *strategies, np.zeros(7, np.int32), np.empty(13, np.int32)


def case_gather_tokens(rng):
    lengths = rng.integers(0, 5, 20)
    return rng.integers(0, 1000, 100), rng.integers(0, 90, 20), lengths, np.empty(lengths.sum(), np.int64)


def case_count_up(rng):
    lengths = rng.integers(0, 5, 20)
    return rng.permutation(20) * 5, lengths, np.full(100, -1)


def case_lay_rows(rng):
    per_row = rng.integers(0, 4, 6)
    given = np.zeros(per_row.sum(), np.int64), np.zeros(6, np.int64)
    return rng.integers(1, 9, per_row.sum()).astype(np.int32), per_row, 40, int(rng.integers(1, 4)), *given


def case_fill_rows(rng):
    sizes = rng.integers(0, 9, 6)
    return rng.integers(0, 1000, sizes.sum()), sizes, -100, np.zeros((6, 8), np.int64)


def case_token_hashes(rng):
    lengths = rng.integers(0, 5, 20)
    return rng.integers(0, 30_000, lengths.sum()), lengths, np.empty(20, np.uint64)


def case_sequence_hashes(rng):
    ids, lengths, _ = case_token_hashes(rng)
    return ids, lengths, np.empty(20, np.uint32)


def case_tag_sum(rng):
    return tuple(rng.integers(0, 2**40, 30) for _ in range(3))


CASES = {name.removeprefix("case_"): case for name, case in vars().items() if name.startswith("case_")}


def test_every_kernel_has_a_case():
    assert CASES.keys() == COMPILED.keys()


def test_compiled_loops_are_in_modules_of_kernels():
    names = [found.name for found in pkgutil.walk_packages(nopad.__path__, "nopad.") if found.name != "nopad.__main__"]
    for name in names:
        if not name.endswith("_kernels"):
            here = [value for value in vars(importlib.import_module(name)).values() if isinstance(value, Dispatcher)]
            assert here == [], name


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_plain(name, seed):
    args = CASES[name](np.random.default_rng(seed))
    twins = copy.deepcopy(args)
    compiled = COMPILED[name](*args)
    with np.errstate(over="ignore"):  # words wrap
        plain = PLAIN[name](*twins)
    if plain is None:
        assert compiled is None
        assert any(isinstance(arg, np.ndarray) and arg.size for arg in args)
    else:
        np.testing.assert_array_equal(np.asarray(compiled).astype(np.uint64), np.asarray(plain).astype(np.uint64))
    for ours, theirs in zip(args, twins, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_words_equal_the_reference(u, n):
    assert int(_kernels.mix(np.uint64(u))) == random.mix(u)
    assert int(_kernels.bounded(np.uint64(u), np.uint64(n))) == random.bounded(u, n)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(0, 2**64 - 1))
def test_shuffle_equals_the_reference(items, key):
    compiled = np.array(items, dtype=np.int32)
    _kernels.shuffle(compiled, np.uint64(key))
    random.shuffle(items, key)
    assert compiled.tolist() == items


def test_each_segment_is_shuffled_with_its_own_key():
    items, bounds, keys = case_shuffle_segments(np.random.default_rng(0))
    _deal_kernels.shuffle_segments(items, bounds, keys)
    for k in range(4):
        segment = list(range(bounds[k], bounds[k + 1]))
        random.shuffle(segment, int(keys[k]))
        assert items[bounds[k] : bounds[k + 1]].tolist() == segment


def test_grouping_is_stable():
    ranks, bounds, order = case_group_by_rank(np.random.default_rng(0))
    _kernels.group_by_rank(ranks, bounds, order)
    assert order.tolist() == np.argsort(ranks, kind="stable").tolist()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_spreading_uses_every_copy_and_keeps_strategies_apart(counts):
    packs = sum(counts)
    spread = np.empty(packs, np.int32)
    _deal_kernels.spread(np.array(counts), packs, spread)
    assert np.bincount(spread, minlength=len(counts)).tolist() == counts
    for s, count in enumerate(counts):  # copy i belongs near (i + 1/2) / count; the others can push it a little
        places = (np.arange(count) + 0.5) * packs / max(count, 1)
        assert np.all(np.abs(np.flatnonzero(spread == s) - places) <= len(counts))


@pytest.mark.parametrize(("count", "packs"), [(1, 1), (2**31 - 1, 2**31 - 1), (7, 2**31 - 1)])
def test_even_positions_do_not_overflow(count, packs):
    for i in {0, count // 2, count - 1}:
        assert _deal_kernels.even_position(i, count, packs) == (2 * i + 1) * packs // (2 * count)


def test_gathering_is_concatenation():
    source, starts, lengths, out = case_gather_tokens(np.random.default_rng(0))
    _kernels.gather_tokens(source, starts, lengths, out)
    expected = [source[a : a + n] for a, n in zip(starts, lengths, strict=True)]
    np.testing.assert_array_equal(out, np.concatenate(expected))


def test_token_hashes_tell_runs_apart():
    tokens = np.array([1, 2, 2, 1, 1, 2, 0, 1, 2])
    out = np.empty(5, np.uint64)
    _store_kernels.token_hashes(tokens, np.array([2, 2, 2, 3, 0]), out)
    assert out[0] == out[2]
    assert len(set(out.tolist())) == 4


def test_tag_sums_ignore_order_but_not_triples():
    records, starts, lengths = case_tag_sum(np.random.default_rng(0))
    total = _store_kernels.tag_sum(records, starts, lengths)
    assert total == _store_kernels.tag_sum(records[::-1].copy(), starts[::-1].copy(), lengths[::-1].copy())
    assert total != _store_kernels.tag_sum(records, starts, lengths[::-1].copy())
    assert total != _store_kernels.tag_sum(starts, records, lengths)
