"""A tiny word-level tokenizer with BERT's template: word `wN` has id N + 3; [UNK] 0, [CLS] 1, [SEP] 2."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from nopad.corpus import Tokenizer

WORDS = 50


def build(template: str | None = "[CLS] $A [SEP]", *, unknown: bool = True) -> tokenizers.Tokenizer:
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2} | {f"w{i}": i + 3 for i in range(WORDS)}
    model = models.WordLevel(vocabulary, unk_token="[UNK]" if unknown else "")
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template:
        special = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]") if token in template]
        inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    return inner


@pytest.fixture(scope="session")
def build_tokenizer():
    return build


@pytest.fixture(scope="session")
def words() -> Tokenizer:
    return Tokenizer(build())
