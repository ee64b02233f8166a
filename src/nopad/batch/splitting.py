"""Split per-token values ``[R, L, ...]`` into one array per sequence, and put them back into rows; O(tokens)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from nopad.batch.layout import Layout
from nopad.batch.values import joined, shape_of
from nopad.errors import BatchError

__all__ = ["laid_out", "split"]


def split(values: Any, at: Layout, target: Layout | None) -> list[Any]:
    """Return one array ``[length, ...]`` per sequence, in the order given; see `PackedBatch.unpack_tokens`.

    Args:
        values: ``[R, L, ...]``, one value per slot; NumPy or torch.
        at: the layout of the sequences.
        target: the layout of the batch's targets; None: it has none.

    Raises:
        BatchError: `values` is not an array; its shape does not begin with ``[R, L]``; or `values` may belong to the
            targets: it has the shape of the targets, and the targets do not lie where the sequences lie.
    """
    given = tuple(shape_of(values)[:2])
    aimed = None if target is None or given != target.shape else target
    if aimed is not None and not (given == at.shape and at.same_places(aimed)):
        raise BatchError(
            "these values have the shape of the targets; give them to batch.targets.unpack_tokens, or to "
            "batch.sources.unpack_tokens if they are the encoder's"
        )
    if given != at.shape:
        raise BatchError(
            f"values per token have the shape {list(values.shape)}; expected [{at.shape[0]}, {at.shape[1]}, ...]"
        )
    stream = values.reshape(at.slots, *values.shape[2:])
    if at.form != "flat":
        stream = stream[_index(stream, at)]
    out: list[Any] = [None] * at.sequences
    for number, (begin, end) in zip(at.order.tolist(), pairwise(at.cu_seqlens.tolist()), strict=True):
        out[number] = stream[begin:end]
    return out


def laid_out(values: Sequence[Any], at: Layout) -> Any:
    """Put arrays of per-token values, one per sequence, where their tokens lie in rows; the inverse of `split`.

    Args:
        values: one array ``[length, ...]`` per sequence, in the order given; NumPy or torch.
        at: where the tokens lie.

    Returns:
        ``[R, L, ...]``, with 0 in padding.

    Raises:
        BatchError: there is not one array for each sequence, an array is not as long as its sequence, or the arrays
            differ in type or in the dimensions after the first.
    """
    stream = joined(values, at)
    shape = (*at.shape, *stream.shape[1:])
    if at.form == "flat":
        return stream.reshape(shape)
    index = _index(stream, at)
    if isinstance(stream, np.ndarray):
        rows = np.zeros((at.slots, *stream.shape[1:]), dtype=stream.dtype)
        rows[index] = stream
        return rows.reshape(shape)
    return stream.new_zeros(at.slots, *stream.shape[1:]).index_copy(0, index, stream).reshape(shape)


def _index(stream: Any, at: Layout) -> Any:
    """Return `Layout.index` as an array of the library of `stream` (NumPy or torch), on its device."""
    if isinstance(stream, np.ndarray):
        return at.index
    import torch

    return torch.from_numpy(at.index).to(stream.device)
