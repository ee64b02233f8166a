from __future__ import annotations

import dataclasses
import json
import os
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad.files
from nopad import ALGORITHMS, Histogram, Plan, plan
from nopad.errors import FormatError, StorageError
from nopad.planning import Bound

DIRECT = sorted({*ALGORITHMS} - {"ennlshp", "nnlshp"})  # those two list all strategies, which takes long
LENGTHS = [5, 3, 4, 2, 8, 3, 5]


@pytest.fixture
def made() -> Plan:
    return plan(LENGTHS, 8, depth=3, algorithm="ffd")


@pytest.fixture
def document(made) -> dict:
    return json.loads(made.to_json())


def from_document(document) -> Plan:
    return Plan.from_json(json.dumps(document), name="p.json")


def test_numbers(made):
    assert made.strategies == [(1, (8,)), (2, (5, 3)), (1, (4, 2))]
    assert made.summary() == {
        "algorithm": "ffd",
        "depth": 3,
        "max_depth_used": 2,
        "strategies": 3,
        "sequences": 7,
        "packs": 4,
        "tokens": 30,
        "slots": 32,
        "padding_tokens": 2,
        "efficiency": 30 / 32,
        "packing_factor": 7 / 4,
        "limit": 8 * 7 / 30,
        "lower_bound": 4,
    }
    assert list(made.summary()) == [  # the order of the columns; the command line adds `seconds`
        *("algorithm", "depth", "max_depth_used", "strategies", "sequences", "packs", "tokens", "slots"),
        *("padding_tokens", "efficiency", "packing_factor", "limit", "lower_bound"),
    ]


@given(st.from_type(Histogram), st.integers(40, 60), st.none() | st.integers(1, 5), st.sampled_from(DIRECT))
def test_the_summary_follows_from_the_strategies(histogram, capacity, depth, algorithm):
    made = plan(histogram, capacity, depth=depth, algorithm=algorithm)
    row = json.loads(json.dumps(made.summary()))
    packs = [lengths for count, lengths in made.strategies for _ in range(count)]
    assert row["packs"] == len(packs)
    assert row["slots"] == len(packs) * capacity == row["tokens"] + row["padding_tokens"]
    assert row["tokens"] == sum(map(sum, packs))
    assert row["sequences"] == sum(map(len, packs))
    assert row["max_depth_used"] == max(map(len, packs), default=0)
    assert row["efficiency"] * row["limit"] == pytest.approx(row["packing_factor"])


def test_numbers_beyond_64_bits_are_exact():
    made = plan(Histogram.from_counts({2**31 - 1: 2**40, 2**30: 2**62}), 2**31 - 1)
    assert made.tokens == (2**31 - 1) * 2**40 + 2**92
    assert made.slots == (2**40 + 2**62) * (2**31 - 1)
    assert made.padding_tokens == made.slots - made.tokens
    assert Plan.from_json(made.to_json()) == made


