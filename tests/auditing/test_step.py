"""Steps that are right pass, to 1e-12 in float64, and are measured right: the judge computes by itself."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
import transformers
from stepped import LENGTHS, classified, judge, kinds, tagged, texts
from zoo import build

import nopad
from nopad.losses import sequence_denominator, sequence_loss, token_denominator, token_loss

pytestmark = pytest.mark.filterwarnings("ignore")


def by_tokens(model, batch, step):
    """A loop's loss with nopad's own losses: one denominator over micro-batches and ranks, DDP's average undone."""
    count = sum(token_denominator(one["labels"], one) for one in step.batches)
    logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    return token_loss(logits, batch["labels"], batch, denominator=step.over_ranks(count)) * step.ranks


def by_sequences(model, batch, step):
    count = sum(sequence_denominator(one["labels"]) for one in step.batches)
    return sequence_loss(model(**batch).logits, batch["labels"], denominator=step.over_ranks(count)) * step.ranks


def assert_right(verdict, model, examples, **how):
    """Passed in float64 to 1e-12, with the judge's loss and norms."""
    assert verdict.passed, str(verdict)
    loss, gradients = judge(model, examples, **how)
    assert verdict.loss == pytest.approx(loss, rel=1e-12)
    assert verdict.loss_alone == pytest.approx(loss, rel=1e-12)
    total = math.sqrt(sum(float(value.square().sum()) for value in gradients.values()))
    assert math.sqrt(sum(module.norm**2 for module in verdict.modules)) == pytest.approx(total, rel=1e-10)
    for module in verdict.modules:
        members = [value for name, value in gradients.items() if name.startswith(module.name + ".")]
        norm = math.sqrt(sum(float(value.square().sum()) for value in members))
        assert module.norm_alone == pytest.approx(norm, rel=1e-9, abs=1e-14), module.name
        assert module.difference <= 1e-12
    limits = {check.name: check for check in verdict.checks}
    assert limits["float64 loss"].limit == limits["float64 gradients"].limit == 1e-12


class TestRight:
    def test_classification(self):
        model = nopad.packed(build("bert", "sequence classification", num_labels=3, dtype=torch.float32))
        verdict = nopad.audit_step(model, classified(), loss=by_sequences)
        assert_right(verdict, model, classified())
        assert verdict.denominator == verdict.denominator_used == len(LENGTHS)
        assert [batch.sequences for batch in verdict.batches] == [1, 2, 3, 4]
        assert "float32 gradients" in [check.name for check in verdict.checks]

    @pytest.mark.parametrize(("ranks", "accumulation"), [(2, 2), (1, 3), (3, 1), (1, 1)])
    def test_causal(self, ranks, accumulation):
        model = nopad.packed(build("llama", "causal LM", dtype=torch.float32))
        verdict = nopad.audit_step(model, texts(), ranks=ranks, accumulation=accumulation)
        assert_right(verdict, model, texts(), causal=True)
        assert verdict.denominator == sum(LENGTHS) - len(LENGTHS)
        assert sum(batch.items for batch in verdict.batches) == verdict.denominator

    def test_token_classification(self):
        model = nopad.packed(build("bert", "token classification", num_labels=5))
        verdict = nopad.audit_step(model, tagged(), loss=by_tokens)
        assert_right(verdict, model, tagged())

    def test_a_mean_per_sequence(self):
        def loss(model, batch, step):
            count = sum(token_denominator(one["labels"], one, per="sequence") for one in step.batches)
            logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
            total = step.over_ranks(count)
            return token_loss(logits, batch["labels"], batch, per="sequence", denominator=total) * step.ranks

        model = nopad.packed(build("bert", "token classification", num_labels=5))
        assert_right(nopad.audit_step(model, tagged(), loss=loss, per="sequence"), model, tagged(), per="sequence")
        verdict = nopad.audit_step(model, tagged(), loss=loss)
        assert kinds(verdict) == ["per sequence"], str(verdict)

    def test_padded_batches_of_a_stock_model(self):
        def collate(examples):
            width = max(len(one["input_ids"]) for one in examples)
            pad = lambda values, fill: values + [fill] * (width - len(values))  # noqa: E731
            return {
                "input_ids": torch.tensor([pad(one["input_ids"], 0) for one in examples]),
                "attention_mask": torch.tensor([pad([1] * len(one["input_ids"]), 0) for one in examples]),
                "labels": torch.tensor([pad(one["labels"], -100) for one in examples]),
            }

        model = build("llama", "causal LM")
        assert_right(nopad.audit_step(model, texts(), collate), model, texts(), causal=True)

    def test_labels_that_no_sequence_needs_to_have(self):
        examples = texts()
        for number in (0, 4):
            examples[number]["labels"] = [-100] * len(examples[number]["labels"])
        model = nopad.packed(build("llama", "causal LM"))
        verdict = nopad.audit_step(model, examples)
        assert_right(verdict, model, examples, causal=True)
        assert "micro-batch 0 of rank 0 has no label" in verdict.notes

    def test_ranks_that_talk_by_torch(self):
        def loss(model, batch, step):
            count = sum(sequence_denominator(one["labels"]) for one in step.batches)
            total = nopad.losses.over_ranks(count)
            assert torch.distributed.get_world_size() == 2
            assert torch.distributed.get_rank() == step.rank
            return sequence_loss(model(**batch).logits, batch["labels"], denominator=total) * 2

        model = nopad.packed(build("bert", "sequence classification", num_labels=3))
        assert_right(nopad.audit_step(model, classified(), loss=loss), model, classified())
        assert not torch.distributed.is_initialized()


