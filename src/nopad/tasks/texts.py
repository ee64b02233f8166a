"""One text, or two, as one sequence: tokenised in batches, and cut by a policy that is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nopad.corpus.options import OverLong
from nopad.errors import LengthError
from nopad.tasks.examples import Examples, stacked

__all__ = ["Tokenised", "encoded", "tokenised"]

_AT_ONCE = 1000  # texts; the tokenizer works on them in parallel


@dataclass(frozen=True, kw_only=True)
class Tokenised:
    """Token ids of n kept texts.

    Attributes:
        ids: token ids of each, special tokens included.
        types: token types of each, where the tokenizer has them; else empty.
        kept: the number of each text among those that were given.
        counts: number of texts that were truncated or dropped, by reason.
    """

    ids: list[list[int]] = field(default_factory=list)
    types: list[list[int]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def columns(self) -> dict[str, list[list[int]]]:
        """Columns per token beside the ids."""
        return {"token_type_ids": self.types} if self.types else {}


def tokenised(
    tokenizer: Any,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    max_length: int | None = None,
    over_long: OverLong = "error",
) -> Tokenised:
    """Tokenise texts, each with its pair if there are pairs, with the tokenizer's special tokens.

    Truncation removes tokens one by one from the end of the longer of the two texts ("longest_first").

    Raises:
        LengthError: a text has more than `max_length` tokens, and `over_long` is "error"; or a text has no tokens.
    """
    found = Tokenised()
    for first in range(0, len(texts), _AT_ONCE):
        span = slice(first, first + _AT_ONCE)
        part = [*_tokenise(tokenizer, texts[span], None if pairs is None else pairs[span])]
        for number, (ids, types) in enumerate(part, first):
            if not ids:
                raise LengthError(f"record {number} has no token: its text is {texts[number]!r}; leave it out")
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
                    raise LengthError(f"record {number} cannot be cut to {max_length} tokens: it has special tokens")
            found.ids.append(ids)
            if types:
                found.types.append(types)
            found.kept.append(number)
    return found


def encoded(task: Any, texts: Sequence[str], *, types: bool = True) -> Examples:
    """Return single texts as the examples of a task, by its tokenizer, `max_length` and `over_long`.

    `types`: whether the model takes token types, where the tokenizer has them.

    Raises:
        LengthError: as for `tokenised`.
    """
    found = tokenised(task.tokenizer, texts, max_length=task.max_length, over_long=task.over_long)
    made = stacked(found.ids, tokens=found.columns if types else {})
    return Examples(sequences=made, record=np.array(found.kept, np.int64), records=len(texts), counts=found.counts)


def _tokenise(
    tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None, cut: int | None = None
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield ids and token types (none: empty) of each text; `cut`: most tokens."""
    options: dict[str, Any] = {"add_special_tokens": True, "padding": False, "return_attention_mask": False}
    options |= {"verbose": False, "truncation": False}
    if cut is not None:
        options |= {"truncation": "longest_first", "max_length": cut}
    found: Mapping[str, list[list[int]]] = tokenizer(list(texts), None if pairs is None else list(pairs), **options)
    ids = found["input_ids"]
    yield from zip(ids, found.get("token_type_ids") or [[]] * len(ids), strict=True)
