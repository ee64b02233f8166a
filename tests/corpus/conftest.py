"""A tiny word-level tokenizer with BERT's template: word `wN` has id N + 3; [UNK] 0, [CLS] 1, [SEP] 2."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from nopad.corpus import Record, Records, Tokenizer

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


@pytest.fixture(scope="session")
def one_by_one():
    """A function that takes runs of records apart; carried columns are left out."""

    def one_by_one(found):
        for one in found:
            if not isinstance(one, Records):
                yield one
            elif one.texts is not None:
                yield from (Record(line=int(line), text=text) for line, text in zip(one.lines, one.texts, strict=True))
            else:
                pieces = np.split(one.ids.tokens["input_ids"], np.cumsum(one.ids.seq_lengths)[:-1])
                yield from (Record(line=int(line), ids=ids) for line, ids in zip(one.lines, pieces, strict=True))

    return one_by_one