@pytest.mark.parametrize("power", [40, 52, 61])
def test_the_gap_is_exact_at_any_count(power):
    most = 2**power
    histogram = Histogram.from_counts({5: 3 * most // 2 + 1, 3: most + 7})
    made = plan(histogram, 8, algorithm="none")
    packs, least = 5 * most // 2 + 8, 3 * most // 2 + 1  # one each; a 3 fits beside each 5
    assert (made.packs, made.lower_bound, made.gap) == (packs, least, packs - least)
    assert f"this plan: {packs - least:,} above, 66.6667%)" in str(made)
    close = Plan.from_strategies(
        [(most + 6, (5, 3)), (1, (3,)), (most // 2 - 5, (5,))], histogram, capacity=8, depth=None, algorithm="mine"
    )
    assert (close.gap, close.packs) == (1, least + 1)
    assert f"{least:,} packs, by big lengths (this plan: 1 above, below 0.0001%)" in str(close)
    assert Plan.from_json(close.to_json()).gap == 1


def test_the_table(made):
    assert str(dataclasses.replace(made, depth=None, notes=("drawn",))).splitlines() == [
        "algorithm      ffd",
        "capacity       8 tokens",
        "depth          unlimited (reached: 2)",
        "sequences      7",
        "packs          4 (3 strategies)",
        "lower bound    4 packs, by tokens (this plan: proven optimal)",
        "efficiency     93.750% (2 padding tokens)",
        "packing factor 1.750 (limit 1.867)",
        "note           drawn",
    ]
    assert "depth          3 (reached: 2)" in str(made).splitlines()
    greedy = plan([5, 3, 5, 3, 2, 6], 8, algorithm="greedy", depth=2)
    wasteful = plan([3, 6, 3, 6, 2], 8, algorithm="greedy")
    assert (greedy.packs, wasteful.packs, wasteful.lower_bound) == (3, 4, 3)
    assert "lower bound    3 packs, by tokens (this plan: 1 above, 33.3333%)" in str(wasteful).splitlines()
    assert "lower bound    0 packs, by tokens (this plan: proven optimal)" in str(plan([], 8)).splitlines()
    assert repr(made) == "Plan(ffd, capacity 8, depth 3: 4 packs, 93.750%)"
    assert repr(plan([1], 8)) == "Plan(auto, capacity 8, depth unlimited: 1 pack, 12.500%)"


def test_equality_and_hash(made):
    assert made == plan(LENGTHS[::-1], 8, depth=3, algorithm="ffd")
    assert hash(made) == hash(plan(LENGTHS[::-1], 8, depth=3, algorithm="ffd"))
    assert made != plan(LENGTHS, 8, depth=2)
    assert made != made.to_json()


def test_equal_strategies_are_merged_and_sorted():
    made = Plan.from_strategies(
        [(1, (3, 2)), (2, (5,)), (4, (3, 2)), (1, (3,))],
        Histogram.from_counts({5: 2, 3: 6, 2: 5}),
        capacity=5,
        depth=None,
        algorithm="mine",
        options={"tries": 3},
        notes=("by hand",),
    )
    assert made.strategies == [(2, (5,)), (5, (3, 2)), (1, (3,))]
    assert (dict(made.options), made.notes, made.algorithm) == ({"tries": 3}, ("by hand",), "mine")
    assert Plan.from_json(made.to_json()) == made


@given(st.from_type(Histogram), st.integers(40, 60), st.none() | st.integers(1, 5), st.sampled_from(DIRECT))
def test_saving_and_loading(tmp_path_factory, histogram, capacity, depth, algorithm):
    made = plan(histogram, capacity, depth=depth, algorithm=algorithm)
    path = tmp_path_factory.mktemp("plan") / "p.plan.json"
    made.save(path)
    loaded = Plan.load(path)
    assert loaded == made
    assert loaded.fingerprint == made.fingerprint
    assert (loaded.strategies, loaded.bound, loaded.notes) == (made.strategies, made.bound, made.notes)
    assert loaded.problems() == []


def test_the_file_is_readable_and_diffable(made):
    assert made.to_json() == (
        '{\n  "format": "nopad.plan",\n  "format_version": 1,\n  "capacity": 8,\n  "depth": 3,\n'
        '  "algorithm": "ffd",\n  "options": {},\n  "facts": {},\n  "notes": [],\n'
        '  "sequences": 7,\n  "tokens": 30,\n'
        '  "packs": 4,\n  "lower_bound": {\n    "packs": 4,\n    "proof": "tokens"\n  },\n'
        '  "histogram_sha256": "' + Histogram.from_lengths(LENGTHS).fingerprint + '",\n'
        '  "strategies": [\n    {"count": 1, "lengths": [8]},\n    {"count": 2, "lengths": [5, 3]},\n'
        '    {"count": 1, "lengths": [4, 2]}\n  ]\n}\n'
    )
    assert plan([], 8).to_json().endswith('  "strategies": []\n}\n')


def test_a_failed_write_leaves_the_old_file(tmp_path, made, monkeypatch, refuses):
    path = tmp_path / "p.plan.json"
    made.save(path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nopad.files.os, "fsync", full)
    with refuses(
        StorageError,
        f"no space left while writing {path} (No space left on device); free some space and run the same command again",
    ):
        plan([1], 8).save(path)
    assert os.listdir(tmp_path) == [path.name]
    assert Plan.load(path) == made


def test_a_missing_file(tmp_path):
    with pytest.raises(FormatError, match=rf"\Acannot read the plan {re.escape(str(tmp_path))}/none: .*No such file"):
        Plan.load(tmp_path / "none")


def test_files_that_are_no_text_or_no_json(tmp_path):
    path = tmp_path / "p.json"
    for content, message in (
        (b"\xff\xfe", "cannot read the plan .*: 'utf-8' codec can't decode byte 0xff"),
        (b"", "p.json is not JSON: Expecting value: line 1 column 1"),
        (b'{"format": "nopad.plan"', "p.json is not JSON: Expecting ',' delimiter"),
        (b"[" * 200_000, "p.json is not JSON: nested too deeply"),
    ):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=message):
            Plan.load(path)


@pytest.mark.parametrize("document", [[], 3, {}, {"format": "nopad.histogram"}])
def test_json_that_is_no_plan(refuses, document):
    with refuses(FormatError, 'p.json is no plan file: it lacks "format": "nopad.plan"'):
        from_document(document)


@pytest.mark.parametrize("version", [2, "1", None, True, 1.0])
def test_an_unknown_version(refuses, document, version):
    with refuses(FormatError, f"p.json has format version {version!r}; this nopad reads 1"):
        from_document(document | {"format_version": version})


STRATEGY_RULE = "needs an integer count >= 1 and lengths from 1 to 2147483647"


@pytest.mark.parametrize(
    "strategy",
    [
        {"count": 0, "lengths": [5]},
        {"count": -1, "lengths": [5]},
        {"count": 1.0, "lengths": [5]},
        {"count": True, "lengths": [5]},
        {"count": 1, "lengths": [5, 0]},
        {"count": 1, "lengths": [5.0]},
        {"count": 1, "lengths": ["5"]},
        {"count": 1, "lengths": [2**31, 5]},
        {"count": 1, "lengths": []},
    ],
)
def test_malformed_strategies(refuses, document, strategy):
    document["strategies"].insert(2, strategy)
    with refuses(FormatError, f"p.json is damaged: ValueError('strategy 2: {STRATEGY_RULE}')"):
        from_document(document)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"strategies": None}, "ValueError('strategies is None, and should be a list')"),
        ({"strategies": [{"count": 1}]}, "KeyError('lengths')"),
        (
            {"strategies": [{"count": 2**63, "lengths": [1]}]},
            "OverflowError('Python int too large to convert to C long')",
        ),
        ({"lower_bound": 4}, "ValueError('lower_bound is 4, and should be a dict')"),
        (
            {"lower_bound": {"packs": 4, "proof": 3}},
            "ValueError('the proof of the lower bound is 3, and should be a str')",
        ),
        ({"certificate": {}}, "ValueError('certificate: needs pairs of integers')"),
        ({"certificate": "ab"}, "ValueError('certificate: needs pairs of integers')"),
        ({"certificate": [[1, 2, 3]]}, "ValueError('certificate: needs pairs of integers')"),
        (
            {"cost_certificate": {"units": "ab", "steps": []}},
            "ValueError('cost_certificate units: needs pairs of integers')",
        ),
        (
            {"strategies": [{"count": 4, "lengths": [1, 2]}]},
            "ValueError('strategy 0: lengths are listed longest first')",
        ),
        (
            {"strategies": [{"count": 4, "lengths": {"5": 1}}]},
            "ValueError('strategy 0: needs an integer count >= 1 and lengths from 1 to 2147483647')",
        ),
        ({"lower_bound": {"packs": 4}}, "KeyError('proof')"),
        ({"notes": None}, "ValueError('notes is None, and should be a list')"),
        ({"notes": [3]}, "ValueError('notes should be strings')"),
        ({"options": [["depth", 3]]}, "ValueError(\"options is [['depth', 3]], and should be a dict\")"),
        ({"facts": []}, "ValueError('facts is [], and should be a dict')"),
        ({"algorithm": 7}, "ValueError('algorithm is 7, and should be a str')"),
    ],
)
def test_malformed_documents(refuses, document, change, reason):
    with refuses(FormatError, f"p.json is damaged: {reason}"):
        from_document(document | change)


