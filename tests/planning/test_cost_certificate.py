from __future__ import annotations

import json
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad import Histogram, plan
from nopad.errors import FormatError
from nopad.planning import Plan
from nopad.planning.cost_certificate import MAX_UNITS, MAX_VALUE, CostCertificate


@st.composite
def certificates(draw):
    lengths = sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=4)))
    values = sorted(draw(st.sets(st.integers(1, 30), min_size=len(lengths), max_size=len(lengths))))
    units = draw(st.none() | st.tuples(st.integers(1, 40), st.integers(1, 40)))
    return CostCertificate(tuple(zip(lengths, values, strict=True)), units, draw(st.booleans()))


def most_valuable(proof, capacity, squares, depth=None):
    """By trying every multiset of at most `depth` lengths."""
    worth = {n: max((v for start, v in proof.steps if start <= n), default=0) for n in range(1, capacity + 1)}
    best = 0
    for size in range(1, (capacity if depth is None else min(depth, capacity)) + 1):
        for held in combinations_with_replacement(range(1, capacity + 1), size):
            if sum(held) <= capacity and sum(n * n for n in held) <= squares:
                best = max(best, sum(worth[n] for n in held))
    return best


@given(certificates(), st.integers(1, 8), st.integers(1, 64))
def test_no_pack_is_worth_more(proof, capacity, squares):
    if proof.problem(capacity, squares) is None:
        assert proof.best(capacity, squares) >= most_valuable(proof, capacity, squares)
    else:
        with pytest.raises(FormatError):
            proof.best(capacity, squares)


@given(certificates(), st.integers(1, 8), st.integers(1, 64), st.integers(1, 9))
def test_no_pack_of_a_depth_is_worth_more(proof, capacity, squares, depth):
    if proof.problem(capacity, squares, depth=depth) is None:
        best = proof.best(capacity, squares, depth=depth)
        assert best >= most_valuable(proof, capacity, squares, depth)
        if proof.problem(capacity, squares) is None:
            assert best <= proof.best(capacity, squares)  # a depth can only lower it
            if not proof.by_depth:
                assert best == proof.best(capacity, squares)
    else:
        with pytest.raises(FormatError):
            proof.best(capacity, squares, depth=depth)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 20)), min_size=1, max_size=4, unique_by=lambda one: one[0]),
    st.integers(1, 9),
    st.integers(1, 81),
    st.integers(1, 5),
)
def test_a_depth_counts_exactly(pairs, capacity, squares, depth):
    """With units of one token and of one square, nothing is rounded."""
    steps, value = [], 0
    for length, rise in sorted(pairs):
        value += rise
        steps.append((length, value))
    proof = CostCertificate(tuple(steps), (capacity, squares), by_depth=True)
    assert proof.best(capacity, squares, depth=depth) == most_valuable(proof, capacity, squares, depth)
    assert proof.work(capacity, squares, depth=depth) >= proof.work(capacity, squares)


@pytest.mark.slow
@given(
    certificates(),
    st.lists(st.integers(1, 12), min_size=1, max_size=8),
    st.integers(144, 200),
    st.none() | st.integers(1, 5),
)
def test_never_above_the_truth(fewest, proof, lengths, squares, depth):
    if proof.problem(24, squares, depth=depth) is None:
        possible = fewest(lengths, 24, depth, squares, 1)
        assert proof.bound(Histogram.from_lengths(lengths), 24, squares, depth=depth) <= possible


def test_a_depth_proves_more():
    """Forty sequences of one token: a pack has room for ten, and place for four."""
    proof, histogram = CostCertificate(((1, 1),), (10, 10), by_depth=True), Histogram.from_counts({1: 40})
    assert proof.bound(histogram, 10, 10) == 4
    assert proof.bound(histogram, 10, 10, depth=4) == 10
    coarse = CostCertificate(((1, 1),), (5, 5), by_depth=True)  # a length of 1 weighs nothing
    assert coarse.bound(histogram, 10, 10, depth=4) == 10
    assert "weigh 0 units of tokens" in coarse.problem(10, 10)
    assert CostCertificate(((1, 1),), (10, 10)).bound(histogram, 10, 10, depth=4) == 4


def test_a_rest_as_if_it_could_be_divided():
    """Without units, a pack is worth its longest length, and the rest of its room at the best rates."""
    proof = CostCertificate(((10, 10), (90, 90)))
    assert proof.best(100, 100**2) == 100
    assert proof.worths(100, 90**2 + 50).tolist() == [100, 90]  # what fits beside 90 is shorter than 10, and worth 0
    assert CostCertificate(((10, 10), (90, 90)), by_depth=True).best(100, 100**2, depth=2) <= 100


