"""What a resumed run of DPO reads: only a whole file of the same data."""

from __future__ import annotations

import numpy as np
import pytest

from nopad.training.reference import _read

VALUES = {"train": np.array([-3.5, -1.25, -9.0]), "eval": np.array([-0.5])}
SIZES = {"train": 3, "eval": 1}


@pytest.fixture
def path(tmp_path):
    np.savez(tmp_path / "reference.npz", **VALUES)
    return tmp_path / "reference.npz"


def test_a_whole_file_is_read(path):
    found = _read(path, SIZES)
    assert {name: values.tolist() for name, values in found.items()} == {"train": [-3.5, -1.25, -9.0], "eval": [-0.5]}


@pytest.mark.parametrize("sizes", [{"train": 3}, {"train": 4, "eval": 1}, {"train": 3, "validation": 1}])
def test_other_data_are_computed_anew(path, sizes):
    assert _read(path, sizes) is None


def test_a_damaged_or_missing_file_is_computed_anew(path):
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        assert _read(path, SIZES) is None
    at = whole.index(VALUES["train"].tobytes())
    path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    assert _read(path, SIZES) is None
    path.unlink()
    assert _read(path, SIZES) is None


@pytest.mark.parametrize("odd", [np.float64(3), np.ones((3, 2)), np.ones(3, np.float32), np.array([1.0, np.nan, 2.0])])
def test_arrays_that_hold_no_log_probabilities_are_computed_anew(path, odd):
    np.savez(path, **VALUES | {"train": odd})
    assert _read(path, SIZES) is None
