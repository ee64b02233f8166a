"""Packed batches in the loops people have: transformers' Trainer, TRL's SFTTrainer, a plain one. Losses as padded.

A step takes the same sequences either way, and its loss is a sum over one denominator, so the curves must be equal.
"""

from __future__ import annotations

import inspect
import warnings
from functools import partial

import pytest
import torch
import transformers
from zoo import build

import nopad
from nopad.errors import BatchError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEPS, BATCH = 6, 4
SAME = {  # of both trainers
    "per_device_train_batch_size": BATCH,
    "max_steps": STEPS,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "bf16": False,
    "remove_unused_columns": False,
    "train_sampling_strategy": "sequential",
    "disable_tqdm": True,
}


@pytest.fixture(scope="module")
def rows():
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 30, (STEPS * BATCH,), generator=generator).tolist()
    ids = [torch.randint(5, 99, (n,), generator=generator).tolist() for n in lengths]
    return [{"input_ids": one, "labels": one} for one in ids]


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        return self.rows[at]


def padded(features):
    """The usual collator: pad to the longest."""
    longest = max(len(feature["input_ids"]) for feature in features)

    def column(name, fill):
        return torch.tensor([f[name] + [fill] * (longest - len(f[name])) for f in features])

    mask = [[1] * len(f["input_ids"]) + [0] * (longest - len(f["input_ids"])) for f in features]
    return {"input_ids": column("input_ids", 0), "labels": column("labels", -100), "attention_mask": torch.tensor(mask)}


def collator(form, head):
    how = {"flat": {"form": nopad.Flat()}, "rows": {"form": nopad.Rows(40)}}[form]
    return partial(nopad.PackedBatch.from_features, causal=head == "causal LM", **how)


def padded_causal(features):
    """The same, without the labels of first tokens where an older Trainer would count what nothing predicts."""
    batch = padded(features)
    if "[..., 1:]" not in inspect.getsource(transformers.Trainer):
        batch["labels"][:, 0] = -100
    return batch


def logged_losses():
    """A callback for the trainers, which `seen` every loss they log. (Importing its base class takes seconds.)"""

    class Losses(transformers.TrainerCallback):
        def __init__(self):
            self.seen = []

        def on_log(self, args, state, control, logs=None, **_):
            if "loss" in (logs or {}):
                self.seen.append(logs["loss"])

    return Losses()


def trained(model, rows, collate, folder, *, accumulate=1, **how):
    losses = logged_losses()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        **SAME | {"per_device_train_batch_size": BATCH // accumulate},
        gradient_accumulation_steps=accumulate,
        **how,
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Rows(rows), data_collator=collate, callbacks=[losses]
    )
    trainer.train()
    return losses.seen


@pytest.mark.parametrize("form", ["flat", "rows"])
@pytest.mark.parametrize(
    ("kind", "head"), [("bert", "masked LM"), ("llama", "causal LM"), ("deberta-v2", "token classification")]
)
def test_trainer(tmp_path, rows, kind, head, form):
    how = {"num_labels": 99} if head == "token classification" else {}
    usual = trained(
        build(kind, head, dtype=torch.float32, **how), rows, padded_causal if head == "causal LM" else padded, tmp_path
    )
    model = nopad.packed(build(kind, head, dtype=torch.float32, **how))
    found = trained(model, rows, collator(form, head), tmp_path)
    assert len(found) == len(set(usual)) == STEPS
    assert found == pytest.approx(usual, abs=1e-5)


def test_trainer_with_gradient_accumulation(tmp_path, rows):
    usual = trained(build("llama", "causal LM", dtype=torch.float32), rows, padded_causal, tmp_path)
    model = nopad.packed(build("llama", "causal LM", dtype=torch.float32))
    assert trained(model, rows, collator("flat", "causal LM"), tmp_path, accumulate=2) == pytest.approx(usual, abs=1e-5)


def test_a_denominator_that_counts_first_tokens_is_refused(tmp_path, rows):
    model = nopad.packed(build("llama", "causal LM", dtype=torch.float32))
    with pytest.raises(BatchError, match="build the batch with causal=True"):
        trained(model, rows, nopad.PackedBatch.from_features, tmp_path)


def test_label_smoothing(tmp_path, rows):
    """The loss is computed outside of the model there, and shifts labels along rows."""
    how = {"label_smoothing_factor": 0.1}
    usual = trained(build("llama", "causal LM", dtype=torch.float32), rows, padded_causal, tmp_path, **how)
    for form in (nopad.Flat(), nopad.Rows(40)):
        model = nopad.packed(build("llama", "causal LM", dtype=torch.float32))
        collate = partial(nopad.PackedBatch.from_features, form=form, causal=True)
        assert trained(model, rows, collate, tmp_path, **how) == pytest.approx(usual, abs=1e-5)
    for odd in ({}, {"form": nopad.Rows(40)}, {"form": nopad.Rows(40, end_to_end=True), "causal": True}):
        with pytest.raises(
            BatchError, match="num_items_in_batch was given and labels were not, so the loss is computed"
        ):
            trained(model, rows, partial(nopad.PackedBatch.from_features, **odd), tmp_path, **how)


def test_sft_trainer(tmp_path, rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trl = pytest.importorskip("trl")
        datasets = pytest.importorskip("datasets")
    import tokenizers
    from tokenizers import models

    inner = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "[EOS]": 2}, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", eos_token="[EOS]")

    def run(model, collate):
        losses = logged_losses()
        how = trl.SFTConfig(
            output_dir=str(tmp_path),
            **SAME,
            dataset_kwargs={"skip_prepare_dataset": True},
            gradient_checkpointing=False,
        )
        trainer = trl.SFTTrainer(
            model,
            args=how,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer,
            data_collator=collate,
            callbacks=[losses],
        )
        trainer.train()
        return losses.seen

    usual = run(build("llama", "causal LM", dtype=torch.float32), padded_causal)
    found = run(nopad.packed(build("llama", "causal LM", dtype=torch.float32)), collator("flat", "causal LM"))
    assert len(found) == STEPS
    assert found == pytest.approx(usual, abs=1e-5)


def test_a_plain_loop(rows):
    def run(model, collate):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for at in range(0, len(rows), BATCH):
            loss = model(**collate(rows[at : at + BATCH])).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    usual = run(build("bert", "masked LM").train(), padded)
    for form in ("flat", "rows"):
        found = run(nopad.packed(build("bert", "masked LM").train()), collator(form, "masked LM"))
        assert found == pytest.approx(usual, abs=1e-10)


def test_peft(rows):
    peft = pytest.importorskip("peft")

    def wrapped(model):
        torch.manual_seed(0)
        return peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=0.0))

    def gradients(model, batch):
        model(**batch).loss.backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    usual = gradients(wrapped(build("llama", "causal LM").train()), padded(rows[:4]))
    for order in ("inside", "outside"):
        model = build("llama", "causal LM").train()
        model = wrapped(nopad.packed(model)) if order == "inside" else nopad.packed(wrapped(model))
        found = gradients(model, collator("flat", "causal LM")(rows[:4]))
        assert found.keys() == usual.keys()
        assert all("lora" in name for name in found)
        for name, value in usual.items():
            torch.testing.assert_close(found[name], value, atol=1e-12, rtol=1e-10)
