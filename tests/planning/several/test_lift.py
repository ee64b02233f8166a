from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopad.planning.several import _kernels
from nopad.planning.several.certificate import PriceCertificate
from nopad.planning.several.given import task_of
from nopad.planning.several.lift import lifted


@st.composite
def proofs(draw):
    """A task of up to 6 sizes, and any certificate that can be checked for it."""
    kinds = draw(st.integers(1, 2))
    limits = draw(st.lists(st.tuples(st.integers(6, 24), st.integers(1, 7)), min_size=1, max_size=3, unique=True))
    limits = [(a, b) if kinds == 2 else (a,) for a, b in limits]
    limits = list(dict.fromkeys(limits))
    prices = tuple(draw(st.lists(st.integers(1, 9), min_size=len(limits), max_size=len(limits))))
    most = max(limits)
    drawn = draw(st.sets(st.tuples(st.integers(1, most[0]), st.integers(0, most[1] if kinds == 2 else 0)), min_size=1))
    sizes = np.array(sorted(drawn)[:6], dtype=np.int64)
    counts = np.array(draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes))), dtype=np.int64)
    units = (draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    corners = sorted({(int(a) // units[0] * units[0], int(b) // units[1] * units[1]) for a, b in sizes} - {(0, 0)})
    extras = tuple((a, b, draw(st.integers(1, 10**6))) for a, b in corners if draw(st.booleans()))
    rates = (draw(st.integers(0, 10**5)), draw(st.integers(0, 10**5)))
    return task_of(sizes, counts, tuple(limits), prices, None), PriceCertificate(rates, extras, units)


@pytest.mark.slow
@given(proofs())
@settings(max_examples=150, deadline=None)
def test_a_lifted_certificate_proves_as_much_and_no_pack_is_worth_more(drawn):
    task, proof = drawn
    limits = [(a, b) for a, b in task.capacities.tolist()]
    assert proof.problem(limits) is None
    better = lifted(task, proof)
    assert better.problem(limits) is None
    bounds = [one.bound(task.sizes, task.counts.tolist(), limits, task.prices) for one in (proof, better)]
    assert bounds[0] <= bounds[1]
    values = better.extras_of(task.sizes) + task.sizes @ np.array(better.rates)
    assert (values >= proof.extras_of(task.sizes) + task.sizes @ np.array(proof.rates)).all()
    most = better.best(limits)
    for (a, b), best in zip(limits, most, strict=True):  # every pack of up to three sequences
        for held in product(range(len(values) + 1), repeat=3):
            inside = [i - 1 for i in held if i]
            taken = task.sizes[inside].sum(axis=0)
            if (taken <= (a, b)).all():
                assert values[inside].sum() <= best


def test_a_size_above_its_corner_is_worth_what_it_leaves_no_room_for():
    # 5 and 6 share the corner 5; two of 5 fill a pack, and 6 is alone with a single token: it is worth a whole pack
    task = task_of(np.array([[5, 0], [6, 0]]), np.array([2, 4]), ((10,),), (1,), None)
    proof = PriceCertificate((0, 0), ((5, 0, 10),))
    arguments = (task.sizes, task.counts.tolist(), [(10, 0)], [1])
    assert proof.bound(*arguments) == 3
    better = lifted(task, proof)
    assert better.extras == ((5, 0, 10), (6, 0, 20))
    assert better.bound(*arguments) == 5


@pytest.mark.parametrize("places", [1, 6])
def test_the_kernel_is_what_its_python_says(check_twins, places):
    rng = np.random.default_rng(places)
    for _ in range(5):
        sizes = np.stack([rng.integers(1, 9, 5), rng.integers(0, places, 5)], axis=1)
        order = np.argsort(sizes[:, 0], kind="stable")
        values, table = rng.integers(1, 50, 5), np.empty((21, places), dtype=np.int64)
        _kernels.knapsack(sizes[order], values[order], table)
        limits = np.array([[20, places - 1], [11, places // 2]])
        slack = table[limits[:, 0], limits[:, 1]] + np.array([0, 7])
        new = np.stack([rng.integers(1, 21, 6), rng.integers(0, places, 6)], axis=1)
        args = [new, np.zeros(6, dtype=np.int64), table, slack, limits]
        check_twins(_kernels.lift, _kernels.lift.py_func, args)
        assert (table[limits[:, 0], limits[:, 1]] <= slack).all()


def test_a_proof_that_cannot_rise_stays():
    task = task_of(np.array([[4, 0]]), np.array([3]), ((8,),), (1,), None)
    proof = PriceCertificate((0, 0), ((4, 0, 10),))
    assert lifted(task, proof) is proof
    assert lifted(replace(task, prices=(7,)), proof) is proof
