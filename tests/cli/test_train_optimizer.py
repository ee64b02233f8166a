"""`nopad train` with LAMB, a schedule in tokens, and a correction by the packing factor: said, resumed, refused."""

from __future__ import annotations

import json
import re
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
[model]
name = "{folder}/model"
[data]
train = "{folder}/train.jsonl"
[task]
name = "classify"
labels = ["no", "yes"]
[packing]
capacity = 64
rows = 2
accumulation = 5
correction = "accumulation"
[optimizer]
name = "lamb"
max_trust_ratio = 10.0
[schedule]
counts = "tokens"
warmup = 0.2
initial = 0.1
end = 0.05
power = 2
[trainer]
learning_rate = 1e-2
num_train_epochs = 2
logging_steps = 1
save_strategy = "steps"
save_steps = 4
use_cpu = true
[output]
folder = "{out}"
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A tiny BERT with dropout and 90 records."""
    folder = tmp_path_factory.mktemp("optimizer")
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, max_position_embeddings=128))
    model.save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 40, (90,), generator=generator).tolist()
    records = [{"text": words(generator, length), "label": ("no", "yes")[length % 2]} for length in lengths]
    (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture
def config(given, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(CONFIG.format(folder=given, out=tmp_path / "out"))
    return path


def sets(**changes):
    return [one for name, value in changes.items() for one in ("--set", f"{name.replace('__', '.', 1)}={value}")]


def logged(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ("step", "loss", "learning_rate", "tokens_seen")} for line in lines]


def test_a_dry_run_says_what_it_changes(call, config):
    ran = call("train", config, "--dry-run")
    assert ran.code == 0
    text = " ".join(str(ran).split())
    factor = float(re.search(r"a pack holds ([\d.]+) sequences on average", text)[1])
    assert 2 < factor < 4
    assert "correct gradient_accumulation_steps 5 -> 2" in text
    assert re.search(r"a step has [\d.]+ sequences per rank, and had 10: [\d.]+ times as many", text)
    assert "1 rank x 2 micro-steps x 2 packs" in text
    assert "would make it about as many" not in text
    tokens = int(re.search(r"epoch [\d,]+ steps: [\d,]+ sequences, ([\d,]+) tokens", text)[1].replace(",", ""))
    assert "schedule counts tokens: rises from 0.1 of the rate to 1 over" in text
    assert f"then falls with power 2 to 0.05 at {2 * tokens:,}" in text
    assert "optimise lamb: rate 0.01, betas (0.9, 0.999), eps 1e-06, decay 0.01" in text
    assert "max_trust_ratio=10.0" in text


def test_other_corrections_are_said(call, config):
    ran = call("train", config, "--dry-run", *sets(packing__correction="betas"))
    text = " ".join(str(ran).split())
    first, power = re.search(
        r"adam_beta1 0\.9 -> ([\d.]+), adam_beta2 0\.999 -> [\d.]+: to the power of ([\d.]+)", text
    ).groups()
    assert float(first) == pytest.approx(0.9 ** float(power), rel=1e-3)
    assert f"betas ({first}, " in text
    assert "1 rank x 5 micro-steps" in text
    text = " ".join(str(call("train", config, "--dry-run", *sets(packing__correction="none"))).split())
    assert "correct " not in text
    assert "packing.accumulation = 2 would make it about as many" in text


def test_a_run_that_was_stopped_ends_with_the_same_weights(call, config, tmp_path):
    assert call("train", config).code == 0
    out, again = tmp_path / "out", tmp_path / "again"
    lines = logged(out)
    last = lines[-1]["step"]
    assert last > 8
    # each rate is that of the tokens before its step
    total, seen = lines[-1]["tokens_seen"], 0
    warmup = -(-total * 2 // 10)
    for line in lines:
        left = (total - seen) / (total - warmup)
        ratio = 0.1 + 0.9 * seen / warmup if seen < warmup else 0.05 + 0.95 * left**2
        assert line["learning_rate"] == pytest.approx(1e-2 * ratio, rel=1e-12)
        seen = line["tokens_seen"]
    shutil.copytree(out, again)
    (again / "model.safetensors").unlink()
    facts = json.loads((again / "nopad_run.json").read_text())
    assert facts["per_step"] == "4 rows"
    (again / "nopad_run.json").write_text(json.dumps({**facts, "finished": None}))
    for path in again.glob("checkpoint-*"):
        if path.name != "checkpoint-4":
            shutil.rmtree(path)
    ran = call("train", config, "--resume", *sets(output__folder=again))
    assert (ran.code, ran.err) == (0, "")
    assert f"from {again / 'checkpoint-4'}" in ran
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    assert logged(again) == lines
    for changes, message in (
        ({"schedule__warmup": 0.3}, "schedule.warmup is 0.3 and was 0.2"),
        ({"schedule__counts": "sequences"}, "schedule.counts is 'sequences' and was 'tokens'"),
        ({"optimizer__max_trust_ratio": 5.0}, "optimizer.max_trust_ratio is 5.0 and was 10.0"),
        ({"packing__correction": "none"}, "packing.correction is not given and was 'accumulation'"),
    ):
        shutil.rmtree(again / "checkpoint-8", ignore_errors=True)
        facts = json.loads((again / "nopad_run.json").read_text())
        (again / "nopad_run.json").write_text(json.dumps({**facts, "finished": None}))
        assert message in call("train", config, "--resume", *sets(output__folder=again, **changes)).error()
    # another number of micro-steps that is corrected to the same step goes on; to another one, not
    said = call("train", config, "--resume", *sets(output__folder=again, packing__accumulation=20)).error()
    assert re.search(r"a step has \d+ rows on all ranks and had 4 rows", said)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing__accumulation": 1}, "packing.correction: gradient_accumulation_steps is 1 already"),
        ({"packing__correction": "halve"}, "packing.correction is 'halve', and must be 'accumulation' or 'betas' or"),
        ({"schedule__counts": "samples"}, "schedule.counts is 'samples', and must be 'sequences' or 'tokens' or"),
        ({"schedule__total": 0}, "the schedule has 0 tokens, and needs at least 1"),
        ({"schedule__warmup": 10**9}, "schedule.warmup is 1,000,000,000 tokens, and all of training has"),
        ({"schedule__warmup": -1}, "schedule.warmup is -1.0; it is a number from 0"),
        ({"schedule__warmpu": 1}, "[schedule] has no 'warmpu'; did you mean warmup?"),
        ({"optimizer__name": "lomb"}, "optimizer.name is 'lomb', and must be 'lamb'"),
        (
            {"optimizer__max_trust_ratio": -1.0},
            "max_trust_ratio of group 0 is -1.0; it must be a finite number above 0",
        ),
        ({"trainer__optim": "adamw_torch"}, "optimizer.name is 'lamb', and trainer.optim another one; leave one out"),
        ({"trainer__optim": "lamb"}, "trainer.optim: LAMB is nopad's own; leave it out, and write [optimizer] name ="),
        ({"trainer__weight_decay": 0.0}, "trainer.weight_decay is 0, and LAMB adapts only what has decay"),
        ({"trainer__warmup_steps": 5}, "trainer.warmup_steps and [schedule] both say what the learning rate does"),
        ({"trainer__lr_scheduler_type": "cosine"}, "trainer.lr_scheduler_type and [schedule] both say"),
    ],
)
def test_what_is_wrong(call, config, tmp_path, changes, message):
    ran = call("train", config, *sets(**changes))
    assert ran.code == 2
    assert message in ran.error()
    assert not list((tmp_path / "out").glob("checkpoint-*"))
    assert message in call("train", config, "--dry-run", *sets(**changes)).error()


def test_what_is_wrong_without_lamb(call, config):
    text = config.read_text().replace('[optimizer]\nname = "lamb"\nmax_trust_ratio = 10.0\n', "")
    config.write_text(text)
    ran = call("train", config, "--dry-run", *sets(packing__correction="betas", trainer__optim="sgd"))
    said = "packing.correction is 'betas', and trainer.optim 'sgd' does not get adam_beta1 and adam_beta2 for all"
    assert said in ran.error()
    assert call("train", config, "--dry-run", *sets(packing__correction="betas")).code == 0  # AdamW has betas
    config.write_text(text + "[optimizer]\n")
    assert "optimizer.name is missing; give one of lamb" in call("train", config, "--dry-run").error()
    config.write_text(re.sub(r'counts = "tokens"\n', "", text))
    assert (
        "schedule.counts is missing; give one of sequences, tokens, steps" in call("train", config, "--dry-run").error()
    )
    config.write_text(text)
    ran = call(
        "train", config, "--dry-run", *sets(packing__rows="none", packing__sequences=4, packing__capacity="none")
    )
    assert "the packing factor is not known" in ran.error()
