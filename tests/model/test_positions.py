"""Positions of models that count as RoBERTa does, by their embedding's `padding_idx`; the judge is the stock model."""

from __future__ import annotations

import copy

import pytest
import torch
from zoo import FORMS, build

import nopad
from nopad.errors import BatchError
from nopad.model import static_inputs

# Pad ids (1) before, inside, behind, and nothing else; lengths of 1 to 30.
TEXTS = [
    [1, 7, 8, 9],
    [5, 1, 1, 6, 7, 1, 8],
    [9, 8, 7, 1, 1],
    [1, 1, 1],
    [1],
    [6],
    [*range(10, 38), 1, 40],
]


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def alone(model, name="input_ids", values=TEXTS):
    return [model(**{name: torch.as_tensor(one)[None]}).last_hidden_state[0].detach() for one in values]


def assert_equal(parts, wanted):
    for mine, value in zip(parts, wanted, strict=True):
        assert float((mine.detach() - value).abs().max()) < 1e-12


@pytest.mark.parametrize("form", [*FORMS, "aligned"])
@pytest.mark.parametrize("kind", ["roberta", "mpnet", "camembert", "xlm-roberta"])
def test_pad_ids_among_the_tokens(kind, form):
    model = build(kind)
    wanted = alone(model)
    how = FORMS.get(form, {"form": nopad.Rows(48, align=8)})
    batch = nopad.PackedBatch.from_sequences(TEXTS, pad_id=1, **how)
    assert_equal(batch.unpack_tokens(nopad.packed(model)(**batch).last_hidden_state), wanted)


def test_they_are_not_what_position_ids_from_zero_give():
    model = build("roberta")
    text = torch.tensor([TEXTS[1]])
    counted = model(input_ids=text, position_ids=torch.arange(2, 9)[None]).last_hidden_state
    assert not torch.allclose(counted, model(input_ids=text).last_hidden_state, atol=1e-3)


@pytest.mark.parametrize("kind", ["roberta", "mpnet"])
def test_another_pad_id_in_the_configuration(kind):
    """MPNet counts from padding_idx 1 whatever the configuration says, which may also change after building."""
    model = build(kind, pad_token_id=0)
    changed = copy.deepcopy(model)
    changed.config.pad_token_id = 5
    for one in (model, changed):
        wanted = alone(one)
        batch = nopad.PackedBatch.from_sequences(TEXTS)
        assert_equal(batch.unpack_tokens(nopad.packed(one)(**batch).last_hidden_state), wanted)


def test_most_positions_are_counted_from_the_table():
    model = nopad.packed(build("mpnet", pad_token_id=0))  # 80 positions, of which 0 and 1 are no token's
    assert model(**nopad.PackedBatch.from_sequences([[5] * 78])).last_hidden_state.shape == (1, 78, 24)
    with pytest.raises(BatchError, match="sequence 0 has 79 tokens, and MPNetModel has 78 positions"):
        model(**nopad.PackedBatch.from_sequences([[5] * 79]))


def test_embeddings_hold_no_pad_id():
    model = build("roberta")
    given = [model.embeddings.word_embeddings(torch.tensor(one)).detach() for one in TEXTS]
    wanted = alone(model, "inputs_embeds", given)
    batch = nopad.PackedBatch.from_sequences(TEXTS)
    batch["inputs_embeds"] = model.embeddings.word_embeddings(batch.pop("input_ids")).detach()
    assert_equal(batch.unpack_tokens(nopad.packed(model)(**batch).last_hidden_state), wanted)


def test_static_shapes():
    model = build("roberta")
    wanted = alone(model)
    batch = nopad.PackedBatch.from_sequences(TEXTS, pad_id=1, form=nopad.Rows(40))
    nopad.packed(model)
    assert_equal(batch.unpack_tokens(model(**static_inputs(model, batch)).last_hidden_state), wanted)
