"""T5 and BART with their decoders: cross attention from each target to its own source only."""

from __future__ import annotations

import pytest
import torch
import transformers
from zoo import CONFIGS, FORMS, skip_where_unsupported

import nopad
from nopad.batch.device import place
from nopad.errors import BatchError

TARGETS = [3, 9, 1, 4, 8, 2, 6, 7]


def build(kind):
    skip_where_unsupported(kind)
    config = CONFIGS[kind]()
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.double().eval()


@pytest.fixture(scope="module")
def targets():
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(5, 99, (n,), generator=generator) for n in TARGETS]


@pytest.mark.parametrize(
    ("backend", "form", "how"),
    [
        ("segments", "flat", {}),
        ("segments", "rows", {"form": nopad.Rows(16)}),
        ("repack", "rows", {"form": nopad.Rows(16)}),
        ("mask", "flat", {}),
    ],
)
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_equal_to_alone(kind, backend, form, how, sequences, targets):
    model = build(kind)
    start = model.config.decoder_start_token_id
    wanted, losses = [], []
    with torch.no_grad():
        for source, target in zip(sequences, targets, strict=True):
            shifted = torch.cat([torch.tensor([start]), target[:-1]])
            out = model(input_ids=source[None], decoder_input_ids=shifted[None], labels=target[None])
            wanted.append(out.logits[0])
            losses.append(out.loss * target.numel())
    nopad.packed(model, backend=backend)
    batch = nopad.PackedBatch.from_sequences(sequences, **FORMS[form]).with_decoder(targets, start, **how)
    with torch.no_grad():
        out = model(**batch)
    placed = place(batch["decoder_attention_mask"], "cpu", backend)
    stream = placed.stream(out.logits)
    for place_in_stream, number in enumerate(placed.layout.order.tolist()):
        part = stream[placed.bounds[place_in_stream] : placed.bounds[place_in_stream + 1]]
        torch.testing.assert_close(part, wanted[number], atol=1e-12, rtol=0)
    torch.testing.assert_close(out.loss, sum(losses) / sum(TARGETS), atol=1e-6, rtol=0)


@pytest.mark.parametrize("backend", ["mask", "repack", "segments"])
def test_sources_and_targets_in_the_same_rows(backend, sequences, targets):
    model = build("bart")
    start = model.config.decoder_start_token_id
    with torch.no_grad():
        wanted = [
            model(input_ids=source[None], decoder_input_ids=torch.cat([torch.tensor([start]), target[:-1]])[None])
            for source, target in zip(sequences, targets, strict=True)
        ]
    longest = [max(len(source), len(target)) for source, target in zip(sequences, targets, strict=True)]
    rows = nopad.Rows(packs=nopad.pack(longest, 40, seed=3))  # in another order than the one given
    batch = nopad.PackedBatch.from_sequences(sequences, rows).with_decoder(targets, start, rows)
    assert batch.layout.order.tolist() != sorted(batch.layout.order)
    with torch.no_grad():
        logits = nopad.packed(model, backend=backend)(**batch).logits
    decoder = nopad.PackedBatch.from_sequences(targets, rows)
    for found, alone in zip(decoder.unpack_tokens(logits), wanted, strict=True):
        torch.testing.assert_close(found, alone.logits[0], atol=1e-12, rtol=0)


def test_refusals(sequences, targets):
    model = nopad.packed(build("t5"), backend="mask")
    source = nopad.PackedBatch.from_sequences(sequences, **FORMS["rows"])
    with pytest.raises(BatchError, match=r"build the batch with batch\.with_decoder\(targets, start_id\)"):
        model(**source)
    with pytest.raises(BatchError, match="a sequence and its target are not in the same row"):
        model(**source.with_decoder(targets, 0, form=nopad.Rows(16)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own, of torch's internals
def test_flex_without_gradients(sequences, inductor):
    from zoo import build as build_one

    model = build_one("bert", dtype=torch.float32)
    with torch.no_grad():
        alone = model(input_ids=sequences[2][None]).last_hidden_state[0]
        batch = nopad.PackedBatch.from_sequences(sequences, **FORMS["rows"])
        found = batch.unpack_tokens(nopad.packed(model, backend="flex")(**batch).last_hidden_state)[2]
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)
