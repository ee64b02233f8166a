from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad import Histogram
from nopad.errors import FormatError
from nopad.planning import Certificate, Plan
from nopad.planning.certificate import MAX_VALUE


@st.composite
def certificates(draw):
    lengths = sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=4)))
    values = sorted(draw(st.lists(st.integers(0, 9), min_size=len(lengths), max_size=len(lengths))))
    return Certificate(tuple(zip(lengths, values, strict=True)))


def value(proof, length):
    return max((worth for start, worth in proof.steps if start <= length), default=0)


def most_valuable(proof, capacity, depth):
    """By trying every multiset of lengths."""
    best = 0
    for size in range(1, (depth or capacity) + 1):
        for held in combinations_with_replacement(range(1, capacity + 1), size):
            if sum(held) <= capacity:
                best = max(best, sum(value(proof, length) for length in held))
    return best


@given(certificates(), st.integers(1, 8), st.none() | st.integers(1, 4))
def test_the_most_a_pack_is_worth(proof, capacity, depth):
    assert proof.best(capacity, depth) == most_valuable(proof, capacity, depth)


@given(certificates(), st.lists(st.integers(1, 12), max_size=30))
def test_what_all_are_worth(proof, lengths):
    assert proof.worth(Histogram.from_lengths(lengths)) == sum(value(proof, length) for length in lengths)


def test_counts_beyond_64_bits_are_exact():
    proof = Certificate(((3, MAX_VALUE),))
    histogram = Histogram.from_counts({3: 2**62, 4: 1})
    assert proof.worth(histogram) == (2**62 + 1) * MAX_VALUE
    assert proof.bound(histogram, 6, None) == 2**61 + 1


def test_nothing_is_worth_nothing():
    assert Certificate(()).bound(Histogram.from_lengths([3]), 8, None) == 0
    assert Certificate(((9, 1),)).bound(Histogram.from_lengths([3]), 8, 2) == 0


@pytest.mark.parametrize("steps", [((3, 1), (3, 2)), ((3, 2), (4, 1)), ((0, 1),), ((3, -1),), ((3, MAX_VALUE + 1),)])
def test_steps_must_rise(steps):
    with pytest.raises(ValueError, match="certificate steps must rise in length"):
        Certificate(steps)


def test_steps_that_do_not_step_are_dropped():
    assert Certificate.of([(2, 0), (3, 1), (4, 1), (6, 2)]) == Certificate(((3, 1), (6, 2)))


@pytest.fixture
def saved(tmp_path):
    """A plan whose bound only its certificate proves, and its document."""
    lengths = np.clip(np.round(np.random.default_rng(0).normal(60, 15, 3000)), 5, 160).astype(int)
    plan = nopad.plan(lengths, 160, depth=3, algorithm="optimal")
    assert plan.bound.proof == "certificate"
    path = tmp_path / "p.plan.json"
    plan.save(path)
    return path, json.loads(path.read_text())


def test_a_plan_file_carries_it(saved):
    path, document = saved
    loaded = Plan.load(path)
    assert loaded.bound.certificate is not None
    assert [list(step) for step in loaded.bound.certificate.steps] == document["certificate"]
    assert nopad.verify(path) == []
    assert any(line.strip().startswith("[") and line.count(",") >= 1 for line in path.read_text().splitlines())


def test_tampering_is_found(saved):
    path, document = saved

    def after(change):
        altered = json.loads(json.dumps(document))
        change(altered)
        path.write_text(json.dumps(altered))
        try:
            return nopad.verify(path)
        except FormatError as error:
            return [str(error)]

    def set_bound(packs):
        return lambda d: d["lower_bound"].update(packs=packs)

    stated = document["lower_bound"]["packs"]
    assert "lower bound is stated as" in after(set_bound(stated + 1))[0]
    assert "lower bound is stated as" in after(set_bound(stated - 1))[0]
    assert "lower bound is stated as" in after(lambda d: d.pop("certificate"))[0]
    last = len(document["certificate"]) - 1
    assert "lower bound is stated as" in after(lambda d: d["certificate"][last].__setitem__(1, MAX_VALUE))[0]
    assert "lower bound is stated as" in after(lambda d: d["certificate"][0].__setitem__(0, 1))[0]
    assert "certificate steps must rise in length" in after(lambda d: d["certificate"].reverse())[0]
    assert "pairs of integers" in after(lambda d: d["certificate"][0].__setitem__(1, 0.5))[0]
    assert after(lambda d: d["strategies"][0].update(count=d["strategies"][0]["count"] + 1))
    assert after(lambda d: None) == []


def test_the_command_line_says_so(saved):
    path, document = saved
    document["lower_bound"]["packs"] += 1
    path.write_text(json.dumps(document))
    done = subprocess.run(
        [sys.executable, "-m", "nopad", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "lower bound is stated as" in done.stdout + done.stderr


class TestWhatCannotBeChecked:
    """Refused, not guessed: a sum that wraps would prove anything."""

    def test_sums_beyond_64_bits(self):
        proof = Certificate(((1, MAX_VALUE),))
        hundred = Histogram.from_counts({1: 100})
        with pytest.raises(FormatError, match=r"up to 1099511627776, add up to more than 64 bits in one pack"):
            proof.bound(hundred, 2**24 + 1, None)
        assert proof.bound(hundred, 2**24 + 1, 3) == 34  # a pack of three is worth little
        assert Certificate(((1, 1),)).bound(hundred, 2**24 + 1, None) == 1

    def test_too_much_work(self):
        proof = Certificate(tuple((length, length) for length in range(1, 5000)))
        with pytest.raises(FormatError, match=r"checking the certificate takes 83,869,307,783 comparisons"):
            proof.best(2**24 + 1, None)
        with pytest.raises(FormatError, match="above 33554432, the check takes too much memory"):
            Certificate(((1, 1),)).best(2**25 + 1, None)

    def test_a_forged_plan_file(self, tmp_path):
        made = nopad.plan([1] * 100, 2**24 + 1)
        document = json.loads(made.to_json())
        document |= {"certificate": [[1, MAX_VALUE]], "lower_bound": {"packs": 100, "proof": "certificate"}}
        found = Plan.from_json(json.dumps(document)).problems()
        assert found == ["the values of the certificate, up to 1099511627776, add up to more than 64 bits in one pack"]

    def test_compiled_and_plain_agree(self):
        from nopad.planning._certificate_kernels import most_valuable

        proof = Certificate(((2, 3), (5, 8), (7, 12)))
        lengths, values = np.array(proof.steps).T.copy()
        for capacity in range(2, 40):
            assert most_valuable.py_func(lengths, values, capacity) == proof.best(capacity, None)
