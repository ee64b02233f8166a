"""The estimate of memory: exact where it can be counted, and held against what a process really takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
import transformers
from transformers.training_args import OptimizerNames

from nopad.training import memory
from nopad.training.memory import estimate

SIZES = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
ROWS, CAPACITY = 4, 128


def test_logits_count_by_whatever_name(tmp_path):
    with torch.device("meta"):
        made = transformers.BertForPreTraining(transformers.BertConfig(vocab_size=500, **SIZES))
    assert found(made, tmp_path).activations > found(model(), tmp_path).activations + 12 * ROWS * CAPACITY * 500


def model(kind="Bert", **options):
    config = getattr(transformers, f"{kind}Config")(vocab_size=500, **SIZES, **options)
    auto = "AutoModelForSequenceClassification" if kind == "Bert" else "AutoModelForCausalLM"
    with torch.device("meta"):
        return getattr(transformers, auto).from_config(config)


def found(made, tmp_path, slots=(ROWS, CAPACITY), **options):
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], **options)
    return estimate(made, slots=slots, args=args)


def test_parameters_are_counted(tmp_path):
    made = model()
    for one in made.bert.embeddings.parameters():
        one.requires_grad_(False)
    total = sum(one.numel() for one in made.parameters())
    trained = sum(one.numel() for one in made.parameters() if one.requires_grad)
    for optim, states in (("adamw_torch", 2), ("sgd", 0), ("adafactor", 0), ("rmsprop", 1), ("adamw_bnb_8bit", 0.5)):
        got = found(made, tmp_path, optim=optim)
        assert (got.total, got.trained) == (total, trained)
        assert (got.parameters, got.gradients, got.optimizer) == (4 * total, 4 * trained, 4 * trained * states)
    assert found(model().bfloat16(), tmp_path).parameters == 2 * total


BYTES = {  # of the state of a parameter in float32; GaLore and APOLLO: of what they project
    8: "adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused adamw_anyprecision paged_adamw_32bit "
    "schedule_free_radam schedule_free_adamw stable_adamw",
    2: "adamw_torch_8bit adamw_bnb_8bit adamw_8bit paged_adamw_8bit",
    1: "adamw_torch_4bit lion_8bit paged_lion_8bit rmsprop_bnb_8bit",
    12: "ademamix paged_ademamix_32bit grokadamw",
    3: "ademamix_8bit paged_ademamix_8bit",
    4: "adagrad lion_32bit paged_lion_32bit rmsprop rmsprop_bnb rmsprop_bnb_32bit schedule_free_sgd",
    0: "sgd adafactor lomo adalomo galore_adamw galore_adamw_8bit galore_adafactor galore_adamw_layerwise "
    "galore_adamw_8bit_layerwise galore_adafactor_layerwise apollo_adamw apollo_adamw_layerwise",
}


@pytest.mark.parametrize("optim", [one.value for one in OptimizerNames])
def test_the_states_of_every_optimiser(optim, tmp_path):
    (wanted,) = (size for size, names in BYTES.items() if optim in names.split())
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], optim=optim)
    weights = [torch.nn.Parameter(torch.zeros(10, 10)), torch.nn.Parameter(torch.zeros(20))]
    assert memory._states(optim, weights, memory.given_to(args)) == wanted * 120


@pytest.mark.parametrize(
    ("optim", "given", "states"),
    [
        ("sgd", "momentum=0.9", 1),
        ("sgd", "momentum=0", 0),
        ("sgd", "weight_decay=0.1, nesterov=true", 0),
        ("rmsprop", "momentum=0.9,centered=True", 3),
        ("rmsprop", "centered=false", 1),
        ("adamw_torch", None, 2),
    ],
)
def test_options_of_optimisers_count(optim, given, states, tmp_path):
    made = model()
    got = found(made, tmp_path, optim=optim, optim_args=given)
    assert got.optimizer == 4 * got.trained * states
    assert found(made.bfloat16(), tmp_path, optim=optim, optim_args=given).optimizer == 2 * got.trained * states


def test_bitsandbytes_keeps_float32_for_bfloat16(tmp_path):
    got = found(model().bfloat16(), tmp_path, optim="paged_lion_32bit")
    assert got.optimizer == 4 * got.trained
    assert found(model().bfloat16(), tmp_path, optim="paged_lion_8bit").optimizer == got.trained


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # the name that all transformers know
def test_activations_follow_the_sizes(tmp_path):
    small = found(model(), tmp_path).activations
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    assert estimate(model(), slots=(2 * ROWS, CAPACITY), args=args).activations == pytest.approx(2 * small, rel=0.01)
    # Attention without a matrix of all pairs: linear in the length, too
    assert estimate(model(), slots=(ROWS, 4 * CAPACITY), args=args).activations == pytest.approx(4 * small, rel=0.01)
    logits = ROWS * CAPACITY * 500
    assert found(model("Llama"), tmp_path).activations > 12 * logits
    assert found(model(), tmp_path, gradient_checkpointing=True).activations < 0.6 * small


def test_the_model_is_as_before(tmp_path):
    made = model()
    made.eval()
    before = made.config.to_dict(), made.config._attn_implementation
    found(made, tmp_path)
    assert (made.config.to_dict(), made.config._attn_implementation) == before
    assert not made.training


def test_what_cannot_be_run_on_shapes_is_said(tmp_path):
    made = model()
    made.forward = lambda **_: torch.zeros(1).item()
    made.bert.forward = made.forward
    got = found(made, tmp_path)
    assert got.activations is None or got.activations == 0
    del made.forward
    got = found(made, tmp_path)
    assert got.activations is None
    assert "activations not known" in str(got)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Bert", "Llama"])
def test_what_a_process_takes(tmp_path, kind, warm_python):
    warm_python.load("transformers.models.bert.modeling_bert", "transformers.models.llama.modeling_llama")
    warm_python.load("nopad.training")
    started = warm_python(Path(__file__).with_name("memory_program.py"), kind, tmp_path)
    told, said = started.communicate()
    assert started.returncode == 0, said[-2000:]
    told = json.loads(told.splitlines()[-1])
    assert told["measured"] > 100e6
    assert 0.9 < told["estimated"] / told["measured"] < 1.1


def test_rows_may_have_more_slots_than_the_model_has_positions(tmp_path):
    made = model()
    positions = made.config.max_position_embeddings
    inside, beyond = (found(made, tmp_path, slots=(1, slots)).activations for slots in (positions, 2 * positions))
    assert 1.9 < beyond / inside < 2.1
