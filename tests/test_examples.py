"""Each script in examples/ runs as its first line says, and prints what it promises."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


LONGER = {"lightning_module.py": 64, "own_loop.py": 40}  # than 30 lines
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def on_ranks(*words, cwd=ROOT):
    """Run in processes of their own, and return the lines of stdout."""
    command = [sys.executable, "-W", "ignore", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that runs a script in this process, in an empty folder: what it imports is here already."""

    def run(name):
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


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


def test_balance(run):
    found = {line.split()[0]: [float(one) for one in re.findall(r"([\d.]+)%", line)] for line in run("balance")}
    assert list(found) == ["none", "quantile_node", "karmarkar_karp", "sorted_windows"]
    assert all(floor <= waste + 0.01 for waste, floor in found.values())
    assert found["none"][0] > 20
    assert found["none"][0] > found["quantile_node"][0] > found["sorted_windows"][0]
    assert found["karmarkar_karp"][0] < 1


@pytest.mark.slow
def test_stream(run):
    pytest.importorskip("torch")
    lines = run("stream")
    assert "a stream in packs of at most 64 tokens" in lines[0]
    assert "12 steps seen" in lines[0]
    assert lines[1] == "5 and 7 batches are equal to 12 of one run: True"


@pytest.mark.slow
def test_training_on_two_ranks():
    pytest.importorskip("transformers")
    lines = on_ranks(*RANKS, "2", "examples/training.py")
    found = [re.fullmatch(r"epoch (\d): loss ([\d.]+), (\d+) sequences in (\d+) steps", line) for line in lines]
    assert [int(one[1]) for one in found] == [0, 1, 2]
    assert [int(one[3]) for one in found] == [201, 402, 603]
    steps = [int(one[4]) for one in found]
    assert steps == [steps[0], 2 * steps[0], 3 * steps[0]]
    assert float(found[-1][2]) < float(found[0][2]) / 4


@pytest.mark.slow
def test_sft_on_chats_in_fifteen_lines(run):
    pytest.importorskip("trl")
    source = (ROOT / "examples" / "sft_chats.py").read_text()
    assert sum(bool(line) for line in source.splitlines()[1:]) <= 15
    lines = run("sft_chats")
    assert "rate     0.01 stays as it is" in "\n".join(lines)
    [*_, found] = metrics(lines)
    assert found["eval_perplexity"] < 200  # of 30,522 tokens; without training about as many


@pytest.mark.slow
def test_pairs_are_classified(run):
    pytest.importorskip("accelerate")
    *_, found, predicted = metrics(run("classify_pairs"))
    assert found["eval_accuracy"] > 0.9
    assert predicted["label"] == "yes"


@pytest.mark.slow
def test_lora_is_trained_and_saved(run, tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("peft")
    lines = run("peft_lora")
    *_, found, predicted = metrics(lines)
    assert found["eval_accuracy"] > 0.9
    assert predicted["label"] == "colour"
    trained, every = re.search(r"trainable params: ([\d,]+) \|\| all params: ([\d,]+)", "\n".join(lines)).groups()
    assert int(trained.replace(",", "")) < int(every.replace(",", "")) / 100
    [saved] = (tmp_path / "runs" / "lora").glob("*.safetensors")
    assert saved.stat().st_size < 2e6


@pytest.mark.slow
def test_own_loop_and_lightning_learn_the_same_on_one_rank_and_two(run, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("lightning", reason="Lightning is not installed")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    losses, lasts = [], [run("own_loop")[-1]]
    lasts += [on_ranks(*RANKS, "2", f"examples/{script}.py")[-1] for script in ("own_loop", "lightning_module")]
    for last in lasts:
        loss, sequences = re.search(r"last loss ([\d.]+), (\d+) sequences$", last).groups()
        assert sequences == "1200"
        losses.append(float(loss))
    assert losses == pytest.approx([losses[0]] * 3, abs=2e-6)
    assert losses[0] < 0.2
