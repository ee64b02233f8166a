from __future__ import annotations

import numpy as np
import pytest

from nopad.study.lamb import BETAS, FACTORS, NOISES, lamb_rows, powers


@pytest.fixture(scope="module")
def rows():
    return {(row.factor, row.noise): row for row in lamb_rows()}


def test_every_factor_and_noise_has_a_row(rows):
    assert list(rows) == [(p, noise) for p in FACTORS for noise in NOISES]


@pytest.mark.parametrize("p", FACTORS)
def test_the_theorem_for_constant_gradients(rows, p):
    row = rows[p, 0.0]
    assert row.largest < 1e-12
    assert (row.first_apart, row.second, row.expected) == pytest.approx((0, 1, 1), abs=1e-12)
    assert row.cosine == pytest.approx(1, abs=1e-12)
    assert row.first_apart_uncorrected > 1e-5  # another beta remembers longer that it began at 0


@pytest.mark.parametrize("p", FACTORS)
@pytest.mark.parametrize("noise", NOISES[1:])
def test_with_noise_the_second_moment_drifts_and_the_first_does_not(rows, p, noise):
    row = rows[p, noise]
    assert row.expected == pytest.approx(p * (1 + noise**2) / (p + noise**2))
    assert row.second == pytest.approx(row.expected, rel=0.05)
    assert 0 < row.first_apart < row.first_apart_uncorrected / 2
    assert 0.9 < row.cosine < 1


def test_more_noise_and_longer_packs_drift_further(rows):
    for p in FACTORS:
        drift = [rows[p, noise].second for noise in NOISES]
        assert drift == sorted(drift)
    for noise in NOISES[1:]:
        drift = [rows[p, noise].first_apart for p in FACTORS]
        assert drift == sorted(drift)


def test_how_far_the_first_moments_are_apart_is_what_their_weights_say(rows):
    """m is a weighted sum of gradients; the difference of the weights is what noise is multiplied by."""
    for (p, noise), row in rows.items():
        age = np.arange(p * 40)[::-1]
        alone = (1 - BETAS[0]) * BETAS[0] ** age
        packed = np.repeat(alone.reshape(-1, p).sum(axis=1) / p, p)
        expected = noise * np.linalg.norm(alone - packed) / np.hypot(alone.sum(), noise * np.linalg.norm(alone))
        assert row.first_apart == pytest.approx(expected, rel=0.05, abs=1e-12)


def test_the_erratum():
    found = {row.factor: row for row in powers()}
    assert found[2].beta1 == pytest.approx(0.6561, rel=1e-14)
    assert found[2].printed == 0.66
    assert round(found[2].beta1, 2) == found[2].printed  # as printed, to two digits
    assert [round(found[p].beta1, 4) for p in (1.913, 1.996)] == [0.6682, 0.6567]
    assert found[1.913].printed is None
    assert powers([2.0], (0.9, 0.999))[0].printed is None


def test_it_is_the_same_each_time():
    assert lamb_rows([2], [1.0]) == lamb_rows([2], [1.0])
