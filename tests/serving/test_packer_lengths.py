"""Every call of a packer that takes lengths has the same limits for them."""

from __future__ import annotations

import pytest

from nopad.errors import LengthError
from nopad.serving import Batching, OnlinePacker

HUGE = pytest.param(10**5000, id="huge")


@pytest.mark.parametrize("call", ["ahead", "add_all"])
@pytest.mark.parametrize("batching", [Batching(capacity=10, rows=1), Batching(capacity=10, max_waiting_tokens=10)])
@pytest.mark.parametrize("length", [0, -1, True, 2.0, 11, 2**31, 2**62 - 1, 2**62, 2**63, HUGE])
def test_a_length_is_refused_as_by_add(call, batching, length):
    packer = OnlinePacker(batching)
    with pytest.raises(LengthError) as alone:
        packer.add(length, 0)
    with pytest.raises(LengthError) as found:
        getattr(packer, call)([5, length], 20)
    assert str(found.value) == str(alone.value)
    assert packer.statistics.arrived == 0


@pytest.mark.parametrize("batching", [Batching(capacity=10, rows=1), Batching(capacity=10, max_waiting_tokens=2**60)])
def test_the_longest_is_taken(batching):
    packer = OnlinePacker(batching)
    assert packer.ahead([batching.longest], 20) == (1, batching.longest)
    assert packer.add_all([batching.longest], 0) == range(1)
