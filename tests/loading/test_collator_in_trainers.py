"""`to_hf` and `collator` in the trainers people have: losses are those of each sequence alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers
from tests.tasks import templates
from tests.tasks.templates import chat
from tests.tasks.tiny import tokenizer

import nopad

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

RNG = np.random.default_rng(2)
TEXTS = [RNG.integers(10, 60, n).tolist() for n in RNG.integers(2, 24, 40)]
SIZES = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
HOW = {
    "max_steps": 1,
    "per_device_train_batch_size": 64,
    "logging_steps": 1,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "save_strategy": "no",
    "disable_tqdm": True,
}


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, intermediate_size=32))


def alone(model, sequences):
    """The mean over all labelled tokens, each sequence run by itself; `sequences` are (ids, labels)."""
    total, count = 0.0, 0
    with torch.no_grad():
        for ids, labels in sequences:
            logits = model(torch.tensor([ids])).logits[0, :-1]
            wanted = torch.tensor(labels[1:])
            total += torch.nn.functional.cross_entropy(logits, wanted, reduction="sum", ignore_index=-100).item()
            count += int((wanted != -100).sum())
    return total / count


def logged(trainer):
    trainer.train()
    return next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)


@pytest.mark.parametrize("given", ["to_hf", "rows"])
def test_trainer_of_a_causal_model(tmp_path, given):
    dataset, model = nopad.pack_dataset(TEXTS, 32), llama()
    expected = alone(copy.deepcopy(model), [(ids, ids) for ids in TEXTS])
    trainer = transformers.Trainer(
        nopad.packed(model),
        transformers.TrainingArguments(str(tmp_path), **HOW),
        train_dataset=dataset.to_hf() if given == "to_hf" else dataset,
        data_collator=dataset.collator(causal=True),
    )
    assert logged(trainer) == pytest.approx(expected, abs=2e-5)


def test_trainer_of_a_classifier(tmp_path):
    rows = [{"input_ids": ids, "label": n % 3} for n, ids in enumerate(TEXTS)]
    dataset = nopad.pack_dataset(rows, 32)
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(**SIZES, intermediate_size=32, num_labels=3, hidden_dropout_prob=0.0)
    )
    with torch.no_grad():
        own = copy.deepcopy(model).eval()
        logits = torch.cat([own(torch.tensor([row["input_ids"]])).logits for row in rows])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([row["label"] for row in rows])).item()
    model.config.attention_probs_dropout_prob = 0.0
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    trainer = transformers.Trainer(
        nopad.packed(model),
        transformers.TrainingArguments(str(tmp_path), **HOW),
        train_dataset=dataset.to_hf(),
        data_collator=dataset.collator(),
    )
    assert logged(trainer) == pytest.approx(expected, abs=2e-5)


def test_trainer_of_a_masked_model(tmp_path):
    dataset = nopad.pack_dataset(TEXTS, 32)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, intermediate_size=32))
    trainer = transformers.Trainer(
        nopad.packed(model),
        transformers.TrainingArguments(str(tmp_path), remove_unused_columns=False, **HOW),
        train_dataset=dataset.to_hf(causal=False),
        data_collator=dataset.collator(mlm_probability=0.15, tokenizer=tokenizer()),
    )
    assert np.isfinite(logged(trainer))


@pytest.mark.parametrize("records", ["ids", "chats"])
def test_sft_trainer(tmp_path, records):
    trl = pytest.importorskip("trl")
    words = templates.tokenizer(templates.PLAIN)
    if records == "ids":
        dataset = nopad.pack_dataset(TEXTS, 32)
        sequences = [(ids, ids) for ids in TEXTS]
    else:
        said = [{"messages": chat("is it red ?", "no , blue", *("why", "why not") * (n % 3))} for n in range(30)]
        dataset = nopad.pack_dataset(said, 64, tokenizer=words)
        made = nopad.tasks.Chat(words).encode(said).sequences
        parts = [made.part(n, n + 1).tokens for n in range(30)]
        sequences = [(part["input_ids"].tolist(), part["labels"].tolist()) for part in parts]
    model = llama()
    expected = alone(copy.deepcopy(model), sequences)
    trainer = trl.SFTTrainer(
        nopad.packed(model),
        trl.SFTConfig(str(tmp_path), max_length=None, dataset_kwargs={"skip_prepare_dataset": True}, **HOW),
        train_dataset=dataset.to_hf(),
        data_collator=dataset.collator(causal=True),
        processing_class=words,
    )
    assert logged(trainer) == pytest.approx(expected, abs=2e-5)


def test_the_padding_free_batches_of_trl_have_the_same_borders(tmp_path):
    trl = pytest.importorskip("trl")
    dataset = nopad.pack_dataset(TEXTS, 32)
    config = trl.SFTConfig(
        str(tmp_path),
        padding_free=True,
        dataset_kwargs={"skip_prepare_dataset": True},
        **HOW | {"per_device_train_batch_size": 4},
        max_length=None,
    )
    rows = dataset.to_hf()
    trainer = trl.SFTTrainer(llama(), config, train_dataset=rows, processing_class=tokenizer())
    batch = trainer.data_collator([rows[n] for n in range(4)])
    lengths = [n for row in range(4) for n in rows[row]["seq_lengths"]]
    assert batch["cu_seq_lens_q"].diff().tolist() == lengths
    assert batch["position_ids"][0].tolist() == [at for n in lengths for at in range(n)]
    assert (batch["labels"][batch["position_ids"] == 0] == -100).all()
