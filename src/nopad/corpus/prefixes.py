"""Count how many tokens of a text belong to each of its prefixes, such as the prompt of each turn of a chat.

A fast tokenizer splits a text at special tokens first, and tokenises the parts between them independently. So only the
end of a prefix, from its last special token on, is tokenised again; its earlier tokens are those of the text. A prefix
without a special token is tokenised as a whole, and so is every prefix with a slow tokenizer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Any

__all__ = ["prefix_lengths", "token_ids"]

_PLAIN = {"add_special_tokens": False, "padding": False, "truncation": False, "verbose": False}


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text, without the special tokens that the tokenizer puts around a text."""
    found: list[list[int]] = tokenizer(list(texts), return_attention_mask=False, **_PLAIN)["input_ids"]
    return found


def prefix_lengths(
    tokenizer: Any, text: str, prefixes: Sequence[str], special: Collection[int]
) -> tuple[list[int], list[int | None]]:
    """Return the ids of a text, and for each of its prefixes how many of these ids belong to the prefix.

    A number is None if the ids of the prefix alone are not the first ids of the text. `special` are the ids of tokens
    at which a fast tokenizer splits a text: its special and added tokens. To save time, only the end of a prefix, from
    its last such token on, is tokenised again. With a slow tokenizer, `special` has no effect.

    In the example, the second prefix ends inside the token "house", so its number is None.

    >>> from nopad.corpus.prefixes import prefix_lengths
    >>> from tests.tasks.tiny import tokenizer
    >>> prefix_lengths(tokenizer(), "<|user|> is [EOS] house", ["<|user|> is", "<|user|> is [EOS] ho"], {5, 6})[1]
    [2, None]
    """
    if not tokenizer.is_fast:
        ids, *parts = token_ids(tokenizer, [text, *prefixes])
        return ids, [_length(ids, 0, part) for part in parts]
    found = tokenizer([text], return_offsets_mapping=True, return_attention_mask=False, **_PLAIN)
    ids, places = found["input_ids"][0], found["offset_mapping"][0]
    at = [
        number for number, one in enumerate(ids) if one in special and _is_whole(tokenizer, text, one, places[number])
    ]
    ends = [places[number][1] for number in at]
    begins = []
    for prefix in prefixes:
        before = bisect_right(ends, len(prefix))
        begins.append((at[before - 1], places[at[before - 1]][0]) if before else (0, 0))
    tails = [prefix[place:] for prefix, (_, place) in zip(prefixes, begins, strict=True)]
    parts = token_ids(tokenizer, tails) if tails else []
    return ids, [_length(ids, begin, part) for (begin, _), part in zip(begins, parts, strict=True)]


def _is_whole(tokenizer: Any, text: str, one: int, place: tuple[int, int]) -> bool:
    """Return whether the part of `text` that a token covers is exactly the token's name, such as ``[SEP]``.

    It is not if the token also covers white space beside its name, as some special tokens do. `one` is the id of the
    token. `place` is (begin, end) of the part that the token covers, in characters.
    """
    return bool(text[place[0] : place[1]] == tokenizer.convert_ids_to_tokens(one))


def _length(ids: Sequence[int], begin: int, part: Sequence[int]) -> int | None:
    end = begin + len(part)
    return end if ids[begin:end] == part else None
