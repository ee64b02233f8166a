from __future__ import annotations

import pytest

import nopad
from nopad.report.composition import Composition
from nopad.report.wording import alike, answer, big, median_of, percent, quantity, times


@pytest.mark.parametrize(
    ("lengths", "how", "said"),
    [
        (
            [2] * 40,
            {},
            "An epoch takes 10 rows instead of 40: 4.0 times fewer. 0.00% padding, exactly the proven minimum.",
        ),
        (
            [8, 8],
            {},
            "An epoch takes 2 rows, as many as without packing: no two sequences share one. 0.00% padding, exactly",
        ),
        ([2], {}, "An epoch takes 1 row, as many as without packing"),
        ([6, 2, 7], {}, "An epoch takes 2 rows instead of 3: 33.3% fewer. 6.25% padding"),
        ([4, 4, 4], {"algorithm": "none"}, "50.00% padding, 1 row above the proven minimum of 2."),
    ],
)
def test_the_answer(lengths, how, said):
    assert said in answer(nopad.plan(lengths, 8, **how), packed=True)


def test_what_is_only_planned_would_take():
    assert answer(nopad.plan([4, 4], 8), packed=False).startswith("An epoch would take 1 row instead of 2")


def test_only_zero_reads_as_zero():
    assert [percent(share, 2) for share in (0.0, 1e-12, 0.00005, 0.5, 1 - 1e-12, 1.0)] == [
        "0.00%",
        "under 0.01%",
        "0.01%",
        "50.00%",
        "over 99.99%",
        "100.00%",
    ]


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ([6, 2, 6, 2, 4, 4], "1.25 times as much as two drawn at random (2.1): the lengths in a pack are less alike"),
        (
            [4, 4, 2, 2, 2, 2, 4, 4],
            "0.00 times as much as two drawn at random (1.1): the lengths in a pack are more alike",
        ),
        ([4, 4], "All sequences that share a pack have the same length."),
        ([8, 8], "No two sequences share a pack."),
        (
            [4] * 400 + [3, 3, 4, 5],
            "differ by 0.0149 tokens on average, about as much as two drawn at random (0.0148).",
        ),
    ],
)
def test_how_alike(lengths, said):
    assert said in alike(Composition(nopad.plan(lengths, 8)))


def test_a_small_ratio_is_not_called_0():
    many = Composition(nopad.plan([500, 500] * 400 + [1, 1] * 400 + [3, 2], 1000, depth=2))
    assert 0 < many.likeness < 0.005
    assert "tokens on average, under 0.01 times as much as two drawn at random" in alike(many)


def test_a_number_that_is_rounded_up_to_a_unit_gets_it():
    numbers = (999_499, 999_500, 999_499_999, 999_500_000, 999_999_999, 999_999_999_999)
    assert [big(n) for n in numbers] == [
        *("999 thousand", "1.00 million", "999 million", "1.00 billion", "1.00 billion", "1.00 trillion")
    ]


def test_numbers():
    assert [big(n) for n in (99_999, 999_499, 999_500, 2_500_000_000, 3 * 10**15)] == [
        "99,999",
        "999 thousand",
        "1.00 million",
        "2.50 billion",
        "3,000 trillion",
    ]
    assert [quantity(n) for n in (0, 1e-6, 0.5, 999.6)] == ["0", "under 0.0001", "0.5", "1,000"]
    assert [times(n, 10) for n in (10, 25, 1000)] == ["1×", "2.50×", "100.0×"]
    assert median_of(nopad.Histogram.from_lengths([1, 2, 3, 50])) == 2