def test_two_pairs_and_more_than_four():
    """Four lengths of 25 and five of 20 fill a pack; a pair of pairs counts exactly."""
    assert CostCertificate(((25, 5),), (100, 100)).best(100, 100**2) == 20
    assert CostCertificate(((25, 5), (26, 6)), (100, 100)).best(100, 100**2) == 20  # 26 + 26 + 25 leaves 23
    assert CostCertificate(((20, 1), (60, 2)), (50, 50)).best(100, 100**2) == 5
    assert CostCertificate(((20, 1), (60, 2)), (50, 50), by_depth=True).best(100, 100**2, depth=4) == 4


def test_steps_with_equal_weights_are_checked_once():
    proof = CostCertificate(((40, 2), (41, 3), (47, 5), (80, 9)), (10, 10))
    assert proof._weights(100, 10_000, 1) == [(4, 1, 3), (4, 2, 5), (8, 6, 9)]
    assert proof.best(100, 10_000) == 10


@pytest.mark.parametrize(
    ("steps", "units", "limits", "problem"),
    [
        (((1, 1),), (8, 8), (2**24 + 1, 2**40), "gives a value to lengths that weigh 0 units of tokens (it has 8 for"),
        (((3, 1),), (2**20, 2**20), (2**21, 2**40), "checking the cost certificate takes"),
        (((1, 2**40),), (2**22 // 8, 1), (2**19, 2**38), None),
        (((1, MAX_VALUE),), (MAX_UNITS, 1), (2**20, 2**40), None),
    ],
)
def test_what_cannot_be_checked(steps, units, limits, problem):
    proof = CostCertificate(steps, units)
    found = proof.problem(*limits)
    if problem is None:  # 2^40 x 2^20 is below 2^62
        assert found is None
    else:
        assert problem in found
        with pytest.raises(FormatError):
            proof.best(*limits)


@pytest.mark.parametrize(
    ("steps", "units"),
    [
        (((1, 2), (2, 1)), (4, 4)),
        (((1, 0),), (4, 4)),
        (((0, 1),), (4, 4)),
        (((1, MAX_VALUE + 1),), (4, 4)),
        (((1, 1),), (0, 4)),
        (((1, 1),), (4, MAX_UNITS + 1)),
        (((1, 1.5),), (4, 4)),
        (((1, True),), (4, 4)),
        (((3, 1),), (12,)),
        (((3, 1),), (12, 40, 1)),
        (((3, 1),), ()),
        (((3,),), (12, 40)),
        (((3, 1, 1),), None),
    ],
)
def test_steps_that_mean_nothing(steps, units):
    with pytest.raises(ValueError, match="cost certificate"):
        CostCertificate(steps, units)


@pytest.fixture(scope="module")
def proven():
    """A plan whose bound only a cost certificate proves."""
    lengths = np.clip(np.random.default_rng(0).normal(280, 70, 6000), 1, 420).astype(np.int64)
    mean = int((lengths**2).sum()) / -(-int(lengths.sum()) // 820)
    made = plan(lengths, 820, max_squares=max(int(1.05 * mean), 420**2))
    assert made.bound.proof == "cost certificate"
    return made


def test_proven_again_from_the_file(tmp_path, proven):
    path = tmp_path / "p.plan.json"
    proven.save(path)
    assert Plan.load(path) == proven
    assert nopad.verify(path) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(cost_certificate=3), "damaged"),
        (lambda d: d["cost_certificate"].pop("units"), "damaged"),
        (lambda d: d["cost_certificate"].update(units=[3]), "damaged"),
        (lambda d: d["cost_certificate"].update(units=0), "damaged"),
        (lambda d: d["cost_certificate"].update(steps=[[1, "2"]]), "damaged"),
        (lambda d: d["cost_certificate"].update(units=[True, 4]), "damaged"),
        (lambda d: d["cost_certificate"].update(by_depth=1), "damaged"),
        (lambda d: d["cost_certificate"].pop("by_depth"), "damaged"),
        (lambda d: d.update(certificate=[[1, 1]]), "one certificate"),
    ],
)
def test_certificates_that_no_plan_has(proven, change, message):
    document = json.loads(proven.to_json())
    change(document)
    with pytest.raises(FormatError, match=message):
        Plan.from_json(json.dumps(document))


def test_a_cost_certificate_without_a_limit(proven):
    document = json.loads(proven.to_json())
    del document["options"]["max_squares"]
    found = Plan.from_json(json.dumps(document)).problems()
    assert any("no max_squares to check it with" in problem for problem in found)
