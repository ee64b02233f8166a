"""Turn texts into the examples of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nopad.corpus.framing import tokenised
from nopad.tasks.examples import Examples, stacked

__all__ = ["encoded"]


def encoded(task: Any, texts: Sequence[str], *, types: bool = True) -> Examples:
    """Turn texts into the examples of a task, with its tokenizer, `max_length` and `over_long`.

    With `types`, the examples have token type ids if the tokenizer gives them.

    Raises:
        LengthError: a text has no token, or has more than `max_length` tokens and `over_long` is "error"; or there are
            more than `max_length` special tokens, so a text cannot be truncated.
    """
    found = tokenised(task.tokenizer, texts, max_length=task.max_length, over_long=task.over_long)
    made = stacked(found.ids, found.kept, tokens=found.columns if types else {})
    return Examples(sequences=made, record=np.array(found.kept, np.int64), records=len(texts), counts=found.counts)
