"""Each planted fault gets its fix, and the lines that are named are run as they stand, so they do what they say."""

from __future__ import annotations

import json
from itertools import combinations
from textwrap import indent

import pytest
import test_families
import torch
import transformers as t
from collators import blocks
from kinds import tiny
from stepped import classified, texts
from test_traps import block, flat
from zoo import build

import nopad
from nopad.auditing import find_fix, find_step_fix
from nopad.errors import BatchError, OptionError
from nopad.report.audited import audit_page

FLATTENING = t.DataCollatorWithFlattening(return_tensors="pt")


FAULTS = {
    "positions": "position_ids",
    "labels": "labels of first tokens",
    "mask": "block-diagonal attention_mask",
    "loss": "denominator",
}


def faulty(faults):
    """A collator of one row, with the faults that many have."""

    def collate(features):
        tokens, positions, number = flat(features)
        batch = {"input_ids": tokens, "position_ids": positions, "labels": tokens.clone()}
        batch["attention_mask"] = torch.ones_like(tokens) if "mask" in faults else block(number).tril()
        if "labels" not in faults:
            batch["labels"][number != number.roll(1, 1)] = -100
        if "positions" in faults:
            del batch["position_ids"]
        return batch

    return collate


class Told:
    """A monitor that keeps the names of stages."""

    def __init__(self):
        self.stages = []

    def stage(self, name, total, unit):
        self.stages.append(name)


def names(fix):
    return [change.name for change in fix.changes]


def as_written(collate, fix, model):
    """The collator with the fix's lines typed in behind it, and nothing of nopad's."""

    def changed(features):
        told = {"batch": dict(collate(features)), "features": features, "model": model, "torch": torch}
        exec("\n".join(change.code for change in fix.changes if change.where == "collator"), told)
        return told["batch"]

    return changed


