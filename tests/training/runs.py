"""What the tests of trainers and the program of their ranks share: data that counts itself, and a tiny model."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
import transformers

import nopad
from nopad.loading import causal

LENGTHS = np.random.default_rng(0).integers(1, 30, size=101)
CAPACITY, ROWS, ACCUMULATION, EPOCHS = 32, 2, 2, 2


def loader(**options):
    """Every token of sequence n has the id n + 1."""
    data = [np.full(length, number + 1) for number, length in enumerate(LENGTHS)]
    same = {"rows": ROWS, "accumulation": ACCUMULATION, "last": "fill", "collate": causal}
    return nopad.PackedLoader(data, CAPACITY, **same | options)


class Seen:
    """How often each token id was in the batches that somebody trained on, padding and stand-ins left out."""

    def __init__(self):
        self.counts: Counter[int] = Counter()
        self.batches = []
        self.stand_ins = 0
        self.losses = []

    def add(self, batch):
        self.batches.append(batch["input_ids"].tolist())
        self.stand_ins += not batch.weight
        if batch.weight:
            self.counts.update(number for row in self.batches[-1] for number in row if number)

    @property
    def tokens(self):
        return [self.counts[number + 1] for number in range(LENGTHS.size)]

    @property
    def steps(self):
        return len(self.batches)


def watched(kind):
    """A trainer that notes what it trains on, and what it logs."""

    class Watched(kind):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.seen = Seen()

        def training_step(self, model, inputs, *args, **kwargs):
            self.seen.add(inputs)
            return super().training_step(model, inputs, *args, **kwargs)

        @property
        def losses(self):
            return [entry["loss"] for entry in self.state.log_history if "loss" in entry]

        @property
        def epochs(self):
            return [entry["epoch"] for entry in self.state.log_history if "loss" in entry]

    return Watched


def model(dropout=0.0):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        attention_dropout=dropout,
        tie_word_embeddings=True,
    )
    return nopad.packed(transformers.LlamaForCausalLM(config))


def arguments(folder, kind=transformers.TrainingArguments, **options):
    same = {
        "output_dir": str(folder),
        "per_device_train_batch_size": ROWS,
        "gradient_accumulation_steps": ACCUMULATION,
        "num_train_epochs": EPOCHS,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return kind(**same | options)


def tokenizer():
    import tokenizers
    from tokenizers import models

    inner = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "[EOS]": 2}, unk_token="[UNK]"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", eos_token="[EOS]")


def classified():
    """A task of three classes."""
    from tests.tasks.tiny import tokenizer as words_tokenizer

    from nopad.tasks import Classification

    return Classification(words_tokenizer(), ["bad", "fair", "good"])


def classify_records(count=37, seed=0):
    """Random texts for it."""
    from tests.tasks.tiny import words

    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 30, (count,), generator=generator).tolist()
    return [{"text": words(generator, length), "label": n * n % 3} for n, length in enumerate(lengths)]


def classify(folder, accumulation, trainer, **options):
    """Train a tiny BERT in float64 on packs; return the trainer, and what is the same on any number of ranks."""
    from tests.tasks.tiny import bert

    task, made = classified(), classify_records()
    how = arguments(
        folder, gradient_accumulation_steps=accumulation, num_train_epochs=3, optim="sgd", learning_rate=0.1
    )
    run = trainer(bert(task), how, task=task, train_dataset=made, eval_dataset=made, capacity=64, quiet=True, **options)
    run.evaluate()  # which must leave nothing behind
    run.train()
    evaluated = run.evaluate()
    predicted = run.predict(made).predictions
    told = {
        "losses": [entry["loss"] for entry in run.state.log_history if "loss" in entry],
        "evaluated": [evaluated[f"eval_{name}"] for name in ("loss", "accuracy", "f1")],
        "predicted": predicted.tolist(),
        "sum": float(sum(parameter.abs().sum() for parameter in run.model.parameters())),
    }
    return run, told


def balance(folder, accumulation, trainer):
    """Train a tiny mixture of experts in float64, with the loss that balances them; return what is the same.

    A micro-batch is one pack, since ranks put other packs together than one rank does.
    """
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=128,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        output_router_logits=True,
        router_aux_loss_coef=0.5,
    )
    mixture = transformers.MixtralForCausalLM._from_config(config, experts_implementation="eager").double()
    how = {"optim": "sgd", "learning_rate": 0.5, "num_train_epochs": 1, "per_device_train_batch_size": 1}
    how = arguments(folder, gradient_accumulation_steps=accumulation, **how)
    run = trainer(mixture, how, train_dataset=loader(seed=5, rows=1, accumulation=accumulation), quiet=True)
    run.train()
    return {
        "losses": [entry["loss"] for entry in run.state.log_history if "loss" in entry],
        "sum": float(sum(parameter.abs().sum() for parameter in run.model.parameters())),
    }


def prefer(folder, accumulation, trainer):
    """Train a tiny Llama in float64 by DPO, against itself before training; return what is the same on all ranks."""
    from tests.tasks.templates import tokenizer as words_tokenizer
    from tests.tasks.tiny import llama, words

    from nopad.tasks import DPO, reference_logprobs

    generator = torch.Generator().manual_seed(3)
    sizes = torch.randint(1, 15, (26, 3), generator=generator).tolist()
    names = ("prompt", "chosen", "rejected")
    task = DPO(words_tokenizer())
    records = [{name: " " + words(generator, size) for name, size in zip(names, one, strict=True)} for one in sizes]
    start = nopad.packed(llama(task))
    examples = reference_logprobs(start, task.encode(records), 64, rows=2)
    how = arguments(folder, gradient_accumulation_steps=accumulation, optim="sgd", learning_rate=0.5)
    run = trainer(start, how, task=task, train_dataset=examples, capacity=64, quiet=True)
    run.train()
    return {
        "reference": examples.sequences.values["reference_logp"].tolist(),
        "losses": [entry["loss"] for entry in run.state.log_history if "loss" in entry],
        "sum": float(sum(parameter.abs().sum() for parameter in run.model.parameters())),
    }
