"""Tokenise texts with character offsets, cut them to the maximum length, and find the word of each token.

A tokenised text is its content with the tokenizer's special tokens around it. For a pair of texts, the content is the
second text; the first text stands before the content and is never cut. A word is a span of characters of the text, so
any tokenizer that gives offsets can be used. A word may have several tokens, share a token with another word, or have
no token.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import LengthError, OptionError

if TYPE_CHECKING:
    from nopad.tasks.task import Task

__all__ = ["Framed", "aligned", "check_offsets", "cut", "framed", "trimmed", "words_in"]

_AT_ONCE = 1000  # texts; the tokenizer works on them in parallel


@dataclass(frozen=True, kw_only=True)
class Framed:
    """A tokenised text: content that may be cut into parts, and tokens around it that every part keeps.

    Attributes:
        ids: ids of all tokens.
        types: token type ids of all tokens; empty if the tokenizer has none.
        first, last: where the content begins and ends (exclusive) in `ids`.
        offsets: first and last character (exclusive) of each token of the content; int64 ``[content, 2]``.
    """

    ids: list[int]
    types: list[int]
    first: int
    last: int
    offsets: NDArray[np.int64]

    @property
    def around(self) -> int:
        """Number of tokens around the content."""
        return len(self.ids) - len(self.offsets)

    def part(self, begin: int, end: int) -> tuple[list[int], list[int]]:
        """Return (ids, token types) of a part: some of the content, and all tokens around the content.

        The content of the part is that from token `begin` to `end` (exclusive), counted from the content's first token.
        The token types are an empty list if the tokenizer has none.
        """
        kept = slice(self.first + begin, self.first + end)
        return (
            [*self.ids[: self.first], *self.ids[kept], *self.ids[self.last :]],
            [*self.types[: self.first], *self.types[kept], *self.types[self.last :]] if self.types else [],
        )


def check_offsets(tokenizer: Any, task: str) -> None:
    """Refuse a tokenizer that cannot say where its tokens lie in the text; `task` is the task's name in the message.

    Raises:
        OptionError: the tokenizer is a slow one, written in Python.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise OptionError(
            f"{task} needs to know where tokens lie in the text, and {type(tokenizer).__name__} does not say it; load "
            "the fast tokenizer of this model: AutoTokenizer.from_pretrained(..., use_fast=True)"
        )


