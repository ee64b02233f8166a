from __future__ import annotations

import numpy as np
import pytest

from nopad import plan
from nopad.errors import OptionError
from nopad.planning.enumeration import check_size, full_strategies, packing_matrix, strategy_count


def partitions(total, depth, low=1):
    """All ways to write `total` as at most `depth` parts, ascending, smallest first part first."""
    if depth == 0:
        return []
    inner = [[part, *rest] for part in range(low, total // 2 + 1) for rest in partitions(total - part, depth - 1, part)]
    return [*inner, [total]]


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 12, 20])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 20])
def test_lists_every_way_to_fill_a_pack_once(capacity, depth):
    made = full_strategies(capacity, depth)
    expected = partitions(capacity, depth)
    assert [[part for part in row if part] for row in made.tolist()] == expected
    assert made.shape == (len(expected), depth)
    assert strategy_count(capacity, depth, 10**9) == len(expected)


def test_counting_agrees_with_listing_and_with_the_papers_sizes():
    for capacity, depth in ((512, 3), (384, 3), (200, 4), (40, 40)):
        assert strategy_count(capacity, depth, 10**9) == len(full_strategies(capacity, depth))
    sizes = {(512, 3): 22_102, (384, 3): 12_481, (2048, 3): 350_550, (512, 4): 959_631}
    assert {key: strategy_count(*key, 10**9) for key in sizes} == sizes
    assert sizes[512, 3] == 512**2 // 12 + 512 // 2 + 1  # equation 5 is exact there
    fourth = sizes[512, 4] - sizes[512, 3]
    assert fourth / (512 * 516 * 1025 / 288) == pytest.approx(1, abs=0.005)  # equation 6 is not


def test_counting_stops_once_it_is_enough():
    assert strategy_count(100, 100, 10**9) == 190_569_292
    assert 10**6 < strategy_count(100, 100, 10**6) < 190_569_292
    assert strategy_count(2**31 - 1, 2**31 - 1, 10**6) > 10**20  # at once


def test_the_packing_matrix_is_that_of_table_4():
    strategies = full_strategies(8, 3)
    matrix = packing_matrix(strategies, 8)
    assert strategies.tolist()[0] == [1, 1, 6]
    assert matrix.shape == (8, 10)
    assert matrix[:, 0].tolist() == [2, 0, 0, 0, 0, 1, 0, 0]
    assert matrix[:, -1].tolist() == [0] * 7 + [1]  # a single sequence of length eight, not six
    assert (np.arange(1, 9) @ matrix == 8).all()


@pytest.mark.parametrize(
    ("algorithm", "capacity", "depth", "granularity", "size", "deepest", "coarser"),
    [
        ("nnlshp", 512, 4, 1, "959,631 at capacity 512 and depth 4, a matrix of 3.7 GiB", 3, 2),
        ("ennlshp", 512, 4, 1, "959,631 at capacity 512 and depth 4, a matrix of 7.3 GiB", 3, 2),
        ("nnlshp", 384, 4, 1, "408,769 at capacity 384 and depth 4, a matrix of 1.2 GiB", 3, 2),
        ("nnlshp", 2048, 4, 2, "7,566,280 at capacity 2048, granularity 2 and depth 4, a matrix of 58 GiB", 3, 8),
        ("nnlshp", 20_000, 2, 1, "10,001 at capacity 20000 and depth 2, a matrix of 1.5 GiB", None, 2),
        (
            "nnlshp",
            512,
            None,
            1,
            "more than 959,631 at capacity 512 without a depth limit, a matrix of more than 3.7 GiB",
            3,
            8,
        ),
    ],
)
def test_too_many_strategies(refuses, algorithm, capacity, depth, granularity, size, deepest, coarser):
    proposed = f"a depth of at most {deepest}, " if deepest else ""
    with refuses(
        OptionError,
        f"{algorithm} lists all strategies that fill a pack: {size} (limit 1); take {proposed}granularity={coarser} "
        f"(lengths rounded up to multiples of {coarser}), or algorithm='optimal'",
    ):
        plan([1, 2], capacity, depth=depth, algorithm=algorithm, granularity=granularity)
    copies = 2 if algorithm == "ennlshp" else 1
    check_size(algorithm, capacity, depth or capacity, coarser, copies)  # what it proposes is within the limit
    check_size(algorithm, capacity, deepest or 1, granularity, copies)
