"""Every planted mistake is caught, and named; the numbers that name it are computed here by themselves."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from stepped import classified, in_double, kinds, losses_alone, tagged, texts
from zoo import build

import nopad
from nopad.losses import token_loss

pytestmark = pytest.mark.filterwarnings("ignore")

DEALT = [(0, 1), (1, 3), (3, 6), (6, 10)]  # which of ten examples each micro-batch of 2 ranks x 2 gets


def causal(features):
    return nopad.PackedBatch.from_features(features, causal=True)


def llama(**options):
    return nopad.packed(build("llama", "causal LM", **{"num_hidden_layers": 1} | options))


def each_alone(model=None, examples=None):
    with in_double():
        return [one.detach() for one in losses_alone(model or llama(), examples or texts(), causal=True)[0]]


class TestMeansOfMeans:
    def test_over_micro_batches(self):
        def loss(model, batch, step):
            return model(**batch).loss / step.accumulation

        each = each_alone()
        wrong = sum(float(torch.cat(each[a:b]).mean()) for a, b in DEALT) / 4
        verdict = nopad.audit_step(llama(), texts(), causal, loss)
        assert kinds(verdict) == ["mean of means"]
        assert verdict.loss == pytest.approx(wrong, rel=1e-12)
        assert "within each micro-batch, averaged over the micro-batches, not over the step, and so do" in str(verdict)
        assert verdict.denominator_used is None
        assert verdict.first_difference is None
        assert not verdict.passed
        assert min(module.cosine for module in verdict.modules) < 0.999

    def test_over_ranks(self):
        def loss(model, batch, step):
            count = sum(int((one["labels"] != -100).sum()) for one in step.batches)
            return model(**batch, num_items_in_batch=torch.tensor(count)).loss

        each = each_alone()
        wrong = sum(float(torch.cat(each[a:b]).mean()) for a, b in ((0, 3), (3, 10))) / 2
        verdict = nopad.audit_step(llama(), texts(), causal, loss)
        assert kinds(verdict) == ["mean of means"]
        assert verdict.loss == pytest.approx(wrong, rel=1e-12)
        assert "averaged over the ranks" in verdict.diagnosis

    def test_over_accumulation_steps_of_all_ranks(self):
        def loss(model, batch, step):
            count = step.over_ranks(int((batch["labels"] != -100).sum()))
            return model(**batch, num_items_in_batch=torch.tensor(count)).loss * step.ranks / step.accumulation

        verdict = nopad.audit_step(llama(), texts(), causal, loss)
        assert kinds(verdict) == ["mean of means"]
        assert "averaged over the accumulation steps" in verdict.diagnosis

    def test_over_rows(self):
        def rows(features):
            return nopad.PackedBatch.from_features(features, nopad.Rows(16), causal=True)

        def loss(model, batch, step):
            logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
            labels = batch["labels"]
            means = [
                torch.nn.functional.cross_entropy(row[:-1], wanted[1:])
                for row, wanted in zip(logits, labels, strict=True)
                if bool((wanted[1:] != -100).any())
            ]
            everywhere = step.over_ranks(sum(len(one["labels"]) for one in step.batches))
            return torch.stack(means).sum() / everywhere * step.ranks

        verdict = nopad.audit_step(llama(), texts(), rows, loss)
        assert kinds(verdict) == ["mean of means"], str(verdict)
        assert "averaged over the rows" in verdict.diagnosis

    def test_what_a_trainer_does_to_models_that_pass_over_its_count(self):
        """BERT's heads take any keyword and ignore the count: neither accumulation nor ranks are in its loss."""
        model = nopad.packed(build("bert", "sequence classification", num_labels=3))
        verdict = nopad.audit_step(model, classified())
        each = [float(one) for one in losses_alone(model, classified())[0]]
        means = [sum(each[a:b]) / (b - a) for a, b in DEALT]
        assert verdict.loss == pytest.approx(sum(means), rel=1e-12)
        assert kinds(verdict) == ["mean of means"]
        assert "times 4: not divided by the 2 accumulation steps, and multiplied by the 2 ranks" in verdict.diagnosis


