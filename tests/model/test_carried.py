"""How the layout travels through a model: on the mask, and where it is lost there, not at all.

Judged by each sequence alone in float64.
"""

from __future__ import annotations

import pytest
import torch
import transformers as t
from zoo import CONFIGS, FORMS, build, skip_where_unsupported

import nopad
from nopad.errors import BatchError, UnsupportedModelError

TARGETS = [3, 9, 1, 4, 8, 2, 6, 7]


@pytest.fixture(autouse=True)
def _fresh():
    import torch._dynamo

    torch._dynamo.reset()


def translator(kind):
    skip_where_unsupported(kind)
    torch.manual_seed(0)
    return t.AutoModelForSeq2SeqLM.from_config(CONFIGS[kind]()).double().eval()


def targets_for(sequences):
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(5, 99, (n,), generator=generator) for n in TARGETS[: len(sequences)]]


def decoded(batch, out):
    """The decoder's results of each sequence, by where it lies."""
    at = batch["decoder_attention_mask"]
    from nopad.batch.guard import layout_of

    layout = layout_of(at)
    flat = out.reshape(-1, out.shape[-1])
    number = torch.from_numpy(layout.sequence_ids).reshape(-1)
    return [flat[number == at + 1] for at in range(layout.sequences)]


def alone(model, sources, targets):
    with torch.no_grad():
        found = []
        for source, target in zip(sources, targets, strict=True):
            shifted = torch.cat([torch.tensor([2]), target[:-1]])[None]
            found.append(model(input_ids=source[None], decoder_input_ids=shifted).logits[0])
        return found


def close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", ["t5", "bart"])
@pytest.mark.parametrize("backend", ["mask", "segments", "repack"])
def test_a_second_source_for_the_same_targets(kind, backend, sequences):
    model = translator(kind)
    targets = targets_for(sequences)
    others = [sequence.flip(0) for sequence in reversed(sequences)]
    wanted = [alone(model, sources, targets) for sources in (sequences, others)]
    nopad.packed(model, backend=backend)
    first = nopad.PackedBatch.from_sequences(sequences).with_decoder(targets, 2)
    second = nopad.PackedBatch.from_sequences(others)
    shared = {name: first[name] for name in ("decoder_input_ids", "decoder_attention_mask")}
    with torch.no_grad():
        close(decoded(first, model(**first).logits), wanted[0])
        close(decoded(first, model(**second, **shared).logits), wanted[1])
        close(decoded(first, model(**first).logits), wanted[0])


def test_a_source_without_its_target(sequences):
    model = nopad.packed(translator("bart"))
    first = nopad.PackedBatch.from_sequences(sequences).with_decoder(targets_for(sequences), 2)
    fewer = nopad.PackedBatch.from_sequences(sequences[:5])
    shared = {name: first[name] for name in ("decoder_input_ids", "decoder_attention_mask")}
    with pytest.raises(BatchError, match=r"5 sequences and 8 targets; build both with batch\.with_decoder"):
        model(**fewer, **shared)


def copies(module, args, kwargs):
    """A hook that hands on a copy of each tensor, as those do that move inputs between devices."""
    return tuple(a.clone() if torch.is_tensor(a) else a for a in args), {
        name: value.clone() if torch.is_tensor(value) else value for name, value in kwargs.items()
    }


