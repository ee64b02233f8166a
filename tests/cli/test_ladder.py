from __future__ import annotations

import json

import numpy as np
import pytest

import nopad
from nopad import SeveralPlan


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([5, 3, 9, 12, 4, 4, 16, 2], dtype=np.int32))
    return path


def test_a_table(call, lengths):
    shown = call("plan", lengths, "--ladder", "8:1,16:1.9")
    plan = nopad.plan_several(np.load(lengths), [8, 16], [1, 1.9])
    assert shown.code == 0
    assert shown.rstrip("\n") == str(plan)


def test_json_and_a_file(call, lengths, tmp_path):
    path = tmp_path / "ladder.plan.json"
    shown = json.loads(
        call("plan", lengths, "--ladder", "8,16", "--depth", "3", "-O", "effort=1", "--json", "-o", path)
    )
    plan = nopad.plan_several(np.load(lengths), [8, 16], depth=3)
    assert shown == json.loads(json.dumps(plan.summary() | {"notes": []}))
    assert SeveralPlan.load(path) == plan
    proven = call("verify", path)
    assert proven.code == 0
    assert "of 2 capacities for 8 sequences, within every limit, at a price of" in " ".join(proven.split())


def test_a_false_bound_is_found(call, lengths, tmp_path):
    path = tmp_path / "ladder.plan.json"
    nopad.plan_several(np.load(lengths), [8, 16]).save(path)
    document = json.loads(path.read_text())
    document["lower_bound"]["price"] += 1
    path.write_text(json.dumps(document))
    proven = call("verify", path)
    assert proven.code == 1
    assert "can be proven" in proven


def test_a_histogram_and_an_over_long_length(call, tmp_path):
    path = tmp_path / "h.json"
    path.write_text('{"5": 3, "20": 2}')
    assert call("plan", path, "--ladder", "8:1,32:3").code == 0
    refused = call("plan", path, "--ladder", "8:1,16:3")
    assert refused.code == 2
    assert "2 sequences fit into no capacity" in refused.error()


@pytest.mark.parametrize("order", ["C", "F"])
def test_two_kinds_of_size(call, tmp_path, order):
    sizes = np.array([[5, 1], [9, 0], [3, 2], [12, 3], [4, 4]], dtype=np.int32, order=order)
    path = tmp_path / "sizes.npy"
    np.save(path, sizes)
    shown = call("plan", path, "--ladder", "8x4:1,16x4:1.9")
    plan = nopad.plan_several(sizes, [(8, 4), (16, 4)], [1, 1.9])
    assert shown.code == 0
    assert shown.rstrip("\n") == str(plan)
    assert "16 x 4" in shown
    for arguments, message in (
        (["--ladder", "8x4,16x4"], "several capacities of two kinds need prices"),
        (["--ladder", "8x4x2:1"], "capacities are integers, or pairs of integers"),
        (["--ladder", "16:1"], "lengths are one-dimensional"),
        (["--ladder", "16x4:1", "-d", "2"], "a depth is only for one kind of size"),
        (["--ladder", "16x4:1", "--validation", "10%"], "--validation holds out records"),
        (["--ladder", "16x4:1", "--over-long", "split"], "--over-long is for corpora"),
    ):
        refused = call("plan", path, *arguments)
        assert refused.code == 2
        assert message in refused.error()


def test_two_kinds_need_two_columns(call, lengths, tmp_path):
    np.save(tmp_path / "none.npy", np.zeros((0, 2), dtype=np.int32))
    for path, message in (
        (lengths, "holds an array of shape (8,); for two kinds of size it is (n, 2)"),
        (tmp_path / "none.npy", "holds no sequences"),
        (tmp_path / "missing.npy", "missing.npy"),
        (tmp_path / "h.json", "two kinds of size are read from .npy files of integers [n, 2], not from"),
    ):
        refused = call("plan", path, "--ladder", "16x4:1")
        assert refused.code == 2
        assert message in refused.error()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ladder", "8:1,16"], "--ladder needs a price for every capacity, or for none, got '8:1,16'"),
        (["--ladder", "8:1,x:2"], "or 2048x16:1,8192x32:4.3, got '8:1,x:2'"),
        (["--ladder", "8:1,16:"], "or 2048x16:1,8192x32:4.3, got '8:1,16:'"),
        (["--ladder", "8:1,8:2"], "the capacity 8 is given twice; give each once, with its price"),
        (["--ladder", "8:1,16:-2"], "a price must be a positive number, got -2.0"),
        (["--ladder", "8:1,16:nan"], "a price must be a positive number, got nan"),
        (["--ladder", "8", "-c", "8"], "leave out --capacity"),
        (["--ladder", "8", "-a", "auto"], "leave out --algorithm"),
        (["--ladder", "8", "-d", "2", "-d", "3"], "--ladder makes one plan; give one --depth, not 2"),
        (["--ladder", "8", "--even"], "--ladder has no option 'even' (it has: effort)"),
        (["--ladder", "8", "-O", "effort=x"], "effort must be an integer from 0"),
    ],
)
def test_what_is_refused(call, lengths, arguments, message):
    refused = call("plan", lengths, *arguments)
    assert refused.code == 2
    assert message in refused.error()
