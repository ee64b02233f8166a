"""The guard of a packed batch: whatever touches it is told what is wrong."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import transformers as t

import nopad
from nopad.batch.guard import PackedMask, layout_of
from nopad.batch.layout import Layout
from nopad.errors import NotPackSafeError

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 20}


@pytest.fixture
def mask():
    return PackedMask(Layout.flat(np.array([2, 1])))


TOUCHES = {
    "attribute": lambda mask: mask.shape,
    "method": lambda mask: mask.to("cpu"),
    "index": lambda mask: mask[:, None],
    "1 -": lambda mask: 1 - mask,
    "times": lambda mask: mask * 2.0,
    "tensor times": lambda mask: torch.ones(2) * mask,
    "compare": lambda mask: mask > 0,
    "equal": lambda mask: mask == 0,
    "not equal": lambda mask: (mask != 0) * -1e9,
    "equal to a tensor": lambda mask: mask == torch.zeros(3),
    "truth": lambda mask: bool(mask),
    "membership": lambda mask: 0 in mask,
    "length": lambda mask: len(mask),
    "iteration": lambda mask: list(mask),
    "sum of rows": lambda mask: mask.sum(-1),
    "torch function": lambda mask: torch.sum(mask),
    "array": lambda mask: np.asarray(mask),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_every_touch_is_told(mask, touch):
    with pytest.raises(NotPackSafeError, match=r"nopad\.packed\(model\)"):
        touch(mask)


def test_the_number_of_tokens_is_no_secret(mask):
    assert mask.sum() == 3


def test_a_mask_equals_itself_only(mask):
    same = mask
    assert mask == same
    assert mask != PackedMask(Layout.flat(np.array([2, 1])))
    assert mask != None  # noqa: E711
    assert len({mask, mask}) == 1


def test_what_asks_politely_gets_a_no(mask):
    assert not hasattr(mask, "to")
    assert getattr(mask, "device", None) is None
    assert repr(mask) == "PackedMask(2 sequences in 1 x 3)"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))])
def test_it_can_be_copied_and_sent(mask, again):
    assert layout_of(again(mask)).seq_lengths.tolist() == [2, 1]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "make", [lambda: t.BertModel(t.BertConfig(**SIZES)), lambda: t.LlamaModel(t.LlamaConfig(**SIZES))]
)
def test_stock_models_fail_at_first_touch(make, attention):
    model = make()
    model.set_attn_implementation(attention)
    batch = nopad.PackedBatch.from_sequences([[1, 2, 3], [4]])
    with pytest.raises(NotPackSafeError, match=r"the model is not pack-safe\. Make it so with nopad\.packed\(model\)"):
        model(**batch)
