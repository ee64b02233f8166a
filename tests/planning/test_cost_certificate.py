from __future__ import annotations

import json
import sys
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
    units = draw(st.tuples(st.integers(1, 40), st.integers(1, 40)))
    return CostCertificate(tuple(zip(lengths, values, strict=True)), units)


def most_valuable(proof, capacity, squares):
    """By trying every multiset of lengths."""
    worth = {n: max((v for start, v in proof.steps if start <= n), default=0) for n in range(1, capacity + 1)}
    best = 0
    for size in range(1, capacity + 1):
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


@pytest.mark.slow
@given(certificates(), st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(144, 200))
def test_never_above_the_truth(proof, lengths, squares):
    if proof.problem(24, squares) is None:
        possible = plan(lengths, 24, max_squares=squares, algorithm="optimal").packs
        assert proof.bound(Histogram.from_lengths(lengths), 24, squares) <= possible


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["nopad.planning.costs.guide"], "_UNITS", ((1024, 512),))
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
        (lambda d: d["cost_certificate"].update(steps=[[1, "2"]]), "damaged"),
        (lambda d: d["cost_certificate"].update(units=[True, 4]), "damaged"),
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