class TestCopiedMasks:
    @pytest.mark.parametrize("kind", ["bert", "llama", "modernbert", "deberta"])
    @pytest.mark.parametrize("form", list(FORMS))
    def test_right_or_refused(self, kind, form, sequences):
        stock, model = build(kind), nopad.packed(build(kind))
        layers = model.encoder.layer if hasattr(model, "encoder") else model.layers
        layers[0].register_forward_pre_hook(copies, with_kwargs=True)
        batch = nopad.PackedBatch.from_sequences(sequences, **FORMS[form])
        if form == "end to end" or kind == "deberta":
            with pytest.raises(UnsupportedModelError, match="lost the layout of a packed batch on its way"):
                model(**batch)
            return
        with torch.no_grad():
            found = batch.unpack_tokens(model(**batch).last_hidden_state)
            close(found, [stock(input_ids=sequence[None]).last_hidden_state[0] for sequence in sequences])

    @pytest.mark.parametrize("kind", ["t5", "bart"])
    @pytest.mark.parametrize("backend", ["mask", "segments"])
    def test_of_a_decoder(self, kind, backend, sequences):
        model = nopad.packed(translator(kind), backend=backend)
        decoder = model.decoder if kind == "t5" else model.model.decoder
        layer = decoder.block[0] if kind == "t5" else decoder.layers[0]
        layer.register_forward_pre_hook(copies, with_kwargs=True)
        batch = nopad.PackedBatch.from_sequences(sequences).with_decoder(targets_for(sequences), 2)
        with pytest.raises(UnsupportedModelError, match="lost the layout of a packed batch on its way"):
            model(**batch)

    @pytest.mark.parametrize("kind", ["bert", "deberta"])
    @pytest.mark.parametrize("form", list(FORMS))
    def test_where_checkpointing_runs_again(self, kind, form, sequences):
        """Reentrant checkpoints hand on copies when they run again, outside of any call."""
        from torch.utils.checkpoint import checkpoint

        def gradients(again):
            model = build(kind).train()
            layer = model.encoder.layer[0]
            inner = layer.forward
            if again:
                layer.forward = lambda states, mask, *more, **named: checkpoint(
                    lambda states, mask: inner(states, mask, *more, **named), states, mask, use_reentrant=True
                )
            nopad.packed(model)
            batch = nopad.PackedBatch.from_sequences(sequences, **FORMS[form])
            torch.cat(batch.unpack_tokens(model(**batch).last_hidden_state)).sin().sum().backward()
            return [p.grad for p in layer.parameters()]

        if form == "end to end" or kind == "deberta":
            with pytest.raises(UnsupportedModelError, match="lost the layout of a packed batch on its way"):
                gradients(again=True)
        else:
            close(gradients(again=True), gradients(again=False))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
class TestCompiledLayers:
    @pytest.mark.parametrize("kind", ["bert", "llama", "deberta", "mpnet"])
    def test_rows_filled_end_to_end_are_refused(self, kind, sequences):
        model = nopad.packed(build(kind))
        for layer in model.layers if kind == "llama" else model.encoder.layer:
            layer.compile(backend="eager")
        with pytest.raises(BatchError, match="cannot follow a sequence into the next row; build the batch without"):
            model(**nopad.PackedBatch.from_sequences(sequences, **FORMS["end to end"]))

    @pytest.mark.parametrize("kind", ["bert", "deberta"])
    @pytest.mark.parametrize("form", ["flat", "rows"])
    def test_others_are_right(self, kind, form, sequences):
        stock, model = build(kind), nopad.packed(build(kind))
        for layer in model.encoder.layer:
            layer.compile(backend="eager")
        batch = nopad.PackedBatch.from_sequences(sequences, **FORMS[form])
        with torch.no_grad():
            found = batch.unpack_tokens(model(**batch).last_hidden_state)
            close(found, [stock(input_ids=sequence[None]).last_hidden_state[0] for sequence in sequences])

    def test_a_backend_that_unpacks(self, sequences):
        model = nopad.packed(build("deberta"), backend="repack")
        model.encoder.layer[0].compile(backend="eager")
        with pytest.raises(BatchError, match="compiled layers of this model cannot unpack for 'repack'"):
            model(**nopad.PackedBatch.from_sequences(sequences))

    @pytest.mark.parametrize("kind", ["t5", "bart"])
    @pytest.mark.parametrize("how", ["flat", "other rows"])
    def test_a_decoder(self, kind, how, sequences):
        model = translator(kind)
        targets = targets_for(sequences)
        wanted = alone(model, sequences, targets)
        nopad.packed(model)
        for part in (model.encoder, model.decoder) if kind == "t5" else (model.model.encoder, model.model.decoder):
            for layer in part.block if kind == "t5" else part.layers:
                layer.compile(backend="eager")
        rows = {"form": nopad.Rows(16)} if how == "other rows" else {}
        batch = nopad.PackedBatch.from_sequences(sequences, **FORMS["rows" if rows else "flat"])
        batch = batch.with_decoder(targets, 2, **rows)
        if rows:
            with pytest.raises(BatchError, match="a sequence and its target are not in the same row"):
                model(**batch)
            return
        with torch.no_grad():
            close(decoded(batch, model(**batch).logits), wanted)
