"""`nopad train --resume` with more epochs or steps: the run that was so long from the beginning, or what differs."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
import transformers
from tests.tasks.tiny import SIZES, tokenizer, words

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIG = """
model = {{ name = "{folder}/model" }}
data = {{ train = "{folder}/train.jsonl" }}
task = {{ name = "classify", labels = ["no", "yes"] }}
packing = {{ capacity = 64, rows = 2 }}
[trainer]
learning_rate = 1e-3
lr_scheduler_type = "{schedule}"
warmup_steps = 2
num_train_epochs = 2
logging_steps = 1
save_strategy = "epoch"
use_cpu = true
[output]
folder = "{out}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT with dropout, and 30 records."""
    folder = tmp_path_factory.mktemp("longer")
    torch.manual_seed(0)
    sizes = {**SIZES, "num_hidden_layers": 1}
    transformers.BertForMaskedLM(transformers.BertConfig(**sizes, max_position_embeddings=64)).save_pretrained(
        folder / "model"
    )
    tokenizer().save_pretrained(folder / "model")
    generator = torch.Generator().manual_seed(0)
    records = [{"text": words(generator, 3 + n % 20), "label": ("no", "yes")[n % 2]} for n in range(30)]
    (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture
def run(call, folder, tmp_path):
    """Train with a schedule, in a folder of this name below the test's own."""

    def run(name, schedule, *more, code=0, counted=""):
        path = tmp_path / f"{name}.toml"
        text = CONFIG.format(folder=folder, schedule=schedule, out=tmp_path / name)
        if counted:  # in place of transformers' own
            text = text.replace('lr_scheduler_type = ""\n', "").replace("warmup_steps = 2\n", "") + counted
        path.write_text(text)
        ran = call("train", path, *more)
        assert ran.code == code, ran.error()
        return ran

    return run


def rates(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["learning_rate"]) for line in lines if "learning_rate" in line]


def epochs(number):
    return ("--set", f"trainer.num_train_epochs={number}")


def test_with_a_constant_rate_it_is_the_run_that_was_so_long_from_the_beginning(run, tmp_path):
    run("whole", "constant_with_warmup", *epochs(4))
    run("parts", "constant_with_warmup")
    said = run("parts", "constant_with_warmup", "--resume", *epochs(4))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    steps = rates(whole)[-1][0]
    assert f"longer   {steps} steps in place of {steps // 2}; the learning rate (constant_with_warmup) of each" in said
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()
    assert rates(whole) == rates(parts)
    assert json.loads((parts / "nopad_run.json").read_text())["finished"] == steps
    assert "num_train_epochs = 4.0" in (parts / "nopad_train.toml").read_text()
    assert "is over" in run("parts", "constant_with_warmup", "--resume", *epochs(4))
    ran = run("parts", "constant_with_warmup", "--resume", code=2)  # two epochs again
    assert "trainer.num_train_epochs is 2.0 and was 4.0 (a run may get longer, not shorter)" in ran.error()


def test_of_a_schedule_that_ends_the_new_rates_are_said_and_used(run, tmp_path):
    run("whole", "linear", *epochs(4))
    run("parts", "linear")
    half = rates(tmp_path / "parts")[-1][0]
    said = run("parts", "linear", "--resume", *epochs(4))
    whole, parts = dict(rates(tmp_path / "whole")), dict(rates(tmp_path / "parts"))
    assert whole.keys() == parts.keys()
    assert all(whole[step] == parts[step] for step in whole if step > half)  # as if it had always been so long
    assert whole[half] != parts[half]
    assert f"of step {half + 1} is {whole[half + 1]:g}, where the shorter run had 0," in said
    assert f"that of the last step is {whole[2 * half]:g}" in said


def test_a_schedule_that_counts_sequences_follows_the_new_length_from_the_first_step_on(run, tmp_path):
    counted = '[schedule]\ncounts = "sequences"\nwarmup = 0.25\n'
    run("whole", "", *epochs(4), counted=counted)
    run("parts", "", counted=counted)
    half = rates(tmp_path / "parts")[-1][0]
    said = run("parts", "", "--resume", *epochs(4), counted=counted)
    whole, parts = dict(rates(tmp_path / "whole")), dict(rates(tmp_path / "parts"))
    assert whole.keys() == parts.keys()
    assert all(whole[step] == parts[step] for step in whole if step > half)
    assert whole[half] != parts[half]
    assert f"(counts sequences) of step {half + 1} is {whole[half + 1]:g}, where the shorter run had 0, and it" in said
    assert "falls to 0 at 120 sequences" in said


def test_a_schedule_of_its_own_length_stays_and_that_is_said(run, tmp_path):
    counted = '[schedule]\ncounts = "sequences"\ntotal = 45\nend = 0.125\n'
    run("parts", "", counted=counted)
    said = run("parts", "", "--resume", *epochs(3), counted=counted)
    assert "(counts sequences) stays as it was, 0.000125 in the next step, since the schedule ended at 45" in said
    assert rates(tmp_path / "parts")[-1][1] == 0.125e-3


def test_steps_may_be_raised_too_and_nothing_else_may_change(run, tmp_path):
    steps = ("--set", "trainer.save_strategy=no", "--set", "trainer.max_steps=3")
    run("a", "linear", *steps)
    ran = run("a", "linear", "--resume", *steps[:-1], "trainer.max_steps=5", code=2)
    assert "is over, and left no checkpoint from which it could get longer" in ran.error()
    shutil.rmtree(tmp_path / "a")
    steps = ("--set", "trainer.save_strategy=steps", "--set", "trainer.save_steps=2", *steps[2:])
    run("a", "constant", *steps)
    ran = run("a", "constant", "--resume", *steps[:-2], code=2)
    assert "trainer.num_train_epochs is 2.0 and the length was trainer.max_steps 3" in ran.error()
    more = (*steps[:-1], "trainer.max_steps=7")
    ran = run("a", "constant", "--resume", *more, "--set", "trainer.learning_rate=1", code=2)
    assert "trainer.learning_rate is 1.0 and was 0.001" in ran.error()
    assert "max_steps" not in ran.error()
    assert "longer   7 steps in place of 3" in run("a", "constant", "--resume", *more)
    assert json.loads((tmp_path / "a" / "nopad_run.json").read_text())["finished"] == 7