@pytest.mark.parametrize(
    "change",
    [
        *({"capacity": value} for value in (0, -8, 8.0, True, "8", None, 2**31)),
        *({"depth": value} for value in (0, -1, 3.0, True, "max")),
        *({"lower_bound": {"packs": value, "proof": "tokens"}} for value in (4.0, True, None)),
    ],
)
def test_malformed_limits(refuses, document, change):
    rule = "capacity and depth must be integers from 1 to 2147483647 (depth may be null), the bound an integer"
    with refuses(FormatError, f"p.json is damaged: ValueError('{rule}')"):
        from_document(document | change)


@pytest.mark.parametrize("key", ["capacity", "depth", "algorithm", "options", "notes", "lower_bound", "strategies"])
def test_a_missing_part(refuses, document, key):
    del document[key]
    with refuses(FormatError, f"p.json is damaged: KeyError('{key}')"):
        from_document(document)


@pytest.mark.parametrize(("key", "true"), [("sequences", 7), ("tokens", 30), ("packs", 4)])
@pytest.mark.parametrize("stated", [31, None, 4.0, 7.0, 30.0, True])
def test_totals_that_do_not_match(refuses, document, key, true, stated):
    with refuses(FormatError, f"p.json states {stated} {key}, its strategies give {true}"):
        from_document(document | {key: stated})