class TestDenominators:
    def test_first_tokens_in_the_denominator(self):
        def loss(model, batch, step):
            count = step.over_ranks(sum(int((one["labels"] != -100).sum()) for one in step.batches))
            count = torch.tensor(count + 10)  # ten sequences
            return model(**batch, num_items_in_batch=count).loss * step.ranks

        def counts(model, batch, step):
            rest = {name: value for name, value in batch.items() if name != "labels"}
            count = step.over_ranks(sum(int((one["labels"] != -100).sum()) for one in step.batches))
            logits = model(**rest).logits
            return token_loss(logits, batch["labels"], batch, causal=True, denominator=float(count)) * step.ranks

        total = float(torch.cat(each_alone()).sum())
        verdict = nopad.audit_step(llama(), texts(), nopad.PackedBatch.from_features, counts)
        assert kinds(verdict) == ["first token counted"], str(verdict)
        assert verdict.loss == pytest.approx(total / 80, rel=1e-12)
        assert (verdict.denominator, verdict.denominator_used) == (70, pytest.approx(80))
        assert all(module.cosine == pytest.approx(1, abs=1e-12) for module in verdict.modules)
        verdict = nopad.audit_step(llama(), texts(), causal, loss)
        assert verdict.loss == pytest.approx(total / 80, rel=1e-12)
        assert kinds(verdict) == ["wrong denominator"]
        assert "all tokens, labelled or not" in verdict.diagnosis

    def test_a_model_of_nopad_refuses_first_tokens(self):
        verdict = nopad.audit_step(llama(), texts(), nopad.PackedBatch.from_features)
        assert verdict.outcome == "failed"
        assert "labels of first tokens are in the number of items" in verdict.diagnosis

    @pytest.mark.parametrize(
        ("factor", "why"),
        [
            (1 / 2, "times 0.5: not multiplied by the 2 ranks"),
            (
                2,
                "times 2: multiplied by the 2 ranks, which its denominator does not have in it, or not divided",
            ),
            (1 / 4, "times 0.25: divided by the 2 accumulation steps, which its denominator has in it, and not mult"),
        ],
    )
    def test_scales(self, factor, why):
        def loss(model, batch, step):
            return model(**batch, num_items_in_batch=step.num_items_in_batch).loss * step.ranks * factor

        verdict = nopad.audit_step(llama(), texts(), causal, loss)
        assert kinds(verdict) == ["wrong scale"]
        assert why in verdict.diagnosis
        assert verdict.denominator_used == pytest.approx(70 / factor)

    def test_padding_counted(self):
        def rows(features):
            return nopad.PackedBatch.from_features(features, nopad.Rows(20), causal=True)

        def loss(model, batch, step):
            count = step.over_ranks(sum(one["labels"].numel() for one in step.batches))
            return model(**batch, num_items_in_batch=torch.tensor(count)).loss * step.ranks

        verdict = nopad.audit_step(llama(), texts(), rows, loss)
        assert kinds(verdict) == ["wrong denominator"]
        assert "all slots, padding too" in verdict.diagnosis

    def test_no_denominator(self):
        def loss(model, batch, step):
            return model(**batch, num_items_in_batch=1).loss * step.ranks

        verdict = nopad.audit_step(llama(), texts(), causal, loss)
        assert kinds(verdict) == ["wrong denominator"]
        assert "a sum that nothing divides" in verdict.diagnosis
        assert verdict.denominator_used == 1

    def test_the_other_mean(self):
        def loss(model, batch, step):
            found = model(**batch, num_items_in_batch=step.num_items_in_batch).loss * step.ranks
            return found

        verdict = nopad.audit_step(llama(), texts(), causal, loss, per="sequence")
        assert kinds(verdict) == ["per token"]
        assert verdict.loss_alone == pytest.approx(float(torch.stack([one.mean() for one in each_alone()]).mean()))


