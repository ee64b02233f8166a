"""`nopad train`: a run from its configuration to its folder, on tiny models; kills, resumes, ranks, what is wrong."""

from __future__ import annotations

import functools
import json
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.tasks.tiny import SIZES, tokenizer, words

from nopad.tasks.settings import stored_task
from nopad.training.progress import Metrics

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIG = """
[model]
name = "{folder}/model"
[data]
train = "{folder}/train.jsonl"
eval = "{folder}/eval.jsonl"
[task]
name = "classify"
labels = ["no", "yes"]
[packing]
capacity = 64
rows = 2
accumulation = 2
[trainer]
learning_rate = 1e-3
num_train_epochs = 2
logging_steps = 2
save_strategy = "steps"
save_steps = 3
eval_strategy = "steps"
eval_steps = 4
use_cpu = true
[output]
folder = "{folder}/out"
"""
MODULES = [
    f"transformers.models.{name}" for name in ("auto.modeling_auto", "auto.tokenization_auto", "bert.modeling_bert")
]
TIMES = ("sequences_per_second", "tokens_per_second", "eval_runtime")


def write_records(path: Path, count: int, seed: int = 0) -> list[dict]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 40, (count,), generator=generator).tolist()
    records = [{"text": words(generator, length), "label": ("no", "yes")[length % 2]} for length in lengths]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return records


@pytest.fixture(scope="session")
def given(tmp_path_factory):
    """A tiny BERT with dropout, its tokenizer, 120 records and 15 others."""
    folder = tmp_path_factory.mktemp("train")
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, max_position_embeddings=128))
    model.save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    write_records(folder / "train.jsonl", 120)
    write_records(folder / "eval.jsonl", 15, seed=1)
    return folder


@pytest.fixture
def config(given, tmp_path):
    """The configuration's file, with an output folder of its own."""
    path = tmp_path / "c.toml"
    path.write_text(CONFIG.format(folder=given).replace(f"{given}/out", f"{tmp_path}/out"))
    return path


@pytest.mark.parametrize("missing", ["torch", "transformers", "accelerate"])
def test_without_its_extra_it_says_so_before_anything_else(call, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    ran = call("train", tmp_path / "nothere.toml")
    assert (ran.code, ran) == (2, "")
    assert ran.error() == f"nopad train needs {missing}; in a clone: pip install -e '.[train]'"


def sets(**changes):
    """Arguments ``--set TABLE.FIELD=VALUE``, of names with two underscores for the dot."""
    return [one for name, value in changes.items() for one in ("--set", f"{name.replace('__', '.', 1)}={value}")]


def metrics(folder: Path) -> list[dict]:
    """The lines of the metrics, each a whole JSON object, without what depends on the clock."""
    text = (folder / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.splitlines()]
    return [{n: v for n, v in line.items() if n not in TIMES and not n.endswith("_per_second")} for line in lines]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="session")
def python(warm_python):
    """Start ``python ...`` with what training imports imported already."""
    return warm_python.load("nopad.cli.app", "nopad.training.run", "nopad.training.trainer", "datasets", *MODULES)


@pytest.fixture(scope="session")
def whole(given, python):
    """The folder of a run that nothing stopped."""
    path = given / "c.toml"
    path.write_text(CONFIG.format(folder=given))
    done = python("-m", "nopad", "train", path)
    out, err = done.communicate()
    assert (done.returncode, err) == (0, "")
    return given / "out", out


def test_what_a_run_leaves(whole, given):
    out, said = whole
    logged = metrics(out)
    last = max(line["step"] for line in logged)
    facts = json.loads((out / "nopad_run.json").read_text())
    assert {*facts.pop("data")} == {"data.train", "data.eval"}
    assert facts == {"per_step": "4 rows", "finished": last}
    losses = [line for line in logged if "loss" in line]
    # every second step, before a checkpoint (every third and the last), each once and in order
    assert [line["step"] for line in losses] == [n for n in range(1, last + 1) if n % 2 == 0 or n % 3 == 0 or n == last]
    assert losses[-1]["sequences_seen"] == 2 * 120
    assert losses[-1]["epoch"] == 2
    assert all(0 <= line["padding"] < 1 for line in losses)
    assert [line["step"] for line in logged if "eval_accuracy" in line][:2] == [4, 8]
    assert f"step {last:,}/{last:,}" in said
    assert "sequences/s" in said
    assert "% padding" in said
    assert said.splitlines()[-1] == f"saved    {out}"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert tomllib.loads((out / "nopad_train.toml").read_text())["trainer"]["learning_rate"] == 1e-3


