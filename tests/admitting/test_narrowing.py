"""Configurations made narrow: their special token ids lie in the smaller vocabulary."""

from __future__ import annotations

import pytest
import transformers

from nopad.admitting.narrowing import SIZES, VOCABULARY, narrowed


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        ({"eos_token_id": [2, -1]}, {"eos_token_id": [2, -1]}),
        ({"eos_token_id": [-1, 40_000], "pad_token_id": 40_000}, {"eos_token_id": [-1, 0], "pad_token_id": 0}),
        ({"eos_token_id": -1, "pad_token_id": -2}, {"eos_token_id": -1, "pad_token_id": -2}),
        ({"eos_token_id": [], "bos_token_id": 0, "pad_token_id": 99}, {"bos_token_id": 0, "pad_token_id": 1}),
    ],
)
def test_special_tokens_stay_in_the_vocabulary(ids, wanted):
    """A list of ids with a -1 in it, which stands for no token, gave a KeyError."""
    given = {"bos_token_id": None, "eos_token_id": None, **ids}
    found = narrowed(transformers.LlamaConfig(vocab_size=50_000, **given), SIZES, again=False)
    assert found.vocab_size == VOCABULARY
    assert {name: getattr(found, name) for name in wanted} == wanted
