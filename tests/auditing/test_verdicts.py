"""Verdicts that would be easy to get wrong: contaminated models that look right, and right ones that look wrong."""

from __future__ import annotations

import pytest
import torch
import transformers as t
from collators import blocks, padded
from zoo import build

import nopad
from nopad.errors import BatchError, OptionError, UnsupportedModelError


class Leak(torch.autograd.Function):
    """Does nothing, and lets gradients see each other."""

    @staticmethod
    def forward(context, states):
        return states.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient + gradient.mean((0, 1), keepdim=True)


class NoNumbers(torch.autograd.Function):
    """Does nothing, and has no gradient."""

    @staticmethod
    def forward(context, states):
        return states.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * torch.nan


def of_rows(module, args, output):
    states = output[0] if isinstance(output, tuple) else output
    return states + states.mean((0, 1), keepdim=True)


class TestContaminated:
    def test_gradients_that_are_no_numbers_alone(self):
        model = build("bert")
        layer = model.encoder.layer[1]
        layer.register_forward_hook(lambda module, args, output: Leak.apply(output))
        layer.register_forward_hook(
            lambda module, args, output: NoNumbers.apply(output) if output.shape[1] == 1 else output
        )
        verdict = nopad.audit(model, capacity=32)
        assert not verdict.isolated
        assert {check.name for check in verdict.checks if not check.passed} == {
            f"float64 gradients, {form}" for form in ("flat", "rows", "end to end")
        }
        assert "gradients that are not finite even alone, left out: those of sequences 1 (of 1)" in verdict.notes

    def test_a_result_of_the_row_beside_one_of_the_tokens(self):
        verdict = nopad.audit(build("bert", "pre-training"), collator=blocks(), capacity=32)
        assert not verdict.isolated
        assert verdict.checks[0].detail.startswith("seq_relationship_logits: of a row")

    def test_a_pooler_is_noted(self):
        verdict = nopad.audit(build("bert"), collator=blocks(), capacity=32)
        assert verdict.isolated, str(verdict)
        assert "pooler_output is not compared: it is a row's, and no sequence's" in verdict.notes

    def test_one_that_nopad_makes_pack_safe_has_no_excuse(self):
        model = build("bert")

        def add(module, args, output):
            output["mean"] = output.last_hidden_state.mean(1)
            return output

        model.register_forward_hook(add)
        verdict = nopad.audit(model, capacity=32)
        assert "mean of BertModel has the shape [1, 24] and not [1, " in verdict.checks[0].detail
        assert not verdict.isolated

    @pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT's own, of transformers
    @pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
    def test_tokens_that_peft_puts_in_front(self, kind):
        peft = pytest.importorskip("peft")
        wrapped = peft.get_peft_model(
            build("llama", "causal LM"), getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)
        )
        for check in (nopad.audit, nopad.packed, lambda m: nopad.audit(m, collator=blocks())):
            with pytest.raises(UnsupportedModelError, match="puts tokens of its own before each row"):
                check(wrapped)

    def test_hooks_that_fewer_layers_would_lose(self):
        model = build("bert")
        model.encoder.layer[0].register_forward_hook(of_rows)
        assert not nopad.audit(model, capacity=32).isolated
        for subject in (model, nopad.packed(model, prove="never")):
            with pytest.raises(UnsupportedModelError, match=r"encoder\.layer\.0 has a hook or a forward method of its"):
                nopad.audit(subject, layers=1, capacity=32)

    def test_hooks_by_which_transformers_records_states(self):
        model = build("bert")
        model(torch.tensor([[5, 6]]), output_hidden_states=True)
        assert nopad.audit(model, layers=1, capacity=32).isolated

    def test_windows_wider_than_the_usual_capacity(self):
        sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
        tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
        torch.manual_seed(0)
        model = t.ModernBertModel(t.ModernBertConfig(vocab_size=200, local_attention=128, **sizes, **tokens)).eval()
        assert not nopad.audit(model, collator=blocks()).isolated  # trap 6
        assert nopad.audit(model).isolated
        wide = t.MistralModel(
            t.MistralConfig(vocab_size=200, sliding_window=4096, num_key_value_heads=2, **sizes)
        ).eval()
        [note] = [note for note in nopad.audit(wide).notes if "local" in note]
        assert note == "no sequence is longer than its local attention of 4096 tokens; a larger capacity makes them"

    @pytest.mark.parametrize("backend", ["mask", "segments"])
    def test_a_leak_in_bfloat16_that_rounding_would_hide(self, backend):
        model = build("bert", dtype=torch.bfloat16)

        def leak(module, args, output):
            return output + 0.3 * output.mean((0, 1)) if output.dtype == torch.bfloat16 else output

        model.encoder.layer[1].intermediate.register_forward_hook(leak)
        verdict = nopad.audit(model, backend=backend, capacity=32)
        assert not verdict.isolated
        assert not any(check.passed for check in verdict.checks if "bfloat16 poison" in check.name)

    def test_a_leak_in_rows_only(self):
        model = build("bert", dtype=torch.float32)

        def leak(module, args, output):
            return output + 0.1 * output.mean() if output.dtype == torch.float32 and len(output) > 1 else output

        model.encoder.layer[1].intermediate.register_forward_hook(leak)
        failed = [check.name for check in nopad.audit(model, capacity=32).checks if not check.passed]
        assert failed[0] == "float32 outputs, rows"

    def test_a_small_leak_of_gradients_is_no_rounding(self):
        class Small(Leak):
            @staticmethod
            def backward(context, gradient):
                return gradient + 1e-6 * gradient.mean((0, 1), keepdim=True)

        model = build("bert")
        model.encoder.layer[1].register_forward_hook(lambda module, args, output: Small.apply(output))
        verdict = nopad.audit(model, capacity=32)
        assert not verdict.isolated
        assert "this model computes some of it in float32, even in float64" not in verdict.notes

    def test_infinite_logits_hide_nothing(self):
        model = build("bert", "masked LM")
        model.cls.register_forward_hook(
            lambda module, args, output: output.index_fill(-1, torch.tensor([0]), -torch.inf)
        )

        def counted_on(features):
            batch = blocks()(features)
            return {**batch, "position_ids": torch.arange(batch["input_ids"].shape[1])[None] % 80}

        verdict = nopad.audit(model, collator=counted_on, gradients=False, capacity=32)
        assert not verdict.checks[0].passed
        right = nopad.audit(model, gradients=False, capacity=32)
        assert right.isolated, str(right)


