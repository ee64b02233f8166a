"""A packed dataset goes straight into TRL's trainer: one step, with positions that restart."""

from __future__ import annotations

import warnings

import datasets
import numpy as np
import pytest
import tokenizers
from tokenizers import models

import nopad

RNG = np.random.default_rng(0)
ROWS = [{"input_ids": ids, "labels": ids} for n in RNG.integers(1, 12, 40) for ids in [RNG.integers(3, 64, n).tolist()]]


@pytest.fixture(scope="module")
def trainer_of():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trl = pytest.importorskip("trl")
        transformers = pytest.importorskip("transformers")

    def make(dataset, folder):
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes))
        inner = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "[EOS]": 2}, unk_token="[UNK]"))
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", eos_token="[EOS]")
        how = trl.SFTConfig(
            output_dir=str(folder),
            max_steps=1,
            per_device_train_batch_size=2,
            padding_free=True,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
        )
        return trl.SFTTrainer(model, args=how, train_dataset=dataset, processing_class=tokenizer)

    return make


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["shards", "object"])
def test_one_step(trainer_of, tmp_path, form):
    if form == "shards":
        source = nopad.open_source(ROWS)
        nopad.pack_corpus(source, tmp_path / "packed", nopad.CorpusOptions(capacity=32))
        files = str(tmp_path / "packed" / "shards")
        dataset = datasets.load_dataset("parquet", data_dir=files, split="train", cache_dir=str(tmp_path / "cache"))
    else:
        packs = nopad.pack([len(row["input_ids"]) for row in ROWS], capacity=32)
        dataset = nopad.to_dataset(packs, datasets.Dataset.from_list(ROWS))
    trainer = trainer_of(dataset, tmp_path / "out")
    batch = next(iter(trainer.get_train_dataloader()))
    lens = batch["cu_seq_lens_q"].diff().tolist()
    assert batch["position_ids"][0].tolist() == [at for n in lens for at in range(n)]
    assert sum(lens) == batch["input_ids"].numel()
    assert np.isfinite(trainer.train().training_loss)
