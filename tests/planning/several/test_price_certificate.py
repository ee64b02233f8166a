from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopad.errors import FormatError
from nopad.planning import _certificate_kernels
from nopad.planning.several import _kernels
from nopad.planning.several.certificate import MAX_RATE, MAX_UNIT, MAX_VALUE, PriceCertificate


@st.composite
def certificates(draw):
    sizes = sorted(draw(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=4)))
    extras = tuple((a, b, draw(st.integers(1, 20))) for a, b in sizes)
    rates = draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
    return PriceCertificate(rates, extras, draw(st.tuples(st.integers(1, 4), st.integers(1, 3))))


def most_valuable(proof, rooms, places):
    """The value of the best pack, by the plainest recursion over real sizes, every size from (1, 0) up."""

    def worth(a, b):
        extra = max((value for x, y, value in proof.extras if x <= a and y <= b), default=0)
        return proof.rates[0] * a + proof.rates[1] * b + extra

    best = np.zeros((rooms + 1, places + 1), dtype=object)
    for r, p in product(range(rooms + 1), range(places + 1)):
        for a, b in product(range(1, r + 1), range(p + 1)):
            best[r, p] = max(best[r, p], best[r - a, p - b] + worth(a, b))
    return best


@given(certificates(), st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=80)
def test_no_pack_is_worth_more(proof, rooms, places):
    capacities = [(rooms, places), (max(1, rooms // 2), places // 2)]
    if proof.problem(capacities) is None:
        truth = most_valuable(proof, rooms, places)
        for found, capacity in zip(proof.best(capacities), capacities, strict=True):
            assert found >= truth[capacity]
    else:
        with pytest.raises(FormatError):
            proof.best(capacities)


def test_the_bound_is_exact_beyond_64_bits():
    proof = PriceCertificate((MAX_RATE, 0))
    assert proof.bound(np.array([[2, 0]]), [2**62], [(4, 0)], [3**50]) == 2**61 * 3**50
    assert PriceCertificate((0, 0)).bound(np.array([[2, 0]]), [5], [(4, 0)], [3]) == 0
    extras = PriceCertificate((0, 0), ((2, 0, 5), (3, 0, 1), (4, 0, 6)))
    assert extras.worth(np.array([[1, 0], [2, 0], [3, 9], [4, 0]]), [1, 1, 1, 1]) == 0 + 5 + 5 + 6
    both = PriceCertificate((1, 10), ((2, 1, 5), (3, 0, 4)))
    assert both.worth(np.array([[3, 0], [3, 1], [2, 0]]), [1, 2, 1]) == (3 + 4) + 2 * (13 + 5) + 2


@pytest.mark.parametrize(
    ("rates", "extras", "units"),
    [
        ((1, True), (), (1, 1)),
        ((1,), (), (1, 1)),
        ((-1, 0), (), (1, 1)),
        ((MAX_RATE + 1, 0), (), (1, 1)),
        ((0, 0), ((1, 0, 0),), (1, 1)),
        ((0, 0), ((1, 0, MAX_VALUE + 1),), (1, 1)),
        ((0, 0), ((2, 0, 1), (1, 0, 2)), (1, 1)),
        ((0, 0), ((1, 0, 1), (1, 0, 2)), (1, 1)),
        ((0, 0), ((-1, 0, 1),), (1, 1)),
        ((0, 0), ((1, 0),), (1, 1)),
        ((0, 0), (), (0, 1)),
        ((0, 0), (), (1, MAX_UNIT + 1)),
    ],
)
def test_numbers_that_mean_nothing(rates, extras, units):
    with pytest.raises(ValueError, match="price certificate"):
        PriceCertificate(rates, extras, units)


@pytest.mark.parametrize(
    ("extras", "units", "problem"),
    [
        (((0, 0, 1),), (1, 1), "takes no room in units of 1, 1"),
        (((3, 3, 1),), (4, 4), "takes no room in units of 4, 4"),
        (((3, 0, 1),), (1, 1), "comparisons of"),
        (((2**10, 0, 1),), (2**10, 2**30), None),
        (((2**9, 0, MAX_VALUE),), (2**9, 2**30), "more than 64 bits"),
    ],
)
def test_what_cannot_be_checked(extras, units, problem):
    proof = PriceCertificate((0, 0), extras, units)
    found = proof.problem([(2**27, 2**29)])
    assert (found is None) if problem is None else (problem in found)


def drawn_sizes(rng, m):
    sizes = np.unique(rng.integers(0, 9, (m, 2)), axis=0)
    return sizes[sizes.any(axis=1)]


def test_the_kernels_are_what_their_python_says(check_twins):
    rng = np.random.default_rng(0)
    for _ in range(5):
        sizes = drawn_sizes(rng, 6)
        values = rng.integers(1, 50, len(sizes))
        compiled = _certificate_kernels.most_valuable_of_two(sizes, values, 20, 12)
        np.testing.assert_array_equal(
            compiled, _certificate_kernels.most_valuable_of_two.py_func(sizes, values, 20, 12)
        )
        table = np.empty((21, 13), dtype=np.int64)
        check_twins(_kernels.knapsack, _kernels.knapsack.py_func, [sizes, values, table])
        np.testing.assert_array_equal(table, compiled)  # planner and check agree, by two pieces of code
        first = np.arange(-1, len(sizes))
        limits = np.tile([20, 12], (len(first), 1))
        out, used = np.zeros((len(first), 40), dtype=np.int64), np.zeros(len(first), dtype=np.int64)
        args = [sizes, values, table, first, limits, out, used]
        check_twins(_kernels.patterns_with, _kernels.patterns_with.py_func, args)
        assert values[out[0, : used[0]]].sum() == table[20, 12]
    line = np.empty((30, 1), dtype=np.int64)
    one = np.array([[3, 0], [7, 0]])
    check_twins(_kernels.knapsack, _kernels.knapsack.py_func, [one, np.array([2, 5]), line])
    assert line[-1, 0] == 20


def test_swaps_mend_packs(check_twins):
    sizes = np.array([[2, 1], [5, 1], [7, 1]])
    items, begins = np.array([2, 1, 0, 0]), np.array([0, 2, 4])
    free = np.array([[-2, 0], [6, 0]])
    args = [sizes, items, begins, free, np.array([0]), np.array([1]), 3]
    check_twins(_kernels.swap_over, _kernels.swap_over.py_func, args)
    assert (free >= 0).all()
    assert sorted(items.tolist()) == [0, 0, 1, 2]
