"""`nopad audit --step FILE.py`: verdicts, exit codes, what a file may define, and what is refused."""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")

MODEL = """
import torch, transformers, nopad
SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=99)
def model():
    return nopad.packed(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)))
def examples():
    return [{"input_ids": list(range(3, 3 + n)), "labels": list(range(3, 3 + n))} for n in (7, 3, 12, 5, 9, 4, 15)]
"""
MEAN = """
def collate(examples):
    return nopad.PackedBatch.from_features(examples, causal=True)
def loss(model, batch, step):
    return model(**batch).loss / step.accumulation
"""


@pytest.fixture
def write(tmp_path):
    def write(*parts):
        path = tmp_path / "training.py"
        path.write_text("\n".join(parts))
        return str(path)

    return write


def test_equal(call, write):
    path = list(sys.path)
    out = call("audit", "--step", write(MODEL), "--ranks", "1", "--accumulation", "3")
    assert out.code == 0, out.err
    assert out.startswith("a step of LlamaForCausalLM, from_features, as a Trainer, 1 rank x 3 micro-batches: equal to")
    assert sys.path == path


def test_different_as_json(call, write):
    out = call("audit", "--step", write(MODEL, MEAN), "--json")
    found = json.loads(out)
    assert out.code == 1
    assert [finding["kind"] for finding in found["findings"]] == ["mean of means"]
    assert found["passed"] is False
    assert {"cosine", "difference", "name", "norm", "norm_alone"} == found["modules"][0].keys()


def test_per_sequence(call, write):
    out = call("audit", "--step", write(MODEL), "--per", "sequence")
    assert out.code == 1
    assert "per token: the loss equals the mean over labelled items" in out


def test_a_trainer(call, write, tmp_path):
    pytest.importorskip("accelerate")
    text = f"""
def trainer():
    options = dict(output_dir={str(tmp_path / "out")!r}, per_device_train_batch_size=2, report_to=[], use_cpu=True)
    collate = lambda features: nopad.PackedBatch.from_features(features, causal=True)
    args = transformers.TrainingArguments(**options, gradient_accumulation_steps=1)
    return transformers.Trainer(MODEL(), args, train_dataset=EXAMPLES(), data_collator=collate)
"""
    out = call("audit", "--step", write(MODEL, "MODEL, EXAMPLES = model, examples\ndel model, examples", text))
    assert out.code == 0, (out, out.err)
    assert "Trainer, <lambda>, 2 ranks x 1 micro-batch" in out


def test_refusals(call, write, tmp_path):
    here = write(MODEL)
    for args, why in (
        (
            ["--step", str(tmp_path / "no.py")],
            "no.py: no such file; give a Python file that defines trainer(), or model()",
        ),
        (["--step", str(tmp_path)], ": is a folder; give a Python file that defines trainer(), or model()"),
        (["model", "--step", here], "MODEL does not go with --step"),
        (["--step", here, "--layers", "2"], "--layers does not go with --step"),
        (["--step", here, "--ranks", "0"], "ranks must be an integer from 1 to 64, got 0"),
        (["--step", here, "--per", "row"], "per"),
        (["model", "--accumulation", "2"], "--accumulation is of --step FILE.py"),
        ([], "give a MODEL, a folder or a name on the hub, or --step FILE.py"),
    ):
        out = call("audit", *args)
        assert out.code == 2, args
        assert why in out.error(), args


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (["1 / 0"], "it raised ZeroDivisionError: division by zero, line 1"),
        (["def model(:"], "it raised SyntaxError"),
        (["def model(): return 1"], "defines no examples(); a step needs model()"),
        ([MODEL, "collate = 3"], "collate is int; define it as a function, def collate(examples)"),
        ([MODEL, "def examples():\n    raise KeyError('text')"], "examples() raised KeyError: 'text', line"),
        ([MODEL, "def model(): pass"], "model() returned nothing; return the model"),
        ([MODEL, "def trainer(): return None"], "defines trainer() and model(); the trainer has its own"),
        ([MODEL, "def model(): return 'bert'"], "model is str; give a torch module"),
        ([MODEL, "def examples(): return 7"], "sequences are int; give a list of dicts"),
    ],
)
def test_files_that_do_not_do(call, write, parts, why):
    out = call("audit", "--step", write(*parts))
    assert out.code == 2, out
    assert why in out.error()