class TestRight:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_masks_that_are_added_in_another_dtype(self, dtype):
        def causal(features):
            batch = blocks(dtype)(features)
            width = batch["input_ids"].shape[1]
            later = torch.ones(width, width, dtype=torch.bool).triu(1)
            return {**batch, "attention_mask": batch["attention_mask"].masked_fill(later, torch.finfo(dtype).min)}

        model = build("llama", "causal LM", dtype=torch.float32)
        model.config.use_cache = False
        verdict = nopad.audit(model, collator=causal, capacity=32)
        assert verdict.isolated, str(verdict)

    @pytest.mark.parametrize("labels", [2, 8, 32])
    def test_as_many_labels_as_a_batch_is_wide(self, labels):
        model = build("bert", "sequence classification", num_labels=labels)
        verdict = nopad.audit(model, collator=padded, capacity=32)
        assert verdict.isolated, str(verdict)

    @pytest.mark.parametrize("backend", ["auto", "mask"])
    @pytest.mark.parametrize("kind", ["t5", "bart"])
    def test_encoders_with_decoders(self, kind, backend):
        model = build(kind, "conditional generation", dtype=torch.float32)
        verdict = nopad.audit(model, backend=backend, capacity=32)
        assert verdict.isolated, str(verdict)
        assert (
            next(c.detail for c in verdict.checks if c.name == "attention calls, missing or extra")
            == "6 calls in 6 layers"
        )

    def test_a_pad_that_is_a_token_too(self):
        model = build("llama", vocab_size=12, bos_token_id=None, eos_token_id=None)
        for seed in range(6):
            verdict = nopad.audit(
                model, collator=lambda f: padded(f, left=True), capacity=32, seed=seed, gradients=False
            )
            assert verdict.isolated, str(verdict)

    def test_a_model_that_gives_tuples(self):
        model = build("bert", return_dict=False)
        assert nopad.audit(model, capacity=32).isolated
        assert model.config.return_dict is False

    def test_a_limit_of_sequences(self):
        assert nopad.audit(nopad.packed(build("bert"), max_sequences=2), capacity=32).isolated


class TestNothingToCompare:
    def test_tokens_that_are_added(self):
        def with_ends(features):
            return padded([{"input_ids": [1, *feature["input_ids"], 2]} for feature in features])

        why = r"mask has \d+ real tokens, and the sequences have \d+: either it covers padding, .* or the collator adds"
        with pytest.raises(BatchError, match=why):
            nopad.audit(build("bert"), collator=with_ends, capacity=32)

    def test_a_mask_that_covers_padding(self):
        def of_ones(features):
            batch = padded(features)
            return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}

        with pytest.raises(BatchError, match="either it covers padding, where it must be 0"):
            nopad.audit(build("bert"), collator=of_ones, capacity=32)

    def test_a_model_that_is_random(self):
        model = build("bert")
        model.embeddings.register_forward_hook(lambda module, args, output: torch.nn.functional.dropout(output, 0.5))
        with pytest.raises(OptionError, match="BertModel gives one sequence two results in evaluation mode"):
            nopad.audit(model, capacity=32)

    def test_a_model_that_wants_more_than_ids(self):
        verdict = nopad.audit(build("t5", "conditional generation"), collator=padded, capacity=32)
        assert verdict.outcome == "failed"
        [check] = verdict.checks
        assert check.error == "ValueError"
        assert "T5ForConditionalGeneration does not run on the input_ids of one sequence, so" in check.detail
        assert "audit it without a collator, or its encoder: ValueError: You must specify" in check.detail

    def test_options(self):
        model = build("bert")
        for options in ({"seed": -1}, {"capacity": 4.5}, {"layers": True}, {"gradients": "no"}, {"backend": "sdpa"}):
            [(name, value)] = options.items()
            with pytest.raises(OptionError, match=f"{name} must be .*, got {value!r}"):
                nopad.audit(model, **options)
        with pytest.raises(OptionError, match="pack-safe by backend 'mask', and 'segments' is asked"):
            nopad.audit(nopad.packed(model, backend="mask"), backend="segments")


def test_names_of_checks_are_different():
    verdict = nopad.audit(build("bert"), collator=t.DataCollatorWithFlattening(return_tensors="pt"), capacity=32)
    assert len({check.name for check in verdict.checks}) == len(verdict.checks)
