from __future__ import annotations

import importlib
import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nopad
from nopad import Histogram, SeveralPlan
from nopad.errors import LengthError, OptionError, PlanMismatchError
from nopad.planning.several import certificate
from nopad.planning.several.plan_file import parsed


def cheapest(sizes, capacities, prices, depth=None):
    """The least price of packing all, by trying every pack that holds the first sequence that is left."""
    sizes = [size if isinstance(size, tuple) else (size,) for size in sizes]
    limits = [limit if isinstance(limit, tuple) else (limit,) for limit in capacities]
    exact = [Fraction(repr(price)) for price in prices]

    @cache
    def price(total, held):
        fits = [p for c, p in zip(limits, exact, strict=True) if all(a <= b for a, b in zip(total, c, strict=True))]
        return min(fits, default=None) if held <= (depth or held) else None

    @cache
    def best(left):
        if not left:
            return Fraction(0)
        first, rest = left[0], left[1:]
        found = None
        for mask in range(2 ** len(rest)):
            inside = [rest[i] for i in range(len(rest)) if mask >> i & 1]
            total = tuple(map(sum, zip(first, *inside, strict=True)))
            own = price(total, 1 + len(inside))
            if own is not None:
                whole = own + best(tuple(rest[i] for i in range(len(rest)) if not mask >> i & 1))
                found = whole if found is None else min(found, whole)
        return found

    return best(tuple(sorted(sizes, reverse=True)))


def drawn(seed, kinds):
    """A small random instance; every sequence fits somewhere."""
    rng = random.Random(seed)
    tops = [rng.randint(4, 24), rng.randint(1, 12)][:kinds]
    wanted = rng.randint(1, 4)
    found = {tuple(rng.randint(1 - kind, top) for kind, top in enumerate(tops)) for _ in range(wanted)} | {tuple(tops)}
    if kinds == 2 and not any(one[1] for one in found):
        found.add((tops[0], 1))
    capacities = sorted(one for one in found if one[0] >= 1)
    prices = [rng.choice([rng.randint(1, 9), round(rng.uniform(0.5, 9), rng.randint(1, 3))]) for _ in capacities]
    sizes = []
    for _ in range(rng.randint(1, 9)):
        limit = rng.choice(capacities)
        sizes.append(tuple(rng.randint(1 - kind, max(1 - kind, most)) for kind, most in enumerate(limit)))
    if kinds == 1:
        return [one[0] for one in sizes], [one[0] for one in capacities], prices
    return sizes, capacities, prices


def judge(plan, sizes, capacities, prices, depth=None):
    """Hold a plan against what it was asked for, without any code of nopad's."""
    held: Counter = Counter()
    price = Fraction(0)
    for count, capacity, own in plan.strategies:
        assert capacity in capacities
        rows = [one if isinstance(one, tuple) else (one,) for one in own]
        limit = capacity if isinstance(capacity, tuple) else (capacity,)
        assert all(sum(row[kind] for row in rows) <= most for kind, most in enumerate(limit))
        assert depth is None or len(own) <= depth
        price += count * Fraction(repr(prices[capacities.index(capacity)]))
        for one in own:
            held[one] += count
    assert held == Counter(sizes)
    assert float(price) == plan.price
    assert plan.verify() == []
    return price


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.parametrize("block", range(4))
def test_against_every_way_of_packing(kinds, block):
    """The bound is never above the least price, the plan never below; small plans are optimal nearly always."""
    far = 0
    for seed in range(30 * block, 30 * block + 30):
        sizes, capacities, prices = drawn(seed, kinds)
        plan = nopad.plan_several(sizes, capacities, prices)
        least = cheapest(sizes, capacities, prices)
        price = judge(plan, sizes, capacities, prices)
        assert plan.bound.price * plan.unit <= least <= price
        far += price > least and len(capacities) > 1
    assert far == 0


