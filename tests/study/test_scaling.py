from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats

from nopad import Histogram
from nopad.study.scaling import (
    ALPHA_8,
    BETA_8,
    DEVICES,
    PACKING,
    PRINTED,
    ScalingRow,
    crossing,
    of_one_device,
    scaling,
    speed_up_by_time,
    speed_up_of_minimum,
)


def test_one_device_satisfies_the_equations_and_the_printed_constants_do_not():
    median, mode = ALPHA_8 - BETA_8 * math.log(math.log(2)), ALPHA_8
    ours = stats.gumbel_r(*of_one_device())
    assert ours.sf(median) ** 8 == pytest.approx(0.5, abs=1e-12)
    assert ours.sf(mode) ** 8 == pytest.approx(1 - math.exp(-1), abs=1e-12)
    printed = stats.gumbel_r(*PRINTED)
    assert printed.sf(median) ** 8 > 0.999


@pytest.mark.parametrize(
    ("devices", "printed", "corrected", "by_time"),
    [(1, 2.002, 2.124, 1.954), (8, 1.843, 1.654, 1.663), (64, 1.776, 1.457, 1.448), (1024, 1.724, 1.304, 1.235)],
)
def test_the_estimates(devices, printed, corrected, by_time):
    assert speed_up_of_minimum(*PRINTED, devices) == pytest.approx(printed, abs=1.5e-3)
    assert speed_up_of_minimum(*of_one_device(), devices) == pytest.approx(corrected, abs=1.5e-3)
    assert speed_up_by_time(devices) == pytest.approx(by_time, abs=1.5e-3)


def test_the_expected_minimum_is_that_of_samples():
    drawn = stats.gumbel_r(1.9, 0.3).rvs((20_000, 16), random_state=0).min(axis=1)
    assert speed_up_of_minimum(1.9, 0.3, 16) == pytest.approx(drawn.mean(), abs=4 * drawn.std() / 141)


def test_rows_of_a_histogram():
    rows = scaling(Histogram.from_counts(dict.fromkeys(range(1, 65), 600)), [1, 8, 64, 4096])
    assert [row.devices for row in rows] == [1, 8, 64, 4096]
    assert rows[0].simulated > rows[1].simulated > rows[2].simulated
    assert rows[3].simulated is rows[3].balanced is None  # 38,400 sequences are no step of 4,096 times 32
    for row in rows[1:3]:
        assert row.balanced > row.simulated
    assert rows[2].balanced == pytest.approx(64 / 32.5, abs=0.02)  # as if there were no slowest
    assert rows[0].packing == pytest.approx(64 / 32.5, rel=0.01)
    assert set(asdict(rows[0])) == {"devices", "printed", "corrected", "by_time", "simulated", "balanced", "packing"}


def row(devices, value):
    return ScalingRow(devices=devices, printed=value, corrected=0, by_time=0, simulated=None, balanced=None, packing=2)


def test_where_a_curve_crosses():
    falling = [row(1, 2.0), row(4, 1.8), row(16, 1.6)]
    assert crossing(falling, "printed", 1.9) == pytest.approx(2)
    assert crossing(falling, "printed", 1.7) == pytest.approx(8)
    assert crossing(falling, "printed", 1.5) is None
    assert crossing(falling, "printed", 2.5) == 1
    assert crossing(falling, "simulated", 2.5) is None
    assert crossing([], "printed", 1) is None


@pytest.mark.shared
@pytest.mark.slow
def test_wikipedia(wikipedia):
    rows = {row.devices: row for row in scaling(wikipedia)}
    assert tuple(rows) == DEVICES
    for devices, simulated in {1: 2.036, 8: 1.699, 64: 1.544, 1024: 1.416}.items():
        assert rows[devices].simulated == pytest.approx(simulated, abs=0.01)
    assert rows[1024].balanced == pytest.approx(2.0, abs=0.01)
    assert np.ptp([row.packing for row in rows.values()]) == 0
    assert crossing(list(rows.values()), "printed", PACKING) == pytest.approx(2.4, abs=0.1)
    assert crossing(list(rows.values()), "corrected", PACKING) == pytest.approx(1.9, abs=0.1)
