from __future__ import annotations

from dataclasses import asdict

import pytest

from nopad import Histogram
from nopad.errors import OptionError
from nopad.study.latency import METHODS, Constants, latency_rows

PARTS = ("compute", "waiting", "launch", "reduce", "exchange")
HISTOGRAM = Histogram.from_counts(dict.fromkeys(range(1, 65), 400))


@pytest.fixture(scope="module")
def rows():
    found = latency_rows(HISTOGRAM, gpus=[8, 64], batches=[8, 16])
    return {(row.batch, row.gpus, row.method): row for row in found}


def test_the_parts_add_up(rows):
    for row in rows.values():
        assert row.seconds == pytest.approx(sum(getattr(row, part) for part in PARTS))
        assert min(asdict(row)[part] for part in PARTS) >= 0
    assert {method for *_, method in rows} == set(METHODS)


def test_padding_computes_whole_rows_and_waits_for_none(rows):
    row = rows[16, 8, "padding"]
    assert row.compute == pytest.approx(16 * 64 * Constants().token_s)
    assert row.waiting == row.exchange == 0


def test_only_methods_that_exchange_samples_pay_for_it(rows):
    for (_, _, method), row in rows.items():
        assert (row.exchange > 0) == (method in ("global presorting", "Samsung"))
    assert rows[16, 64, "global presorting"].exchange == pytest.approx(8 * rows[16, 8, "global presorting"].exchange)
    assert rows[16, 64, "Samsung"].exchange == rows[16, 8, "Samsung"].exchange


def test_graphs_are_for_shapes_that_never_change_and_small_batches(rows):
    with_graph = {(batch, method) for (batch, _, method), row in rows.items() if row.launch == Constants().graph_s}
    assert with_graph == {(8, "padding"), (8, "packing, depth 3"), (8, "packing, any depth")}


def test_the_paper_has_no_quotas_for_small_batches(rows):
    assert (8, 8, "Samsung") not in rows
    assert (16, 8, "Samsung") in rows


def test_very_short_sequences_have_no_strata():
    short = Histogram.from_counts({1: 3000, 2: 3000})
    assert {row.method for row in latency_rows(short, gpus=[8], batches=[16])} == set(METHODS) - {"Samsung"}


def test_a_step_is_as_many_sequences_for_every_method(rows):
    mean = HISTOGRAM.tokens / HISTOGRAM.sequences * 16 * Constants().token_s
    for method in METHODS[1:]:
        assert rows[16, 64, method].compute == pytest.approx(mean, rel=0.03)


@pytest.mark.shared
@pytest.mark.slow
def test_the_two_shares_that_the_text_states(wikipedia):
    found = {row.method: row for row in latency_rows(wikipedia, gpus=[1024], batches=[16])}
    share = {method: row.exchange / row.seconds for method, row in found.items()}
    assert share["global presorting"] == pytest.approx(0.182, abs=0.001)
    assert share["Samsung"] == pytest.approx(0.019, abs=0.001)
    ours = found["Karmarkar-Karp on indices"].seconds
    assert ours < min(row.seconds for method, row in found.items() if method in METHODS[:4])


def test_no_gpu_is_refused():
    with pytest.raises(OptionError, match="gpus must be an integer from 1 to 2147483647, got 0"):
        next(latency_rows(HISTOGRAM, gpus=[8, 0]))