class TestBorders:
    def collate(self, features):
        """Positions that begin again, so that a stock model keeps sequences apart, and all labels."""
        batch = transformers.DataCollatorWithFlattening(return_tensors="pt")(features)
        return {**batch, "labels": batch["input_ids"].clone(), "use_cache": False}

    def test_a_label_across(self):
        verdict = nopad.audit_step(build("llama", "causal LM"), texts(), self.collate)
        assert kinds(verdict) == ["label across a border"]
        assert verdict.denominator_used == 80 - 4
        assert verdict.first_difference is None

    def test_a_label_across_in_a_mean_of_means(self):
        def loss(model, batch):
            return model(**batch).loss / 2

        verdict = nopad.audit_step(build("llama", "causal LM"), texts(), self.collate, loss)
        assert kinds(verdict) == ["label across a border"]
        assert "averaged over the micro-batches" in verdict.diagnosis


class TestModules:
    def test_contamination(self):
        flattening = transformers.DataCollatorWithFlattening(return_tensors="pt")
        verdict = nopad.audit_step(build("bert", "token classification", num_labels=5), tagged(), flattening)
        assert kinds(verdict) == ["contamination"]
        assert verdict.first_difference == "bert.encoder.layer.0.attention.self"

    def test_positions(self):
        given = []

        def collate(features):
            ids = [token for one in features for token in one["input_ids"]]
            number = torch.tensor([at for at, one in enumerate(features) for _ in one["input_ids"]])
            mask = (number[:, None] == number[None, :])[None, None]
            labels = torch.tensor([[label for one in features for label in one["labels"]]])
            given.append((torch.tensor([ids]), torch.tensor([ids])))
            return {"input_ids": given[-1][0], "attention_mask": mask, "labels": labels}

        verdict = nopad.audit_step(build("bert", "token classification", num_labels=5), tagged(), collate)
        assert kinds(verdict) == ["different from alone"]
        assert verdict.first_difference == "bert.embeddings.position_embeddings"
        assert verdict.diagnosis.endswith("it has other positions there; no sequence sees another")
        assert all(torch.equal(*pair) for pair in given)  # the batches are as they were

    def test_positions_and_no_mask(self):
        def collate(features):
            ids = [token for one in features for token in one["input_ids"]]
            labels = [label for one in features for label in one["labels"]]
            return {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels])}

        verdict = nopad.audit_step(build("bert", "token classification", num_labels=5), tagged(), collate)
        assert kinds(verdict) == ["contamination"]
        assert verdict.diagnosis.endswith("it has other positions there; further on, a sequence sees another")

    def test_padding_is_no_sequence(self):
        def collate(features):
            width = max(len(one["input_ids"]) for one in features)

            def fill(name, value):
                return torch.tensor([one[name] + [value] * (width - len(one[name])) for one in features])

            return {"input_ids": fill("input_ids", 0), "labels": fill("labels", -100)}

        verdict = nopad.audit_step(build("bert", "token classification", num_labels=5), tagged(), collate)
        assert kinds(verdict) == ["different from alone"]
        assert "it sees padding, or has other positions, or another mask, there; no sequence" in verdict.diagnosis

    def test_a_head_fed_with_rows(self):
        def collate(features):
            ids = [token for one in features for token in one["input_ids"]]
            positions = [at for one in features for at in range(len(one["input_ids"]))]
            number = torch.tensor([at for at, one in enumerate(features) for _ in one["input_ids"]])
            mask = (number[:, None] == number[None, :])[None, None]
            labels = torch.tensor([features[0]["labels"]])
            made = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([positions])}
            return {**made, "attention_mask": mask, "labels": labels}

        verdict = nopad.audit_step(build("bert", "sequence classification", num_labels=3), classified(), collate)
        assert kinds(verdict)[0] == "head fed with rows"
        assert verdict.first_difference == "bert.pooler.dense"
        assert "bert.pooler.dense gave 1 results for 4 sequences in micro-batch 1 of rank 1" in verdict.diagnosis
        assert "labels dropped" in kinds(verdict)

    def test_gradients_only(self):
        class Leak(torch.autograd.Function):
            @staticmethod
            def forward(context, states):
                return states.clone()

            @staticmethod
            def backward(context, gradient):
                return gradient + gradient.mean((0, 1), keepdim=True) * (gradient.shape[1] > 20)

        model = llama(num_hidden_layers=2)
        model.model.layers[1].register_forward_hook(lambda module, args, output: Leak.apply(output))
        verdict = nopad.audit_step(model, texts(), causal)
        assert not verdict.passed
        assert verdict.diagnosis == "the loss is right, and its gradients are not"
        found = {module.name: module.difference for module in verdict.modules}
        assert found["model.layers.1"] > 1e-3
        assert found["lm_head"] < 1e-12