@pytest.mark.parametrize("kinds", [1, 2])
def test_few_sequences_in_wide_capacities(kinds):
    """The table of pricing has a cell for a few million units, but all packs there can be are few."""
    wide = 50_000_017
    for seed in range(2000, 2020):
        sizes, capacities, prices = drawn(seed, kinds)
        if kinds == 1:
            sizes, capacities = [size * wide - 1 for size in sizes], [limit * wide for limit in capacities]
        else:
            sizes = [(a * wide - 1, b) for a, b in sizes]
            capacities = [(a * wide, b) for a, b in capacities]
        plan = nopad.plan_several(sizes, capacities, prices)
        assert judge(plan, sizes, capacities, prices) == cheapest(sizes, capacities, prices)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_depth_against_every_way(depth):
    for seed in range(500, 540):
        sizes, capacities, prices = drawn(seed, 1)
        plan = nopad.plan_several(sizes, capacities, prices, depth=depth)
        least = cheapest(sizes, capacities, prices, depth)
        assert plan.bound.price * plan.unit <= least <= judge(plan, sizes, capacities, prices, depth)


def test_a_depth_that_limits_nothing_costs_nothing():
    sizes = list(range(40, 90))
    plain, deep = (nopad.plan_several(sizes, [100, 120], [1, 1.15], depth=depth) for depth in (None, 4))
    assert deep.strategies == plain.strategies
    assert deep.task.capacities.tolist() == [[100, 0], [120, 0]]
    assert nopad.plan_several(sizes, [100, 120], [1, 1.15], depth=2).task.capacities.tolist() == [[100, 2], [120, 2]]


@st.composite
def instances(draw):
    kinds = draw(st.integers(1, 2))
    most = st.tuples(st.integers(8, 40), st.integers(1, 20))
    capacities = draw(st.lists(most, min_size=1, max_size=4, unique_by=lambda one: one[:kinds]))
    prices = draw(st.lists(st.floats(0.25, 9).map(lambda p: round(p, 2)), min_size=len(capacities), max_size=4))
    sizes = draw(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 1)), max_size=30))
    if kinds == 1:
        return [one[0] for one in sizes], [one[0] for one in capacities], prices[: len(capacities)]
    return sizes, capacities, prices[: len(capacities)]


@given(instances(), st.integers(0, 2**64 - 1))
@settings(max_examples=60)
def test_every_sequence_once_within_both_limits(instance, seed):
    sizes, capacities, prices = instance
    plan = nopad.plan_several(sizes, capacities, prices)
    judge(plan, sizes, capacities, prices)
    assert plan == nopad.plan_several(sizes[::-1], capacities, prices)
    packs = plan.assign(sizes, seed=seed)
    assert {capacity: len(held) for capacity, held in packs.items()} == plan.packs
    seen = []
    for capacity, held in packs.items():
        for pack in held:
            seen += pack.tolist()
            taken = np.array([sizes[i] for i in pack]).reshape(len(pack), -1).sum(axis=0)
            assert (taken <= np.array(capacity)).all()
    assert sorted(seen) == list(range(len(sizes)))


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.parametrize("most", [3, 20])
def test_classes_are_sound_too(monkeypatch, kinds, most):
    """The way of large inputs, on small ones: few classes, most of it sand, patterns followed, packs mended."""
    module = importlib.import_module("nopad.planning.several.search")
    monkeypatch.setattr(module, "_MOST_EXACT", 0)
    monkeypatch.setattr(module, "_MOST_CLASSES", most)
    monkeypatch.setattr(module, "_CELLS", 40)
    for seed in range(1000, 1060):
        sizes, capacities, prices = drawn(seed, kinds)
        plan = nopad.plan_several(sizes, capacities, prices)
        least = cheapest(sizes, capacities, prices)
        price = judge(plan, sizes, capacities, prices)
        assert plan.bound.price * plan.unit <= least <= price


@given(st.from_type(Histogram), st.sampled_from([None, 2, 5]))
@settings(max_examples=30)
def test_one_capacity_is_what_auto_plans(histogram, depth):
    ours, theirs = nopad.plan_several(histogram, [40], depth=depth), nopad.plan(histogram, 40, depth=depth)
    assert (ours.price, ours.lower_bound) == (theirs.packs, theirs.lower_bound)
    assert [(count, sizes) for count, _, sizes in ours.strategies] == theirs.strategies


@pytest.fixture(scope="module")
def ladder():
    lengths = np.clip(np.random.default_rng(0).lognormal(5.8, 1.1, 20_000), 1, 8192).astype(np.int32)
    return lengths, nopad.plan_several(lengths, [512, 2048, 8192], [1, 4.3, 19], effort=1)


