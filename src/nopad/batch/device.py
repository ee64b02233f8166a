"""A batch's layout on a torch device, and the tensors by which it travels through a model.

A model hands its attention mask on unchanged when it has four dimensions. So the mask that it gets is the sequence
numbers, ``[R, 1, 1, L]`` integers, and on that tensor hangs the `Placement`, for the backends that want lengths on the
host. Nothing else has to know; recomputation (gradient checkpointing) hands on the same tensor.

The `Placement` is lost where a mask is copied, and in compiled layers. So the mask's dtype says what its numbers alone
are good for: `NUMBERS` say which slots see each other, `DENSE` is that itself, and `OPAQUE` ones say nothing (rows
filled end to end, where a sequence goes on in another row; cross attention): attention without the placement raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from nopad.batch.guard import PackedMask, layout_of
from nopad.batch.layout import Layout
from nopad.errors import BatchError

__all__ = [
    "ATTRIBUTE",
    "DENSE",
    "NUMBERS",
    "OPAQUE",
    "Cross",
    "Placement",
    "carried_by",
    "is_static",
    "lasting",
    "place",
]

ATTRIBUTE = "nopad_placement"
NUMBERS, OPAQUE, DENSE = torch.int32, torch.int16, torch.int8


class Placement:
    """A layout on a device. What is per sequence is in the order given, but `bounds` and `cu_seqlens`.

    Attributes:
        layout: S sequences, T tokens, R rows of L slots.
        ids: number of each slot's sequence in the order given, from 1, and 0 in padding; int32 ``[R, L]``.
        index: place of each token in the rows end to end; int64 ``[T]``; None for the flat form.
        bounds: where sequences begin and end in the stream, in stream order; S + 1 integers on the host.
        backend: name of the attention backend.
    """

    def __init__(self, layout: Layout, device: Any, backend: str) -> None:
        self.layout = layout
        self.backend = backend
        with lasting():
            self.ids = torch.from_numpy(layout.sequence_ids).to(device)
            self.index = None if layout.form == "flat" else torch.from_numpy(layout.index).to(device)
        self.bounds: list[int] = layout.cu_seqlens.tolist()
        self._kept: dict[Any, Any] = {}

    def keep(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what was made under this key, making it once."""
        if key not in self._kept:
            with lasting():
                self._kept[key] = make()
        return self._kept[key]

    @property
    def first(self) -> Tensor:
        """Place of each sequence's first token in the rows end to end; int64 ``[S]``."""
        return self._tensor("first", lambda at: at.starts)

    @property
    def last(self) -> Tensor:
        """Place of each sequence's last token in the rows end to end; int64 ``[S]``."""
        return self._tensor("last", lambda at: at.starts + at.seq_lengths - 1)

    @property
    def lens(self) -> Tensor:
        """Tokens of each sequence; int64 ``[S]``."""
        return self._tensor("lens", lambda at: at.seq_lengths.astype("int64"))

    @property
    def owner(self) -> Tensor:
        """Which sequence each token of the stream belongs to, from 0; int64 ``[T]``."""
        return self._tensor("owner", lambda at: np.repeat(at.order, at.stream_lengths))

    @property
    def positions(self) -> Tensor:
        """Position of each slot's token in its sequence, from 0, and 0 in padding; int64 ``[R, L]``."""
        return self._tensor("positions", lambda at: at.position_ids)

    @property
    def cu_seqlens(self) -> Tensor:
        """Where sequences begin in the stream, in stream order; int32 ``[S + 1]``."""
        return self._tensor("cu", lambda at: at.cu_seqlens)

    @property
    def padded_index(self) -> Tensor:
        """Place of each token of the stream in ``[S, longest]`` end to end; int64 ``[T]``."""

        def made(at: Layout) -> Any:
            starts = at.order * at.max_seqlen - at.cu_seqlens[:-1]
            return np.arange(at.tokens) + np.repeat(starts, at.stream_lengths)

        return self._tensor("padded", made)

    def stream(self, rows: Tensor) -> Tensor:
        """``[R, L, ...]`` to ``[T, ...]``: the real tokens in stream order."""
        flat = rows.reshape(-1, *rows.shape[2:])
        return flat if self.index is None else flat[self.index]

    def rows(self, stream: Tensor) -> Tensor:
        """``[T, ...]`` to ``[R, L, ...]``, with 0 in padding; the inverse of `stream`."""
        shape = (*self.layout.shape, *stream.shape[1:])
        if self.index is None:
            return stream.reshape(shape)
        empty = stream.new_zeros(self.layout.slots, *stream.shape[1:])
        return empty.index_copy(0, self.index, stream).reshape(shape)

    def to_padded(self, stream: Tensor, fill: float = 0) -> Tensor:
        """``[T, ...]`` to ``[S, longest, ...]``: each sequence from slot 0 on, in the order given, `fill` behind it."""
        shape = (self.layout.sequences, self.layout.max_seqlen, *stream.shape[1:])
        empty = stream.new_full((shape[0] * shape[1], *stream.shape[1:]), fill)
        return empty.index_copy(0, self.padded_index, stream).reshape(shape)

    def from_padded(self, padded: Tensor) -> Tensor:
        """``[S, longest, ...]`` to ``[T, ...]``; the inverse of `to_padded`."""
        return padded.reshape(-1, *padded.shape[2:])[self.padded_index]

    def mask(self, opaque: bool = False) -> Tensor:
        """Return what a model gets as its attention mask; ``[R, 1, 1, L]``, with this placement on it.

        `opaque`: for attention that cannot read sequence numbers.
        """
        numbers = torch.zeros_like(self.ids, dtype=OPAQUE) if opaque or self.layout.crossing else self.ids
        carrier = numbers[:, None, None, :]
        setattr(carrier, ATTRIBUTE, self)
        return carrier

    def _tensor(self, name: str, made: Callable[[Layout], Any]) -> Tensor:
        return cast(Tensor, self.keep(name, lambda: torch.from_numpy(made(self.layout)).to(self.ids.device)))


