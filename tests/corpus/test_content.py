"""`Content`: options that are not for such records are refused, whatever the records are."""

from __future__ import annotations

import pytest

from nopad.corpus import CorpusOptions
from nopad.corpus.content import Content
from nopad.corpus.encoders import Fields
from nopad.errors import OptionError


def encoder(content, record=None):
    return content.encoder(lambda: record, lambda: None, CorpusOptions(capacity=8), "a.jsonl")


@pytest.mark.parametrize(
    "content",
    [
        {"fields": ("a",)},
        {"fields": ("a", "b")},  # were ignored
        {"pair": ("a", "b")},
        {"other": "ids_field"},
        {"chat": False},
        {},
    ],
)
def test_options_of_chats_are_refused_for_all_else(content):
    with pytest.raises(OptionError, match=r"last_only is an option of chats, and a\.jsonl holds none"):
        encoder(Content(**content, chat_options={"last_only": True}), {"text": "a"})


def test_several_fields_are_joined_and_one_is_read_as_it_is():
    assert isinstance(encoder(Content(fields=("a", "b"))), Fields)
    assert encoder(Content(fields=("a",))) is None