def test_strategies_that_cover_another_histogram(refuses, document):
    message = "p.json is damaged: its strategies do not cover the histogram whose fingerprint it states"
    document["strategies"][2]["lengths"] = [3, 3]  # same totals
    with refuses(FormatError, message):
        from_document(document)
    del document["histogram_sha256"]
    with refuses(FormatError, message):
        from_document(document)


def test_problems_are_found(made):
    assert dataclasses.replace(made, capacity=7).problems() == [
        "strategy 0 sums to 8 tokens, above the capacity of 7",
        "strategy 1 sums to 8 tokens, above the capacity of 7",
        "lower bound is stated as 4, 5 can be proven",
    ]
    assert dataclasses.replace(made, depth=1).problems() == [
        "strategy 1 holds 2 sequences, above the depth of 1",
        "strategy 2 holds 2 sequences, above the depth of 1",
        "lower bound is stated as 4, 7 can be proven",
    ]
    for packs in (3, 5):
        wrong = dataclasses.replace(made, bound=Bound(packs, "tokens"))
        assert wrong.problems() == [f"lower bound is stated as {packs}, 4 can be proven"]


def test_problems_survive_loading(document):
    document["strategies"][0]["lengths"] = [9]
    document["tokens"] = 31
    document["histogram_sha256"] = Histogram.from_lengths([9, 5, 3, 5, 3, 4, 2]).fingerprint
    assert from_document(document).problems()[0] == "strategy 0 sums to 9 tokens, above the capacity of 8"


def test_problems_are_few():
    made = plan(np.arange(1, 21), 20, depth=1)
    assert len(dataclasses.replace(made, capacity=1, depth=None).problems()) == 4  # three strategies and the bound


def test_a_key_that_is_there_twice(refuses, document):
    text = json.dumps(document).replace('"capacity": 8', '"capacity": 8, "capacity": 9')
    with refuses(FormatError, "p.json is not JSON: the key 'capacity' comes twice"):
        Plan.from_json(text, name="p.json")


def test_counts_do_not_wrap(refuses, document):
    """4 x 2^62 is 0 in 64 bits: the strategies would cover nothing, and be believed."""
    document["strategies"] = [{"count": 2**62, "lengths": [2, 2, 2, 2]}]
    with pytest.raises(FormatError, match=r"histogram counts 18446744073709551616 sequences of length 2"):
        from_document(document | {"depth": None, "sequences": 0, "tokens": 0, "packs": 2**62})


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e400"])
def test_what_is_no_number_of_json(number):
    text = plan([5, 3], 8).to_json().replace('"seconds": null', f'"seconds": {number}')
    with pytest.raises(FormatError, match=f"{number} is no number of JSON"):
        Plan.from_json(text)
