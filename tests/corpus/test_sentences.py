# ruff: noqa: RUF001 - the stops of other scripts are meant
from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.corpus.sentences import sentences_of


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. J. Smith paid $3.50 on Jan. 5.", "He left at 5 p.m. with Mrs. Jones."],
        ['"Why?" he asked.', "Nobody knew."],
        ['He said "Go."', "She went.", "(It was late.)", "End."],
        ["See Fig. 3 and pp. 4-5, e.g. this one, i.e. that.", "No.", "I won't."],
        ["The U.S. won.", "They cheered in the U.S.", "The end..."],
        ["Acme Inc. grew by approx. five percent.", "Vitamin C.", "The rest etc.", "However, not all."],
        ["Use nopad.plan or example.com, version 1.2.3.", "Is it?", "Yes!", "Really?!", "Sure…"],
        ["J. R. R. Tolkien wrote it.", "It cost 3.", "20 came."],
        ["Ein Satz „mit Zitat.“", "Noch einer.", "«Encore une.»", "Oui."],
        ["你好。", "再见！", "「是吗？」", "他走了。"],
        ["पहला वाक्य।", "दूसरा वाक्य।"],
    ],
)
def test_ends_of_sentences(sentences):
    for space in (" ", "\n", "  \n  "):
        assert sentences_of(space.join(sentences)) == sentences
    assert sentences_of("\n\n".join(sentences)) == sentences


def test_stops_of_chinese_need_no_space():
    assert sentences_of("你好。再见！「是吗？」他走了。") == ["你好。", "再见！", "「是吗？」", "他走了。"]


def test_paragraphs_and_lists_end_sentences():
    text = "A title\n\nSome text that\n  goes on. And\nmore:\n- one\n- two. Still two\n1. first. Then\n 2) second\n \n"
    text += "3.5 is no entry"
    assert sentences_of(text) == [
        "A title", "Some text that goes on.", "And more:", "- one", "- two.", "Still two", "1. first.", "Then",
        "2) second", "3.5 is no entry",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["." * 200_000 + "a", "!" * 100_000 + '"' * 100_000 + "a", "." * 200_000 + " A"])
def test_long_rows_of_stops_take_no_square_of_their_length(text):
    begin = time.perf_counter()
    assert "".join(sentences_of(text)) == text.replace(" ", "")
    assert time.perf_counter() - begin < 20  # else many minutes


def test_lines():
    assert sentences_of(" One. Two.\n\n \nthree\r\n", "line") == ["One. Two.", "three"]


@given(st.text(alphabet=st.sampled_from("ab AB.!?。…\"'()\n1-9 "), max_size=60))
def test_nothing_is_lost_or_empty(text):
    for unit in ("rules", "line"):
        found = sentences_of(text, unit)
        assert all(found)
        assert "".join("".join(found).split()) == "".join(text.split())
