"""Texts as one sequence each: token types for all of them or for none."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from tests.tasks.tiny import tokenizer

from nopad.corpus.framing import tokenised
from nopad.errors import LengthError


class Bare:
    """A tokenizer whose ids are the lengths of words; no special tokens, and token types only if `typed`."""

    def __init__(self, typed):
        self.typed = typed

    def __call__(self, texts, pairs, **options):
        ids = [[len(word) for word in text.split()][: options.get("max_length")] for text in texts]
        return {"input_ids": ids} | ({"token_type_ids": [[0] * len(one) for one in ids]} if self.typed else {})


@pytest.mark.parametrize("typed", [False, True])
def test_types_are_there_for_all_texts_or_for_none(typed):
    """Without token types, they were an empty list for each empty text, and nothing for the others."""
    found = tokenised(Bare(typed), ["a bc", "", "def"], empty="keep")
    assert (found.ids, found.kept) == ([[1, 2], [], [3]], [0, 1, 2])
    assert found.types == ([[0, 0], [], [0]] if typed else [])
    assert found.columns == ({"token_type_ids": found.types} if typed else {})
    with pytest.raises(LengthError, match="record 1 has no token: its text is ''; leave it out"):
        tokenised(Bare(typed), ["a bc", ""])


@pytest.mark.parametrize(("over_long", "kept", "sizes"), [("truncate", [0, 1, 2], [3, 4, 3]), ("drop", [0, 2], [3, 3])])
def test_types_are_those_of_the_texts_that_were_kept(over_long, kept, sizes):
    found = tokenised(tokenizer(), ["is", "is it red", "no"], max_length=4, over_long=over_long)
    assert found.kept == kept
    assert [len(one) for one in found.types] == [len(one) for one in found.ids] == sizes
    assert found.counts == {"truncated" if over_long == "truncate" else "dropped": 1}
