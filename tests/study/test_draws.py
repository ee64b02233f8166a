from __future__ import annotations

import numpy as np
import pytest

from nopad import random
from nopad.study.draws import normal, uniform


@pytest.mark.parametrize("bits", [0, 1, 2**63, 2**64 - 2**11 - 1, 2**64 - 2**11, 2**64 - 1])
def test_both_ends_are_excluded(monkeypatch, bits):
    monkeypatch.setattr(random, "keys", lambda *parts: np.array([bits], np.uint64))
    (drawn,) = uniform(1)
    assert 0 < drawn < 1
    assert abs(drawn - bits / 2**64) < 2**-52
    assert np.isfinite(normal(1)).all()