class TestModels:
    """Whatever a model has that is not in the way."""

    def test_dropout_that_is_on(self):
        options = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5, "classifier_dropout": 0.5}
        model = nopad.packed(build("bert", "sequence classification", num_labels=3, dtype=torch.float32, **options))
        assert_right(nopad.audit_step(model.train(), classified(), loss=by_sequences), model, classified())
        eager = build("llama", "causal LM", attention_dropout=0.5)
        eager.set_attn_implementation("eager")
        collate = transformers.DataCollatorWithFlattening(return_tensors="pt")
        eager.config.use_cache = False
        assert_right(nopad.audit_step(eager, texts(), collate), eager, texts(), causal=True)

    def test_tied_weights(self):
        model = nopad.packed(build("llama", "causal LM", tie_word_embeddings=True))
        assert model.lm_head.weight is model.model.embed_tokens.weight
        verdict = nopad.audit_step(model, texts())
        assert_right(verdict, model, texts(), causal=True)
        assert "lm_head" not in [module.name for module in verdict.modules]

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_gradient_checkpointing(self, reentrant):
        model = nopad.packed(build("llama", "causal LM", dtype=torch.float32, attention_dropout=0.3))
        plain = copy.deepcopy(model)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        assert_right(nopad.audit_step(model, texts()), plain, texts(), causal=True)

    def test_adapters(self):
        peft = pytest.importorskip("peft")
        model = nopad.packed(build("llama", "causal LM", dtype=torch.float32))
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=0.5))
        with torch.no_grad():
            for name, value in adapted.named_parameters():
                if "lora_B" in name:
                    value.normal_(std=0.1)
        verdict = nopad.audit_step(adapted, texts())
        assert verdict.passed, str(verdict)
        loss, gradients = judge(adapted, texts(), causal=True)
        assert verdict.loss == pytest.approx(loss, rel=1e-12)
        assert [module.name for module in verdict.modules] == [
            f"base_model.model.model.layers.{layer}" for layer in (0, 1)
        ]
        assert all("lora" in name for name in gradients)

    def test_nothing_of_the_model_changes(self):
        model = nopad.packed(build("bert", "sequence classification", num_labels=3, dtype=torch.float32))
        model.classifier.weight.grad = kept = torch.ones_like(model.classifier.weight)
        before = copy.deepcopy(model.state_dict())
        seed = torch.random.get_rng_state()
        nopad.audit_step(model, classified(), loss=by_sequences)
        assert not model.training
        assert model.config.problem_type is None
        assert torch.equal(torch.random.get_rng_state(), seed)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert model.classifier.weight.grad is kept
        assert bool((kept == 1).all())
        assert all(value.grad is None for name, value in model.named_parameters() if name != "classifier.weight")
        assert torch.get_default_dtype() == torch.float32

    def test_bfloat16(self):
        model = nopad.packed(build("llama", "causal LM", dtype=torch.bfloat16))
        verdict = nopad.audit_step(model, texts())
        assert_right(verdict, model, texts(), causal=True)
        assert [check.name for check in verdict.checks][-2:] == ["bfloat16 loss", "bfloat16 gradients"]

    def test_experts(self):
        sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
        config = transformers.MixtralConfig(
            vocab_size=99, num_key_value_heads=2, num_local_experts=4, output_router_logits=True, **sizes
        )
        model = nopad.packed(transformers.MixtralForCausalLM(config))
        verdict = nopad.audit_step(model, texts())
        assert verdict.passed, str(verdict)
        assert any("the loss that balances experts is left out" in note for note in verdict.notes)
        assert model.config.output_router_logits

    def test_a_module_that_is_none_of_transformers(self):
        class Odd(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.out = torch.nn.Embedding(99, 8), torch.nn.Linear(8, 1)

            def forward(self, input_ids):
                return self.out(self.table(input_ids)).square()

        def together(features):
            return {"input_ids": torch.tensor([[token for one in features for token in one["input_ids"]]])}

        def loss(model, batch, step):
            count = step.over_ranks(sum(one["input_ids"].numel() for one in step.batches))
            return model(**batch).sum() / count * step.ranks

        def alone(model, inputs):
            return model(inputs["input_ids"]).reshape(-1)

        assert nopad.audit_step(Odd(), texts(), together, loss, alone=alone).passed
        verdict = nopad.audit_step(
            Odd(), texts(), together, lambda model, batch: model(**batch).mean() / 2, alone=alone
        )
        assert kinds(verdict) == ["mean of means"]

    def test_a_loss_of_ones_own(self):
        weights = torch.tensor([1.0, 2.0, 3.0])  # float32, whatever the model is

        def alone(model, inputs):
            labels = inputs.pop("labels")
            return torch.nn.functional.cross_entropy(model(**inputs).logits, labels, weights, reduction="none")

        def loss(model, batch, step):
            logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
            each = torch.nn.functional.cross_entropy(logits, batch["labels"], weights, reduction="none")
            return each.sum() / step.over_ranks(sum(len(one["labels"]) for one in step.batches)) * step.ranks

        model = nopad.packed(build("bert", "sequence classification", num_labels=3))
        verdict = nopad.audit_step(model, classified(), loss=loss, alone=alone)
        assert verdict.passed, str(verdict)
        verdict = nopad.audit_step(model, classified(), loss=loss)
        assert kinds(verdict) == ["unknown"]
        assert "say with alone= what a sequence alone gives" in verdict.diagnosis

    def test_regression_and_masked_tokens(self):
        model = nopad.packed(build("bert", "sequence classification", num_labels=1, dtype=torch.float32))
        examples = [{**one, "labels": one["labels"] / 2} for one in classified()]
        verdict = nopad.audit_step(model, examples, loss=by_sequences)
        assert verdict.passed, str(verdict)

        def masked(features):
            batch = nopad.PackedBatch.from_features(features)
            batch["labels"] = torch.where(torch.rand(batch["input_ids"].shape) < 0.5, batch["input_ids"], -100)
            batch["input_ids"] = torch.where(batch["labels"] != -100, 3, batch["input_ids"])
            return batch

        examples = [{"input_ids": one["input_ids"]} for one in texts()]
        masker = nopad.packed(build("bert", "masked LM"))
        verdict = nopad.audit_step(masker, examples, masked, by_tokens)
        assert verdict.passed, str(verdict)
        assert any("the collator changed tokens" in note for note in verdict.notes)


class TestVerdict:
    def test_in_words_and_json(self):
        model = nopad.packed(build("llama", "causal LM"))
        verdict = nopad.audit_step(model, texts())
        assert str(verdict).startswith(
            "a step of LlamaForCausalLM, from_features, as a Trainer, 2 ranks x 2 micro-batches: equal to its sequences"
        )
        assert "gradients of" in str(verdict)
        found = json.loads(verdict.to_json())
        assert found == verdict.to_dict()
        assert found["outcome"] == "equal"
        assert found["modules"][0]["name"] == "model.embed_tokens"
        with pytest.raises(AttributeError):
            verdict.passed = False

    @pytest.mark.parametrize(
        ("inside", "begins", "ends", "said"), [(0, 0, 1, 0), (0, 1, 3, 0), (1, 0, 1, 9), (2, 1, 0, 9)]
    )
    def test_rows_of_several_texts_are_named(self, inside, begins, ends, said):
        """Texts that were laid one after another before the collator see each other; the step is right all the same."""
        model = nopad.packed(build("llama", "causal LM", eos_token_id=[1, 2]))
        rows = []
        for one in texts([7, 3, 12, 5, 9, 4, 15, 6, 8]):
            ids = [2] * begins + one["input_ids"] + [1] * inside + one["input_ids"] + [2] * ends
            rows.append({"input_ids": ids, "labels": ids})
        verdict = nopad.audit_step(model, rows)
        assert verdict.passed
        found = [note for note in verdict.notes if "an end of text before their own end" in note]
        assert [note.split(" of ")[:2] for note in found] == ([["9", "9 sequences hold an end"]] if said else [])

    def test_what_could_not_show_is_said(self):
        model = nopad.packed(build("llama", "causal LM"))
        verdict = nopad.audit_step(model, texts([5, 5, 5, 5]))
        assert verdict.passed
        assert "no micro-batch held two sequences, so none could see another: give more" in verdict.notes
        [note] = [note for note in verdict.notes if "equally many labels" in note]
        assert "in all micro-batches, ranks, accumulation steps, so a mean of means" in note
        lengths = [4, 2, 3, 6, 2, 2]  # dealt as 1, 1, 2 and 2: labels 3, 1, 7 and 2
        assert not any("equally" in note for note in nopad.audit_step(model, texts(lengths)).notes)
        lengths = [4, 7, 2, 2, 6, 3]  # labels 3 and 6, 2 and 7: ranks are even
        assert "equally many labels in all ranks, so" in str(nopad.audit_step(model, texts(lengths)))


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"ranks": 0}, "ranks"),
            ({"accumulation": 1.5}, "accumulation"),
            ({"per": "batch"}, "per"),
            ({"ranks": 6}, "10 sequences are too few for 6 ranks with 2 micro-batches each"),
        ],
    )
    def test_options(self, options, why):
        model = nopad.packed(build("llama", "causal LM"))
        with pytest.raises(nopad.errors.OptionError, match=why):
            nopad.audit_step(model, texts(), **options)

    def test_examples(self):
        model = nopad.packed(build("llama", "causal LM"))
        with pytest.raises(nopad.errors.BatchError, match="sequence 1 is a dict with labels; expected a dict with inp"):
            nopad.audit_step(model, [texts()[0], {"labels": [1]}], ranks=1, accumulation=1)
        with pytest.raises(nopad.errors.LengthError, match="sequence 0 has no tokens"):
            nopad.audit_step(model, [{"input_ids": [], "labels": []}], ranks=1, accumulation=1)
        for lengths, says in (([3], "add up to 3, and it has 5"), ([3, 0, 2], "has no tokens"), ([6, -1], "no tokens")):
            given = {"input_ids": [1, 2, 3, 4, 5], "labels": [1, 2, 3, 4, 5], "seq_lengths": lengths}
            with pytest.raises(nopad.errors.LengthError, match=says):
                nopad.audit_step(model, [given], ranks=1, accumulation=1)
        with pytest.raises(nopad.errors.OptionError, match="no sequence has a label"):
            nopad.audit_step(model, [{**one, "labels": [-100] * len(one["labels"])} for one in texts()])
        with pytest.raises(nopad.errors.OptionError, match="give a model and sequences, or a trainer"):
            nopad.audit_step(model)

    def test_a_mean_is_not_what_a_sequence_alone_gives(self):
        model = nopad.packed(build("llama", "causal LM"))
        with pytest.raises(nopad.errors.BatchError, match=r"alone gave shape \[\] for sequence 0; expected the losses"):
            nopad.audit_step(model, texts(), alone=lambda model, inputs: model(**inputs).loss)

    @pytest.mark.parametrize("means", [(2, 1, 1, 1), (1, 1, 2, 1), (2, 3, 2, 2)])
    def test_as_many_means_for_each_sequence(self, means):
        """Losses beyond those of the first sequence were left out, and fewer ended in an IndexError."""
        model, given = nopad.packed(build("llama", "causal LM")), texts()[:4]

        def alone(model, inputs):
            number = [one["input_ids"] for one in given].index(inputs["input_ids"][0].tolist())
            return (model(input_ids=inputs["input_ids"]).logits[0, :, 0],) * means[number]

        odd = next(number for number, count in enumerate(means) if count != means[0])
        says = rf"alone gave losses of {means[odd]} means? for sequence {odd}, and of {means[0]} for sequence 0"
        with pytest.raises(nopad.errors.BatchError, match=says):
            nopad.audit_step(model, given, alone=alone)

    def test_a_model_without_a_loss(self):
        with pytest.raises(nopad.errors.BatchError, match=r"BertModel gives no loss of sequence 0 alone.*give alone="):
            nopad.audit_step(nopad.packed(build("bert")), classified())
