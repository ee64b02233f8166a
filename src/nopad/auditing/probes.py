"""Choose the lengths of an audit's sequences, and find out where the sequences lie in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.batch.guard import PackedMask, layout_of
from nopad.batch.layout import Layout
from nopad.errors import BatchError

__all__ = ["Places", "find", "lengths_for", "slots_of"]


def lengths_for(capacity: int, longest: int) -> list[int]:
    """Return six lengths in tokens, none above `longest`, which fill packs of `capacity` in different ways.

    If `capacity` and `longest` are above 1, exactly one length is 1, since two sequences that are only an eos could not
    be told apart in a batch.

    >>> lengths_for(64, 512), lengths_for(8, 8)
    ([64, 1, 38, 19, 6, 31], [8, 1, 4, 2, 2, 3])
    """
    wanted = [capacity * 3 // 5, capacity * 3 // 10, capacity // 10, capacity // 2 - 1]
    return [min(length, longest) for length in (max(capacity, 1), 1, *(max(length, 2) for length in wanted))]


@dataclass(frozen=True)
class Places:
    """Where each sequence lies in a batch, as positions in its concatenated rows.

    Attributes:
        shape: (R, L) of the batch.
        of: for each sequence, in the order given, the positions of its tokens; int64 ``[length]``.
        batch: the packed batch, which is used to split values per sequence; None: nopad did not build the batch, or
            these are the places of targets.
        target: the places of the targets, the sequences that the decoder reads; None: there is no decoder.
    """

    shape: tuple[int, int]
    of: list[NDArray[np.int64]]
    batch: PackedBatch | None = None
    target: Places | None = None

    def split(self, values: Tensor, kind: str | None = None) -> list[Tensor] | None:
        """Split an output of the batch, `values`, into one tensor per sequence; None if its shape does not allow this.

        `kind` says what the values belong to; None: the shape decides. If the kind is "token" or "target", but the
        shape does not fit it, the values are split as values per sequence if possible.

        * Values per token ("token", or "target" for the tokens of targets) have the shape ``[R, L, ...]`` of rows.
        * Values per sequence ("sequence") of a batch that nopad built have one entry per sequence in the first
          dimension.
        * Values per sequence of any other batch are the values of its rows, ``[R, ...]``, if each row holds one
          sequence.
        """
        if self.target is not None and kind in (None, "target") and self._is(self.target, values):
            return self.target.split(values, "token")
        if kind in (None, "token") and self._is(self, values):
            flat = values.reshape(-1, *values.shape[2:])
            return [flat[torch.from_numpy(places).to(flat.device)] for places in self.of]
        if self.batch is not None and values.shape[:1] == (len(self.of),):
            found: list[Tensor] = self.batch.unpack_sequences(values)
            return found
        rows = [int(places[0]) // self.shape[1] for places in self.of]
        if self.batch is None and values.shape[:1] == (self.shape[0],) and sorted(rows) == list(range(self.shape[0])):
            return [values[row] for row in rows]  # with one sequence per row, values per row are values per sequence
        return None

    def alike(self, other: Places) -> bool:
        """Return whether another batch has the same shape, and its sequences lie at the same positions.

        If both batches have targets, the shape and the positions of these must be the same too.
        """
        sides = [(self, other)]
        if self.target is not None and other.target is not None:
            sides.append((self.target, other.target))
        return all(
            mine.shape == theirs.shape and all(map(np.array_equal, mine.of, theirs.of)) for mine, theirs in sides
        )

    @staticmethod
    def _is(places: Places, values: Tensor) -> bool:
        return values.dim() >= 2 and tuple(values.shape[:2]) == places.shape


def slots_of(at: Layout) -> list[NDArray[np.int64]]:
    """Return the positions of each sequence's tokens in the concatenated rows of a packed batch with the layout `at`.

    Each entry is an array for one sequence. Sequences are in the order in which the batch was given them.
    """
    places: list[Any] = [None] * at.sequences
    for number, (begin, end) in zip(at.order.tolist(), pairwise(at.cu_seqlens.tolist()), strict=True):
        places[number] = at.index[begin:end]
    return places


def find(batch: Mapping[str, Any], sequences: Sequence[Sequence[int]]) -> Places:
    """Return where the sequences lie in a batch of any collator.

    In a `PackedBatch`, they are found by its layout. In any other batch, they are found by their tokens.

    Raises:
        BatchError: a sequence does not lie in one piece within a row, or the attention mask covers more tokens than the
            sequences have.
    """
    if isinstance(batch, PackedBatch):
        shape = batch.layout.shape
        guard = batch.get("decoder_attention_mask")
        target = layout_of(guard) if isinstance(guard, PackedMask) else None
        answers = None if target is None else Places(target.shape, slots_of(target))
        return Places(shape, slots_of(batch.layout), batch, answers)
    ids = batch["input_ids"]
    shape = (int(ids.shape[0]), int(ids.shape[1]))
    flat = np.asarray(ids.cpu()).reshape(-1)
    mask = batch.get("attention_mask")
    free = np.ones(flat.size, dtype=bool)
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        free = np.asarray(mask.cpu()).reshape(-1) != 0
        real, wanted_tokens = int(free.sum()), sum(map(len, sequences))
        if real > wanted_tokens:
            raise BatchError(
                f"the collator's mask has {real} real tokens, and the sequences have {wanted_tokens}: either it covers "
                "padding, where it must be 0, or the collator adds tokens, which is another input than the sequences "
                "alone; give them with their special tokens"
            )
    found: list[Any] = [None] * len(sequences)
    for number in sorted(range(len(sequences)), key=lambda n: -len(sequences[n])):
        wanted = np.asarray(sequences[number])
        windows = np.lib.stride_tricks.sliding_window_view(flat, wanted.size) if wanted.size <= flat.size else flat[:0]
        for start in np.flatnonzero((windows == wanted).all(-1)) if len(windows) else ():
            here = slice(int(start), int(start) + wanted.size)
            if free[here].all() and start // shape[1] == (start + wanted.size - 1) // shape[1]:
                free[here] = False
                found[number] = np.arange(start, start + wanted.size)
                break
        if found[number] is None:
            raise BatchError(
                f"sequence {number} of {wanted.size} tokens is not whole in the collator's batch of {shape[0]} x "
                f"{shape[1]}: it was cut, dropped or changed"
            )
    return Places(shape, found)
