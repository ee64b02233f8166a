"""Each script in examples/ runs as its first line says, and prints what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(*words):
    command = [sys.executable, "-W", "ignore", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_examples_are_short_and_all_here():
    assert [path.name for path in EXAMPLES] == ["balance.py", "stream.py", "training.py"]
    for path in EXAMPLES:
        lines = path.read_text().splitlines()
        assert len(lines) <= 30
        assert f" examples/{path.name}`: " in lines[0]


def test_balance():
    found = {
        line.split()[0]: [float(one) for one in re.findall(r"([\d.]+)%", line)] for line in run("examples/balance.py")
    }
    assert list(found) == ["none", "quantile_node", "karmarkar_karp", "sorted_windows"]
    assert all(floor <= waste + 0.01 for waste, floor in found.values())
    assert found["none"][0] > 20
    assert found["none"][0] > found["quantile_node"][0] > found["sorted_windows"][0]
    assert found["karmarkar_karp"][0] < 1


@pytest.mark.slow
def test_stream():
    pytest.importorskip("torch")
    lines = run("examples/stream.py")
    assert "a stream in packs of at most 64 tokens" in lines[0]
    assert "12 steps seen" in lines[0]
    assert lines[1] == "5 and 7 batches are equal to 12 of one run: True"


@pytest.mark.slow
def test_training_on_two_ranks():
    pytest.importorskip("transformers")
    lines = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "examples/training.py")
    found = [re.fullmatch(r"epoch (\d): loss ([\d.]+), (\d+) sequences in (\d+) steps", line) for line in lines]
    assert [int(one[1]) for one in found] == [0, 1, 2]
    assert [int(one[3]) for one in found] == [201, 402, 603]
    steps = [int(one[4]) for one in found]
    assert steps == [steps[0], 2 * steps[0], 3 * steps[0]]
    assert float(found[-1][2]) < float(found[0][2]) / 4
