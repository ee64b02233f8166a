"""From which token a result per sequence is read; the judge is the stock model with one sequence at a time."""

from __future__ import annotations

import pytest
import torch
import zoo
from kinds import AllDouble, tiny
from test_families import build as build_kind
from torch.nn.functional import cross_entropy
from zoo import FORMS

import nopad
from nopad.errors import BatchError
from nopad.model import static_inputs

PAD = 7
# Where the pad id is the eos: at the end, several times, inside, alone, nowhere; lengths of 1 to 20.
TEXTS = [
    [11, 12, 13, PAD],
    [11, 12, PAD, PAD, PAD],
    [PAD, 12, PAD, 14, PAD],
    [PAD],
    [PAD, PAD],
    [15],
    [*range(20, 38), PAD, 40],
]
KINDS = ("llama", "qwen2", "gpt2", "opt", "gpt_neox")


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def build(kind, **changes):
    return zoo.build(kind, "sequence classification", pad_token_id=PAD, eos_token_id=PAD, num_labels=3, **changes)


def alone(model):
    return torch.cat([model(input_ids=torch.tensor([one])).logits.detach() for one in TEXTS])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_decoders_read_the_last_token_that_is_no_pad(kind, form):
    model = build(kind)
    wanted = alone(model)
    batch = nopad.PackedBatch.from_sequences(
        TEXTS, pad_id=PAD, columns={"labels": [0, 1, 2, 0, 1, 2, 0]}, **FORMS[form]
    )
    output = nopad.packed(model)(**batch)
    found = torch.stack(batch.unpack_sequences(output.logits.detach()))
    assert float((found - wanted).abs().max()) < 1e-12
    loss = cross_entropy(wanted, torch.tensor([0, 1, 2, 0, 1, 2, 0]))
    assert float((output.loss - loss).abs()) < 1e-12


def test_it_is_not_always_the_last_one():
    model = build("llama")
    padless = model(input_ids=torch.tensor([TEXTS[1][:2]])).logits
    assert torch.equal(model(input_ids=torch.tensor([TEXTS[1]])).logits.argmax(), padless.argmax())
    model.config.pad_token_id = None
    last = model(input_ids=torch.tensor([TEXTS[1]])).logits
    assert float((last - padless).abs().max()) > 1e-3


def test_without_a_pad_id_it_is_the_last_token():
    model = build("llama")
    model.config.pad_token_id = None
    wanted = alone(model)
    batch = nopad.PackedBatch.from_sequences(TEXTS)
    found = torch.stack(batch.unpack_sequences(nopad.packed(model)(**batch).logits))
    assert float((found - wanted).abs().max()) < 1e-12


def test_embeddings_are_read_at_the_last_token():
    model = build("llama")
    given = [model.model.embed_tokens(torch.tensor([one])).detach() for one in TEXTS]
    wanted = torch.cat([model(inputs_embeds=one).logits.detach() for one in given])
    batch = nopad.PackedBatch.from_sequences(TEXTS)
    batch["inputs_embeds"] = model.model.embed_tokens(batch.pop("input_ids")).detach()
    found = torch.stack(batch.unpack_sequences(nopad.packed(model)(**batch).logits))
    assert float((found - wanted).abs().max()) < 1e-12


def test_a_class_of_ones_own_may_read_another_token():
    stock = build("llama")
    own = type("Own", (type(stock),), {})(stock.config).double().eval()
    own.load_state_dict(stock.state_dict())
    nopad.packed(own, head="classification", prove="never")
    texts = [[11, 12], [PAD, 13, 14], [15]]
    wanted = torch.cat([stock(input_ids=torch.tensor([one])).logits for one in texts])
    found = own(**nopad.PackedBatch.from_sequences(texts)).logits
    assert float((found - wanted).abs().max()) < 1e-12
    with pytest.raises(
        BatchError, match="a sequence ends with the pad id, and nopad cannot tell whether Own reads that"
    ):
        own(**nopad.PackedBatch.from_sequences([[11, 12, PAD], [13, 14]]))


def test_static_shapes():
    model = build("llama")
    wanted = alone(model)
    batch = nopad.PackedBatch.from_sequences(TEXTS, pad_id=PAD, form=nopad.Rows(24))
    nopad.packed(model, max_sequences=9)
    logits = model(**static_inputs(model, batch)).logits
    assert logits.shape == (9, 3)
    found = torch.stack(batch.unpack_sequences(logits[: len(TEXTS)]))
    assert float((found - wanted).abs().max()) < 1e-12


def test_pad_ids_inside_where_versions_of_transformers_differ():
    with AllDouble():
        model = nopad.packed(build_kind(tiny("biogpt"), "sequence classification"))
        model(**nopad.PackedBatch.from_sequences([[5, 6, 0, 0], [8], [0]]))  # of one token, every version reads it
        for wrong in ([8, 0, 9], [0, 0], [0, 8]):
            with pytest.raises(
                BatchError, match="sequence 1 has the pad id 0 inside, or nothing else, and versions of"
            ):
                model(**nopad.PackedBatch.from_sequences([[5, 6], wrong]))


@pytest.mark.parametrize("eos", [2, 9])
def test_clip_reads_its_first_end_of_sequence_token(eos):
    """With `eos_token_id` 2, as in old configurations, it reads its largest id."""
    texts = [[4, 9, 5, 9, 60], [9], [5, 6], [60, 9, 60]]
    model = build_kind(tiny("clip_text_model", eos_token_id=eos), "base")
    wanted = torch.cat([model(input_ids=torch.tensor([one])).pooler_output.detach() for one in texts])
    nopad.packed(model)
    for how in (FORMS["flat"], {"form": nopad.Rows(6)}):
        batch = nopad.PackedBatch.from_sequences(texts, **how)
        found = torch.stack(batch.unpack_sequences(model(**batch).pooler_output))
        assert float((found - wanted).abs().max()) < 1e-12


def test_clip_takes_no_row_wider_than_its_positions():
    model = nopad.packed(build_kind(tiny("clip_text_model"), "base"))
    message = (
        "rows of this batch are 41 slots wide, and CLIPTextModel takes none wider than its 40 positions; build the "
        r"batch with form=nopad\.Rows\(capacity\), and a capacity of at most 40"
    )
    with pytest.raises(BatchError, match=message):
        model(**nopad.PackedBatch.from_sequences([[5] * 40, [6]]))
    rows = nopad.PackedBatch.from_sequences([[5] * 40, [6]], form=nopad.Rows(40))
    assert model(**rows).pooler_output.shape == (2, 32)
