"""`Items`, the base class of `PackedBatch`: a mapping of tensors, and the layout that says where each sequence lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nopad.batch.filling import MASK
from nopad.batch.guard import PackedMask, layout_of, mark
from nopad.errors import BatchError, load_torch

__all__ = ["Items"]

# Tensors that a model must not get without the mask
MARKED = ("input_ids", "inputs_embeds", "position_ids", "decoder_input_ids")


class Items(MutableMapping[str, Any]):
    """A mapping with the items of a packed batch: its columns, and the guard (`PackedMask`) as ``attention_mask``.

    Reading a column of numbers gives a torch tensor. A tensor of tokens or positions is marked when it is read, so that
    a pack-safe model that gets it without the guard raises an error. This is not done in a batch of a single sequence
    without padding, which needs no guard. The guard can be neither replaced nor deleted.

    Attributes:
        layout: where the tokens lie (`Layout`); the guard holds the same layout.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Make a batch from `fields`, the items of another batch by name; columns may have been changed or added.

        To build a batch from data, use `from_sequences` or another ``from_`` method.

        Raises:
            BatchError: `fields` lack the ``attention_mask`` of a packed batch.
        """
        mask = fields.get(MASK) if isinstance(fields, Mapping) else None
        if not isinstance(mask, PackedMask):
            raise BatchError("a PackedBatch is made of the fields of another one; build it with from_sequences")
        self._fields = dict(fields)
        self.layout = layout_of(mask)

    def __getitem__(self, name: str) -> Any:
        """Return the item called `name` as a model gets it.

        A column of numbers is a torch tensor, the same object at every read. Other columns, such as strings, are NumPy
        arrays of objects.

        Raises:
            KeyError: there is no such item.
            MissingExtraError: it is a column of numbers, and torch is not installed.
        """
        value = self._fields[name]
        if isinstance(value, np.ndarray) and value.dtype != object:
            torch = load_torch("reading a column of numbers as a tensor")
            from nopad.batch.device import lasting

            # Converted once and stored, so that every read returns the same tensor.
            with lasting():
                value = self._fields[name] = torch.from_numpy(np.ascontiguousarray(value))
        if name in MARKED and not isinstance(value, np.ndarray) and not self._one_alone:
            mark(value)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        if name == MASK and value is not self._fields[MASK]:
            raise BatchError("the attention_mask of a packed batch is its layout, and is not set")
        self._fields[name] = value

    def __delitem__(self, name: str) -> None:
        if name in (MASK, f"decoder_{MASK}"):
            raise BatchError(
                f"the {name} of a packed batch says where its sequences end, and is not taken out; a model without it "
                "would let them see each other. batch.as_flash_kwargs() is for models on flash attention"
            )
        del self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        at, names = self.layout, ", ".join(name for name in self._fields if name != MASK)
        slots = f"{at.tokens} tokens in {at.shape[0]} x {at.shape[1]} slots"
        return f"{type(self).__name__}({at.sequences} sequences, {slots}: {names})"

    @property
    def input_ids(self) -> Any:
        """Token ids ``[R, L]``: the int64 torch tensor ``batch["input_ids"]``.

        Raises:
            KeyError: the batch has none, since its tokens are vectors (`PackedBatch.from_embeddings`).
            MissingExtraError: torch is not installed.
        """
        return self["input_ids"]

    @property
    def position_ids(self) -> Any:
        """Position of each token in its sequence, from 0; 0 in padding; int64 torch tensor ``[R, L]``.

        Raises:
            MissingExtraError: torch is not installed.
        """
        return self["position_ids"]

    @property
    def sequence_ids(self) -> NDArray[np.int32]:
        """Number of each slot's sequence, from 1 in the order given; 0 in padding; int32 ``[R, L]``, on the host."""
        return self.layout.sequence_ids

    @property
    def segment_ids(self) -> NDArray[np.int32]:
        """Number of each slot's sequence within its row, from 1; 0 in padding; int32 ``[R, L]``, on the host.

        Some models read such numbers as their mask. They are not an item of the batch, so that no model gets them by
        mistake: a stock model would take 1, 2, 3 for "no padding" and let sequences see each other. In the flat form,
        these numbers minus 1 are the ``seq_idx`` of `as_flash_kwargs`.

        Raises:
            BatchError: rows are filled end to end.
        """
        return self.layout.segment_ids

    @property
    def seq_lengths(self) -> NDArray[np.int32]:
        """Length of each sequence in tokens, in the order given; int32 ``[S]``, on the host."""
        return self.layout.seq_lengths

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Where sequences begin in the stream without padding, and the stream's end; int32 ``[S + 1]``, on the host.

        Sequences are in stream order: row after row.
        """
        return self.layout.cu_seqlens

    @property
    def max_seqlen(self) -> int:
        """Number of tokens of the longest sequence."""
        return self.layout.max_seqlen

    @property
    def records(self) -> Mapping[str, NDArray[Any]]:
        """Where each sequence of a packed dataset comes from: arrays ``[S]`` by name, in the order given, on the host.

        They are ``seq_index``, the number of the sequence's record; and if the dataset has them, ``seq_start``, where
        the sequence begins in its record, and ``seq_source``, the number of its source. There are none if the sequences
        are not from a packed dataset. In a stand-in (`weight` 0) the arrays are empty, since its sequence is not part
        of the data. Records are not items, so a model never gets them.
        """
        return self.layout.records

    @property
    def images(self) -> NDArray[np.int64]:
        """Number of images of each sequence, in the order given; int64 ``[S]``, on the host; 0 without images.

        The images themselves are the items ``pixel_values`` and, if it was given, ``image_grid_thw``, in the order in
        which sequences lie in the rows.
        """
        found = self.layout.images
        return np.zeros(self.layout.sequences, dtype=np.int64) if found is None else found

    @property
    def videos(self) -> NDArray[np.int64]:
        """Number of videos of each sequence, in the order given; int64 ``[S]``, on the host; 0 without videos.

        The videos themselves are the items ``pixel_values_videos``, ``video_grid_thw`` and, if they were given,
        ``second_per_grid_ts``, in the order in which sequences lie in the rows.
        """
        found = self.layout.videos
        return np.zeros(self.layout.sequences, dtype=np.int64) if found is None else found

    @property
    def weight(self) -> int:
        """Weight of the batch in counts and losses: 1, or 0 if it is a stand-in (see `as_stand_in`).

        A stand-in is the batch that a loader gives to a rank that has no sequence left in the last step of an epoch. No
        count includes its sequence.
        """
        return int(not self.layout.stand_in)

    @property
    def _one_alone(self) -> bool:
        """Whether the batch is a single sequence without padding; any model may run such a batch without the mask."""
        return self.layout.sequences == 1 and self.layout.tokens == self.layout.slots == self.layout.shape[1]

    def _mapped(self, function: Callable[[Any], Any]) -> Self:
        """Return a new batch in which each item that is a torch tensor is replaced by ``function(tensor)``."""
        torch = load_torch("a batch of tensors")
        return type(self)({n: function(self[n]) if isinstance(self[n], torch.Tensor) else self[n] for n in self})
