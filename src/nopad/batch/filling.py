"""Make the items of a batch: padded columns, position ids, and the guard (`PackedMask`) as ``attention_mask``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nopad.batch.columns import Records
from nopad.batch.guard import PackedMask
from nopad.batch.images import Pictured
from nopad.batch.layout import Layout
from nopad.batch.values import check_fill, named
from nopad.errors import BatchError, OptionError
from nopad.options import shown
from nopad.sequences import MASK, Sequences

__all__ = ["MASK", "TARGETS", "filled", "without_first"]

TARGETS = ("decoder_input_ids", "labels", f"decoder_{MASK}")  # the items of a batch that are of its targets


def without_first(stacked: Sequences, layout: Layout) -> tuple[Sequences, Layout]:
    """Return `stacked` with the first label of each sequence set to -100, and `layout` with `causal` set to True.

    A causal language model does not predict a sequence's first token. Labels that are booleans become int64. If there
    are no ``labels`` per token, `stacked` itself is returned. The arguments themselves do not change.
    """
    if "labels" in stacked.tokens:
        given = stacked.tokens["labels"]
        labels = given.copy() if given.dtype != np.bool_ else given.astype(np.int64)  # a boolean is never -100
        labels[stacked.begins] = -100
        stacked = replace(stacked, tokens={**stacked.tokens, "labels": labels})
    return stacked, layout.marked(causal=True)


def filled(
    stacked: Sequences,
    layout: Layout,
    pad_id: int,
    fill: Mapping[str, Any] | None,
    records: Records | None = None,
    images: Sequence[Pictured] = (),
) -> dict[str, Any]:
    """Return the items of a `PackedBatch` by name.

    They are the columns per token, ``[R, L]``; the columns per sequence, ``[S, ...]``; ``position_ids``; the columns of
    images and videos; and the guard (`PackedMask`) as ``attention_mask``. If a column per token holds booleans, and its
    padding value is the default -100, it becomes int64.

    Args:
        stacked: the sequences, with columns per token and per sequence.
        layout: where each token lies.
        pad_id: id of the padding in ``input_ids``.
        fill: padding value of each other per-token column, by name; default: -100 for names that end in ``labels``, 0
            for other names.
        records: where each sequence comes from; None: the batch has no records.
        images: the images of all sequences as one `Pictured`, and their videos as another, each only if there are some.

    Raises:
        OptionError: `fill` is not a dict, or names ``input_ids`` or a column that is not per token; or a column cannot
            hold its padding value.
        BatchError: a per-token column does not have one value per token.
    """
    given = named("fill", fill)
    if "input_ids" in given:
        raise OptionError(f"fill names 'input_ids' ({shown(given['input_ids'])}); the padding of ids is pad_id")
    fills = {"input_ids": pad_id, **given}
    for name, value in fills.items():
        if name not in stacked.tokens:
            per_token = ", ".join(stacked.tokens)
            raise OptionError(f"fill names {name!r}; columns with a value per token are {per_token}")
        check_fill(name, value, stacked.tokens[name].dtype)
    unable = [name for name, one in stacked.tokens.items() if one.dtype == np.bool_ and name not in fills]
    ints = {name: stacked.tokens[name].astype(np.int64) for name in unable if name.endswith("labels")}
    stacked = replace(stacked, tokens={**stacked.tokens, **ints}) if ints else stacked
    for name, column in stacked.tokens.items():
        if column.shape != (layout.tokens,):
            raise BatchError(f"column {name!r} is {list(column.shape)}, and the sequences have {layout.tokens} tokens")
    fields: dict[str, Any] = {
        name: layout.scatter(column, fills.get(name, -100 if name.endswith("labels") else 0))
        for name, column in stacked.tokens.items()
    }
    layout = layout.marked(records=records) if records else layout
    fields["position_ids"] = layout.position_ids
    fields |= stacked.values
    if images:
        layout = layout.marked(**{one.kind.name: one.counts for one in images})
    for one in images:
        fields |= one.fields(layout.order)
    others = fields.keys() - stacked.tokens.keys() - {"position_ids"}
    layout = layout.marked(not_per_token=frozenset(others)) if others else layout
    return {**fields, MASK: PackedMask(layout)}
