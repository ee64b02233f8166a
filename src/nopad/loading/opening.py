"""What a user hands to a loader -> the feed that it deals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nopad.errors import OptionError
from nopad.loading.feeds import Feed, StoredRows, StoredTokens, planned
from nopad.loading.sources import TokenSource, open_tokens
from nopad.options import check_sizes
from nopad.store import PackedDataset, open_packed

__all__ = ["open_feed"]

MANIFEST = "nopad.json"


def open_feed(data: Any, capacity: int | None, *, unpacked: bool, seed: int, **options: Any) -> Feed:
    """Return what deals `data`: stored rows, virtual packs of `capacity`, or, if `unpacked`, single sequences.

    Raises:
        OptionError: `data` is no packed dataset and no capacity is given, or options of a plan are given without one.
    """
    check_sizes(1 if capacity is None else capacity, None, seed)
    if capacity is not None:
        source = _tokens(data)
        return StoredTokens(source, planned(source, capacity, **options), seed=seed)
    if options:
        raise OptionError(f"{', '.join(options)} are options of a plan, and without a capacity nothing is planned")
    if unpacked:
        return StoredTokens(_tokens(data), None, seed=seed)
    if isinstance(data, str | Path) and (Path(data) / MANIFEST).is_file():
        data = open_packed(data)
    if not isinstance(data, PackedDataset):
        raise OptionError("rows of what capacity? Give one; only the rows of a packed dataset have theirs")
    return StoredRows(data, seed=seed)


def _tokens(data: Any) -> TokenSource:
    return data if isinstance(data, TokenSource) else open_tokens(data)