class Cross:
    """Cross attention: each sequence of `queries` attends to the sequence of the same number in `keys`.

    `pairs`: for each sequence of the queries, which sequence of the keys that is; both counted in stream order, from 0.

    Raises:
        BatchError: the two have different numbers of sequences.
    """

    def __init__(self, queries: Placement, keys: Placement) -> None:
        self.queries, self.keys = queries, keys
        self.backend = queries.backend
        of_keys = {int(number): place for place, number in enumerate(keys.layout.order)}
        if keys.layout.sequences != queries.layout.sequences:
            raise BatchError(
                f"the batch has {keys.layout.sequences} sequences and {queries.layout.sequences} targets; build both "
                "with batch.with_decoder(targets, start_id)"
            )
        self.pairs = [of_keys[int(number)] for number in queries.layout.order]
        self._kept: Tensor | None = None

    def keep(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the mask between these two placements, making it once."""
        if self._kept is None:
            with lasting():
                self._kept = make()
        return self._kept

    def mask(self) -> Tensor:
        """Return what a decoder gets as its encoder's attention mask; ``[R, 1, 1, L]``, says nothing by itself."""
        carrier = torch.zeros_like(self.keys.ids, dtype=OPAQUE)[:, None, None, :]
        setattr(carrier, ATTRIBUTE, self)
        return carrier


def lasting() -> Any:
    """Inside, tensors are made to be kept: those made in inference mode would be of no use in training afterwards."""
    return torch.inference_mode(False)


def carried_by(mask: Tensor | None) -> Placement | Cross | None:
    """Return what hangs on a mask, if anything does."""
    return getattr(mask, ATTRIBUTE, None)


def is_static(mask: Any) -> bool:
    """Whether a mask is that of `nopad.model.static_inputs`: sequence numbers, and nothing hangs on it."""
    if not (isinstance(mask, Tensor) and mask.dtype == torch.int32 and mask.dim() == 4):
        return False
    return torch.compiler.is_compiling() or carried_by(mask) is None


def place(mask: PackedMask, device: Any, backend: str) -> Placement:
    """Put the layout behind a batch's mask on a device, once."""
    known: dict[Any, Placement] = mask._on_device
    key = (str(device), backend)
    if key not in known:
        known[key] = Placement(layout_of(mask), device, backend)
    return known[key]
