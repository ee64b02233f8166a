"""The recipes of `benchmarks/hard_families.py`, and that plans of their instances are plans."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import nopad


@pytest.fixture(scope="module")
def families():
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "hard_families.py"
    spec = importlib.util.spec_from_file_location("hard_families", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_seed_is_an_instance(families):
    for name, family in families.FAMILIES.items():
        (lengths, capacity), (again, same) = family.draw(5), family.draw(5)
        assert (lengths == again).all(), name
        assert capacity == same, name
        assert lengths.dtype == np.int64, name
        assert 1 <= lengths.min() <= lengths.max() <= capacity, name
        assert sorted(lengths) != sorted(family.draw(6)[0]), name


@pytest.mark.parametrize(
    ("name", "n", "capacity", "least", "most"),
    [
        ("Falkenauer u250", 250, 150, 20, 100),
        ("Falkenauer t120", 120, 1000, 250, 490),
        ("Scholl 3", 200, 100_000, 20_000, 35_000),
        ("Schwerin 2", 120, 1000, 150, 200),
        ("tight triplets 100k n501", 501, 100_000, 25_000, 49_000),
    ],
)
def test_published_ranges(families, name, n, capacity, least, most):
    drawn = [families.FAMILIES[name].draw(seed) for seed in range(20)]
    assert {(lengths.size, room) for lengths, room in drawn} == {(n, capacity)}
    every = np.concatenate([lengths for lengths, _ in drawn])
    assert least <= every.min() < least + (most - least) // 50 + 1
    assert most - (most - least) // 50 - 1 < every.max() <= most


def test_triplets_fill_every_pack(families):
    lengths, capacity = families.triplets(249, 1000, 3)
    assert lengths.sum() == 83 * capacity
    assert families.martello_toth(lengths, capacity) == 83


def test_classes_of_scholl(families):
    one = {(lengths.size, capacity) for lengths, capacity in map(families.scholl_1, range(36))}
    assert one == {(n, capacity) for n in (50, 100, 200, 500) for capacity in (100, 120, 150)}
    means = sorted({round(1000 / families.scholl_2(4 * part + 3)[0].mean()) for part in range(4)})
    assert means == [3, 5, 7, 9]
    lengths, _ = families.scholl_2(3)  # n = 500, mean C / 3, deviation 20 %
    assert (lengths.min(), lengths.max()) == (267, 400)


def test_selected_ones_are_missed_by_best_fit(families):
    for name in ("Wäscher-like", "hard28-like"):
        lengths, capacity = families.FAMILIES[name].draw(1)
        assert nopad.plan(lengths, capacity, algorithm="lpfhp").packs == families.best_fit(lengths, capacity)
        assert families.best_fit(lengths, capacity) > families.martello_toth(lengths, capacity)


@pytest.mark.parametrize("name", ["Falkenauer u120", "Falkenauer t60", "Schwerin 1", "Wäscher-like", "hard28-like"])
def test_plans(families, name):
    lengths, capacity = families.FAMILIES[name].draw(0)
    plan = nopad.plan(lengths, capacity, algorithm="optimal")
    held = [length for count, strategy in plan.strategies for length in strategy * count]
    assert sorted(held) == sorted(lengths.tolist())
    assert all(sum(strategy) <= capacity for _, strategy in plan.strategies)
    assert families.martello_toth(lengths, capacity) <= plan.lower_bound <= plan.packs
    assert plan.packs <= families.best_fit(lengths, capacity)