def test_the_padding_that_is_logged_is_that_of_the_slots(whole):
    out, _ = whole
    losses = [line for line in metrics(out) if "loss" in line]
    for before, line in zip([{"step": 0, "tokens_seen": 0}, *losses], losses, strict=False):
        slots = (line["step"] - before["step"]) * 2 * 2 * 64
        assert line["padding"] == pytest.approx(1 - (line["tokens_seen"] - before["tokens_seen"]) / slots)


def test_its_task_is_known_from_its_folder(whole, call, tmp_path):
    """Predictions need no more than the folder; another task than the stored one takes none of its options."""
    out, _ = whole
    for folder in (out, out / "checkpoint-3"):
        name, options = stored_task(folder)
        assert (name, options["labels"]) == ("classify", ["no", "yes"])
    assert stored_task(out.parent / "model") is None
    lines = [json.dumps({options.get("text", "text"): text}) for text in ("is it ?", "yes yes")]
    (tmp_path / "new.jsonl").write_text("\n".join(lines))
    ran = call("predict", str(tmp_path / "new.jsonl"), "-o", str(tmp_path / "found"), "--model", str(out))
    assert (ran.code, ran.err) == (0, "")
    assert "2 records; 2 sequences" in ran
    ran = call("predict", str(tmp_path / "new.jsonl"), "-o", str(tmp_path / "b"), "--model", str(out.parent / "model"))
    assert ran.code == 2
    assert "does not say what it was trained for; give --task" in ran.error()


