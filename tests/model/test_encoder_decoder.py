"""T5 and BART with their decoders: cross attention from each target to its own source only."""

from __future__ import annotations

import pytest
import torch
import transformers
import zoo
from zoo import CONFIGS, FORMS, skip_where_unsupported

import nopad
from nopad.batch.device import place
from nopad.errors import BatchError
from nopad.losses import Accuracy, token_loss
from nopad.model import pooled

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


@pytest.mark.parametrize("kind", ["t5", "bart"])
@pytest.mark.parametrize(
    "form", [nopad.Flat(), nopad.Rows(60), nopad.Rows(60, end_to_end=True)], ids=["flat", "rows", "end to end"]
)
def test_what_is_of_targets_is_split_by_targets(kind, form, sequences):
    """Targets that fill exactly as many slots as their sources: no shape tells which of the two a result is of."""
    targets = [sequence.flip(0) for sequence in sequences[::-1]]
    model = build(kind)
    with torch.no_grad():
        wanted = [
            model(input_ids=source[None], decoder_input_ids=torch.cat([torch.tensor([2]), target[:-1]])[None])
            for source, target in zip(sequences, targets, strict=True)
        ]
        batch = nopad.PackedBatch.from_sequences(sequences, form).with_decoder(targets, 2, form)
        out = nopad.packed(model)(**batch)
    assert out.logits.shape[:2] == batch.layout.shape
    for mine, value in zip(batch.targets.unpack_tokens(out.logits), wanted, strict=True):
        assert float((mine - value.logits[0]).abs().max()) < 1e-12
    for mine, value in zip(batch.sources.unpack_tokens(out.encoder_last_hidden_state), wanted, strict=True):
        assert float((mine - value.encoder_last_hidden_state[0]).abs().max()) < 1e-12
    with pytest.raises(BatchError, match=r"give them to batch\.targets\.unpack_tokens"):
        batch.unpack_tokens(out.logits)
    for function in (token_loss, Accuracy().add):
        with pytest.raises(
            BatchError, match=r"sources and targets, each with a layout of their own; give batch\.targets"
        ):
            function(out.logits, batch["labels"], batch)
    with pytest.raises(BatchError, match="sources and targets"):
        pooled(out.logits, batch)
    own = torch.stack(
        [
            torch.nn.functional.cross_entropy(value.logits[0], target)
            for value, target in zip(wanted, targets, strict=True)
        ]
    )
    mean = token_loss(out.logits, batch["labels"], batch.targets, per="sequence")
    torch.testing.assert_close(mean, own.mean(), atol=1e-12, rtol=0)


def test_sides_of_a_batch(sequences, targets):
    batch = nopad.PackedBatch.from_sequences(sequences)
    with pytest.raises(BatchError, match="this batch has no targets"):
        _ = batch.targets
    both = batch.with_decoder(targets, 2)
    assert [ids.tolist() for ids in both.sources.unpack_tokens(both["input_ids"])] == [s.tolist() for s in sequences]
    assert list(both.sources) == ["input_ids", "position_ids", "attention_mask"]
    labels = both.targets["labels"]
    assert [ids.tolist() for ids in both.targets.unpack_tokens(labels)] == [t.tolist() for t in targets]
    assert both.targets.seq_lengths.tolist() == TARGETS


def test_labels_are_not_shifted_along_rows(sequences, targets):
    """BART and T5 make their decoder's ids of labels: a target would begin with the last token of the one before."""
    for kind in ("bart", "t5"):
        batch = dict(nopad.PackedBatch.from_sequences(sequences).with_decoder(targets, 2))
        del batch["decoder_input_ids"]
        with pytest.raises(BatchError, match="no decoder_input_ids were given, and the model would shift labels along"):
            nopad.packed(build(kind))(**batch)


@pytest.mark.parametrize("kind", ["llama", "distilbert", "t5"])
def test_targets_for_a_model_without_decoder(kind, sequences):
    model = nopad.packed(zoo.build(kind, {"llama": "causal LM", "distilbert": "masked LM", "t5": "base"}[kind]))
    batch = nopad.PackedBatch.from_sequences(sequences).with_decoder([one.flip(0) for one in sequences], 2)
    with pytest.raises(BatchError, match=r"the batch has targets, and \w+ has no decoder; give it batch\.sources"):
        model(**batch)
    model(**batch.sources)


def test_targets_and_states_that_do_not_fit(sequences, targets):
    model = nopad.packed(build("bart"))
    source = nopad.PackedBatch.from_sequences(sequences)
    long = [*targets[:-1], torch.full((81,), 7)]
    with pytest.raises(BatchError, match="target 7 has 81 tokens, and BartForConditionalGeneration has 80 positions"):
        model(**source.with_decoder(long, 2))
    batch = source.with_decoder(targets, 2)
    with pytest.raises(BatchError, match=r"encoder_outputs are .* shape \[2, 3, 24\]; expected \[1, 107"):
        model(**batch, encoder_outputs=(torch.zeros(2, 3, 24).double(),))
