from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.balance import Attention, floor
from nopad.errors import OptionError
from nopad.study import _kernels as kernels
from nopad.study.long_context import WORKLOADS, Workload, long_context_rows, too_long

SMALL = Workload("small", 2048, ((0.95, 100, 0.8), (0.05, 1500, 0.5)))


@pytest.fixture(scope="module")
def rows():
    cost = Attention(hidden_size=64)
    return {(row.method, row.wait): row for row in long_context_rows(SMALL, cost=cost, ranks=8, node=4, steps=64)}


def test_the_lengths_are_those_of_the_mixture():
    lengths = Workload("", 10**9, ((0.9, 1000, 0.8), (0.1, 37_000, 0.6))).lengths(400_000)
    assert lengths.mean() == pytest.approx(0.9 * 1000 + 0.1 * 37_000, rel=0.02)
    assert (lengths > 10_000).mean() == pytest.approx(0.1, abs=0.01)
    assert WORKLOADS[0].lengths(10_000).max() <= 32_768
    np.testing.assert_array_equal(WORKLOADS[1].lengths(50), WORKLOADS[1].lengths(60)[:50])
    assert SMALL.lengths(1).dtype == np.int32


def test_no_row_is_below_its_floor(rows):
    for row in rows.values():
        assert row.waste >= row.floor - 1e-12
        assert 0 < row.fill <= 1
        assert row.min_tokens <= row.max_tokens
        assert row.abr < 1
        assert row.seconds_per_step >= 0


def test_waiting_at_each_micro_step_costs_more(rows):
    for method, wait in rows:
        if wait == "micro" and (method, "step") in rows:
            assert rows[method, "micro"].waste >= rows[method, "step"].waste - 1e-9


def test_packs_keep_to_the_capacity(rows):
    for (method, _), row in rows.items():
        if row.unit == "packs":
            assert row.max_tokens <= 4 * SMALL.capacity, method


def test_ours_are_nearer_to_the_floor_than_the_published(rows):
    step = {method: row for (method, wait), row in rows.items() if wait == "step"}
    assert step["sequences_under_a_cap"].waste - step["sequences_under_a_cap"].floor < 0.01
    micro = {method: row for (method, wait), row in rows.items() if wait == "micro"}
    baseline = micro["packs_in_order_of_cost"]
    for name in ("packs_drawn_by_cost_64", "packs_drawn_by_cost"):
        assert micro[name].waste - micro[name].floor <= (baseline.waste - baseline.floor) / 2
        assert micro[name].waste < min(micro[other].waste for other in micro if "drawn" not in other)


def test_sequences_that_are_too_long_are_those_above_the_floor():
    cost = Attention(hidden_size=64)
    steps, lengths = too_long(SMALL, cost, ranks=64, steps=4)
    assert steps == 0
    assert lengths.size == 0
    longer = Workload("long", 65_536, ((0.99999, 100, 0.5), (0.00001, 50_000, 0.2)))
    steps, lengths = too_long(longer, cost, ranks=256, steps=1)
    assert steps == 1
    everything = longer.lengths(int(256 * 4 * 65_536 / float(longer.lengths(100_000).mean())))
    assert floor(cost.of(everything), 256) > 0.10
    assert sorted(lengths)[-1] == everything.max()


@pytest.mark.parametrize("steps", [0, -1, True, 2.5, "2", None])
def test_a_number_of_steps_that_is_refused(steps):
    with pytest.raises(OptionError, match="steps must be an integer from 1 to 2147483647, got"):
        too_long(SMALL, steps=steps)
    with pytest.raises(OptionError, match="steps must be an integer from 2 to 2147483647, got"):
        next(long_context_rows(SMALL, steps=steps))


def test_too_few_sequences_for_a_method_leave_it_out():
    with pytest.raises(OptionError, match="steps must be an integer from 2 to 2147483647, got 1"):
        next(long_context_rows(SMALL, steps=1))
    found = {row.method for row in long_context_rows(SMALL, ranks=2, node=8, steps=2)}
    assert "eight_open_packs" not in found
    assert "next_fit" in found


def test_a_corpus_of_less_than_a_step_leaves_methods_out():
    few = Workload("few", 200, ((1.0, 10_000, 3.5),))  # drawn: 0.65 of a step, in 3 packs by best-fit
    found = {row.method for row in long_context_rows(few, ranks=1, steps=2)}
    assert found == {"next_fit", "worst_fit_decreasing"}


lengths_lists = st.lists(st.integers(1, 20), min_size=1, max_size=60)


@given(lengths_lists, st.integers(1, 4))
@pytest.mark.parametrize("compiled", [True, False])
def test_first_fit_in_a_few_bins(compiled, lengths, bins):
    kernel = kernels.first_fit_in_bins if compiled else kernels.first_fit_in_bins.py_func
    pack_of = np.full(len(lengths), -1)
    opened = kernel(np.array(lengths), 20, bins, pack_of)
    expected, packs, current = [], [], [[] for _ in range(bins)]
    for i, length in enumerate(lengths):
        fitting = [held for held in current if sum(lengths[j] for j in held) + length <= 20]
        if not fitting:
            packs += current
            current = [[] for _ in range(bins)]
            fitting = current
        fitting[0].append(i)
    packs += current
    expected = [next(p for p, held in enumerate(packs) if i in held) for i in range(len(lengths))]
    assert pack_of.tolist() == expected
    assert opened == len(packs)


@given(lengths_lists, st.integers(1, 4))
@pytest.mark.parametrize("compiled", [True, False])
def test_worst_fit(compiled, lengths, packs):
    kernel = kernels.worst_fit if compiled else kernels.worst_fit.py_func
    pack_of = np.full(len(lengths), -1)
    opened = kernel(np.array(lengths), 20, packs, pack_of)
    held = [0] * packs
    for i, length in enumerate(lengths):
        emptiest = held.index(min(held))
        if held[emptiest] + length > 20:
            emptiest = len(held)
            held.append(0)
        held[emptiest] += length
        assert pack_of[i] == emptiest
    assert opened == len(held)


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_what_ours_must_reach_at_long_context(workload):
    found = {(row.method, row.wait): row for row in long_context_rows(workload, steps=64)}
    for method in ("sequences_under_a_cap", "packs_drawn_by_cost_64"):
        assert found[method, "step"].waste - found[method, "step"].floor <= 0.01
    baseline = found["packs_in_order_of_cost", "micro"]
    ours = found["packs_drawn_by_cost_64", "micro"]
    assert ours.waste - ours.floor <= (baseline.waste - baseline.floor) / 2
    assert ours.waste <= baseline.waste / 2