def test_a_dry_run_trains_nothing(call, config, given):
    ran = call("train", config, "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert "train    120 records: 120 sequences" in ran
    assert "one sequence per row would take 30 steps" in ran
    assert "memory   about " in ran
    assert not (config.parent / "out").exists()


def test_a_folder_that_holds_something_is_refused(call, config, whole, given, tmp_path):
    ran = call("train", given / "c.toml")
    assert ran.code == 2
    assert ran.error() == f"{whole[0]} holds a run already; give --resume to go on with it, or another output.folder"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    assert "is not empty, and what is in it is no run: mine.txt" in call("train", config).error()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["mine.txt"]


def test_a_run_that_is_over_is_left_as_it_is(call, whole, given):
    before = {path: path.stat().st_mtime_ns for path in whole[0].rglob("*") if path.name != ".lock"}
    ran = call("train", given / "c.toml", "--resume")
    assert (ran.code, ran.err) == (0, "")
    assert "is over, after" in ran
    assert before == {path: path.stat().st_mtime_ns for path in whole[0].rglob("*") if path.name != ".lock"}


def stopped(whole: Path, out: Path, step: int | None) -> None:
    """Make a copy of a run as a kill after a step would leave it: with what came later still there, in part."""
    shutil.copytree(whole, out)
    (out / "model.safetensors").unlink()
    facts = json.loads((out / "nopad_run.json").read_text())
    (out / "nopad_run.json").write_text(json.dumps({**facts, "finished": None}))
    text = (out / "nopad_train.toml").read_text()
    (out / "nopad_train.toml").write_text(text.replace(f'folder = "{whole}"', f'folder = "{out}"'))
    for path in out.glob("checkpoint-*"):
        number = int(path.name.removeprefix("checkpoint-"))
        if number == (step or 0) + 3:
            (path / "trainer_state.json").write_text('{"global_')  # being written
        elif number > (step or 0):
            shutil.rmtree(path)


@pytest.mark.parametrize("step", [2, 4])
def test_ctrl_c_says_how_the_run_goes_on(call, config, tmp_path, monkeypatch, step):
    def pressed(self, args, state, control, real=Metrics.on_step_end, **more):
        real(self, args, state, control, **more)
        if state.global_step == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(Metrics, "on_step_end", pressed)
    ran = call("train", config)
    assert ran.code == 130
    way, last = ran.err.replace("\n", " ").strip(), tmp_path / "out" / "checkpoint-3"
    if step == 4:
        assert way == f"nopad: --resume goes on from {last} nopad: interrupted"
    else:
        assert way.startswith("nopad: there is no checkpoint yet: --resume begins again (trainer.save_steps")


@pytest.mark.parametrize("step", [None, 6])
def test_a_run_goes_on_as_if_nothing_had_stopped_it(call, config, whole, tmp_path, step):
    out = tmp_path / "out"
    stopped(whole[0], out, step)
    with open(out / "metrics.jsonl", "a") as file:
        file.write('{"step": 999, "lo')  # torn
    ran = call("train", config, "--resume")
    assert (ran.code, ran.err) == (0, "")
    assert (f"from {out / 'checkpoint-6'}" if step else "from the beginning") in ran
    assert weights(out) == weights(whole[0])
    assert metrics(out) == metrics(whole[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer__learning_rate": "2e-3"}, "trainer.learning_rate is 0.002 and was 0.001"),
        ({"packing__capacity": "128"}, "packing.capacity is 128 and was 64"),
        ({"packing__rows": "4"}, "a step has 8 rows on all ranks and had 4 rows"),
        ({"task__labels": "['no', 'maybe']"}, "task.labels is ['no', 'maybe'] and was ['no', 'yes']"),
        ({"trainer__weight_decay": "0.1"}, "trainer.weight_decay is 0.1 and was not given"),
    ],
)
def test_another_configuration_does_not_go_on(call, config, whole, tmp_path, changes, message):
    stopped(whole[0], tmp_path / "out", 6)
    before = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    ran = call("train", config, "--resume", *sets(**changes))
    assert ran.code == 2
    assert message in ran.error()
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == before


def test_other_data_or_another_model_do_not_go_on(call, config, whole, tmp_path, given):
    stopped(whole[0], tmp_path / "out", 6)
    shutil.copytree(given / "model", tmp_path / "model")
    config.write_text(config.read_text().replace(f"{given}/model", f"{tmp_path}/model"))
    ran = call("train", config, "--resume")
    assert f"model.name is '{tmp_path}/model' and was '{given}/model'" in ran.error()
    text = (tmp_path / "out" / "nopad_train.toml").read_text()
    (tmp_path / "out" / "nopad_train.toml").write_text(text.replace(f"{given}/model", f"{tmp_path}/model"))
    facts = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**facts, "layer_norm_eps": 1e-5}))
    ran = call("train", config, "--resume")
    assert "is a checkpoint of another model: layer_norm_eps is 1e-12 there and 1e-05 here" in ran.error()
    (tmp_path / "model" / "config.json").write_text(json.dumps(facts))
    write_records(tmp_path / "train.jsonl", 119)
    config.write_text(config.read_text().replace(f"{given}/train", f"{tmp_path}/train"))
    text = (tmp_path / "out" / "nopad_train.toml").read_text()
    (tmp_path / "out" / "nopad_train.toml").write_text(text.replace(f"{given}/train", f"{tmp_path}/train"))
    ran = call("train", config, "--resume")
    assert ran.code == 2
    assert "data" in ran.error()
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("field", ["train", "eval"])
@pytest.mark.parametrize("step", [0, 6])
def test_data_that_changed_in_place_do_not_go_on(call, config, whole, tmp_path, given, field, step):
    """Also before the first checkpoint; and evaluation data, which would make metrics of two kinds in one file."""
    stopped(whole[0], tmp_path / "out", step)
    shutil.copy(given / f"{field}.jsonl", tmp_path)
    text = (tmp_path / "out" / "nopad_train.toml").read_text()
    for path in (config, tmp_path / "out" / "nopad_train.toml"):
        path.write_text(path.read_text().replace(f"{given}/{field}.jsonl", f"{tmp_path}/{field}.jsonl"))
    assert (tmp_path / "out" / "nopad_train.toml").read_text() != text
    lines = (tmp_path / f"{field}.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / f"{field}.jsonl").write_text("".join(lines[1:]))
    ran = call("train", config, "--resume")
    assert f"data.{field}: the content changed since the run in {tmp_path / 'out'} began" in ran.error()
    (tmp_path / f"{field}.jsonl").write_text("".join(lines))
    assert call("train", config, "--resume").code == 0


def test_nothing_to_resume(call, config):
    assert "there is no run in" in call("train", config, "--resume").error()
    assert "give one" in call("train", config, "--resume", "--init-from", "x").error()


def test_checkpoints_without_an_optimiser_do_not_go_on(call, config, tmp_path):
    more = sets(trainer__save_only_model="true", trainer__max_steps=6)
    assert call("train", config, *more).code == 0
    facts = json.loads((tmp_path / "out" / "nopad_run.json").read_text())
    (tmp_path / "out" / "nopad_run.json").write_text(json.dumps({**facts, "finished": None}))
    ran = call("train", config, *more, "--resume")
    assert (ran.code, "has no state of the optimiser" in ran.error()) == (2, True)

    from nopad.training.saving import way_on

    assert "has no state of the optimiser" in way_on(tmp_path / "out")  # what is said after Ctrl-C


def test_weights_of_a_run_without_the_optimiser_begin_another(call, config, tmp_path):
    """Of a run that was stopped: its folder has checkpoints and no model; the last is incomplete."""
    from nopad.training.models import _initial
    from nopad.training.tables import Model

    out = tmp_path / "out"
    more = sets(trainer__save_only_model="true", trainer__max_steps=6, trainer__save_steps=2)
    assert call("train", config, *more).code == 0
    for path in out.iterdir():
        if path.is_file() and path.name != "nopad_train.toml":
            path.unlink()
    wanted, torn = out / "checkpoint-4", out / "checkpoint-6"
    (torn / "trainer_state.json").unlink()
    assert _initial(Model(init_from=str(out))) == wanted
    ran = call("train", config, *sets(output__folder=tmp_path / "other"), "--init-from", out, "--dry-run")
    assert ran.code == 0, ran.error()
    shutil.rmtree(wanted)
    shutil.rmtree(out / "checkpoint-2")
    ran = call("train", config, *sets(output__folder=tmp_path / "other"), "--init-from", out, "--dry-run")
    assert "has neither a model nor a complete checkpoint" in ran.error()


def test_a_run_that_was_killed_before_it_began_leaves_the_folder_free(call, config, tmp_path):
    """In the middle of its first files, which are whole under another name, or not there."""
    from nopad.training.config import read_config
    from nopad.training.folder import RunFolder

    out = tmp_path / "out"
    out.mkdir()
    for name in ("nopad_run.json", "nopad_run.json.partial", "nopad_train.toml.partial"):
        (out / name).write_text('{"per')
    folder = RunFolder(out)
    folder.take(read_config(config), resume=False)
    folder.leave()
    (out / "notes.partial").write_text("mine")
    assert "is not empty, and what is in it is no run: notes.partial" in call("train", config).error()


def test_two_processes_do_not_share_a_folder(call, config, tmp_path):
    from nopad.training.config import read_config
    from nopad.training.folder import RunFolder

    mine, made = RunFolder(tmp_path / "out"), read_config(config)
    mine.take(made, resume=False)
    assert "another process trains in" in call("train", config).error()
    mine.leave()
    assert call("train", config, *sets(trainer__max_steps=1)).code == 0


def test_weights_of_a_checkpoint_and_nothing_else(call, config, whole, tmp_path):
    """With a rate of 0, the model stays what it began with."""
    still = sets(trainer__learning_rate=0.0, trainer__max_steps=2)
    ran = call("train", config, "--init-from", whole[0] / "checkpoint-6", *still)
    assert (ran.code, ran.err) == (0, "")
    assert "step 2/2" in ran
    ours, theirs = (load_file(path / "model.safetensors") for path in (tmp_path / "out", whole[0] / "checkpoint-6"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    again = tmp_path / "again"
    ran = call("train", config, "--init-from", whole[0], *still, *sets(output__folder=again))
    assert ran.code == 0
    assert weights(again) == weights(whole[0])


def test_weights_that_a_checkpoint_does_not_have_are_named(whole):
    assert "new      weights that the checkpoint does not have: bert.pooler" in whole[1]


def test_a_share_that_is_held_out(call, config, given, tmp_path):
    text = config.read_text().replace(f'eval = "{given}/eval.jsonl"', "held_out = 0.2")
    config.write_text(text)
    ran = call("train", config, *sets(trainer__max_steps=2))
    assert (ran.code, ran.err) == (0, "")
    counts = [int(line.split()[1]) for line in ran.splitlines() if line.startswith(("train ", "eval "))]
    assert sum(counts) == 120
    assert 10 < counts[1] < 40
    assert "eval_accuracy" in metrics(tmp_path / "out")[-1]


def test_tokens_that_are_packed_already(call, tmp_path):
    """A causal model, without a task, on a packed dataset with its validation share."""
    torch.manual_seed(0)
    sizes = {**SIZES, "num_key_value_heads": 2, "pad_token_id": 0}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(tmp_path / "llama")
    generator = random.Random(0)
    lines = [{"input_ids": [generator.randrange(90) for _ in range(generator.randrange(1, 30))]} for _ in range(100)]
    (tmp_path / "ids.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert call("pack", tmp_path / "ids.jsonl", "-o", tmp_path / "packed", "-c", 32, "--validation", "10%").code == 0
    path = tmp_path / "causal.toml"
    path.write_text(
        f"""
        [model]
        name = "{tmp_path}/llama"
        [data]
        train = "{tmp_path}/packed"
        [packing]
        rows = 4
        [trainer]
        use_cpu = true
        logging_steps = 1
        [output]
        folder = "{tmp_path}/causal"
        """
    )
    ran = call("train", path, *sets(trainer__max_steps=3))
    assert (ran.code, ran.err) == (0, "")
    assert "eval_loss" in metrics(tmp_path / "causal")[-1]
    assert not (tmp_path / "causal" / "nopad_task.json").exists()
    write_records(tmp_path / "texts.jsonl", 3)
    other = sets(data__train=tmp_path / "texts.jsonl", packing__capacity=32, output__folder=tmp_path / "text")
    ran = call("train", path, *other)
    assert "or give [task] a name" in ran.error()
    # Packed anew, in flat rows
    ran = call("train", path, *sets(trainer__max_steps=3, output__folder=tmp_path / "flat", packing__tokens=64))
    assert "both say what a micro-step is" in ran.error()
    text = path.read_text().replace("rows = 4", "tokens = 64")
    path.write_text(text)
    assert call("train", path, *sets(trainer__max_steps=3, output__folder=tmp_path / "flat")).code == 0
    assert "padding" not in metrics(tmp_path / "flat")[0]


def test_adapters(call, config, tmp_path):
    pytest.importorskip("peft")
    ran = call("train", config, *sets(trainer__max_steps=3, model__lora="{r=2, target_modules=['query', 'value']}"))
    assert (ran.code, ran.err) == (0, "")
    assert "of them trained" in ran
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    text = config.read_text()
    config.write_text(text.replace('name = "', 'tokenizer = "', 1))
    ran = call("train", config, "--init-from", tmp_path / "out", *sets(output__folder=tmp_path / "b"))
    assert "holds adapters and no model; give the model that they are of as model.name" in ran.error()
    config.write_text(text)
    ran = call("train", config, *sets(model__lora="{rank=2}", output__folder=tmp_path / "b"))
    assert "model.lora has no 'rank'; did you mean " in ran.error()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__train": "none.jsonl"}, "data.train: none.jsonl: no such file or folder"),
        ({"data__eval": "{tmp}/empty.jsonl"}, "data.eval: there is no record, so nothing to train on"),
        ({"data__train": "{tmp}/labels.jsonl"}, "labels.jsonl, line 8: record 7: label is 'maybe'; it is a number"),
        ({"data__train": "{tmp}/broken.jsonl"}, "broken.jsonl, line 2: broken JSON"),
        ({"data__train": "{tmp}/a.pdf"}, "a .pdf file would be read"),
        ({"model__name": "./none"}, "./none: there is no such folder"),
        ({"task__text": "txt"}, "train.jsonl, line 1: record 0 has no 'txt', only text, label"),
        ({"packing__capacity": "8"}, "tokens, and max_length is 8"),
        ({"task__max_length": "500"}, "task.max_length is 500, and the model has 128 positions"),
        ({"trainer__load_best_model_at_end": "true", "trainer__save_steps": "4",
          "trainer__metric_for_best_model": "bleu"}, "metric_for_best_model is 'bleu', and an evaluation gives acc"),
        ({"trainer__load_best_model_at_end": "true", "trainer__eval_strategy": "epoch"}, "[trainer]: "),
        ({"trainer__label_smoothing_factor": "0.1"}, "label_smoothing_factor would do nothing"),
        ({"model__config": "{hiden_size=3}"}, "has no 'hiden_size'; did you mean hidden_size?"),
        ({"model__backend": "nothing"}, "unknown backend 'nothing'"),
        ({"model__init_from": "{tmp}/none"}, "model.init_from: there is no folder"),
        ({"packing__balance": "none2"}, "unknown method of balance 'none2'"),
        ({"trainer__learning_rate": "nan"}, "[trainer]: Invalid learning rate: nan"),
        ({"packing__cost": "none2"}, "cost must be tokens or attention:HIDDEN_SIZE"),
    ],
)  # fmt: skip
def test_what_is_wrong(call, config, tmp_path, changes, message):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "a.pdf").write_text("x")
    made = write_records(tmp_path / "labels.jsonl", 9)
    made[7]["label"] = "maybe"
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))
    (tmp_path / "broken.jsonl").write_text('{"text": "a", "label": 0}\n{"text\n')
    ran = call("train", config, *sets(**{name: value.format(tmp=tmp_path) if "{tmp}" in value else value
                                         for name, value in changes.items()}))  # fmt: skip
    assert ran.code == 2
    assert message in ran.error()
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_after_a_mistake_the_folder_can_be_used(call, config, tmp_path):
    assert call("train", config, *sets(task__text="txt")).code == 2
    ran = call("train", config, *sets(trainer__max_steps=1))
    assert (ran.code, ran.err) == (0, "")