class TestCollators:
    def test_that_truncate(self):
        def collate(features):
            return causal([{name: value[:8] for name, value in one.items()} for one in features])

        verdict = nopad.audit_step(llama(), texts(), collate)
        assert set(kinds(verdict)) == {"sequence truncated"}
        assert "sequence 6 of 15 tokens is cut to 8 tokens in micro-batch 1 of rank 1" in verdict.diagnosis

    def test_that_truncate_padded_batches(self):
        def collate(features):
            cut = [one["input_ids"][:8] for one in features]
            width = max(map(len, cut))
            ids = torch.tensor([one + [0] * (width - len(one)) for one in cut])
            mask = torch.tensor([[1] * len(one) + [0] * (width - len(one)) for one in cut])
            return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

        verdict = nopad.audit_step(build("llama", "causal LM"), texts(), collate)
        assert set(kinds(verdict)) == {"sequence truncated"}

    @pytest.mark.parametrize("stock", [True, False])
    def test_that_drop_a_sequence(self, stock):
        def collate(features):
            kept = features[:3]
            if stock:
                return transformers.DataCollatorWithFlattening(return_tensors="pt")(kept) | {"use_cache": False}
            return causal(kept)

        model = build("llama", "causal LM") if stock else llama()
        verdict = nopad.audit_step(model, texts(), collate)
        assert kinds(verdict) == ["sequence dropped"]
        assert "sequence 9 of 11 tokens is not in micro-batch 1 of rank 1" in verdict.diagnosis
        assert verdict.denominator_used == 60

    @pytest.mark.parametrize("stock", [True, False])
    def test_that_keep_the_end(self, stock):
        def collate(features):
            cut = [{name: value[-8:] for name, value in one.items()} for one in features]
            if stock:
                return transformers.DataCollatorWithFlattening(return_tensors="pt")(cut) | {"use_cache": False}
            return causal(cut)

        verdict = nopad.audit_step(build("llama", "causal LM") if stock else llama(), texts(), collate)
        assert kinds(verdict) == ["sequence truncated"] * 4
        assert verdict.denominator_used == sum(min(len(one["input_ids"]), 8) - 1 for one in texts())

    def test_that_add_tokens_or_sequences(self):
        given = texts()

        def add(features):
            for one in features:
                one["input_ids"].append(2)
                one["labels"].append(2)
            return causal(features)

        verdict = nopad.audit_step(llama(), given, add)
        assert kinds(verdict) == ["tokens added"] * 4 + ["unknown"]
        assert "micro-batch 1 of rank 1 has 44 tokens, and its sequences have 40" in verdict.diagnosis
        assert given == texts()
        verdict = nopad.audit_step(llama(), texts(), lambda features: causal([*features, features[0]]))
        assert kinds(verdict) == ["tokens added"] * 4 + ["unknown"]

    def test_that_change_the_order(self):
        assert nopad.audit_step(llama(), texts(), lambda features: causal(features[::-1])).passed

        def turned(features):
            return nopad.PackedBatch.from_features(features[::-1])

        def swapped(features):
            labels = [one["labels"] for one in features[::-1]]
            return nopad.PackedBatch.from_features(
                [{**one, "labels": label} for one, label in zip(features, labels, strict=True)]
            )

        def loss(model, batch, step):
            count = step.over_ranks(sum(len(one["labels"]) for one in step.batches))
            return model(**batch).loss * len(batch["labels"]) / count * step.ranks

        model = nopad.packed(build("bert", "sequence classification", num_labels=3))
        assert nopad.audit_step(model, classified(), turned, loss).passed
        assert kinds(nopad.audit_step(model, classified(), turned)) == ["mean of means"]
        verdict = nopad.audit_step(model, classified(), swapped, loss)
        assert set(kinds(verdict)) == {"labels changed", "unknown"}
        assert "labels of micro-batch 1 of rank 1 are in another order than its sequences" in verdict.diagnosis
        assert verdict.first_difference is None

    def test_that_drop_labels(self):
        def collate(features):
            batch = causal(features)
            batch["labels"][:, 2] = -100
            return batch

        verdict = nopad.audit_step(llama(), texts(), collate)
        assert set(kinds(verdict)) == {"labels dropped"}
        assert "labels dropped: 1 of sequence 0 in micro-batch 0 of rank 0" in verdict.diagnosis

    def test_that_change_or_add_labels(self):
        def change(features):
            batch = causal(features)
            batch["labels"][:, 2] = 1
            return batch

        def add(features):
            batch = nopad.PackedBatch.from_features(features)
            batch["labels"] = batch["labels"].masked_fill(batch["labels"] == -100, 1)
            return batch

        assert set(kinds(nopad.audit_step(llama(), texts(), change))) == {"labels changed"}
        model = nopad.packed(build("bert", "token classification", num_labels=5))
        assert "labels added" in kinds(nopad.audit_step(model, tagged(), add))

    @pytest.mark.parametrize("own", [False, True])
    def test_that_drop_all_labels(self, own):
        """No mistake explains losses that are all 0."""

        def collate(features):
            batch = causal(features)
            batch["labels"] = torch.full_like(batch["labels"], -100)
            return batch

        def nothing(model, batch):
            return model(**batch).logits.sum() * 0

        def alone(model, inputs):
            labels, logits = inputs["labels"][0, 1:], model(**inputs).logits[0, :-1]
            here = labels != -100
            return torch.nn.functional.cross_entropy(logits[here], labels[here], reduction="none")

        verdict = nopad.audit_step(llama(), texts(), collate, nothing, alone=alone if own else None)
        assert set(kinds(verdict)) == {"labels dropped"}

    def test_that_drop_all_labels_of_ones_rank(self):
        def collate(features):
            batch = causal(features)
            if len(features) < 3:
                batch["labels"] = torch.full_like(batch["labels"], -100)
            return batch

        verdict = nopad.audit_step(llama(), texts(), collate)
        assert set(kinds(verdict)) == {"labels dropped"}

    def test_that_raise(self):
        def collate(features):
            raise KeyError("length")

        verdict = nopad.audit_step(llama(), texts(), collate)
        assert verdict.outcome == "failed"
        assert verdict.error == "KeyError"
        assert "the collator, on sequence 0: KeyError: 'length'" in verdict.diagnosis
        assert math.isnan(verdict.loss)


