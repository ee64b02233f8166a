"""The forms (batch layouts) in which an audit packs sequences with nopad.

* "flat": one stream of all sequences
* "rows": rows of whole sequences
* "end to end": rows that are cut from one stream, so that a sequence may continue in the next row
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
    build: Callable[..., PackedBatch] | None = None,
) -> PackedBatch:
    """Build a batch of one `form` in `FORMS`, with targets for a decoder if they are given.

    In the form "rows", a sequence and its target are in rows with the same index. In this form, the rows of targets
    differ in width from those of sequences, so the shape of an output shows whether it belongs to targets or to
    sequences.

    Args:
        form: "flat", "rows" or "end to end".
        sequences: token ids of each sequence.
        capacity: number of slots in a row of the form "rows". In the form "end to end", rows have the width that
            `crossing` returns; if that is None, the length of the longest sequence.
        pad_id: id that fills the padding.
        targets: target ids for each sequence; None: there is no decoder.
        start_id: first id of each decoder input.
        build: function that builds the batch of these sequences. It gets a `Rows` as `form`, and `pad_id`, by name; for
            the form "flat", it gets nothing. None: `PackedBatch.from_sequences`.
    """
    lengths = [len(sequence) for sequence in sequences]
    rows = _rows(lengths, capacity)
    build = build or partial(PackedBatch.from_sequences, sequences)
    batch = build(**_how(form, lengths, rows, capacity, pad_id))
    if targets is None:
        return batch
    lengths = [len(target) for target in targets]
    width = max(sum(lengths[number] for number in row) for row in rows)
    width += width == capacity
    return batch.with_decoder(targets, start_id, **_how(form, lengths, rows, width, pad_id))


def crossing(lengths: Sequence[int]) -> int | None:
    """Return the smallest row width, larger than every length, at which some sequence crosses into the next row.

    The sequences lie one after the other. The result is None if there is no such width. In the first example, the third
    sequence takes the slots 5 and 6, counted from 0. So with rows of 6 slots, it begins in the first row and ends in
    the second:

    >>> crossing([4, 1, 2]), crossing([3])
    (6, None)
    """
    ends = np.cumsum(lengths)
    for width in range(max(lengths) + 1, int(ends[-1])):
        if np.setdiff1d(np.arange(width, ends[-1], width), ends).size:
            return width
    return None


def shortened_targets(lengths: Sequence[int]) -> list[int]:
    """Return a length for the target of each sequence: two thirds of the next sequence's length, but at least 1.

    Lengths are rounded down, and the last sequence takes two thirds of the first one's length. So a target and its own
    sequence are unlikely to have the same length.

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
    """Return the indices of the sequences in each row, packed by first-fit decreasing.

    This is written in plain Python, since an audit has few sequences.
    """
    rows: Numbers = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        row = next((row for row in rows if sum(lengths[n] for n in row) + lengths[number] <= capacity), None)
        if row is None:
            rows.append([number])
        else:
            row.append(number)
    return rows