def framed(tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Iterator[Framed]:
    """Yield each text as a `Framed`.

    With `pairs`, text i and ``pairs[i]`` become one `Framed`, whose content is the tokens of ``pairs[i]``.
    """
    options: dict[str, Any] = {"padding": False, "truncation": False, "verbose": False, "return_attention_mask": False}
    options |= {"return_offsets_mapping": True}
    side = 0 if pairs is None else 1
    for begin in range(0, len(texts), _AT_ONCE):
        span = slice(begin, begin + _AT_ONCE)
        found = tokenizer(list(texts[span]), None if pairs is None else list(pairs[span]), **options)
        for number, ids in enumerate(found["input_ids"]):
            mine = np.array([one == side for one in found.sequence_ids(number)], np.bool_)
            where = np.flatnonzero(mine)
            first, last = (int(where[0]), int(where[-1]) + 1) if where.size else (len(ids), len(ids))
            yield Framed(
                ids=ids,
                types=found["token_type_ids"][number] if "token_type_ids" in found else [],
                first=first,
                last=last,
                offsets=np.array(found["offset_mapping"][number][first:last], np.int64).reshape(-1, 2),
            )


def cut(task: Task, text: Framed, number: int, counts: dict[str, int], stride: int = 0) -> list[tuple[int, int]]:
    """Cut a text's content into the parts that become sequences; return (begin, end) of each part.

    These are indices into the tokens of the content: of the part's first token, and after its last one. If the text is
    dropped, the result is an empty list.

    Args:
        task: the task, with its `max_length` and `over_long`.
        text: the text.
        number: the number of its record, for messages.
        counts: numbers of records so far by what happened to them: ``split``, ``truncated`` or ``dropped``; updated in
            place.
        stride: number of tokens that two consecutive parts share, with "split".

    Raises:
        LengthError: the text is too long and `over_long` is "error"; the text has no token, not even a special one; or
            the text is to be cut, and too little room is left for content: `max_length` minus the tokens around the
            content is below 1 or, with "split", not above `stride`.
    """
    size, max_length, over_long = len(text.offsets), task.max_length, task.over_long
    if not text.ids:
        raise LengthError(f"record {number} has no token; leave it out")
    if max_length is None or size + text.around <= max_length:
        return [(0, size)]
    if over_long == "error":
        raise LengthError(
            f"record {number} has {size + text.around} tokens, and max_length is {max_length}; raise it, or choose "
            f"over_long={' or '.join(repr(one) for one in task.policies if one != 'error')}"
        )
    counted = {"split": "split", "truncate": "truncated", "drop": "dropped"}[over_long]
    counts[counted] = counts.get(counted, 0) + 1
    if over_long == "drop":
        return []
    room = max_length - text.around
    if room < 1 or (over_long == "split" and room <= stride):
        shared = f", of which two parts share {stride} (stride)" if stride else ""
        raise LengthError(
            f"record {number} cannot be cut to {max_length} tokens (max_length): {text.around} of them are special "
            f"tokens or a text that is never cut, such as a question, and leave {max(room, 0)} for the rest{shared}; "
            "raise max_length, or leave the record out"
        )
    if over_long == "truncate":
        return [(0, room)]
    begins = range(0, max(size - stride, 1), room - stride)
    return [(begin, min(begin + room, size)) for begin in begins]


def words_in(text: str) -> list[tuple[int, int]]:
    """Return where words begin and end (exclusive) in a text, as character indices.

    A word is a run of letters, digits and underscores, or any other character that is not a space. Each Chinese or
    Japanese character, kana included, is a word by itself. Accents and vowel signs belong to their letter.

    >>> [text[begin:end] for text in ("It's 東京.",) for begin, end in words_in(text)]
    ['It', "'", 's', '東', '京', '.']
    """
    return [one.span() for one in _pattern().finditer(text)]


@cache
def _pattern() -> re.Pattern[str]:
    joined = [chr(n) for n in range(sys.maxunicode + 1) if unicodedata.category(chr(n))[0] == "M"]
    marks = "".join(map(re.escape, [*joined, "\u200c", "\u200d"]))
    alone = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    return re.compile(rf"[{alone}][{marks}]*|(?:[^\W{alone}]|[{marks}])+|[^\w\s][{marks}]*")


def trimmed(text: str, begin: int, end: int) -> tuple[int, int]:
    """Return the span from character `begin` to `end` (exclusive) of `text`, without the spaces at its two ends."""
    part = text[begin:end]
    begin += len(part) - len(part.lstrip())
    return begin, begin + len(part.strip())


def aligned(
    words: Sequence[tuple[int, int]], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the index of each token's word, int64 ``[tokens]``, and of each word's first token, int64 ``[words]``.

    The index is -1 if a token is in no word, or if a word has no token.

    Args:
        words: first and last character (exclusive) of each word, in order; a word neither begins nor ends with a space.
        offsets: first and last character (exclusive) of each token; int64 ``[tokens, 2]``.

    A token that several words share belongs to the first of them. It is also the first token of every one of these
    words that has no earlier token.
    """
    word_of, first_of = np.full(len(offsets), -1), np.full(len(words), -1)
    spans = np.array(words, np.int64).reshape(-1, 2)
    real, tokens = np.flatnonzero(spans[:, 0] < spans[:, 1]), np.flatnonzero(offsets[:, 0] < offsets[:, 1])
    if not real.size or not tokens.size:
        return word_of, first_of
    spans, offsets = spans[real], offsets[tokens]
    at = np.searchsorted(spans[:, 1], offsets[:, 0], side="right")
    inside = at < len(spans)
    inside[inside] = spans[at[inside], 0] < offsets[inside, 1]
    word_of[tokens[inside]] = real[at[inside]]
    at = np.searchsorted(np.maximum.accumulate(offsets[:, 1]), spans[:, 0], side="right")
    inside = at < len(offsets)
    inside[inside] = offsets[at[inside], 0] < spans[inside, 1]
    first_of[real[inside]] = tokens[at[inside]]
    return word_of, first_of
