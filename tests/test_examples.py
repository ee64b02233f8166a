"""Each script in examples/ runs as its first line says, and prints what it promises."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


LONGER = {"lightning_module.py": 64, "own_loop.py": 40}  # than 30 lines
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def run(*words, cwd=ROOT):
    command = [sys.executable, "-W", "ignore", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def metrics(lines):
    """The dicts that a script prints."""
    return [ast.literal_eval(line) for line in lines if line.startswith("{")]


def test_the_examples_are_short_and_all_here():
    names = [
        "balance",
        "classify_pairs",
        "lightning_module",
        "own_loop",
        "peft_lora",
        "sft_chats",
        "stream",
        "training",
    ]
    assert [path.name for path in EXAMPLES] == [f"{name}.py" for name in names]
    for path in EXAMPLES:
        lines = path.read_text().splitlines()
        assert len(lines) <= LONGER.get(path.name, 30)
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
    lines = run(*RANKS, "2", "examples/training.py")
    found = [re.fullmatch(r"epoch (\d): loss ([\d.]+), (\d+) sequences in (\d+) steps", line) for line in lines]
    assert [int(one[1]) for one in found] == [0, 1, 2]
    assert [int(one[3]) for one in found] == [201, 402, 603]
    steps = [int(one[4]) for one in found]
    assert steps == [steps[0], 2 * steps[0], 3 * steps[0]]
    assert float(found[-1][2]) < float(found[0][2]) / 4


@pytest.mark.slow
def test_sft_on_chats_in_fifteen_lines(tmp_path):
    pytest.importorskip("trl")
    source = (ROOT / "examples" / "sft_chats.py").read_text()
    assert sum(bool(line) for line in source.splitlines()[1:]) <= 15
    lines = run(ROOT / "examples" / "sft_chats.py", cwd=tmp_path)
    assert "rate     0.01 stays as it is" in "\n".join(lines)
    [*_, found] = metrics(lines)
    assert found["eval_perplexity"] < 200  # of 30,522 tokens; without training about as many


@pytest.mark.slow
def test_pairs_are_classified(tmp_path):
    pytest.importorskip("accelerate")
    *_, found, predicted = metrics(run(ROOT / "examples" / "classify_pairs.py", cwd=tmp_path))
    assert found["eval_accuracy"] > 0.9
    assert predicted["label"] == "yes"


@pytest.mark.slow
def test_lora_is_trained_and_saved(tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("peft")
    lines = run(ROOT / "examples" / "peft_lora.py", cwd=tmp_path)
    *_, found, predicted = metrics(lines)
    assert found["eval_accuracy"] > 0.9
    assert predicted["label"] == "colour"
    trained, every = re.search(r"trainable params: ([\d,]+) \|\| all params: ([\d,]+)", "\n".join(lines)).groups()
    assert int(trained.replace(",", "")) < int(every.replace(",", "")) / 100
    [saved] = (tmp_path / "runs" / "lora").glob("*.safetensors")
    assert saved.stat().st_size < 2e6


@pytest.mark.slow
def test_own_loop_and_lightning_learn_the_same_on_one_rank_and_two():
    pytest.importorskip("transformers")
    pytest.importorskip("lightning", reason="Lightning is not installed")
    losses = []
    for script, ranks in (("own_loop", "1"), ("own_loop", "2"), ("lightning_module", "2")):
        last = run(*RANKS, ranks, f"examples/{script}.py")[-1]
        loss, sequences = re.search(r"last loss ([\d.]+), (\d+) sequences$", last).groups()
        assert sequences == "1200"
        losses.append(float(loss))
    assert losses == pytest.approx([losses[0]] * 3, abs=2e-6)
    assert losses[0] < 0.2