def test_a_ladder(ladder):
    lengths, plan = ladder
    judge(plan, lengths.tolist(), [512, 2048, 8192], [1, 4.3, 19])
    assert plan.gap_share < 0.01
    assert plan.bound.proof == "certificate"
    assert len(plan.notes) == 1
    assert "a larger effort" in plan.notes[0] or "a larger one (effort)" in plan.notes[0]
    alone = sum(
        price * nopad.plan(lengths[(lengths > low) & (lengths <= most)], most, algorithm="lpfhp").packs
        for low, most, price in [(0, 512, 1), (512, 2048, 4.3), (2048, 8192, 19)]
    )
    assert plan.price < alone * 0.99
    assert plan.price < nopad.plan(lengths, 8192).packs * 19 * 0.99
    packs = plan.assign(lengths, seed=7)
    again = plan.assign(lengths, seed=7)
    assert all(packs[capacity] == again[capacity] for capacity in packs)
    assert any(packs[capacity] != other for capacity, other in plan.assign(lengths, seed=8).items())


def test_room_in_dear_packs_is_filled_from_cheap_ones():
    """Without any linear program: 6 long sequences leave 300 each in the packs of 1,000, which others of 100 fill."""
    plan = nopad.plan_several([700] * 6 + [100] * 20, [250, 1000], [1, 4.5], effort=0)
    judge(plan, [700] * 6 + [100] * 20, [250, 1000], [1, 4.5])
    assert plan.packs == {250: 1, 1000: 6}
    deep = nopad.plan_several([700] * 6 + [100] * 20, [250, 1000], [1, 4.5], effort=0, depth=2)
    judge(deep, [700] * 6 + [100] * 20, [250, 1000], [1, 4.5], depth=2)
    assert deep.packs == {250: 7, 1000: 6}


def two_kinds(n):
    rng = np.random.default_rng(1)
    tokens = np.clip(rng.lognormal(6.8, 1.0, n), 1, 8192).astype(np.int64)
    return np.stack([tokens, np.minimum(16, rng.geometric(0.3, n) - 1)], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capacities", "prices", "most"), [([(8192, 32)], None, 0.01), ([(2048, 16), (8192, 32)], [1, 4.2], 0.02)]
)
def test_two_kinds(capacities, prices, most):
    sizes = two_kinds(4_000)
    plan = nopad.plan_several(sizes, capacities, prices, effort=1)
    judge(plan, list(map(tuple, sizes.tolist())), capacities, prices or [1])
    assert plan.gap_share < most


def test_nodes_and_edges():
    rng = np.random.default_rng(2)
    nodes = rng.integers(10, 201, 5_000)
    edges = np.clip((nodes * rng.uniform(1.5, 4, nodes.size)).astype(int), 20, 600)
    plan = nopad.plan_several(np.stack([nodes, edges], axis=1), [(1024, 2400)], effort=1)  # both are tight
    assert plan.gap_share < 0.005
    assert plan.verify() == []


def test_a_second_size_of_nothing_is_one_kind():
    sizes = [5, 3, 9, 12, 4, 4]
    plain = nopad.plan_several(sizes, [8, 16], [1, 1.8])
    both = nopad.plan_several([(size, 0) for size in sizes], [(8, 1), (16, 1)], [1, 1.8])
    assert plain.price == both.price


def test_capacities_that_others_make_useless():
    plan = nopad.plan_several([9, 7, 3], [8, 16], [2, 1])
    assert plan.packs == {8: 0, 16: 2}
    assert plan.notes == ("the capacity 8 is not used: 16 holds as much and costs no more",)


def test_prices_are_decimal_numbers():
    plan = nopad.plan_several([1, 1, 1], [1], [0.1])
    assert (plan.price, plan.unit, plan.whole_price) == (0.3, Fraction(1, 10), 3)
    assert nopad.plan_several([4, 4, 9], [8, 16]).price == 24  # by default as few slots as possible
    assert nopad.plan_several([1], np.array([8, 16]), np.array([1, 2], dtype=np.float32)).price == 1


