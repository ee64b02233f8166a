"""`open_tokens`: from what a user gives to a source of tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nopad.corpus.inputs import reading
from nopad.errors import SourceError
from nopad.loading.sources.arrays import ArrayTokens
from nopad.loading.sources.source import TokenSource

__all__ = ["open_tokens"]


def open_tokens(inputs: Any, *, empty: str = "refuse") -> TokenSource:
    """Open stored tokens as a source that gathers any sequences by number.

    Args:
        inputs: a folder of ``ids.npy`` and ``offsets.npy``.
        empty: what to do with sequences that have no token: "refuse", or "skip" (`TokenSource.skipped` counts them).

    Raises:
        SourceError: the input is missing, damaged, or not of a kind that is read.
        LengthError: a sequence has no token, and `empty` is "refuse".
    """
    if isinstance(inputs, TokenSource):
        return inputs
    if isinstance(inputs, str | os.PathLike):
        path = Path(inputs)
        with reading(path):
            os.stat(path)
        if (path / "offsets.npy").is_file():
            return ArrayTokens(path, empty=empty)
    raise SourceError(f"{inputs!r} holds no tokens that can be read by number")
