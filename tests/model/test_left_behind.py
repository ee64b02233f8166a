"""What one call leaves behind is harmless to the next: interrupts, inference mode, other processes, foreign attention.

The judge is the stock model on one sequence at a time.
"""

from __future__ import annotations

import pytest
import torch
from zoo import FORMS, build

import nopad
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model import static_inputs


def alone(model, sequences):
    with torch.no_grad():
        return [model(input_ids=one[None])[0][0] for one in sequences]


def assert_equal(found, wanted):
    assert max(float((mine - value).detach().abs().max()) for mine, value in zip(found, wanted, strict=True)) < 1e-12


class TestAnInterrupt:
    """PyTorch runs no hook when a KeyboardInterrupt goes through a module: Ctrl-C in a notebook."""

    @pytest.fixture
    def interrupted(self):
        """A function that calls a model and interrupts it at its last layer."""

        def call(model, **arguments):
            def stop(*_):
                raise KeyboardInterrupt

            handle = model.bert.encoder.layer[-1].register_forward_hook(stop)
            with pytest.raises(KeyboardInterrupt):
                model(**arguments)
            handle.remove()

        return call

    def test_ordinary_and_packed_calls_afterwards(self, interrupted, sequences):
        model = build("bert", "sequence classification")
        wanted = alone(model, sequences)
        batch = nopad.PackedBatch.from_sequences(sequences)
        interrupted(nopad.packed(model), **batch)
        assert_equal(alone(model, sequences), wanted)
        interrupted(model, **batch)
        assert_equal(model(**batch).logits, wanted)
        interrupted(model, **batch)
        with pytest.raises(BatchError, match="input_ids is of a packed batch, and its attention_mask is not there"):
            model(input_ids=batch["input_ids"])

    def test_other_models_and_parts_afterwards(self, interrupted, sequences):
        model, other = nopad.packed(build("bert", "sequence classification")), build("roberta")
        wanted, states = alone(other, sequences), alone(build("bert", "sequence classification").bert, sequences)
        interrupted(model, **nopad.PackedBatch.from_sequences(sequences))
        assert_equal(alone(nopad.packed(other), sequences), wanted)
        assert_equal(alone(model.bert, sequences), states)

    def test_static_shapes(self, interrupted, sequences):
        model = nopad.packed(build("bert", "sequence classification"), max_sequences=8)
        batch = nopad.PackedBatch.from_sequences(sequences, nopad.Rows(40))
        wanted = alone(model, sequences)
        interrupted(model, **static_inputs(model, batch))
        assert_equal(alone(model, sequences), wanted)
        interrupted(model, **batch)
        assert_equal(model(**static_inputs(model, batch)).logits, wanted)
        assert model._nopad_state.cell.opened == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kind", "head", "backend"),
    [
        ("llama", "causal LM", "segments"),
        ("llama", "causal LM", "repack"),
        ("roberta", "masked LM", "auto"),
        ("deberta-v2", "masked LM", "auto"),
        ("bert", "sequence classification", "auto"),
    ],
)
def test_training_on_a_batch_after_inference_mode(kind, head, backend, form, sequences):
    model = nopad.packed(build(kind, head), backend=backend)
    batch = nopad.PackedBatch.from_sequences(sequences, **FORMS[form])
    with torch.inference_mode():
        first = model(**batch).logits.clone()
    again = model(**batch).logits
    again.square().sum().backward()
    assert torch.equal(again, first)
    assert all(p.grad is not None for name, p in model.named_parameters() if "embed" in name and "word" in name)


def test_training_on_targets_after_inference_mode(sequences):
    model = nopad.packed(build("bart", "conditional generation"))
    batch = nopad.PackedBatch.from_sequences(sequences).with_decoder(sequences, 2)
    with torch.inference_mode():
        model(**batch)
    model(**batch).loss.backward()


def test_in_another_process(tmp_path, sequences, warm_python):
    model = nopad.packed(build("bert"))
    batch = nopad.PackedBatch.from_sequences(sequences)
    torch.save((model, batch, model(**batch).last_hidden_state), tmp_path / "all.pt")
    program = (
        "import sys, torch; model, batch, wanted = torch.load(sys.argv[1], weights_only=False);"
        "assert torch.equal(model(**batch).last_hidden_state, wanted)"
    )
    process = warm_python.load("torch", "nopad.model")("-c", program, tmp_path / "all.pt")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


def test_attention_of_ones_own_is_not_replaced(sequences):
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    def sharper(module, query, key, value, mask, **how):
        return sdpa_attention_forward(module, query * 2, key, value, mask, **how)

    AttentionInterface.register("sharper", sharper)
    AttentionMaskInterface.register("sharper", sdpa_mask)
    model = build("bert")
    model.set_attn_implementation("sharper")
    with pytest.raises(UnsupportedModelError, match=r"attention 'sharper' of this BertModel is a function of .*"):
        nopad.packed(model)
    assert model.config._attn_implementation == "sharper"
    model.set_attn_implementation("sdpa")
    wanted = alone(model, sequences)
    batch = nopad.PackedBatch.from_sequences(sequences)
    assert_equal(batch.unpack_tokens(nopad.packed(model)(**batch).last_hidden_state), wanted)
