"""The stored solutions of large least squares problems, and the proof that each is optimal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize._nnls import nnls  # `scipy.optimize.nnls` is replaced in tests
from tests import solved

import nopad
from nopad.planning.nnlshp import SHORT_WEIGHT
from nopad.study.residuals import residuals


@given(seed=st.integers(0, 10**6), rows=st.integers(1, 12), columns=st.integers(1, 30))
def test_only_what_is_optimal_passes(seed, rows, columns):
    draw = np.random.default_rng(seed)
    matrix, target = draw.integers(0, 4, (rows, columns)).astype(float), draw.integers(0, 1000, rows).astype(float)
    mixture, least = nnls(matrix, target)
    assert solved.is_optimal(matrix, target, mixture)
    for at in range(columns):
        for change in (-1e-3, 1e-3):
            moved = mixture.copy()
            moved[at] += change * max(target.max(), 1)
            worse = np.linalg.norm(matrix @ moved - target) > least * (1 + 1e-12) + 1e-9
            if worse or moved[at] < 0:
                assert not solved.is_optimal(matrix, target, moved)


PROBLEMS = {
    "squad": lambda it: nopad.plan(it("squad"), 384, depth=3, algorithm="nnlshp"),
    "squad, as in the paper's table": lambda it: nopad.plan(
        it("squad"), 384, depth=3, algorithm="nnlshp", weighting="capacity"
    ),
    "wikipedia": lambda it: residuals(it("wikipedia"), 512, weight=SHORT_WEIGHT),
    "wikipedia, without weights": lambda it: residuals(it("wikipedia"), 512),
}


@pytest.mark.shared
@pytest.mark.parametrize("problem", PROBLEMS)
def test_each_large_problem_has_a_stored_solution(problem, request, monkeypatch):
    found, stored = [], solved.stored
    monkeypatch.setattr(solved, "stored", lambda *given: found.append(stored(*given)) or found[-1])
    PROBLEMS[problem](request.getfixturevalue)
    [(mixture, norm)] = found
    assert np.count_nonzero(mixture) > 300
    assert norm > 0


@pytest.mark.soak
@pytest.mark.shared
@pytest.mark.parametrize("problem", PROBLEMS)
def test_scipy_finds_them_again(problem, request, monkeypatch):
    """A file that is not there is written."""
    stored = solved.stored

    def solve(matrix, target):
        mixture, norm = nnls(matrix, target, maxiter=3 * matrix.shape[1])
        if not solved.path_of(matrix, target).exists():
            solved.store(matrix, target, mixture)
        before, its_norm = stored(matrix, target)
        assert its_norm == pytest.approx(norm, rel=1e-9)
        np.testing.assert_allclose(before, mixture, atol=1e-3)
        return mixture, norm

    monkeypatch.setattr(solved, "stored", solve)
    PROBLEMS[problem](request.getfixturevalue)
