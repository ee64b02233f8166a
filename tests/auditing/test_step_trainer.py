"""Steps of real trainers: transformers', nopad's and TRL's, called as they are and left as they were."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import pytest
import torch
import transformers
from stepped import classified, in_double, kinds, losses_alone, texts
from zoo import build

import nopad

pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")


def arguments(folder, kind=transformers.TrainingArguments, **options):
    usual = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "report_to": [], "use_cpu": True}
    return kind(output_dir=str(folder), **usual | options)


def flattening():
    return transformers.DataCollatorWithFlattening(return_tensors="pt")


def stock(**options):
    return build("llama", "causal LM", use_cache=False, dtype=torch.float32, **options)


def causal(features):
    return nopad.PackedBatch.from_features(features, causal=True)


class TestTransformers:
    def test_flattening(self, tmp_path):
        model = stock()
        trainer = transformers.Trainer(model, arguments(tmp_path), train_dataset=texts(), data_collator=flattening())
        before = dict(vars(trainer))
        seed = torch.random.get_rng_state()
        verdict = nopad.audit_step(trainer=trainer)
        assert verdict.passed, str(verdict)
        assert {check.name: check.limit for check in verdict.checks}["float64 gradients"] == 1e-12
        assert "Trainer, DataCollatorWithFlattening, 2 ranks x 2 micro-batches" in verdict.how
        assert [batch.sequences for batch in verdict.batches] == [2, 2, 2, 2]
        assert vars(trainer) == before
        assert all(value.grad is None for value in model.parameters())
        assert torch.equal(torch.random.get_rng_state(), seed)

    def test_the_loss_is_the_one_that_the_trainer_logs(self, tmp_path):
        """One rank and one step of all the data: a real run has this loss."""
        options = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no"}
        model = nopad.packed(stock())
        trainer = transformers.Trainer(
            copy.deepcopy(model), arguments(tmp_path, **options), train_dataset=texts()[:4], data_collator=causal
        )
        verdict = nopad.audit_step(trainer=trainer, ranks=1)
        assert verdict.passed, str(verdict)
        with in_double():
            each = losses_alone(model, texts()[:4], causal=True)[0]
        assert verdict.loss == pytest.approx(float(torch.cat(each).mean()), rel=1e-12)
        trainer.train()
        assert trainer.state.log_history[0]["loss"] == pytest.approx(verdict.loss, rel=1e-4)

    def test_contamination(self, tmp_path):
        model = build("bert", "masked LM", dtype=torch.float32)
        trainer = transformers.Trainer(model, arguments(tmp_path), train_dataset=texts(), data_collator=flattening())
        verdict = nopad.audit_step(trainer=trainer, causal=False)
        assert "contamination" in kinds(verdict)
        assert verdict.first_difference == "bert.encoder.layer.0.attention.self"

    def test_a_model_that_passes_over_the_count(self, tmp_path):
        model = nopad.packed(build("bert", "sequence classification", num_labels=3, dtype=torch.float32))
        trainer = transformers.Trainer(
            model, arguments(tmp_path), train_dataset=classified(), data_collator=nopad.PackedBatch.from_features
        )
        verdict = nopad.audit_step(trainer=trainer)
        assert kinds(verdict) == ["wrong scale"]
        assert "times 4: not divided by the 2 accumulation steps, and multiplied by the 2 ranks" in verdict.diagnosis
        assert nopad.audit_step(
            trainer=transformers.Trainer(
                model,
                arguments(tmp_path, gradient_accumulation_steps=1),
                train_dataset=classified(),
                data_collator=nopad.PackedBatch.from_features,
            ),
            ranks=1,
        ).passed

    def test_a_compute_loss_of_ones_own(self, tmp_path):
        class Mine(transformers.Trainer):
            loss_is_scaled_for_ga = False

            def compute_loss(self, model, inputs, *args, num_items_in_batch=None, **kwargs):
                return super().compute_loss(model, inputs, *args, num_items_in_batch=None, **kwargs)

        trainer = Mine(stock(), arguments(tmp_path), train_dataset=texts(), data_collator=flattening())
        verdict = nopad.audit_step(trainer=trainer)
        assert kinds(verdict) == ["mean of means"], str(verdict)

    def test_an_own_count_of_all_ranks(self, tmp_path):
        """Counted by accelerate or by torch, in `get_batch_samples`, where each rank knows its own batches only."""

        highest = []

        class Counts(transformers.Trainer):
            def get_batch_samples(self, batches, number, device):
                samples, count = super().get_batch_samples(batches, number, device)
                assert self.args.world_size == self.accelerator.num_processes == 2
                assert self.args.process_index == torch.distributed.get_rank()
                mine = sum(int((one["labels"] != -100).sum()) for one in samples)
                reduced = {"sum": int(count), "mean": int(count) / 2}
                for reduction, total in reduced.items():
                    assert self.accelerator.reduce(torch.tensor(mine), reduction, scale=0.5) == total
                both = self.accelerator.reduce([torch.tensor(mine), {"one": torch.tensor(1)}])
                assert (int(both[0]), int(both[1]["one"])) == (int(count), 2)
                rank = torch.tensor(torch.distributed.get_rank())
                highest.append(int(self.accelerator.reduce(rank, "max")))
                gathered = self.accelerator.gather({"of": rank[None].repeat(2)})["of"]
                assert gathered.tolist() in ([0, 0, 1, 1], [int(rank)] * 4)  # the first run knows one rank only
                return samples, nopad.losses.over_ranks(torch.tensor(mine))

        class Forgets(transformers.Trainer):
            def get_batch_samples(self, batches, number, device):
                samples, _ = super().get_batch_samples(batches, number, device)
                return samples, torch.tensor(sum(int((one["labels"] != -100).sum()) for one in samples))

        given = {"train_dataset": texts(), "data_collator": causal}
        verdict = nopad.audit_step(trainer=Counts(nopad.packed(stock()), arguments(tmp_path), **given))
        assert verdict.passed, str(verdict)
        assert highest[-2:] == [1, 1]
        verdict = nopad.audit_step(trainer=Forgets(nopad.packed(stock()), arguments(tmp_path), **given))
        assert kinds(verdict)[0] == "mean of means"
        assert "averaged over the ranks" in verdict.diagnosis

    def test_a_collator_that_drops(self, tmp_path):
        def collate(features):
            return causal(features[:1])

        trainer = transformers.Trainer(
            nopad.packed(stock()), arguments(tmp_path), train_dataset=texts(), data_collator=collate
        )
        verdict = nopad.audit_step(trainer=trainer)
        assert set(kinds(verdict)) == {"sequence dropped"}
        assert len(verdict.findings) == 4

    def test_refusals(self, tmp_path):
        given = {"train_dataset": texts()[:4], "data_collator": flattening()}
        trainer = transformers.Trainer(stock(), arguments(tmp_path), **given)
        with pytest.raises(nopad.errors.OptionError, match=r"data give 2 batches, and a step of 2 ranks .* takes 4"):
            nopad.audit_step(trainer=trainer)
        with pytest.raises(nopad.errors.OptionError, match="collate and trainer are given"):
            nopad.audit_step(trainer=trainer, collate=flattening())
        with pytest.raises(nopad.errors.OptionError, match="accumulation is 3, and the trainer's"):
            nopad.audit_step(trainer=trainer, accumulation=3)
        assert nopad.audit_step(trainer=trainer, ranks=1).passed


@pytest.mark.slow
def test_a_loader_of_nopad(tmp_path):
    from nopad.loading import causal as collate
    from nopad.training import PackedTrainer

    tokens = [np.array(one["input_ids"]) for one in texts() * 3]
    loader = nopad.PackedLoader(tokens, 16, rows=2, accumulation=2, last="fill", collate=collate)
    trainer = PackedTrainer(nopad.packed(stock()), arguments(tmp_path), train_dataset=loader)
    state = loader.state_dict()
    verdict = nopad.audit_step(trainer=trainer)
    assert verdict.passed, str(verdict)
    assert loader.state_dict() == state
    assert [batch.rows for batch in verdict.batches] == [2, 2, 2, 2]
    assert any("those that the batches tell" in note for note in verdict.notes)
    kept = trainer.model
    trainer.model = stock()
    verdict = nopad.audit_step(trainer=trainer)
    assert verdict.outcome == "failed"
    assert verdict.error == "NotPackSafeError"
    trainer.model = kept


@pytest.mark.parametrize("how", ["padding-free", "packing", "packing, adapters", "packing, wrapped", "padded"])
def test_trl(how, tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({str(at): at for at in range(99)}, unk_token="0")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), pad_token="0", eos_token="1"
    )
    packing = how.startswith("packing")
    options = {"packing": packing, "padding_free": how == "padding-free", "bf16": False, "disable_tqdm": True}
    if "wrapped" in how:
        options |= {"packing_strategy": "wrapped"}
    args = arguments(tmp_path, trl.SFTConfig, max_length=32 if packing else None, **options)
    data = datasets.Dataset.from_dict({"input_ids": [one["input_ids"] for one in texts() * 4]})
    more = {}
    if "adapters" in how:
        peft = pytest.importorskip("peft")
        more["peft_config"] = peft.LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=0.5)
    model = stock()
    trainer = trl.SFTTrainer(model, args, train_dataset=data, processing_class=tokenizer, **more)
    metrics = copy.deepcopy(trainer._metrics)
    verdict = nopad.audit_step(trainer=trainer)
    if how in ("padded", "packing, wrapped") and "_loss_shifts_labels" not in inspect.getsource(transformers.Trainer):
        assert "first token counted" in str(verdict)  # older ones do count it, and the audit says so
        return
    assert verdict.passed, str(verdict)
    assert {check.name: check.limit for check in verdict.checks}["float64 gradients"] == 1e-12
    assert trainer._metrics == metrics
    assert all(value.grad is None for value in model.parameters())
    if "wrapped" in how:  # rows were cut from one long text before, which the audit of rows cannot show
        assert any(note.startswith('packing_strategy "wrapped" lays texts one after another') for note in verdict.notes)
        return
    assert not any("end to end" in note for note in verdict.notes)
    assert max(batch.sequences for batch in verdict.batches) > (2 if packing else 1)
