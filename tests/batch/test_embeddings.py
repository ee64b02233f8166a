"""Batches of vectors in place of ids, and values laid out as a batch's tokens lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nopad
from nopad import PackedBatch, Rows
from nopad.errors import BatchError, LengthError, NotPackSafeError

FORMS = [nopad.Flat(), Rows(5), Rows(4, end_to_end=True), Rows(6, align=2), Rows(5, rows=6)]
LENGTHS = [2, 4, 1, 3]


def parts(width=3, **how):
    return [torch.arange(n * width, **how).reshape(n, width) + 100.0 * at for at, n in enumerate(LENGTHS)]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_they_come_back_as_they_were(form):
    batch = PackedBatch.from_embeddings(parts(), form, columns={"labels": [[1] * n for n in LENGTHS]})
    assert set(batch) == {"attention_mask", "inputs_embeds", "labels", "position_ids"}
    assert tuple(batch["inputs_embeds"].shape) == (*batch.layout.shape, 3)
    for found, wanted in zip(batch.unpack_tokens(batch["inputs_embeds"]), parts(), strict=True):
        assert torch.equal(found, wanted)
    assert batch["inputs_embeds"].sum() == sum(one.sum() for one in parts())  # padding is 0
    assert [one.tolist() for one in batch.unpack_tokens(batch.position_ids)] == [list(range(n)) for n in LENGTHS]
    arrays = [one.numpy() for one in parts()]
    laid = batch.pack_tokens(arrays)
    assert isinstance(laid, np.ndarray)
    assert np.array_equal(laid, batch["inputs_embeds"].numpy())


@pytest.mark.parametrize("form", FORMS[:3], ids=str)
def test_gradients_flow_to_what_made_them(form):
    given = [one.clone().requires_grad_() for one in parts()]
    batch = PackedBatch.from_embeddings(given, form)
    (batch["inputs_embeds"] ** 2).sum().backward()
    for one in given:
        assert torch.equal(one.grad, 2 * one.detach())


def test_a_stock_model_does_not_take_them():
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    batch = PackedBatch.from_embeddings(parts(16))
    with pytest.raises(NotPackSafeError):
        BertModel(config)(**batch)
    without = {name: batch[name] for name in batch if name != "attention_mask"}
    with pytest.raises(BatchError):
        nopad.packed(BertModel(config))(**without)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ([], BatchError, "embeddings are empty; expected a list of tensors"),
        (torch.zeros(2, 3, 4), BatchError, "embeddings are Tensor"),
        ([torch.zeros(2, 3), torch.zeros(3)], BatchError, r"sequence 1 are Tensor \[3\].*expected a float tensor"),
        ([torch.zeros(2, 3).long()], BatchError, "sequence 0 are Tensor .* of torch.int64; expected a float tensor"),
        ([torch.zeros(2, 3), torch.zeros(0, 3)], LengthError, "sequence 1 has no token"),
        ([torch.zeros(2, 3), torch.zeros(2, 4)], BatchError, r"of one width, dtype and device"),
        ([torch.zeros(2, 3), torch.zeros(2, 3).double()], BatchError, r"of one width, dtype and device"),
        ([torch.zeros(9, 3)], LengthError, "above the capacity of 5"),
    ],
)
def test_what_is_no_embedding(given, error, says):
    with pytest.raises(error, match=says):
        PackedBatch.from_embeddings(given, Rows(5))


def test_a_column_cannot_be_the_tokens():
    with pytest.raises(BatchError, match="input_ids are no column of embeddings"):
        PackedBatch.from_embeddings(parts(), columns={"input_ids": [1, 2, 3, 4]})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (parts()[:3], "values to lay out are 3 of them; expected a list of arrays .* 4 sequences"),
        (torch.zeros(10, 3), "values to lay out are Tensor"),
        ([*parts()[:3], torch.zeros(4, 3)], r"values of sequence 3 are Tensor \[4, 3\].*expected \[3, 3\]"),
        ([*parts()[:3], torch.zeros(3)], r"values of sequence 3 are .*expected \[3, 3\]"),
        ([*parts()[:3], np.zeros((3, 3))], "values of sequence 3 are ndarray .* of Tensor"),
    ],
)
def test_values_that_do_not_fit(given, says):
    batch = PackedBatch.from_sequences([[1] * n for n in LENGTHS], Rows(5))
    with pytest.raises(BatchError, match=says):
        batch.pack_tokens(given)
