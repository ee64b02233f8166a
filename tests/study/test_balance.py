from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from nopad import Histogram
from nopad.balance import Attention, Balance, Tokens, cost_model
from nopad.errors import BalanceError, OptionError
from nopad.study import published
from nopad.study.balance import (
    BalanceRow,
    Pool,
    Studied,
    balance_rows,
    order_effect,
    published_range,
    studied,
)

KEYS = ["gpus", "node", "batch", "method", "unit", "communication"]
KEYS += ["min_tokens", "max_tokens", "mean_tokens", "waste", "floor", "seconds_per_step"]
HISTOGRAM = Histogram.from_counts({n: 40 + (n * 7919) % 60 for n in range(1, 129)})


@pytest.fixture(scope="module")
def rows():
    return {row.method: row for row in balance_rows(HISTOGRAM, [16], node=4, batch=8, steps=30)}


def test_a_row_has_what_json_promises(rows):
    for row in rows.values():
        summary = asdict(row)
        assert [key for key in summary if key in KEYS] == KEYS
        assert (row.gpus, row.node, row.batch) == (16, 4, 8)
        assert row.min_tokens <= row.mean_tokens <= row.max_tokens
        assert row.waste >= row.floor - 1e-12 >= -1e-12
        if row.method != "sorted":  # whose steps differ in their means
            assert row.waste == pytest.approx(row.max_tokens / row.mean_tokens - 1, abs=0.02)
        assert 0 <= row.abr < 1
        assert row.seconds_per_step > 0
    assert set(rows) == {method.name for method in studied()}
    assert {row.unit for row in rows.values()} == {"sequences", "packs"}
    exchanging = {name: row.communication for name, row in rows.items() if row.communication != "none"}
    assert exchanging == {
        "local_presort_raster": "node",
        "local_presort": "node",
        "global_presort_raster": "global",
    }


@pytest.mark.parametrize("lengths", [(1,), (1, 2), (1, 2, 3)])
def test_stratified_methods_are_left_out_where_strata_are_empty(lengths):
    short = Histogram.from_counts(dict.fromkeys(lengths, 3000))
    found = {row.method for row in balance_rows(short, [8], steps=2)}
    stratified = {method.name for method in studied() if method.balance.draw == "stratified"}
    assert stratified
    assert found - stratified == {method.name for method in studied()} - stratified
    assert len(lengths) == 3 or not found & stratified


def test_the_order_of_the_methods(rows):
    def waste(name):
        return rows[name].waste

    assert waste("none") > waste("stratified") > waste("local_presort") > waste("karmarkar_karp")
    assert waste("none") > waste("global_presort_raster") > waste("global_presort")
    assert waste("quantile") > waste("quantile_node")


def test_no_balancing_as_a_simulation_of_its_own(rows):
    rng = np.random.default_rng(0)
    lengths = np.repeat(HISTOGRAM.lengths, HISTOGRAM.counts)
    sums = lengths[rng.integers(0, lengths.size, (20_000, 16, 8))].sum(axis=2)
    assert rows["none"].min_tokens == pytest.approx(sums.min(axis=1).mean(), rel=0.06)
    assert rows["none"].max_tokens == pytest.approx(sums.max(axis=1).mean(), rel=0.04)
    assert rows["none"].waste == pytest.approx((sums.max(axis=1) / sums.mean(axis=1)).mean() - 1, abs=0.04)


def test_the_same_numbers_at_each_run(rows):
    [again] = balance_rows(HISTOGRAM, [16], node=4, batch=8, steps=30, methods=studied()[:1])
    assert (again.min_tokens, again.waste) == (rows["none"].min_tokens, rows["none"].waste)


def test_waste_is_in_units_of_cost():
    ours = [Studied(name="ours", balance=Balance())]
    [row] = balance_rows(HISTOGRAM, [16], batch=8, steps=30, cost=Attention(hidden_size=1), methods=ours)
    assert row.waste < 0.02 < row.max_tokens / row.mean_tokens - 1


def test_strata_are_of_lengths_whatever_the_cost():
    [by_tokens, by_cost] = [
        next(balance_rows(HISTOGRAM, [4], batch=8, steps=30, cost=cost, methods=[studied()[1]]))
        for cost in (Tokens(), Attention(hidden_size=1))
    ]
    assert by_tokens.method == "stratified"
    assert by_tokens.min_tokens == by_cost.min_tokens


def test_a_small_histogram_is_drawn_several_times():
    few = Histogram.from_counts({3: 20, 5: 30})
    [row] = balance_rows(few, [4], batch=4, steps=50, methods=studied()[:1])
    assert row.steps == 50


