from __future__ import annotations

import math

import numpy as np
import pytest

from nopad import Histogram, plan
from nopad.planning import least_squares


@pytest.mark.parametrize(
    ("weighting", "capacity", "granularity", "expected"),
    [
        ("fixed", 12, 1, [0.09] * 8 + [1] * 4),
        ("capacity", 12, 1, [math.sqrt(8 / 24)] * 8 + [1] * 4),
        ("fixed", 24, 3, [0.09] * 2 + [1] * 6),  # lengths 3 and 6
        ("capacity", 48, 12, [1] * 4),
    ],
)
def test_the_weights(monkeypatch, weighting, capacity, granularity, expected):
    """Row and right-hand side of a length have the same weight."""
    seen = []

    def nnls(matrix, target, maxiter):
        seen.append((matrix, target))
        return np.zeros(matrix.shape[1]), 0.0

    monkeypatch.setattr(least_squares, "nnls", nnls)
    histogram = Histogram.from_counts(dict.fromkeys(range(granularity, capacity + 1, granularity), 10))
    plan(histogram, capacity, depth=2, algorithm="nnlshp", weighting=weighting, granularity=granularity)
    ((matrix, target),) = seen
    assert target.tolist() == [10 * weight for weight in expected]
    assert matrix[:, -1].tolist() == [0] * (len(expected) - 1) + [expected[-1]]
    assert matrix.sum(axis=1) == pytest.approx(np.array(expected) * _uses(len(expected)))


def _uses(units):
    """How many slots of each length the strategies of depth 2 have."""
    uses = np.ones(units)
    if units % 2 == 0:
        uses[units // 2 - 1] = 2
    return uses


# Packs before and after repair. A few more or less would be no bug, but another SciPy.
@pytest.mark.parametrize(
    ("capacity", "seed", "depth", "options", "before", "after"),
    [
        (32, 1, 2, {}, 12_160, 12_160),
        (32, 1, 3, {}, 11_199, 11_199),
        (32, 1, 3, {"remainder": "best_fit"}, 11_199, 11_186),
        (32, 1, 3, {"rounding": "ceil"}, 11_197, 11_197),
        (64, 2, 3, {}, 22_217, 22_217),
        (64, 2, 3, {"rounding": "floor", "remainder": "best_fit"}, 22_221, 22_205),
        (64, 2, 4, {"granularity": 2, "remainder": "best_fit"}, 22_390, 22_364),
    ],
)
def test_synthetic(capacity, seed, depth, options, before, after):
    histogram = Histogram.from_counts({n: (n * n * (seed + 3) + 7 * seed) % 1300 for n in range(1, capacity + 1)})
    made = plan(histogram, capacity, depth=depth, algorithm="nnlshp", **options)
    assert made.facts["packs_before_repair"] == pytest.approx(before, abs=3)
    assert made.packs == pytest.approx(after, abs=3)


@pytest.mark.slow
@pytest.mark.shared
class TestPublished:
    def test_squad(self, squad):
        made = plan(squad, 384, depth=3, algorithm="nnlshp")
        assert made.histogram == squad
        assert made.facts["strategies_listed"] == 12_481
        assert 40_778 <= made.facts["packs_before_repair"] <= 40_808
        assert made.packs <= made.facts["packs_before_repair"]
        assert f"{made.efficiency:.1%}" == "97.4%"
        phantoms = made.facts["packs_before_repair"] * 384 - squad.tokens
        assert 409_273 <= phantoms <= 420_793
        assert made.facts["over_cover"] == pytest.approx(7820, abs=100)

    def test_squad_with_the_weighting_of_the_papers_table(self, squad):
        made = plan(squad, 384, depth=3, algorithm="nnlshp", weighting="capacity", remainder="best_fit")
        assert made.histogram == squad
        assert made.facts["packs_before_repair"] == pytest.approx(40_808, abs=3)
        assert made.packs < 40_500

    def test_squad_at_depth_four_in_steps_of_four_tokens(self, squad):
        made = plan(squad, 384, depth=4, algorithm="nnlshp", granularity=4, remainder="best_fit")
        assert made.histogram == squad
        assert made.packs == pytest.approx(40_767, abs=20)

    def test_wikipedia(self, wikipedia):
        made = plan(wikipedia, 512, depth=3, algorithm="nnlshp")
        assert made.histogram == wikipedia
        assert made.facts["strategies_listed"] == 22_102
        assert made.facts["packs_before_repair"] == pytest.approx(8_155_057, abs=60)
        assert made.packs <= made.facts["packs_before_repair"]
        assert f"{made.efficiency:.2%}" == "99.75%"