def test_a_model_without_such_a_head(call, config, tmp_path):
    transformers.CLIPVisionConfig(hidden_size=16, num_attention_heads=2).save_pretrained(tmp_path / "clip")
    tokenizer().save_pretrained(tmp_path / "clip")
    ran = call("train", config, *sets(model__name=tmp_path / "clip"))
    assert ran.code == 2
    assert "cannot be made with the head of AutoModelForSequenceClassification" in ran.error()


def test_a_loss_that_is_not_finite_stops_with_its_batch(call, config, given, tmp_path):
    shutil.copytree(given / "model", tmp_path / "model")
    held = load_file(tmp_path / "model" / "model.safetensors")
    held["bert.embeddings.word_embeddings.weight"][:] = float("nan")
    save_file(held, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    ran = call("train", config, *sets(model__name=tmp_path / "model"))
    assert ran.code == 1
    assert f"The batch is kept in {tmp_path}/out/nopad_batch_0.safetensors" in ran.error()
    assert call("train", config, *sets(trainer__max_steps=1)).code == 0  # nothing was trained, so the folder is free


@pytest.mark.parametrize("share", [0.5, 1.5])  # in the weights, in the optimiser's state
def test_a_full_disk_is_named_and_the_run_goes_on(call, config, given, whole, tmp_path, share):
    size = int((whole[0] / "model.safetensors").stat().st_size * share)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        ran = call("train", config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert ran.code == 3, ran.err
    assert f"failed while writing into {tmp_path / 'out'} (" in ran.error()
    assert "if the disk is full, free some space, and go on with --resume" in ran.error()
    assert call("train", config, "--resume").code == 0
    assert weights(tmp_path / "out") == weights(whole[0])


def test_no_memory_names_what_helps(call, config, monkeypatch):
    forward = transformers.BertForSequenceClassification.forward

    @functools.wraps(forward)
    def fails(*args, **named):
        if torch.is_grad_enabled():
            raise torch.OutOfMemoryError("no")
        return forward(*args, **named)

    monkeypatch.setattr(transformers.BertForSequenceClassification, "forward", fails)
    ran = call("train", config)
    assert ran.code == 1, ran.error()
    assert "fewer rows per micro-step" in ran.error()


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture
def on_ranks(python):
    """Run nopad on so many ranks, as torchrun does; rank n notes its losses in ``notes/n``."""

    def run(ranks: int, notes: Path, *arguments) -> list[subprocess.CompletedProcess]:
        notes.mkdir()
        same = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1"}
        same |= {"MASTER_PORT": free_port()} if ranks > 1 else {}
        program = Path(__file__).with_name("noting_program.py")
        started = [
            python(program, notes / str(n), *arguments, **(same | {"RANK": n, "LOCAL_RANK": n} if ranks > 1 else {}))
            for n in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=240) for process in started]
        finally:
            for process in started:
                process.kill()
        return [
            subprocess.CompletedProcess(process.args, process.returncode, out, err)
            for process, (out, err) in zip(started, outputs, strict=True)
        ]

    return run


def step_losses(notes: Path) -> dict[int, float]:
    """The loss of each step: the sum over micro-steps and ranks of their parts."""
    found: dict[int, float] = {}
    for path in notes.iterdir():
        for line in path.read_text().splitlines():
            step, part = json.loads(line)
            found[step] = found.get(step, 0.0) + part
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-6), ("float64", 1e-12)])
def test_one_rank_goes_on_with_what_two_began(on_ranks, config, tmp_path, dtype, near):
    """The same global batch: the same sequences a step, and the same loss of the first step after going on."""
    out, again = tmp_path / "out", tmp_path / "again"
    still = "{hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0}"
    more = sets(model__config=still, model__dtype=dtype, trainer__logging_steps=1)
    both = on_ranks(2, tmp_path / "two", "train", config, *more, *sets(packing__accumulation=1))
    assert [one.returncode for one in both] == [0, 0], both[0].stderr[-2000:]
    assert both[1].stdout == ""
    assert "step 1/" in both[0].stdout
    stopped(out, again, 6)
    (alone,) = on_ranks(1, tmp_path / "one", "train", config, "--resume", *more, *sets(output__folder=again))
    assert (alone.returncode, alone.stderr) == (0, "")
    ours, theirs = ([line for line in metrics(folder) if "loss" in line] for folder in (again, out))
    assert len(ours) == len(theirs) > 8
    seen = ("step", "epoch", "sequences_seen", "tokens_seen")
    assert [[line[name] for name in seen] for line in ours] == [[line[name] for name in seen] for line in theirs]
    after, before = step_losses(tmp_path / "one"), step_losses(tmp_path / "two")
    assert min(after) == 7
    assert after[7] == pytest.approx(before[7], rel=near)


