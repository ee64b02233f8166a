"""Attention under a dense block-diagonal mask over whole rows. Its shapes are static, for any accelerator.

The cost is O(R L^2) for R rows of L slots, whatever the sequences' lengths; on a CPU this backend takes 5 to 9 times as
long as `segments`.

Source: Krell et al., arXiv 2107.02027, section 3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nopad.batch.device import ATTRIBUTE, DENSE, Cross, Placement
from nopad.errors import BatchError
from nopad.model.backends.core import Heads, allowed, attend

__all__ = ["block_mask", "dense_cross", "mask"]

_NOT_TOGETHER = "a sequence and its target are not in the same row; pack both with the same rows, or use nopad.Flat()"


def mask(query: Tensor, key: Tensor, value: Tensor, placed: Placement | Cross, heads: Heads) -> Tensor:
    """Compute attention of whole rows under a block-diagonal mask; return ``[R, L, H, D]``.

    The mask is made once per batch for all layers of the same causality and window. `query` is ``[R, H, L, D]``. `key`
    and `value` may have fewer heads, and in cross attention another L. `placed` is the batch's layout (`Cross`: the
    layouts of targets and sources), and `heads` are the layer's settings.

    Raises:
        BatchError: a sequence may go on in the next row, a sequence and its target are in different rows, or `attend`
            does not support the settings in `heads`.
    """
    if isinstance(placed, Cross):
        keep = placed.keep(lambda: _cross_mask(placed))
    else:
        _refuse_crossing(placed)
        keep = placed.keep(("mask", heads.causal, heads.window), lambda: block_mask(placed.ids, heads))
    return attend(query, key, value, keep, heads).transpose(1, 2)


def block_mask(ids: Tensor, heads: Heads) -> Tensor:
    """Return which slots each slot sees: those of its own sequence, as far as `heads` (causality, window) allows.

    The result is bool ``[R, 1, L, L]``; entry ``[r, 0, i, j]`` says whether slot i of row r sees slot j. Padding sees
    padding, so that no softmax is empty. `ids` is the number of each slot's sequence, 0 in padding; integers
    ``[R, L]``.
    """
    keep = ids[:, :, None] == ids[:, None, :]
    places = torch.arange(ids.shape[1], device=ids.device)
    seen = allowed(places, places, heads)
    return (keep if seen is None else keep & seen)[:, None]


def dense_cross(cross: Cross) -> Tensor:
    """Return the mask of cross attention for compiled layers, int8 ``[R, 1, Lq, Lk]``.

    Lq is the number of slots in a row of targets, Lk that in a row of sources. The mask is 1 where a target slot sees a
    source slot, else 0. Padding of the targets sees the padding in the same row of sources; if there is none, it sees
    the whole row, since a softmax over nothing would give NaN. `cross`, which has both layouts, is attached to the
    mask.

    Raises:
        BatchError: a sequence may go on in the next row, or a sequence and its target are in different rows.
    """
    carrier = cross.keep(lambda: _cross_mask(cross)).to(DENSE)
    setattr(carrier, ATTRIBUTE, cross)
    return carrier


def _cross_mask(cross: Cross) -> Tensor:
    queries, keys = cross.queries, cross.keys
    _refuse_crossing(queries)
    _refuse_crossing(keys)
    if queries.ids.shape[0] != keys.ids.shape[0]:
        raise BatchError(_NOT_TOGETHER)
    keep = queries.ids[:, :, None] == keys.ids[:, None, :]
    if not bool(((keep.any(-1)) | (queries.ids == 0)).all()):
        raise BatchError(_NOT_TOGETHER)
    keep |= (~keep.any(-1))[:, :, None]  # else padding may see nothing, and softmax gives NaN
    return keep[:, None]


def _refuse_crossing(placed: Placement) -> None:
    if placed.layout.crossing:
        raise BatchError(
            "sequences go on in the next row here, which a mask over rows cannot follow; use backend='repack' "
            "or 'segments'"
        )
