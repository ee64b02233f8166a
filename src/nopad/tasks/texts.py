"""Tasks whose records are texts: what happens to texts without a token, and how texts become `Examples`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nopad.corpus.framing import tokenised
from nopad.corpus.options import Empty
from nopad.options import check_choice
from nopad.tasks.examples import Examples, stacked
from nopad.tasks.task import Task

__all__ = ["OfTexts", "encoded"]


class OfTexts(Task):
    """Base class of tasks whose records are texts, some of which may have no token, such as empty lines of a file.

    Attributes:
        empty: what happens to a record whose text has no token: "skip" leaves it out and counts it, as "empty_skipped";
            "error" raises LengthError. Many tokenizers put special tokens around an empty text. These count as tokens,
            except for `nopad.tasks.MaskedLM` and `nopad.tasks.CausalLM`, which learn the text itself. For
            `nopad.tasks.Embedding` with the pooling "mean" and a prompt that is not pooled, only tokens after the
            prompt count.

    Raises:
        OptionError: `empty` has another value; or as for `Task`.
    """

    def __init__(self, tokenizer: Any, *, empty: Empty = "skip", **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.empty: Empty = check_choice("empty", empty, Empty)


def encoded(task: Any, texts: Sequence[str], *, types: bool = True) -> Examples:
    """Turn texts into the examples of a task, with its tokenizer, `max_length` and `over_long`.

    Texts without a token are handled as the task's attribute `empty` says; a task without this attribute refuses them.
    With `types`, the examples have token type ids if the tokenizer gives them.

    Raises:
        LengthError: a text has no token and is not skipped, or has more than `max_length` tokens and `over_long`
            is "error"; or there are more than `max_length` special tokens, so a text cannot be truncated.
    """
    empty: Empty = getattr(task, "empty", "error")
    found = tokenised(task.tokenizer, texts, max_length=task.max_length, over_long=task.over_long, empty=empty)
    made = stacked(found.ids, found.kept, tokens=found.columns if types else {})
    return Examples(sequences=made, record=np.array(found.kept, np.int64), records=len(texts), counts=found.counts)
