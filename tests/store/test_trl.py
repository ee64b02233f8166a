"""A packed dataset goes straight into TRL's trainer, by the recipe in the docs: one step, positions that restart."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models

import nopad

RNG = np.random.default_rng(0)
ROWS = [{"input_ids": ids, "labels": ids} for n in RNG.integers(1, 12, 40) for ids in [RNG.integers(3, 64, n).tolist()]]


DOCS = Path(__file__).parents[2] / "docs"
# What a test adds: one step on a CPU, without reports.
ADDED = 'output_dir="out", max_steps=1, use_cpu=True, bf16=False, report_to=[],'


def recipe(page, fence):
    """The recipe as the docs print it."""
    [code] = re.findall(rf"```{fence}\n(import (?:datasets|trl)\n.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert 'output_dir="out",' in code
    return code.replace('output_dir="out",', ADDED)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What a recipe takes for granted."""
    import datasets

    pytest.importorskip("trl")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes))
    inner = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "[EOS]": 2}, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", eos_token="[EOS]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return {"model": model, "tokenizer": tokenizer}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["shards", "object"])
def test_one_step(names, form):
    nopad.pack_corpus(nopad.open_source(ROWS), "packed", nopad.CorpusOptions(capacity=32))
    exec(recipe("sources.md", "python"), names)
    trainer = names["trainer"]
    if form == "object":
        trainer.train_dataset = nopad.open_packed("packed").to_hf()
    batch = next(iter(trainer.get_train_dataloader()))
    lens = batch["cu_seq_lens_q"].diff().tolist()
    assert batch["position_ids"][0].tolist() == [at for n in lens for at in range(n)]
    assert sum(lens) == batch["input_ids"].numel()
    assert np.isfinite(trainer.train().training_loss)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_recipe_of_the_quick_start(names):
    names |= {"nopad": nopad, "packed": nopad.pack_dataset(ROWS, 32)}
    exec(recipe("quickstart.md", "python"), names)
    trainer = names["trainer"]
    batch = next(iter(trainer.get_train_dataloader()))
    assert isinstance(batch, nopad.PackedBatch)
    assert (batch["labels"] == -100).sum() == batch.layout.sequences
    assert np.isfinite(trainer.train().training_loss)
