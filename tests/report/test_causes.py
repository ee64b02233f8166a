"""What is said of the padding that is left, and what the page makes of it."""

from __future__ import annotations

import re

import numpy as np
import pytest

import nopad
from nopad.report import write_report
from nopad.report.causes import causes_of_padding
from nopad.report.subject import read_subject

SHORT = [10] * 100  # tokens, at a capacity of 100
LONG = [60] * 50


@pytest.mark.parametrize(
    ("lengths", "how", "said"),
    [
        (SHORT, {}, []),
        (SHORT, {"depth": 1}, ["90.0% of all slots: a pack holds at most 1 sequence here. A greater"]),
        (SHORT, {"depth": 2}, ["80.0% of all slots: a pack holds at most 2 sequences here. A greater"]),
        (LONG, {}, ["40.0% of all slots: no plan at this capacity has less, because of the lengths"]),
        (SHORT, {"pack_multiple": 40}, ["75.0% of all slots: the conditions on packs ask for them."]),
        ([40, 60] * 30, {"algorithm": "none"}, ["50.0% of all slots: none needs more packs"]),
    ],
)
def test_the_reason(lengths, how, said):
    found = causes_of_padding(nopad.plan(lengths, 100, **how))
    assert len(found) == len(said)
    for sentence, start in zip(found, said, strict=True):
        assert sentence.startswith(start)


def test_without_conditions_no_padding_is_theirs():
    """A certificate proves what the other bounds at this depth do not."""
    made = nopad.plan(nopad.Histogram.from_counts({6: 57, 9: 46, 10: 39}), 13, depth=3)
    assert made.bound.proof == "certificate"
    assert made.gap == 0
    (only,) = causes_of_padding(made)
    assert only.startswith("22.7% of all slots: no plan at this capacity has less, because of the lengths")


def test_what_only_a_certificate_proves_of_a_depth_is_the_depth_s():
    made = nopad.plan(nopad.Histogram.from_counts({10: 40, 4: 51}), 17, depth=3)
    assert made.bound.proof == "certificate"
    said = causes_of_padding(made)
    assert [sentence.partition(": ")[2][:30] for sentence in said] == [
        "no plan at this capacity has l",
        "a pack holds at most 3 sequenc",
    ]


def test_a_plan_without_packs_has_no_padding():
    assert causes_of_padding(nopad.plan([], 100)) == []


def test_the_shares_add_up_to_the_padding():
    lengths = np.random.default_rng(0).integers(1, 70, 500)
    made = nopad.plan(lengths, 100, depth=2, algorithm="none")
    shares = [float(re.match(r"[\d.]+", sentence)[0]) for sentence in causes_of_padding(made)]
    assert len(shares) > 1
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100 * (1 - made.efficiency), abs=1)


def test_much_padding_does_not_look_like_little(tmp_path):
    pages = {}
    for name, depth in (("much", 2), ("little", None)):
        nopad.plan(SHORT, 100, depth=depth).save(tmp_path / f"{name}.plan.json")
        subject = read_subject(tmp_path / f"{name}.plan.json")
        write_report([subject], tmp_path / "page.html")
        pages[name] = (tmp_path / "page.html").read_text().partition("<body>")[2].partition("<script")[0]
    assert '<b class="high">80.00%</b>' in pages["much"]
    assert "a pack holds at most 2 sequences here" in pages["much"]
    assert '<b class="low">0.00%</b>' in pages["little"]
    assert "of all slots" not in pages["little"]
