"""Pre-training by `nopad train`: raw documents or packed pairs, two phases, what is refused; and its audit."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from tests.tasks.test_pretraining import documents, pretraining
from tests.tasks.tiny import SIZES, bert, tokenizer

import nopad
from nopad.cli import main
from nopad.training import PackedTrainer
from nopad.training.config import read_config
from nopad.training.encoding import encoded
from nopad.training.ready import prepare

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIG = """
[model]
name = "{folder}/{model}"
[data]
train = "{folder}/docs.txt"
[task]
name = "pretrain"
sentences = "line"
over_long = "truncate"
max_length = 24
[packing]
capacity = 48
rows = 2
[trainer]
max_steps = 3
logging_steps = 1
use_cpu = true
save_strategy = "no"
[output]
folder = "{folder}/{out}"
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Tiny models with 32 and 64 positions, a vocabulary, and 60 documents between empty lines."""
    folder = tmp_path_factory.mktemp("pretrain")
    for positions in (32, 64):
        torch.manual_seed(0)
        config = transformers.BertConfig(**SIZES, max_position_embeddings=positions)
        transformers.BertForPreTraining(config).save_pretrained(folder / f"model{positions}")
        tokenizer().save_pretrained(folder / f"model{positions}")
    (folder / "docs.txt").write_text("\n\n".join(one["text"] for one in documents(60)) + "\n")
    return folder


def run(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def config_of(given, model="model64", out="out", **changes):
    text = CONFIG.format(folder=given, model=model, out=out)
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    path = given / f"{out}.toml"
    path.write_text(text)
    return path


def test_raw_documents_are_pre_trained_on_and_evaluated(given, capsys):
    assert run(["train", str(config_of(given)), "--set", "data.held_out=0.2"]) == 0
    printed = capsys.readouterr().out
    assert "random next" in printed
    lines = [json.loads(line) for line in (given / "out" / "metrics.jsonl").read_text().splitlines()]
    assert sum("loss" in line for line in lines) == 3
    assert "eval_next_sentence_accuracy" in lines[-1]
    made = transformers.AutoModelForPreTraining.from_pretrained(given / "out")
    assert isinstance(made, transformers.BertForPreTraining)
    # what was pre-trained begins a fine-tuning, and a second phase
    assert transformers.AutoModelForSequenceClassification.from_pretrained(given / "out").config.num_labels == 2
    second = config_of(given, out="second")
    assert run(["train", str(second), "--init-from", str(given / "out")]) == 0


def test_packed_pairs_are_pre_trained_on(given, tmp_path):
    docs = str(given / "docs.txt")
    folder = str(given / "model64")
    pairs = ["--pretrain", "bert", "-P", "sentences=line", "-P", "max_length=24", "--over-long", "truncate"]
    pairs += ["--text-unit", "paragraph", "--tokenizer", folder]
    for static in ("false", "true"):
        out = str(tmp_path / static)
        assert run(["pack", docs, "-o", out, "-c", "48", *pairs, "-P", f"static={static}"]) == 0
        path = config_of(given, out=f"packed-{static}")
        assert run(["train", str(path), "--set", f"data.train={out}", "--set", "packing.capacity=48"]) == 0
        lines = [json.loads(line) for line in (given / f"packed-{static}" / "metrics.jsonl").read_text().splitlines()]
        assert sum("loss" in line for line in lines) == 3


def test_a_second_phase_needs_its_positions(given, refused):
    path = config_of(given, model="model64", out="phase2")
    said = refused(path, init_from=str(given / "model32"))
    assert f"model.init_from {given / 'model32'} has 32 positions, and the model here has 64; they are learned" in said
    assert "set model.config.max_position_embeddings = 32" in said
    said = refused(config_of(given, model="model32", out="long", **{"max_length = 24": "max_length = 48"}))
    assert said == "task.max_length is 48, and the model has 32 positions"


def test_packed_pairs_that_are_too_long_are_refused_before_work(given, tmp_path, refused):
    out = str(tmp_path / "long")
    more = ["--over-long", "truncate", "--text-unit", "paragraph", "--tokenizer", str(given / "model64")]
    docs = str(given / "docs.txt")
    assert run(["pack", docs, "-o", out, "-c", "48", "--pretrain", "bert", "-P", "sentences=line", *more]) == 0
    path = config_of(given, model="model32", out="too-long", **{f"{given}/docs.txt": out})
    assert "data.train: it has a sequence of 48 tokens, and the model has 32 positions" in refused(path)


@pytest.fixture
def refused(tmp_path):
    def refused(path, **options):
        with pytest.raises(nopad.NopadError) as caught:
            prepare(read_config(path, **options), tmp_path / "cache")
        return str(caught.value)

    return refused


def test_a_last_part_of_few_documents_goes_with_the_one_before(tmp_path):
    class Stored(list):
        def fingerprint(self):
            return "here"

    task = pretraining()
    found = encoded(task, Stored(documents(9)), tmp_path, {}, at_once=8)
    assert found.records == 9
    assert set(found.record.tolist()) == set(range(9))
    whole = task.encode(documents(9))
    assert found.sequences.tokens["input_ids"].tolist() == whole.sequences.tokens["input_ids"].tolist()


def test_a_step_is_audited_and_a_wrong_one_told(tmp_path):
    task = pretraining()
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to="none",
        use_cpu=True, max_steps=1,
    )  # fmt: skip
    model = bert(task, "BertForPreTraining")
    trainer = PackedTrainer(model, args, train_dataset=documents(), task=task, capacity=48, quiet=True)
    verdict = nopad.audit_step(trainer=trainer)
    assert verdict.passed, verdict
    assert len({batch.sequences for batch in verdict.batches}) > 1

    class MeanOfMeans(PackedTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            loss, _ = self.objective.step(model, inputs)
            return loss

    wrong = MeanOfMeans(model, args, train_dataset=documents(), task=task, capacity=48, quiet=True)
    verdict = nopad.audit_step(trainer=wrong)
    assert not verdict.passed
    assert verdict.findings
