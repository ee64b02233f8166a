"""A batch for other libraries: as arguments of transformers' own flash attention, and as arrays named as in Grain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch.filling import MASK, TARGETS
from nopad.batch.guard import PackedMask, layout_of
from nopad.batch.images import held
from nopad.errors import BatchError, OptionError

if TYPE_CHECKING:
    from nopad.batch.packed import PackedBatch

__all__ = ["flash_kwargs", "grain_arrays"]

_FLASH = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def flash_kwargs(batch: PackedBatch, *, seq_idx: bool) -> dict[str, Any]:
    """Return the arguments for transformers' own flash attention by name; see `PackedBatch.as_flash_kwargs`.

    They are the batch's items without the mask, and four more. ``cu_seq_lens_q`` and ``cu_seq_lens_k`` are int32
    tensors ``[S + 1]`` for S sequences; ``max_length_q`` and ``max_length_k`` are integers. If `seq_idx` is True, they
    also have ``seq_idx``, the number of each token's sequence from 0, int32 ``[1, T]`` for T tokens.

    Raises:
        BatchError: the batch is in rows, or a flat batch with padding, or it has images, videos or targets for a
            decoder.
    """
    pictured = held(batch.layout)
    if pictured:
        raise BatchError(
            f"this batch has {pictured}, and a model may count the positions of their tokens by itself, which it does "
            "along rows; make it pack-safe with nopad.packed(model), and call model(**batch)"
        )
    if f"decoder_{MASK}" in batch:
        raise BatchError(
            "this batch has targets for a decoder, and these arguments have one set of lengths for both; make the "
            "model pack-safe with nopad.packed(model), and call model(**batch)"
        )
    if batch.layout.form != "flat":
        raise BatchError("transformers' flash attention takes one stream; build the batch with nopad.Flat()")
    import torch

    device = batch["position_ids"].device
    ends = torch.from_numpy(batch.cu_seqlens).to(device)
    fields = {name: batch[name] for name in batch if name != MASK}
    if seq_idx:
        fields["seq_idx"] = torch.from_numpy(batch.segment_ids - 1).to(device)
    return {**fields, **dict(zip(_FLASH, (ends, ends, batch.max_seqlen, batch.max_seqlen), strict=True))}


def grain_arrays(batch: PackedBatch, fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """Return the columns of a batch as NumPy arrays, under the names of Grain's packing; see `PackedBatch.as_grain`.

    With each column per token, ``[R, L]``, come ``<column>_segment_ids`` and ``<column>_positions``, int32 ``[R, L]``;
    ``<column>`` is its new name. A column that was set after the batch was made counts as one per token if it has this
    shape. `fields` are the items of `batch`, by name. `names` maps names of columns of the batch to new names; other
    columns keep their names.

    Raises:
        BatchError: rows are filled end to end.
        OptionError: `names` has a name that is not a column of the batch (``position_ids`` and masks do not count as
            columns); or two columns would get the same name.
    """
    columns = [name for name, value in fields.items() if not isinstance(value, PackedMask) and name != "position_ids"]
    odd = [name for name in names if name not in columns]
    if odd:
        raise OptionError(f"names has {odd[0]!r}, which is no column of this batch: {', '.join(columns)}")
    target = fields.get(f"decoder_{MASK}")
    out: dict[str, NDArray[Any]] = {}
    for name in columns:
        value = fields[name]
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value  # which NumPy does not have
        array = np.asarray(value)
        feature = names.get(name, name)
        layout = layout_of(target) if target is not None and name in TARGETS else batch.layout
        made = {feature: array}
        if array.shape == layout.shape and name not in layout.not_per_token:
            segments = np.zeros_like(layout.segment_ids) if layout.stand_in else layout.segment_ids
            made[f"{feature}_segment_ids"] = segments
            made[f"{feature}_positions"] = layout.position_ids.astype(np.int32)
        twice = made.keys() & out.keys()
        if twice:
            raise OptionError(f"two columns would be called {min(twice)!r}; give other names")
        out |= made
    return out