@pytest.mark.parametrize(
    ("capacities", "prices"),
    [
        (np.array(8), 1),
        (np.int64(8), np.float64(1)),
        ([np.array(8)], np.array([1])),
        ((8,), np.array(1, dtype=np.uint8)),
    ],
)
def test_numbers_of_numpy(capacities, prices):
    plan = nopad.plan_several([5, 4], capacities, prices)
    assert (plan.capacities, plan.prices, plan.price) == (((8,),), (1,), 2)
    assert {type(plan.prices[0]), type(plan.capacities[0][0])} <= {int, float}
    assert SeveralPlan(**parsed(plan.to_json(), "p")) == plan


def test_prices_at_the_edge_are_finite():
    for price in (1e-100, 1e100, 10**100):
        plan = nopad.plan_several([8], [8], [price], counts=[2**62])
        assert np.isfinite(float(plan.price))
        assert plan.price > 0
        assert "proven optimal" in str(plan)


def test_nothing_to_pack():
    for empty, capacities in (([], [8, 16]), (np.zeros((0, 2), dtype=int), [(8, 2)])):
        plan = nopad.plan_several(empty, capacities)
        assert (plan.price, plan.lower_bound, plan.sequences, plan.verify()) == (0, 0, 0, [])
        assert [len(packs) for packs in plan.assign(empty).values()] == [0] * len(capacities)


def test_counts_up_to_the_edge():
    big = 2**61
    plan = nopad.plan_several([[5, 1], [3, 2]], [(8, 3), (16, 6)], [3, 7], counts=[big, big])
    assert (plan.price, plan.lower_bound, plan.sequences, plan.verify()) == (3 * big, 3 * big, 2 * big, [])
    plan = nopad.plan_several(Histogram.from_counts({2**31 - 1: 2**61}), [2**31 - 1, 2**30], [2, 1])
    assert (plan.price, plan.verify()) == (2**62, [])
    wide = np.random.default_rng(0).integers(1, 2**31 - 1, 300)
    plan = nopad.plan_several(np.stack([wide, wide[::-1]], axis=1), [(2**31 - 1, 2**31 - 1)])
    assert plan.verify() == []


