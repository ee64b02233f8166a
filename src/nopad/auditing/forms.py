"""The forms in which nopad batches sequences; only this module of the audit builds batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nopad.batch import PackedBatch, Rows
from nopad.packs import Packs

__all__ = ["FORMS", "MAY_REFUSE", "arranged", "crossing", "shortened_targets"]

FORMS = ("flat", "rows", "end to end")
MAY_REFUSE = ("end to end",)  # nopad refuses these with a dense mask, which cannot follow a sequence into the next row

Numbers = list[list[int]]


def arranged(
    form: str,
    sequences: Sequence[Sequence[int]],
    capacity: int,
    pad_id: int,
    targets: Sequence[Sequence[int]] | None = None,
    start_id: int = 0,
) -> PackedBatch:
    """Build a batch of one `form` in `FORMS`, with targets for a decoder if they are given.

    In the form "rows", each row has room for `capacity` tokens, and a sequence and its target are in the same row;
    "flat" is one stream; "end to end" has rows of the width that `crossing` returns. In the form "rows", rows of
    targets and rows of sequences differ in width, so the shape of an output shows whether it belongs to targets or
    sequences. `pad_id` fills the padding, and `start_id` is the first id of each decoder input.
    """
    lengths = [len(sequence) for sequence in sequences]
    rows = _rows(lengths, capacity)
    batch = PackedBatch.from_sequences(sequences, **_how(form, lengths, rows, capacity, pad_id))
    if targets is None:
        return batch
    lengths = [len(target) for target in targets]
    width = max(sum(lengths[number] for number in row) for row in rows)
    width += width == capacity
    return batch.with_decoder(targets, start_id, **_how(form, lengths, rows, width, pad_id))


def crossing(lengths: Sequence[int]) -> int | None:
    """Return a row width, larger than every length, at which some sequence crosses into the next row.

    Return None if there is no such width.

    >>> crossing([4, 1, 2]), crossing([3])
    (6, None)
    """
    ends = np.cumsum(lengths)
    for width in range(max(lengths) + 1, int(ends[-1])):
        if np.setdiff1d(np.arange(width, ends[-1], width), ends).size:
            return width
    return None


def shortened_targets(lengths: Sequence[int]) -> list[int]:
    """Return the length of each target: two thirds of the next sequence's length, so that no shapes agree by chance.

    Lengths are rounded down, to at least 1.

    >>> shortened_targets([64, 1, 38])
    [1, 25, 42]
    """
    return [max(length * 2 // 3, 1) for length in (*lengths[1:], lengths[0])]


def _how(form: str, lengths: Sequence[int], rows: Numbers, capacity: int, pad_id: int) -> dict[str, Any]:
    if form == "flat":
        return {}
    if form == "end to end":
        return {"form": Rows(crossing(lengths) or max(lengths), end_to_end=True), "pad_id": pad_id}
    indptr = np.cumsum([0, *map(len, rows)])
    return {"form": Rows(packs=Packs(capacity, None, indptr, np.concatenate(rows))), "pad_id": pad_id}


def _rows(lengths: Sequence[int], capacity: int) -> Numbers:
    """Return the indices of the sequences in each row, by first-fit decreasing; in plain Python, for few sequences."""
    rows: Numbers = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        row = next((row for row in rows if sum(lengths[n] for n in row) + lengths[number] <= capacity), None)
        if row is None:
            rows.append([number])
        else:
            row.append(number)
    return rows