class TestLosses:
    def test_nan_of_a_batch_without_labels(self):
        examples = texts()
        examples[0]["labels"] = [-100] * len(examples[0]["labels"])

        def loss(model, batch, step):
            return model(**batch).loss / step.accumulation

        verdict = nopad.audit_step(llama(), examples, causal, loss)
        assert kinds(verdict) == ["not finite"]
        assert "micro-batch 0 of rank 0 is nan: it has no label, and a mean of nothing is NaN" in verdict.diagnosis

    def test_nan_even_alone(self):
        model = llama()
        with torch.no_grad():
            model.lm_head.weight[5] = math.nan
        verdict = nopad.audit_step(model, texts(), causal)
        assert kinds(verdict) == ["not finite"]
        assert "the loss of sequence 0 is nan even alone" in verdict.diagnosis

    @pytest.mark.parametrize("found", [None, "text", torch.ones(2, requires_grad=True), True])
    def test_that_are_no_number(self, found):
        verdict = nopad.audit_step(llama(), texts(), causal, lambda model, batch: found)
        assert verdict.outcome == "failed"
        assert "expected the scalar that the training loop calls backward() on" in verdict.diagnosis

    def test_that_are_detached(self):
        verdict = nopad.audit_step(llama(), texts(), causal, lambda model, batch: model(**batch).loss.detach())
        assert not verdict.passed
        assert all(module.norm == 0 for module in verdict.modules)

    def test_that_draw_random_numbers(self):
        def loss(model, batch, step):
            right = model(**batch, num_items_in_batch=step.num_items_in_batch).loss * step.ranks
            return right * (1 + torch.rand(()))

        verdict = nopad.audit_step(llama(), texts(), causal, loss)
        assert kinds(verdict) == ["unknown", "random"]

    def test_that_run_in_one_dtype_only(self):
        def right(model, batch, step):
            assert next(model.parameters()).dtype == torch.float32
            return model(**batch, num_items_in_batch=step.num_items_in_batch).loss * step.ranks

        def wrong(model, batch, step):
            return right(model, batch, step) / step.ranks

        model = llama(dtype=torch.float32)
        verdict = nopad.audit_step(model, texts(), causal, right)
        assert verdict.passed, str(verdict)
        assert [check.name for check in verdict.checks] == ["sequences and labels", "float32 loss", "float32 gradients"]
        assert any(note.startswith("in float32 only, where what is small does not show") for note in verdict.notes)
        assert kinds(nopad.audit_step(model, texts(), causal, wrong)) == ["wrong scale"]

    def test_autocast(self):
        def loss(model, batch, step):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return model(**batch, num_items_in_batch=step.num_items_in_batch).loss * step.ranks

        verdict = nopad.audit_step(llama(dtype=torch.float32), texts(), causal, loss)
        assert verdict.passed, str(verdict)
        assert {check.name: check.limit for check in verdict.checks}["float32 loss"] == 5e-2
        assert any("bfloat16 too, as autocast does" in note for note in verdict.notes)

    def test_a_hook_that_holds_the_model_itself(self):
        model = llama()
        weight = model.lm_head.weight
        model.model.norm.register_forward_hook(lambda module, args, output: output + 0 * weight.sum())
        with pytest.raises(nopad.errors.OptionError, match=r"trains the model itself \(lm_head.weight\)"):
            nopad.audit_step(model, texts(), causal)
        assert weight.grad is None

    def test_that_call_the_model_itself(self):
        model = llama(dtype=torch.float32)
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(nopad.errors.OptionError, match="or the loss calls it and not the model that it is given"):
            nopad.audit_step(model, texts(), causal, lambda _, batch: model(**batch).loss / 2)
        assert all(value.grad is None for value in model.parameters())
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())

    def test_nothing_is_trained(self):
        with pytest.raises(nopad.errors.OptionError, match="no parameter of the model is trained"):
            nopad.audit_step(llama().requires_grad_(False), texts(), causal)

    def test_ranks_that_would_hang(self):
        def loss(model, batch, step):
            if step.rank == 0:
                step.over_ranks(1)
            return model(**batch).loss

        verdict = nopad.audit_step(llama(), texts(), causal, loss)
        assert verdict.outcome == "failed"
        assert "real ranks would wait forever" in verdict.diagnosis
