from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad import Histogram, pack, plan
from nopad.errors import OptionError
from nopad.planning import Plan
from nopad.planning.costs import load_of
from nopad.planning.costs.even import least_cap


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    depth=st.none() | st.integers(2, 5),
    align=st.sampled_from([1, 2]),
    multiple=st.integers(1, 2),
)
def test_even_packs_keep_every_limit(judge, lengths, depth, align, multiple):
    plain = plan(lengths, 40, depth=depth, align=align)
    if -(-plain.packs // multiple) * multiple > len(lengths):
        return
    made = plan(lengths, 40, depth=depth, align=align, pack_multiple=multiple, even=True)
    judge(made.strategies, lengths, 40, 1600, depth, align)
    facts = made.facts["even"]
    assert made.packs <= facts["most_packs"] <= 1.001 * (-(-plain.packs // multiple) * multiple)
    assert facts["before"]["cap"] == max(sum(n * n for n in held) for _, held in plain.strategies)
    assert facts["after"]["cap"] == max(sum(n * n for n in held) for _, held in made.strategies)
    assert facts["after"]["cap"] <= facts["before"]["cap"]
    assert made.problems() == []


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8), depth=st.none() | st.integers(2, 4))
def test_the_least_cap_is_never_above_the_truth(fewest, lengths, depth):
    load = load_of(Histogram.from_lengths(lengths), 12, depth, 144)
    for packs in range(fewest(lengths, 12, depth, 144), len(lengths) + 1):
        least = least_cap(load, packs)
        true = next(most for most in range(max(lengths) ** 2, 145) if fewest(lengths, 12, depth, most) <= packs)
        assert least <= true


@pytest.mark.slow
def test_equal_lengths_no_longer_end_up_together():
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(350), 1.1, 50_000), 1, 2048).astype(np.int64)
    made = plan(lengths, 8192, even=True)
    before, after = made.facts["even"]["before"], made.facts["even"]["after"]
    assert before["cost_to_mean"] > 1.5
    assert after["cost_to_mean"] < 1.02
    assert after["depth_to_mean"] < 2 < before["depth_to_mean"]
    assert made.packs <= 1.001 * plan(lengths, 8192).packs
    assert "even packs: the highest cost of a pack (the sum of its squared lengths) is" in str(made)


def test_only_where_cost_is_planned():
    with pytest.raises(OptionError, match="even=True needs an algorithm that plans by cost: take auto or optimal"):
        plan([3, 4], 8, algorithm="ffd", even=True)
    assert len(pack([3, 4, 8], 8, even=True)) == 2
    assert plan([], 8, even=True).packs == 0


@pytest.fixture(scope="module")
def evened():
    """An even plan as the text of its file."""
    return plan(np.random.default_rng(0).integers(1, 40, 300), 100, even=True).to_json()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda even: even["after"].update(cap=1), "cap of the packs is stated as 1, it is"),
        (lambda even: even["after"].update(depth=1), "depth of the packs is stated as 1, it is"),
        (lambda even: even.update(least_cap=10**6), "is stated as 1,000,000, "),
        (lambda even: even.update(most_packs="9"), "the facts about evenness are incomplete"),
        (lambda even: even.pop("after"), "the facts about evenness are incomplete"),
        (lambda even: even.update(before=3), "the facts about evenness are incomplete"),
        (lambda even: even["before"].update(packs=2**130), "the facts about evenness are incomplete"),
        (lambda even: even["before"].update(cost_to_mean=9.5), "the facts about the plan before contradict each other"),
        (lambda even: even["before"].update(depth=1), "the facts about the plan before contradict each other"),
        (lambda even: even["before"].update(packs=2), "are not what 2 packs of the plan before allow"),
        (lambda even: even.update(most_packs=2**90), "are not what"),
    ],
)
def test_facts_that_are_not_true(tmp_path, evened, change, problem):
    path = tmp_path / "p.plan.json"
    path.write_text(evened)
    assert nopad.verify(path) == []
    document = json.loads(path.read_text())
    change(document["facts"]["even"])
    path.write_text(json.dumps(document))
    assert any(problem in found for found in nopad.verify(path))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda document: document["facts"].update(even=3), "the facts about evenness are incomplete"),
        (lambda document: document["facts"].pop("even"), "the facts about evenness are incomplete"),
        (lambda document: document["options"].pop("even"), "the facts about evenness are incomplete"),
        (lambda document: document["notes"].clear(), "the plan lacks the note that describes its evenness"),
    ],
)
def test_facts_that_stand_alone(evened, change, problem):
    document = json.loads(evened)
    change(document)
    assert Plan.from_json(json.dumps(document)).problems() == [problem]


@given(lengths=st.lists(st.integers(1, 30), min_size=7, max_size=60), multiple=st.sampled_from([2, 3, 7]))
def test_a_multiple_counts_among_the_packs_that_are_allowed(lengths, multiple):
    try:
        made = plan(lengths, 40, pack_multiple=multiple, even=True)
    except OptionError:
        return
    facts = made.facts["even"]
    assert made.packs <= facts["most_packs"]
    assert facts["least_cap"] <= facts["after"]["cap"]


def test_numbers_beyond_64_bits():
    made = plan(Histogram.from_counts({2**30: 2**60}), 2**31 - 1, even=True)
    document = json.loads(made.to_json())
    document["facts"]["even"]["most_packs"] = 1
    assert any("1 packs are not what" in found for found in Plan.from_json(json.dumps(document)).problems())
