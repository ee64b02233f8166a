"""Encoder–decoders built as BART or T5 are: packed against alone by the audit, and what is refused of them."""

from __future__ import annotations

import pytest
import torch
import transformers as t

import nopad
from nopad.errors import NopadError, UnsupportedModelError
from nopad.model.families import FAMILIES, PAIRS

SIZES = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 40}
IDS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
BLOCKS = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, **IDS}
CLASSES = {
    "blenderbot": "BlenderbotForConditionalGeneration",
    "blenderbot-small": "BlenderbotSmallForConditionalGeneration",
    "marian": "MarianMTModel",
    "mbart": "MBartForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
    "plbart": "PLBartForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
}


def build(kind, head=None):
    torch.manual_seed(0)
    make = t.CONFIG_MAPPING[kind]
    given = BLOCKS if kind.endswith("t5") else {**SIZES, **IDS, "forced_eos_token_id": 2}
    return getattr(t, head or CLASSES[kind])(make(**given)).eval()


def test_every_kind_is_here():
    assert set(CLASSES) == set(PAIRS)
    assert not set(PAIRS) & set(FAMILIES)


@pytest.mark.parametrize("kind", sorted(CLASSES))
def test_packed_is_alone(kind):
    """Outputs and gradients in every form, neighbours bit for bit, and attention once per layer and side."""
    try:
        verdict = nopad.audit(build(kind), capacity=24)
    except UnsupportedModelError as error:
        if "newer versions may" not in str(error):
            raise
        pytest.skip("this transformers does not register its attention")
    assert verdict.isolated, str(verdict)
    names = {check.name for check in verdict.checks}
    assert {"float64 gradients, flat", "float64 outputs, end to end", "attention calls, missing or extra"} <= names


def _in_rows(number):
    return nopad.Flat() if number == 1 else nopad.Rows(30, rows=number)


@pytest.mark.parametrize("rows", [(1, 3), (3, 1), (4, 3), (2, 5)], ids="{0[0]} of sources, {0[1]} of targets".format)
@pytest.mark.parametrize("kind", sorted(CLASSES))
def test_other_numbers_of_rows_of_sources_and_targets(kind, rows):
    """UMT5 counts the rows of its encoder's states by those of its decoder."""
    model = build(kind).double()
    generator = torch.Generator().manual_seed(1)
    texts, targets = (
        [torch.randint(5, 99, (n,), generator=generator) for n in lengths]
        for lengths in ((7, 23, 1, 4, 12), (3, 1, 19, 8, 5))
    )
    wanted = []
    for text, target in zip(texts, targets, strict=True):
        ids = torch.cat([torch.tensor([2]), target[:-1]])[None]
        wanted.append(model(input_ids=text[None], decoder_input_ids=ids).logits[0])
    weights = [one for one in model.parameters() if one.requires_grad]
    slopes = torch.autograd.grad(sum((one**2).sum() for one in wanted), weights)
    try:
        nopad.packed(model)
    except UnsupportedModelError as error:
        if "newer versions may" not in str(error):
            raise
        pytest.skip("this transformers does not register its attention")
    source, target = (_in_rows(one) for one in rows)
    batch = nopad.PackedBatch.from_sequences(texts, source).with_decoder(targets, 2, target)
    found = batch.targets.unpack_tokens(model(**batch).logits)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    again = torch.autograd.grad(sum((one**2).sum() for one in found), weights)
    for one, other in zip(again, slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["mbart", "marian"])
def test_rows_longer_than_the_table_of_positions(kind):
    """40 positions: a row of 60 tokens holds two sequences, each counted from 0."""
    stock, model = build(kind), nopad.packed(build(kind))
    texts = [list(range(5, 35)), list(range(40, 70))]
    targets = [[7, 8, 9], [10, 11]]
    batch = nopad.PackedBatch.from_sequences(texts).with_decoder(targets, 2)
    found = batch.targets.unpack_tokens(model(**batch).logits)
    for text, target, logits in zip(texts, targets, found, strict=True):
        ids = torch.tensor([[2, *target[:-1]]])
        wanted = stock(input_ids=torch.tensor([text]), decoder_input_ids=ids).logits[0]
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "head", "says"),
    [
        ("mbart", "MBartForSequenceClassification", "a row's last end-of-sequence token"),
        ("marian", "MarianForCausalLM", "a decoder without its encoder"),
    ],
)
def test_heads_that_are_refused(kind, head, says):
    with pytest.raises(UnsupportedModelError, match=says):
        nopad.packed(build(kind, head))


def test_other_encoder_decoders_are_refused():
    config = t.M2M100Config(**SIZES, **IDS)
    with pytest.raises(NopadError, match=r"bart, t5, blenderbot, .*, umt5; run its sequences padded"):
        nopad.packed(t.M2M100Model(config))
