from __future__ import annotations

import numpy as np
import pytest

from nopad.balance import Shape
from nopad.errors import OptionError


def test_what_a_step_takes():
    shape = Shape(world_size=12, node_size=4, accumulation=3, per_rank=5)
    assert (shape.nodes, shape.per_rank_step, shape.per_step) == (3, 15, 180)


def test_numbers_of_numpy_become_pythons():
    shape = Shape(np.int64(4), np.int32(2), 1, 1)
    assert shape == Shape(4, 2, 1, 1)
    assert type(shape.world_size) is int


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((8, 3, 1, 1), "world_size 8 is not divisible by node_size 3; give the number of ranks on each node"),
        ((4, 8, 1, 1), "world_size 4 is not divisible by node_size 8"),
        ((0, 1, 1, 1), "world_size must be an integer from 1 to 2147483647, got 0"),
        ((4, 2, 0, 1), "accumulation must be an integer from 1"),
        ((4, 2, 1, True), "per_rank must be an integer from 1"),
        ((4, 2, 1, 1.0), "per_rank must be an integer from 1"),
    ],
)
def test_sizes_that_cannot_be(sizes, message):
    with pytest.raises(OptionError, match=message):
        Shape(*sizes)