def test_counts_are_sequences():
    sizes, counts = [5, 3, 3, 8], [2, 0, 1, 4]
    plan = nopad.plan_several(sizes, [8, 16], [1, 1.7], counts=counts)
    assert plan == nopad.plan_several([5, 5, 3, 8, 8, 8, 8], [8, 16], [1, 1.7])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([1, 9, 20, 20], [8, 16]), {}, LengthError, "2 sequences fit into no capacity (the largest take 20; capaci"),
        (([1], [8, 8]), {}, OptionError, "the capacity 8 is given twice"),
        (([1], []), {}, OptionError, "there are from 1 to 64 capacities, got 0"),
        (([1], list(range(1, 66))), {}, OptionError, "there are from 1 to 64 capacities, got 65"),
        (([1], [True]), {}, OptionError, "a capacity must be an integer from 1"),
        (([1], [[8, 0]]), {}, OptionError, "no capacity has room for the second kind"),
        (([1], [8, (8, 2)]), {}, OptionError, "all alike"),
        (([1], "8"), {}, OptionError, "a capacity must be an integer"),
        (([1], [8, 16], [1]), {}, OptionError, "there are 2 capacities and 1 prices"),
        (([1], [8], [0]), {}, OptionError, "a price must be a positive number, got 0"),
        (([1], [8], [float("nan")]), {}, OptionError, "a price must be a positive number, got nan"),
        (([1], [8], [float("inf")]), {}, OptionError, "a price must be a positive number, got inf"),
        (([1], [8], [True]), {}, OptionError, "a price must be a positive number, got True"),
        (([1], [8, 9], [1e-8, 1e8]), {}, OptionError, "more than a factor of 1,000,000,000 apart"),
        (([[1, 1]], [8]), {}, OptionError, "two sizes each, and a capacity of 8 one limit"),
        (([1], [(8, 2)]), {}, OptionError, "one size each, and a capacity of 8 x 2 two limits"),
        (([[1, 1]], [(8, 2), (9, 3)]), {}, OptionError, "several capacities of two kinds need prices"),
        (([[1, 1]], [(8, 2)]), {"depth": 3}, OptionError, "a depth is only for one kind"),
        (([1], [8]), {"depth": 0}, OptionError, "depth must be an integer from 1"),
        (([1], [8]), {"effort": -1}, OptionError, "effort must be an integer from 0"),
        (([1], b"\x08"), {}, OptionError, "a capacity must be an integer"),
        (([1], np.array([8.0])), {}, OptionError, "a capacity must be an integer from 1 to 2147483647, got 8.0"),
        (([1], np.ma.array([8, 9], mask=[0, 1])), {}, OptionError, "capacities must not have masked values"),
        (([1], [8, 9], b"12"), {}, OptionError, "there are 2 capacities and 1 prices"),
        (([1], [8], [10**400]), {}, OptionError, "got an integer of 1,329 bits; prices are from 1e-100 to 1e+100"),
        (([1], [8], [1e-300]), {}, OptionError, "a price must be a positive number, got 1e-300; prices are from"),
        (([1], [8]), {"counts": [1.0]}, LengthError, "counts must be integers, got 1.0"),
        (([1, 2], [8]), {"counts": [1, -3]}, LengthError, "387,904, got -3 at index 1"),
        (([0], [8]), {}, LengthError, "length 0 at index 0"),
        (([[1, -1]], [(8, 2)]), {}, LengthError, "second size -1 at index 0"),
        (([1.5], [8]), {}, LengthError, "lengths must be integers, got 1.5"),
        (([[1, 2, 3]], [8]), {}, LengthError, "got shape (1, 3)"),
        (([[1], [1, 2]], [8]), {}, LengthError, "sizes must be integers [n], or [n, 2]"),
        (([1, 2], [8]), {"counts": [1]}, LengthError, "there are 2 sizes and 1 counts"),
        (([1], [8]), {"counts": [-1]}, LengthError, "counts are integers from 0"),
        (([1, 2], [8]), {"counts": [2**62, 1]}, LengthError, "sequences are too many"),
        ((Histogram.from_counts({1: 2**62, 2: 1}), [8]), {}, LengthError, "sequences are too many"),
        ((Histogram.from_counts({1: 1}), [8]), {"counts": [1]}, LengthError, "a histogram has counts of its own"),
    ],
)
def test_what_is_refused(arguments, options, error, message):
    with pytest.raises(error) as raised:
        nopad.plan_several(*arguments, **options)
    assert message in str(raised.value)
    assert type(raised.value) is error


def test_assign_refuses_other_sizes():
    plan = nopad.plan_several([5, 3], [8])
    with pytest.raises(PlanMismatchError, match="covers 1 sequences of size 3, there are 0"):
        plan.assign([5, 4])
    with pytest.raises(LengthError, match="sequences of this plan have 1 size each, these have 2"):
        plan.assign([(5, 1), (3, 1)])
    with pytest.raises(OptionError, match="seed"):
        plan.assign([5, 3], seed=-1)


def test_what_is_shown(ladder):
    _, plan = ladder
    table = str(plan)
    assert [line.split()[0] for line in table.splitlines()[:4]] == ["capacity", "512", "2,048", "8,192"]
    assert "lower bound" in table
    assert "certificate (this plan: 0." in table
    assert repr(plan).startswith("SeveralPlan(capacities 512, 2,048, 8,192: ")
    summary = plan.summary()
    assert summary["price"] == plan.price
    assert sum(row["packs"] for row in summary["capacities"]) == sum(plan.packs.values())
    assert "proven optimal" in str(nopad.plan_several([8], [8]))


def test_a_certificate_with_too_many_extras_is_a_sentence(monkeypatch):
    plan = nopad.plan_several([(5, 2), (4, 3), (2, 1)], [(8, 5)], [1])
    proof = certificate.PriceCertificate((1, 1), ((2, 1, 1), (4, 3, 2)))
    forged = replace(plan, bound=replace(plan.bound, certificate=proof))
    monkeypatch.setattr(certificate.PriceCertificate, "problem", lambda self, capacities: None)
    monkeypatch.setattr(certificate, "MAX_WORK", 5)
    assert forged.verify() == ["the price certificate has 2 extras for 3 sizes: too many"]