def test_methods_that_need_a_larger_batch_are_left_out():
    found = {row.method for row in balance_rows(HISTOGRAM, [4], batch=2, steps=2)}
    assert {method.name for method in studied()} - found == {"stratified", "local_presort", "local_presort_raster"}


def test_packs_are_those_of_the_plan():
    pool = Pool(Histogram.from_counts({5: 10, 3: 10}), Attention(hidden_size=1))
    tokens, costs = pool.units(Studied(name="packs", balance=Balance(), unit="packs", depth=2), 99)
    assert sorted(tokens.tolist()) == [5] * 10 + [3] * 10 or sorted(tokens.tolist()) == [3] * 10 + [5] * 10
    assert sorted(set(zip(tokens.tolist(), costs.tolist(), strict=True))) == [(3, 27), (5, 55)]


@pytest.mark.parametrize(("text", "model"), [("tokens", Tokens()), ("attention:1024", Attention(hidden_size=1024))])
def test_cost_models(text, model):
    assert cost_model(text) == model


@pytest.mark.parametrize(
    "text", ["flops", "tokens:3", "attention", "attention:", "attention:0", "attention:-1", "attention:²"]
)
def test_an_unknown_cost_model(text):
    with pytest.raises(OptionError, match="cost must be tokens or attention:HIDDEN_SIZE"):
        cost_model(text)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch": "2"}, OptionError, "batch must be an integer from 2 to"),
        ({"batch": 1}, OptionError, "batch must be an integer from 2 to"),
        ({"steps": 0}, OptionError, "steps must be an integer from 1 to"),
        ({"steps": -3}, OptionError, "steps must be an integer from 1 to"),
        ({"steps": 2.5}, OptionError, "steps must be an integer from 1 to"),
        ({"node": 3}, OptionError, "world_size 16 is not divisible by node_size 3"),
        (
            {"batch": 4096},
            BalanceError,
            r"units are too few for one step of a draw 'random' on 16 GPUs, which takes 65,536; study",
        ),
    ],
)
def test_wrong_use(options, error, message):
    with pytest.raises(error, match=message):
        list(balance_rows(HISTOGRAM, [16], **options))


@pytest.mark.parametrize("steps", [1, 0, -5])
def test_too_few_steps_to_compare_their_order(steps):
    """The message said that the histogram was too small."""
    with pytest.raises(OptionError, match=f"steps must be an integer from 2 to .*, got {steps}"):
        order_effect(HISTOGRAM, steps=steps)


def test_the_published_rows_are_of_one_dataset_and_shape(rows):
    assert published_range(rows["none"], HISTOGRAM) is None
    assert set(published.TOKENS_PER_GPU) == {
        method.name for method in studied() if method.published and method.unit != "packs"
    }


def test_sorted_steps_do_not_follow_time():
    effects = order_effect(Histogram.from_counts(dict.fromkeys(range(1, 129), 20000)), steps=20_000)
    assert set(effects) == {"random", "sorted", "sorted in windows of 64 steps"}
    assert max(map(abs, effects.values())) <= 0.02
    with pytest.raises(OptionError, match="20 sequences are too few for two steps of 128"):
        order_effect(Histogram.from_counts({3: 20}))
    assert order_effect(Histogram.from_counts({3: 2000})) == dict.fromkeys(effects, 0.0)


@pytest.mark.shared
@pytest.mark.slow
def test_table_5_and_what_ours_must_reach(wikipedia):
    found: dict[str, BalanceRow] = {row.method: row for row in balance_rows(wikipedia, [1024])}
    assert {
        name: row for name, row in found.items() if published_range(row, wikipedia)
    }.keys() == published.TOKENS_PER_GPU.keys()
    for name, (least, most) in published.TOKENS_PER_GPU.items():
        near = 8 if name in ("stratified", "local_presort", "local_presort_raster") else 30
        assert abs(found[name].min_tokens - least) <= near
        assert abs(found[name].max_tokens - most) <= near
    assert found["packs_depth_2"].waste > found["packs_depth_3"].waste > found["packs"].waste
    assert found["quantile_node"].waste <= 0.002
    assert found["karmarkar_karp"].waste <= 0.0003
    assert found["packs"].waste <= 0.0006


@pytest.mark.shared
@pytest.mark.slow
def test_no_other_number_of_gpus_gives_table_5(wikipedia):
    chosen = [method for method in studied() if method.name == "local_presort"]
    for row in balance_rows(wikipedia, [512, 2048], methods=chosen, steps=100):
        least, most = published.TOKENS_PER_GPU["local_presort"]
        assert max(abs(row.min_tokens - least), abs(row.max_tokens - most)) > 8