def fixed(model, collate):
    """The fix of a collator; what it names passes the audit as somebody types it."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fix = find_fix(model, collator=collate, capacity=32)
    assert fix.found, str(fix)
    assert fix.verdict.isolated
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    if fix.changes and all(change.where in ("collator", "model") for change in fix.changes):
        for change in fix.changes:
            if change.where == "model":
                exec(change.code, {"model": model})
        assert nopad.audit(model, collator=as_written(collate, fix, model), capacity=32).isolated
    return fix


def laid(*kept, mask=None, cache=False, offset=0):
    """A collator of one row with some of what it should have."""

    def collate(features):
        tokens, positions, number = flat(features)
        whole = {"input_ids": tokens, "position_ids": positions + offset}
        batch = {name: whole[name] for name in ("input_ids", *kept)}
        if mask is not None:
            batch["attention_mask"] = mask(tokens, number)
        return batch if cache else {**batch, "use_cache": False}

    return collate


def ones(tokens, number):
    return torch.ones_like(tokens)


def numbers(tokens, number):
    return number


def square(tokens, number):
    return block(number)


def without_a_cache(collate):
    return lambda features: {name: value for name, value in collate(features).items() if name != "use_cache"}


class TestCausal:
    def test_a_cache(self):
        assert names(fixed(build("llama", "causal LM"), FLATTENING)) == ["use_cache"]

    def test_a_collator_that_empties_what_it_is_given(self):
        def collate(features):
            batch = laid()(features)
            for one in features:
                one.clear()
            return batch

        assert names(find_fix(build("llama", "causal LM"), collator=collate, capacity=32)) == ["position_ids"]

    def test_no_positions(self):
        assert names(fixed(build("llama", "causal LM"), laid())) == ["position_ids"]

    @pytest.mark.parametrize("mask", [ones, numbers])
    def test_a_mask_per_token(self, mask):
        fix = fixed(build("llama", "causal LM"), laid("position_ids", mask=mask))
        assert names(fix) == ["attention_mask left out"]

    def test_separators_only(self):
        fix = fixed(build("llama", "causal LM"), laid(mask=ones, cache=True))
        assert names(fix) == ["position_ids", "block-diagonal attention_mask"]
        assert ".tril()" in fix.code

    def test_a_mask_that_shows_later_tokens(self):
        fix = fixed(build("llama", "causal LM"), laid("position_ids", mask=square))
        assert names(fix) == ["attention_mask left out"]

    def test_rows_of_several_sequences(self):
        def collate(features):
            rows = [features[at::2] for at in (0, 1)]
            ids = [torch.tensor([token for one in row for token in one["input_ids"]]) for row in rows]
            pad = torch.nn.utils.rnn.pad_sequence
            return {
                "input_ids": pad(ids, batch_first=True),
                "attention_mask": pad([torch.ones_like(one) for one in ids], batch_first=True),
            }

        fix = fixed_rows(build("llama", "causal LM"), collate)
        assert names(fix) == ["position_ids", "block-diagonal attention_mask"]
        assert "# number [R, L]: of which sequence each token is, -1 in padding" in fix.code


def fixed_rows(model, collate):
    fix = find_fix(model, collator=collate, capacity=32)
    assert fix.found, str(fix)
    return fix


class TestEncoders:
    def test_no_mask(self):
        fix = fixed(build("bert"), without_a_cache(laid("position_ids")))
        assert names(fix) == ["block-diagonal attention_mask"]
        assert ".tril()" not in fix.code

    def test_numbers_of_sequences_as_a_mask(self):
        fix = fixed(build("bert"), without_a_cache(laid("position_ids", mask=numbers)))
        assert names(fix) == ["block-diagonal attention_mask"]

    def test_neither_mask_nor_positions(self):
        assert names(fixed(build("bert"), without_a_cache(laid()))) == ["position_ids", "block-diagonal attention_mask"]

    def test_an_attention_that_adds_a_bool_mask(self):
        model = build("bert")
        model.set_attn_implementation("eager")
        fix = find_fix(model, collator=without_a_cache(laid("position_ids", mask=square)), capacity=32)
        assert model.config._attn_implementation == "eager"  # only copies are changed
        [change] = fix.changes
        assert (change.code, change.where) == ('model.set_attn_implementation("sdpa")', "model")

    def test_positions_of_roberta(self):
        model = build("roberta")
        fix = fixed(model, without_a_cache(laid("position_ids", mask=square)))
        assert names(fix) == ["position_ids after padding_idx"]
        other = fixed(model, without_a_cache(laid("position_ids", mask=square, offset=7)))
        assert names(other) == ["position_ids", "position_ids after padding_idx"]

    def test_token_types(self):
        def collate(features):
            batch = blocks()(features)
            return {**batch, "token_type_ids": torch.arange(batch["input_ids"].shape[1])[None] % 2}

        assert names(fixed(build("bert"), collate)) == ["token_type_ids"]

    def test_a_pooled_head_that_is_fed_rows(self):
        fix = fixed(build("bert", "sequence classification"), blocks())
        assert names(fix) == ["nopad's own batches"]
        assert "nopad.packed(model)" in fix.code

    def test_a_head_that_nopad_refuses(self):
        model = build("bert", "sequence classification")
        model.config.model_type = "one of its own"
        fix = fixed(model, blocks())
        assert names(fix) == ["one sequence per row"]


class TestModels:
    @pytest.mark.parametrize("kind", ["lfm2", "mamba2"])
    def test_that_mix_tokens_besides_attention(self, kind):
        """No mask and no position keeps a convolution or a state inside its sequence."""
        fix = fixed(test_families.build(tiny(kind), "base"), laid("position_ids"))
        assert names(fix) == ["nopad's own batches"]


class TestNothingToMend:
    def test_a_sound_collator(self):
        fix = find_fix(build("bert"), collator=blocks(), capacity=32)
        assert (fix.found, fix.changes, fix.tried) == (True, (), 0)
        assert str(fix) == "fix: none is needed, the audit passes"

    def test_a_model_that_leaks_itself(self):
        model = build("bert")
        model.encoder.layer[1].register_forward_hook(lambda m, a, output: output + 4e-3 * output.mean((0, 1)))
        fix = find_fix(model, collator=blocks(), capacity=32, gradients=False)
        assert (fix.found, fix.changes) == (False, ())
        assert not fix.verdict.isolated
        assert str(fix) == f"fix: none of {fix.tried} sets of changes makes the audit pass"

    def test_what_is_refused(self):
        model = build("bert")
        with pytest.raises(BatchError, match="it was cut, dropped or changed"):
            find_fix(model, collator=lambda features: {"input_ids": torch.tensor([features[0]["input_ids"]])})
        with pytest.raises(OptionError, match="there is no collator to mend"):
            find_fix(model, collator=None)
        with pytest.raises(OptionError, match="this model is pack-safe"):
            find_fix(nopad.packed(model), collator=blocks())


class TestSteps:
    EXAMPLES = texts()

    def test_a_mean_of_means(self):
        def collate(features):
            return nopad.PackedBatch.from_features(features, causal=True)

        def loss(model, batch, step):
            return model(**batch).loss / step.accumulation

        model = nopad.packed(build("llama", "causal LM"))
        fix = find_step_fix(model, self.EXAMPLES, collate, loss)
        assert names(fix) == ["denominator"]
        assert fix.verdict.passed
        made = {}
        exec(f"def right(model, batch, step):\n    {fix.code}", made)
        assert nopad.audit_step(model, self.EXAMPLES, collate, made["right"]).passed

    def test_contamination(self):
        def collate(features):
            batch = laid(cache=True)(features)
            labels = [label for one in features for label in (-100, *one["labels"][1:])]
            return {**batch, "labels": torch.tensor([labels])}

        model = build("llama", "causal LM")
        fix = find_step_fix(model, self.EXAMPLES, collate)
        assert fix.found, str(fix.verdict)
        assert names(fix) == ["block-diagonal attention_mask"]  # rotary positions are relative: they need no restart
        assert nopad.audit_step(model, self.EXAMPLES, as_written(collate, fix, model)).passed

    def test_a_module_of_your_own_around_a_model(self):
        """Its loss shifts labels, which nobody says; nothing of a configuration is there."""

        class Mine(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.base = build("llama")
                self.head = torch.nn.Linear(self.base.config.hidden_size, 100)

            def forward(self, input_ids, attention_mask=None, labels=None, count=None):
                states = self.base(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
                logits = self.head(states)[:, :-1].flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
                return {"loss": loss / ((labels[:, 1:] >= 0).sum() if count is None else count)}

        def collate(features):
            ids = torch.tensor([[token for one in features for token in one["input_ids"]]])
            return {"input_ids": ids, "labels": ids.clone()}

        def loss(model, batch, step):
            count = step.over_ranks(sum((one["labels"][:, 1:] >= 0).sum() for one in step.batches))
            return model(**batch, count=count)["loss"] * step.ranks

        torch.manual_seed(0)
        model = Mine().float()
        verdict = nopad.audit_step(model, self.EXAMPLES, collate, loss)
        assert verdict.denominator == sum(len(one["input_ids"]) - 1 for one in self.EXAMPLES)
        assert not verdict.passed
        fix = find_step_fix(model, self.EXAMPLES, collate, loss)
        assert names(fix) == ["block-diagonal attention_mask", "labels of first tokens"]
        assert nopad.audit_step(model, self.EXAMPLES, as_written(collate, fix, model), loss).passed

    def test_labels_across_borders(self):
        def collate(features):
            return {
                **laid("position_ids")(features),
                "labels": torch.tensor([[i for f in features for i in f["labels"]]]),
            }

        fix = find_step_fix(build("llama", "causal LM"), self.EXAMPLES, collate)
        assert names(fix) == ["labels of first tokens"]

    def test_a_head_that_is_fed_rows(self):
        def collate(features):
            return {**blocks()(features), "labels": torch.tensor([one["labels"] for one in features][:1])}

        model = build("bert", "sequence classification", num_labels=3)
        fix = find_step_fix(model, classified(), collate)
        assert names(fix) == ["nopad's own batches", "denominator, summed by hand"]  # BERT's head takes no denominator
        assert "causal" not in fix.code
        made = {"torch": torch}
        exec(f"def loss(model, batch, step):\n{indent(fix.changes[1].code, '    ')}", made)
        assert nopad.audit_step(nopad.packed(model), classified(), loss=made["loss"]).passed

    def test_a_trainer(self, tmp_path):
        def collate(features):
            batch = FLATTENING(features)
            return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}

        args = t.TrainingArguments(
            tmp_path, per_device_train_batch_size=3, gradient_accumulation_steps=2, report_to=[], use_cpu=True
        )
        trainer = t.Trainer(build("llama", "causal LM"), args, train_dataset=self.EXAMPLES * 2, data_collator=collate)
        fix = find_step_fix(trainer=trainer)
        assert fix.found, str(fix.verdict)
        assert "attention_mask left out" in names(fix) or "block-diagonal attention_mask" in names(fix)
        assert trainer.data_collator is collate

    @pytest.mark.parametrize(
        "faults",
        [
            *combinations(FAULTS, 2),
            *(pytest.param(three, marks=pytest.mark.soak) for three in combinations(FAULTS, 3)),
            tuple(FAULTS),
        ],
    )
    def test_faults_at_once(self, faults):
        """Each hides the next one, and each set is found by few audits."""
        loss = (lambda model, batch, step: model(**batch).loss / step.accumulation) if "loss" in faults else None
        model, told = build("gpt2", "causal LM"), Told()
        fix = find_step_fix(model, self.EXAMPLES, faulty(faults), loss, monitor=told)
        assert fix.found, str(fix)
        assert sorted(names(fix)) == sorted(FAULTS[fault] for fault in faults)
        assert fix.tried <= 5 * (1 + len(faults))
        assert [name.split()[1] for name in told.stages] == [str(1 + at) for at in range(fix.tried)]
        given = {}
        for change in fix.changes:
            if change.where == "loss":
                exec(f"def loss(model, batch, step):\n{indent(change.code, '    ')}", given)
        assert nopad.audit_step(
            model, self.EXAMPLES, as_written(faulty(faults), fix, model), given.get("loss", loss)
        ).passed

    @pytest.mark.parametrize("faults", [("positions", "labels"), ("positions", "labels", "mask")])
    def test_faults_at_once_in_a_trainer(self, tmp_path, faults):
        fix = find_step_fix(trainer=self.trainer(tmp_path, build("gpt2", "causal LM"), faulty(faults)))
        assert fix.found, str(fix)
        assert {"position_ids", "labels of first tokens"} <= set(names(fix))
        assert len(fix.changes) == len(faults)

    def trainer(self, folder, model, collate):
        how = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "report_to": [], "use_cpu": True}
        args = t.TrainingArguments(folder, **how)
        return t.Trainer(model, args, train_dataset=self.EXAMPLES * 2, data_collator=collate)

    def test_what_comes_nearest(self, tmp_path):
        def collate(features):
            batch = faulty(("positions", "labels"))(features)
            batch["labels"][:, 3] = 5
            return batch

        fix = find_step_fix(trainer=self.trainer(tmp_path, build("gpt2", "causal LM"), collate))
        assert (fix.found, fix.changes) == (False, ())
        assert [change.name for change in fix.nearest] == ["position_ids", "labels of first tokens"]
        lines = str(fix).splitlines()
        assert lines[1] == (
            "  position_ids and labels of first tokens remove the finding at transformer.wpe; what remains: labels "
            "changed. Make these changes, then audit again"
        )
        assert any('batch["position_ids"] = ' in line for line in lines)
        found = json.loads(fix.to_json())
        assert [change["name"] for change in found["nearest"]] == ["position_ids", "labels of first tokens"]
        page = audit_page(fix.verdict, fix=fix)
        assert "what remains: labels changed. Make these changes, then audit again</p>" in page

    def test_a_model_that_leaks_itself(self, tmp_path):
        model = build("gpt2", "causal LM")
        model.transformer.h[1].register_forward_hook(lambda m, a, output: output + 4e-3 * output.mean(1, keepdim=True))
        fix = find_step_fix(trainer=self.trainer(tmp_path, model, faulty(("positions",))))
        assert [change.name for change in fix.nearest] == ["position_ids"]
        assert fix.nearly == (
            "position_ids removes the finding at transformer.wpe; what remains: contamination at transformer.h.1. "
            "Make this change, then audit again"
        )

    def test_a_sound_step(self):
        fix = find_step_fix(nopad.packed(build("llama", "causal LM")), self.EXAMPLES)
        assert (fix.found, fix.changes) == (True, ())


def test_as_text_and_as_json():
    fix = find_fix(build("llama", "causal LM"), collator=FLATTENING, capacity=32, gradients=False)
    assert str(fix).splitlines()[1:] == [
        "  use_cache, at the end of the collator: with a cache, causal models do not look where position_ids begin "
        "again",
        '    batch["use_cache"] = False',
    ]
    found = json.loads(fix.to_json())
    assert found["found"] is True
    assert [change["code"] for change in found["changes"]] == ['batch["use_cache"] = False']
