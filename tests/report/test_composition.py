"""How alike lengths are in a pack, against counting all pairs one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad.report.composition import Composition


def pairs_of(plan):
    """Return (difference, weight) of all pairs of one pack, and all differences of two that are not alone."""
    together, pool = [], []
    for count, lengths in plan.strategies:
        if len(lengths) > 1:
            weight = 2 * count / (len(lengths) - 1)  # each sequence draws one of the others
            together += [(abs(a - b), weight) for a, b in combinations(lengths, 2)]
            pool += count * list(lengths)
    return together, [abs(a - b) for a, b in combinations(pool, 2)]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.sampled_from(["auto", "lpfhp", "none"]))
def test_against_all_pairs(lengths, algorithm):
    plan = nopad.plan(lengths, 12, algorithm=algorithm)
    found = Composition(plan)
    together, at_random = pairs_of(plan)
    assert found.alone == sum(count for count, held in plan.strategies if len(held) == 1)
    assert found.in_company == plan.sequences - found.alone
    assert (found.fewest, found.most) == (
        min(len(held) for _, held in plan.strategies),
        max(len(held) for _, held in plan.strategies),
    )
    if not together:
        assert (found.together, found.at_random, found.likeness, found.steps) == (0, 0, 1, [])
        return
    assert found.together == pytest.approx(sum(d * w for d, w in together) / found.in_company)
    assert found.at_random == pytest.approx(sum(at_random) / len(at_random))
    if not sum(at_random):
        assert found.steps == []
        return
    assert found.likeness == pytest.approx(found.together / found.at_random)
    assert found.steps[0].difference == 0
    assert found.steps[-1].difference == max(at_random)
    for step in found.steps:
        near = sum(w for d, w in together if d <= step.difference)
        assert step.together == pytest.approx(near / found.in_company)
        assert step.at_random == pytest.approx(sum(d <= step.difference for d in at_random) / len(at_random))


def test_sequences_put_together_at_random_are_as_alike_as_by_chance():
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 25, 20_000)
    found = Composition(nopad.plan(lengths, 100, depth=4, algorithm="greedy"))
    assert found.likeness == pytest.approx(1, abs=0.02)


def test_packs_of_equal_lengths():
    assert Composition(nopad.plan([6, 6, 6, 6, 4, 4, 4], 12)).together == 0
