"""Tokenise texts, or pairs of texts, into one sequence each, and truncate or drop those that are too long.

The caller passes in a tokenizer from transformers; this module imports neither transformers nor torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nopad.corpus.options import Empty, OverLong
from nopad.errors import LengthError

__all__ = ["Tokenised", "leave_out", "tokenised"]

_AT_ONCE = 1000  # texts in one call of the tokenizer, which works on them in parallel


@dataclass(frozen=True, kw_only=True)
class Tokenised:
    """The result of `tokenised`: the token ids of the texts (or pairs of texts) that were neither dropped nor skipped.

    Attributes:
        ids: token ids of each kept text, special tokens included.
        types: token types of each kept text; empty if the tokenizer gives none.
        kept: index of each kept text among the given texts.
        counts: number of texts that were "truncated", "dropped" and "empty_skipped", by these names; zeros are left
            out.
    """

    ids: list[list[int]] = field(default_factory=list)
    types: list[list[int]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def columns(self) -> dict[str, list[list[int]]]:
        """The columns with one value per token besides the ids: ``{"token_type_ids": types}``, or {}."""
        return {"token_type_ids": self.types} if self.types else {}


def tokenised(
    tokenizer: Any,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    max_length: int | None = None,
    over_long: OverLong = "error",
    empty: Empty | Literal["keep"] = "error",
) -> Tokenised:
    """Tokenise texts, with the special tokens of `tokenizer`, a tokenizer from transformers.

    With `pairs`, each text and its second text in `pairs` become one sequence. If a sequence has more than `max_length`
    tokens (None: unlimited), `over_long` decides: "error" raises LengthError, "truncate" shortens the sequence, any
    other value drops it.

    Truncation removes tokens at the tokenizer's `truncation_side`, by default the end. From a pair, it removes them one
    by one from the text that is longer at that moment ("longest_first").

    If the tokenizer gives no ids at all for a text, not even special ones, `empty` decides: "error" raises LengthError,
    "skip" leaves the text out and counts it, "keep" keeps it with no ids.

    Raises:
        LengthError: a sequence has more than `max_length` tokens, and `over_long` is "error"; a text has no ids, and
            `empty` is "error"; or a text cannot be truncated to `max_length`, since its special tokens alone are more.
    """
    found = Tokenised()
    for first in range(0, len(texts), _AT_ONCE):
        span = slice(first, first + _AT_ONCE)
        part = [*_tokenise(tokenizer, texts[span], None if pairs is None else pairs[span])]
        for number, (ids, types) in enumerate(part, first):
            if not ids and empty != "keep":
                leave_out(number, texts[number], found.counts, empty)
                continue
            if max_length is not None and len(ids) > max_length:
                if over_long == "error":
                    raise LengthError(
                        f"record {number} has {len(ids)} tokens, and max_length is {max_length}; raise it, or choose "
                        'over_long="truncate" or "drop"'
                    )
                name = "truncated" if over_long == "truncate" else "dropped"
                found.counts[name] = found.counts.get(name, 0) + 1
                if over_long != "truncate":
                    continue
                pair = None if pairs is None else [pairs[number]]
                ((ids, types),) = _tokenise(tokenizer, [texts[number]], pair, max_length)
                if len(ids) > max_length:
                    raise LengthError(
                        f"record {number} cannot be cut to {max_length} tokens: its special tokens alone are more; "
                        "raise max_length"
                    )
            found.ids.append(ids)
            if types is not None:
                found.types.append(types)
            found.kept.append(number)
    return found


def leave_out(number: int, text: str, counts: dict[str, int], empty: Empty) -> None:
    """Count a record that is left out because it has no token: add 1 to ``counts["empty_skipped"]``.

    `number` is the record's number and `text` its text, for messages.

    Raises:
        LengthError: `empty` is "error"; then nothing is counted.
    """
    if empty == "error":
        raise LengthError(
            f'record {number} has no token: its text is {text[:60]!r}; leave it out, or skip such records: empty="skip"'
        )
    counts["empty_skipped"] = counts.get("empty_skipped", 0) + 1


def _tokenise(
    tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None, cut: int | None = None
) -> Iterator[tuple[list[int], list[int] | None]]:
    """Yield (ids, token types) of each text or pair, truncated to `cut` tokens (None: not truncated).

    The token types are None if the tokenizer gives none.
    """
    options: dict[str, Any] = {"add_special_tokens": True, "padding": False, "return_attention_mask": False}
    options |= {"verbose": False, "truncation": False}
    if cut is not None:
        options |= {"truncation": "longest_first", "max_length": cut}
    found: Mapping[str, Any] = tokenizer(list(texts), None if pairs is None else list(pairs), **options)
    ids = found["input_ids"]
    yield from zip(ids, found.get("token_type_ids") or [None] * len(ids), strict=True)
