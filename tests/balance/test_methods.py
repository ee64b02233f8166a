from __future__ import annotations

import pytest

from nopad.balance import METHODS, Balance, methods
from nopad.errors import OptionError


def test_the_table_of_the_module_lists_every_method():
    lines = [line.split("|") for line in methods.__doc__.splitlines() if line.startswith("| ")]
    assert [cells[1].strip() for cells in lines[1:]] == list(METHODS)
    for cells in lines[1:]:
        balance = METHODS[cells[1].strip()]
        drawn, dealt = cells[2], cells[3]
        assert ("random" in drawn) == (balance.draw == "random")
        assert ("equally large" in drawn) == (balance.draw == "quantile")
        assert ("quotas" in drawn) == (balance.draw == "stratified")
        assert ("as drawn" in dealt) == (balance.deal == "none")
        assert ("Karmarkar-Karp" in dealt) == (balance.deal == "karmarkar_karp")
        assert ("within a node" in dealt) == (balance.within == "node")


def test_the_default_is_karmarkar_karp_over_all_ranks():
    assert Balance() == Balance.named("karmarkar_karp") == METHODS["karmarkar_karp"]


def test_changes():
    changed = Balance.named("local_presort", quotas=(1, 2), edges=(7,))
    assert (changed.deal, changed.quotas, changed.edges) == ("snake", (1, 2), (7,))
    assert Balance.named(changed, wait="micro").quotas == (1, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"draw": "sampled"}, "draw is 'sampled'; it is 'random', 'sorted', 'stratified' or 'quantile'"),
        ({"deal": None}, "deal is None; it is 'none', 'raster', 'snake' or 'karmarkar_karp'"),
        ({"within": "rack"}, "within is 'rack'; it is 'rank', 'node' or 'world'"),
        ({"wait": "micro_step"}, "wait is 'micro_step'; it is 'step' or 'micro'"),
        ({"within": "rank"}, "within 'rank' is for draw 'quantile' with deal 'none'"),
        ({"within": "rank", "draw": "quantile"}, "within 'rank' is for draw 'quantile' with deal 'none'"),
        ({"window": 4}, "window is for draw 'sorted', not for draw 'random'"),
        ({"window": 0, "draw": "sorted"}, "window must be an integer from 1"),
        ({"edges": (4,)}, "edges are for draw 'stratified', not for draw 'random'"),
        ({"quotas": (4,), "draw": "quantile"}, "quotas are for draw 'stratified', not for draw 'quantile'"),
        ({"draw": "stratified", "edges": (4, 4)}, "edges must ascend"),
        ({"draw": "stratified", "edges": (4, 8), "quotas": (1, 2)}, "there are 3 strata but 2 quotas"),
        ({"draw": "stratified", "quotas": (1, 2)}, "there are 4 strata but 2 quotas"),
        ({"draw": "stratified", "quotas": (1, -2, 3, 4)}, "each of quotas must be an integer from 0"),
    ],
)
def test_values_that_are_refused(values, message):
    with pytest.raises(OptionError, match=message):
        Balance(**values)


def test_an_unknown_name():
    with pytest.raises(
        OptionError, match=r"unknown method of balance 'best'; there are none, sorted, .*karmarkar_karp"
    ):
        Balance.named("best")


def test_what_is_no_name_and_no_list_is_refused():
    for odd in (["sorted"], None, 3):
        with pytest.raises(OptionError, match="unknown method of balance"):
            Balance.named(odd)
    for odd in (5, "12"):
        with pytest.raises(OptionError, match="edges are integers, one after another"):
            Balance(draw="stratified", edges=odd)
