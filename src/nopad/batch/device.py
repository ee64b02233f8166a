"""Put a batch's layout on a torch device, and pass it through a model with the attention mask.

transformers passes an attention mask on unchanged if it has four dimensions. So nopad passes a mask ``[R, 1, 1, L]``
that holds each slot's sequence number. The `Placement` (the layout on the device) is attached to this tensor as an
attribute, for the backends that need the lengths on the host. Gradient checkpointing passes the same tensor on when it
recomputes a layer.

The attribute is lost where a mask is copied, and in compiled layers. The dtype of the mask then says how its values may
be used:

* `NUMBERS`: slots of the same number see each other
* `DENSE`: the values are a full mask, which says for each slot which slots it sees
* `OPAQUE`: the values mean nothing (rows filled end to end, cross attention), and attention without the `Placement`
  raises an error
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
    """The layout of a batch on a device: it says where the tokens lie.

    The *order given* is the order in which the caller passed the sequences. The *stream order* is the order in which
    they lie in the batch, row after row. The *stream* is all tokens in stream order, without padding. Per-sequence
    tensors are in the order given; only `bounds` and `cu_seqlens` are in stream order.

    Attributes:
        layout: the layout: S sequences with T tokens in R rows of L slots (a slot holds a token or padding).
        ids: number of each slot's sequence in the order given, from 1; 0 in padding; int32 ``[R, L]``.
        index: where each token lies in the concatenated rows, in stream order; int64 ``[T]``. None for the flat form.
        bounds: where each sequence begins in the stream, in stream order, and where the last one ends; a list of S + 1
            integers.
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
        """Return ``make()`` at the first call with this `key`, and the same stored value at later calls."""
        if key not in self._kept:
            with lasting():
                self._kept[key] = make()
        return self._kept[key]

    @property
    def first(self) -> Tensor:
        """Where each sequence's first token lies in the concatenated rows; int64 ``[S]``."""
        return self._tensor("first", lambda at: at.starts)

    @property
    def last(self) -> Tensor:
        """Where each sequence's last token lies in the concatenated rows; int64 ``[S]``."""
        return self._tensor("last", lambda at: at.starts + at.seq_lengths - 1)

    @property
    def lens(self) -> Tensor:
        """Length of each sequence in tokens; int64 ``[S]``."""
        return self._tensor("lens", lambda at: at.seq_lengths.astype("int64"))

    @property
    def owner(self) -> Tensor:
        """For each token, in stream order: the index of its sequence in the order given; int64 ``[T]``."""
        return self._tensor("owner", lambda at: np.repeat(at.order, at.stream_lengths))

    @property
    def positions(self) -> Tensor:
        """Position of each slot's token in its sequence, from 0; 0 in padding. int64 ``[R, L]``."""
        return self._tensor("positions", lambda at: at.position_ids)

    @property
    def cu_seqlens(self) -> Tensor:
        """Where sequences begin in the stream, in stream order, and where the last one ends; int32 ``[S + 1]``."""
        return self._tensor("cu", lambda at: at.cu_seqlens)

    @property
    def padded_index(self) -> Tensor:
        """Index of each token in a flattened array ``[S, longest]`` with one sequence per row; int64 ``[T]``.

        Tokens are in stream order. The rows are in the order in which the caller passed the sequences; each sequence
        begins at the start of its row.
        """

        def made(at: Layout) -> Any:
            # How far each sequence moves from its place in the stream to slot 0 of its own row.
            starts = at.order * at.max_seqlen - at.cu_seqlens[:-1]
            return np.arange(at.tokens) + np.repeat(starts, at.stream_lengths)

        return self._tensor("padded", made)

    def given(self, slots: Tensor) -> Tensor:
        """Return one entry per real token, ``[T, ...]``, from concatenated rows ``[R * L, ...]``.

        The result has the sequences in the order in which the caller passed them. In the flat form, `slots` itself is
        returned.
        """
        return slots if self.index is None else slots[self._tensor("places", lambda at: at.places)]

    def stream(self, rows: Tensor) -> Tensor:
        """Return one entry per real token, ``[T, ...]``, from rows ``[R, L, ...]``; tokens are in stream order."""
        flat = rows.reshape(-1, *rows.shape[2:])
        return flat if self.index is None else flat[self.index]

    def rows(self, stream: Tensor) -> Tensor:
        """Put one entry per real token, ``[T, ...]`` in stream order, into rows ``[R, L, ...]``, with 0 in padding.

        This is the inverse of `stream`.
        """
        shape = (*self.layout.shape, *stream.shape[1:])
        if self.index is None:
            return stream.reshape(shape)
        empty = stream.new_zeros(self.layout.slots, *stream.shape[1:])
        return empty.index_copy(0, self.index, stream).reshape(shape)

    def to_padded(self, stream: Tensor, fill: float = 0) -> Tensor:
        """Put one entry per real token, ``[T, ...]`` in stream order, into one row per sequence, ``[S, longest, ...]``.

        The rows are in the order in which the caller passed the sequences. Padding gets `fill`.
        """
        shape = (self.layout.sequences, self.layout.max_seqlen, *stream.shape[1:])
        empty = stream.new_full((shape[0] * shape[1], *stream.shape[1:]), fill)
        return empty.index_copy(0, self.padded_index, stream).reshape(shape)

    def from_padded(self, padded: Tensor) -> Tensor:
        """Return one entry per real token, ``[T, ...]``, from ``[S, longest, ...]``; the inverse of `to_padded`.

        `padded` has one row per sequence, in the order in which the caller passed the sequences. The result is in
        stream order.
        """
        return padded.reshape(-1, *padded.shape[2:])[self.padded_index]

    def mask(self, opaque: bool = False) -> Tensor:
        """Return the attention mask that a model gets, ``[R, 1, 1, L]``, with this placement attached.

        The mask holds the numbers of `ids`, int32; or zeros, int16, if rows are filled end to end or `opaque` is True.
        `opaque` is for attention modules that cannot read the numbers.
        """
        numbers = torch.zeros_like(self.ids, dtype=OPAQUE) if opaque or self.layout.crossing else self.ids
        carrier = numbers[:, None, None, :]
        setattr(carrier, ATTRIBUTE, self)
        return carrier

    def _tensor(self, name: str, made: Callable[[Layout], Any]) -> Tensor:
        return cast(Tensor, self.keep(name, lambda: torch.from_numpy(made(self.layout)).to(self.ids.device)))