@pytest.mark.slow
def test_two_ranks_say_what_is_wrong_once(on_ranks, config, tmp_path):
    both = on_ranks(2, tmp_path / "notes", "train", config, *sets(task__text="txt"))
    assert [one.returncode for one in both] == [2, 2]
    assert both[0].stderr.count("has no 'txt'") == 1
    assert both[1].stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 21))])
def test_killed_at_any_moment_it_ends_with_the_same_weights(python, whole, config, tmp_path, seed):
    generator, out = random.Random(seed), tmp_path / "out"
    command = ["-m", "nopad", "train", config]
    for _ in range(3 if seed else 1):
        begun = (out / "nopad_train.toml").is_file()
        process = python(*command, *(["--resume"] if begun else []))
        for line in process.stdout:  # until training is under way, and then some steps
            if line.startswith(("new ", "resume ")):
                break
        time.sleep(generator.random())
        process.send_signal(signal.SIGKILL)
        process.communicate()
    if (out / "metrics.jsonl").is_file():
        metrics(out)  # whole lines
    over = json.loads((out / "nopad_run.json").read_text())["finished"]
    done = python(*command, "--resume")
    said, err = done.communicate()
    assert (done.returncode, err) == (0, "")
    assert weights(out) == weights(whole[0])
    assert metrics(out) == metrics(whole[0])
    assert over is None or "is over" in said
