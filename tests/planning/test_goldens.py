"""Numbers that must never move: the published tables, and made-up histograms that need no file."""

from __future__ import annotations

import numpy as np
import pytest

from nopad import Histogram, plan, random

# depth: strategies, packs, padding tokens, deepest pack.
# Wikipedia: arXiv 2107.02027, SPFHP its table 1, LPFHP table 5 of the supplement. SQuAD: SPFHP published; LPFHP from
# running the published code (its 429 strategies at depth 2: this code).
PUBLISHED = {
    ("wikipedia", 512, "spfhp"): {
        1: (508, 16_279_552, 4_170_334_451, 1),
        2: (508, 10_101_683, 1_007_265_523, 2),
        3: (508, 9_094_695, 491_687_667, 3),
        4: (508, 8_658_996, 268_609_779, 4),
        8: (508, 8_224_673, 46_236_403, 8),
        12: (508, 8_166_708, 16_558_323, 12),
        16: (508, 8_166_708, 16_558_323, 16),
        None: (508, 8_166_708, 16_558_323, 16),
    },
    ("wikipedia", 512, "lpfhp"): {
        1: (508, 16_279_552, 4_170_334_451, 1),
        2: (634, 10_099_081, 1_005_933_299, 2),
        3: (648, 9_090_154, 489_362_675, 3),
        4: (671, 8_657_119, 267_648_755, 4),
        8: (670, 8_207_569, 37_479_155, 8),
        12: (672, 8_149_619, 7_808_755, 12),
        16: (670, 8_140_006, 2_886_899, 16),
        None: (670, 8_138_483, 2_107_123, 29),
    },
    ("squad", 384, "spfhp"): {
        1: (348, 88_641, 18_788_665, 1),
        2: (348, 45_335, 2_159_161, 2),
    }
    | dict.fromkeys([3, 4, 8, 12, 16, None], (344, 40_711, 383_545, 3)),
    ("squad", 384, "lpfhp"): {
        1: (348, 88_641, 18_788_665, 1),
        2: (429, 45_335, 2_159_161, 2),
        3: (395, 40_631, 352_825, 3),
    }
    | dict.fromkeys([4, 8, 12, 16, None], (395, 40_631, 352_825, 4)),
}

SYNTHETIC = {
    (32, 1, "ffd"): {2: (24, 71, 799, 2), 3: (24, 56, 319, 3), 5: (22, 50, 127, 5), None: (19, 47, 31, 18)},
    (32, 1, "greedy"): {2: (58, 74, 895, 2), 3: (53, 59, 415, 3), 5: (47, 55, 287, 5), None: (47, 55, 287, 5)},
    (32, 1, "lpfhp"): {2: (24, 71, 799, 2), 3: (24, 56, 319, 3), 5: (22, 50, 127, 5), None: (19, 47, 31, 18)},
    (32, 1, "spfhp"): {2: (17, 72, 831, 2), 3: (18, 59, 415, 3), 5: (17, 48, 63, 5), None: (16, 48, 63, 8)},
    (64, 2, "ffd"): {2: (50, 144, 3305, 2), 3: (51, 114, 1385, 3), 5: (44, 98, 361, 5), None: (39, 93, 41, 12)},
    (64, 2, "greedy"): {2: (131, 154, 3945, 2), 3: (112, 121, 1833, 3), None: (108, 118, 1641, 6)},
    (64, 2, "lpfhp"): {2: (50, 144, 3305, 2), 3: (51, 114, 1385, 3), 5: (46, 98, 361, 5), None: (41, 93, 41, 12)},
    (64, 2, "spfhp"): {2: (38, 145, 3369, 2), 3: (36, 115, 1449, 3), 5: (37, 105, 809, 5), None: (34, 95, 169, 8)},
}


def cells(tables):
    return [(*table, depth, row) for table, rows in tables.items() for depth, row in rows.items()]


def numbers(made):
    return made.counts.size, made.packs, made.padding_tokens, made.max_depth_used


@pytest.mark.shared
@pytest.mark.parametrize(("name", "capacity", "algorithm", "depth", "expected"), cells(PUBLISHED))
def test_published(request, name, capacity, algorithm, depth, expected):
    histogram = request.getfixturevalue(name)
    made = plan(histogram, capacity, depth=depth, algorithm=algorithm)
    assert numbers(made) == expected
    assert made.histogram == histogram


@pytest.mark.shared
def test_the_published_histograms(wikipedia, squad):
    assert (wikipedia.sequences, wikipedia.tokens, wikipedia.lengths.size) == (16_279_552, 4_164_796_173, 508)
    assert (squad.sequences, squad.tokens, squad.lengths.size) == (88_641, 15_249_479, 348)
    assert plan(wikipedia, 512).limit == pytest.approx(2.00133, abs=5e-6)
    assert plan(squad, 384).limit == pytest.approx(2.23209, abs=5e-6)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("depth", "efficiency", "factor"), [(3, "89.485%", "1.791"), (8, "99.108%", "1.983"), (None, "99.949%", "2.000")]
)
def test_published_ratios(wikipedia, depth, efficiency, factor):
    made = plan(wikipedia, 512, depth=depth, algorithm="lpfhp")
    assert (f"{made.efficiency:.3%}", f"{made.packing_factor:.3f}") == (efficiency, factor)


@pytest.mark.shared
def test_ffd_needs_the_packs_of_lpfhp(wikipedia, squad):
    for histogram, capacity in ((wikipedia, 512), (squad, 384)):
        for depth in (3, None):
            made, tight = (plan(histogram, capacity, depth=depth, algorithm=name) for name in ("ffd", "lpfhp"))
            assert made.packs == tight.packs
            assert made.histogram == histogram


@pytest.mark.parametrize(("capacity", "seed", "algorithm", "depth", "expected"), cells(SYNTHETIC))
def test_synthetic(one_by_one, capacity, seed, algorithm, depth, expected):
    histogram = Histogram.from_counts({n: (n * n * (seed + 3) + 7 * seed) % 13 for n in range(1, capacity * 2 // 3)})
    made = plan(histogram, capacity, depth=depth, algorithm=algorithm)
    assert numbers(made) == expected

    drawn = np.repeat(histogram.lengths, histogram.counts).tolist()  # only greedy sees this order
    random.shuffle(drawn, random.key(0, random.STREAM_ARRIVAL))
    slowly = one_by_one(algorithm, drawn, capacity, depth)
    assert {lengths: count for count, lengths in made.strategies} == slowly


@pytest.mark.slow
@pytest.mark.shared
def test_greedy_on_wikipedia(wikipedia):
    made = plan(wikipedia, 512, algorithm="greedy")
    assert 0.777 <= made.efficiency <= 0.783
    assert made.packing_factor == pytest.approx(1.6, abs=0.05)
    assert made.histogram == wikipedia