class Cross:
    """The placements of a cross attention: each target sequence attends to its source sequence.

    The target and the source that the caller passed at the same index belong together.

    Attributes:
        queries, keys: the placements of the targets (the decoder's batch) and of the sources (the encoder's batch).
        backend: name of the attention backend.
        pairs: for each target in stream order (row after row), the index of its source in the stream order of `keys`.

    Raises:
        BatchError: `queries` and `keys` have different numbers of sequences.
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

    def in_rows_of_queries(self, states: Tensor) -> Tensor:
        """Return states ``[R, L, ...]`` of the keys as ``[rows, width, ...]``, with as many rows as the queries have.

        Some cross attention takes the number of rows from its queries only (UMT5). The slots keep their order, row
        after row, and zeros fill the end. `width` is the smallest width that holds all slots, or the length of the
        longest key sequence if that is larger, since position biases are as wide as a row. If keys and queries have
        equally many rows, `states` itself is returned. `in_own_rows` is the inverse.
        """
        rows, layout = self.queries.layout.shape[0], self.keys.layout
        if states.shape[0] == rows:
            return states
        width = max(-(-layout.slots // rows), layout.max_seqlen)
        empty = states.new_zeros(rows * width - layout.slots, *states.shape[2:])
        return torch.cat([states.flatten(0, 1), empty]).view(rows, width, *states.shape[2:])

    def in_own_rows(self, states: Tensor) -> Tensor:
        """Return keys or values as ``[R, heads, L, D]``, in the keys' own rows; the inverse of `in_rows_of_queries`.

        `states` are ``[rows, heads, width, D]``, with the `rows` and `width` that `in_rows_of_queries` made.
        """
        layout = self.keys.layout
        if states.shape[0] == layout.shape[0]:
            return states
        slots = states.transpose(1, 2).flatten(0, 1)[: layout.slots]
        return slots.view(*layout.shape, *slots.shape[1:]).transpose(1, 2)

    def keep(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the mask between queries and keys: ``make()`` at the first call, the same tensor at later calls."""
        if self._kept is None:
            with lasting():
                self._kept = make()
        return self._kept

    def mask(self) -> Tensor:
        """Return the mask that a decoder gets for the encoder's states, with this object attached.

        It is int16 zeros ``[R, 1, 1, L]``, where R and L are those of the keys.
        """
        carrier = torch.zeros_like(self.keys.ids, dtype=OPAQUE)[:, None, None, :]
        setattr(carrier, ATTRIBUTE, self)
        return carrier


def lasting() -> Any:
    """Return a context manager that turns inference mode off: training can use tensors that are made in its block."""
    return torch.inference_mode(False)


def carried_by(mask: Tensor | None) -> Placement | Cross | None:
    """Return the `Placement` or `Cross` attached to a mask; None if there is none."""
    return getattr(mask, ATTRIBUTE, None)


def is_static(mask: Any) -> bool:
    """Return whether a mask looks like one from `nopad.model.static_inputs`.

    Such a mask is int32 with four dimensions, and has no placement attached. While a model is being compiled, only
    dtype and number of dimensions are checked.
    """
    if not (isinstance(mask, Tensor) and mask.dtype == torch.int32 and mask.dim() == 4):
        return False
    # A compiler does not trace attributes of tensors, so in a graph dtype and shape decide alone.
    return torch.compiler.is_compiling() or carried_by(mask) is None


def place(mask: PackedMask, device: Any, backend: str) -> Placement:
    """Return the `Placement`, on `device`, of the batch with this mask.

    `backend` is the name of the attention backend. The placement is made once per device and backend, and then stored
    in the mask.
    """
    known: dict[Any, Placement] = mask._on_device
    key = (str(device), backend)
    if key not in known:
        known[key] = Placement(layout_of(mask), device, backend)
    return known[key]
