from __future__ import annotations

import numpy as np
import pytest

from nopad import Histogram, plan
from nopad.planning import least_squares


def test_the_system_is_equation_24(monkeypatch):
    seen = []

    def nnls(matrix, target, maxiter):
        seen.append((matrix, target))
        return np.zeros(matrix.shape[1]), 0.0

    monkeypatch.setattr(least_squares, "nnls", nnls)
    plan(Histogram.from_counts({1: 5, 3: 7}), 4, depth=2, algorithm="ennlshp")
    ((matrix, target),) = seen
    a = np.array([[1, 0, 0], [0, 2, 0], [1, 0, 0], [0, 0, 1]])  # (3, 1), (2, 2), (4)
    w = np.array([[1], [2], [3], [4]])
    assert matrix.tolist() == np.block([[w * a, np.zeros((4, 4))], [1e6 * a, -1e6 * np.eye(4)]]).tolist()
    assert target.tolist() == [5, 0, 21, 0, 5e6, 0, 7e6, 0]


@pytest.mark.parametrize(
    ("capacity", "seed", "depth", "options", "before", "after"),
    [
        (32, 1, 2, {}, 12_160, 12_160),
        (32, 1, 3, {}, 11_240, 11_240),
        (32, 1, 3, {"rounding": "ceil"}, 11_252, 11_239),
        (64, 2, 3, {}, 22_211, 22_210),
        (64, 2, 3, {"rounding": "floor", "remainder": "best_fit"}, 22_211, 22_208),
        (64, 2, 4, {"granularity": 2, "remainder": "best_fit"}, 22_390, 22_389),
    ],
)
def test_synthetic(capacity, seed, depth, options, before, after):
    histogram = Histogram.from_counts({n: (n * n * (seed + 3) + 7 * seed) % 1300 for n in range(1, capacity + 1)})
    made = plan(histogram, capacity, depth=depth, algorithm="ennlshp", **options)
    assert made.facts["packs_before_repair"] == pytest.approx(before, abs=3)
    assert made.packs == pytest.approx(after, abs=3)


@pytest.mark.soak  # one call of SciPy's solver, 25 s
@pytest.mark.shared
def test_squad(squad):
    made = plan(squad, 384, depth=3, algorithm="ennlshp")
    assert made.histogram == squad
    assert made.facts["packs_before_repair"] == pytest.approx(40_272, abs=10)  # 96.96 % with listing 9's block of ones
    assert made.packs <= made.facts["packs_before_repair"]
    assert f"{made.efficiency:.1%}" == "98.6%"
    assert made.facts["sequences_without_slot"] <= 50
