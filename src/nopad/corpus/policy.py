"""Cut records that are too long into pieces, truncate them, or leave them out, at about 12 ns per token."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.options import OverLong


class Pieces(NamedTuple):
    """The m pieces into which records were cut, in order; each piece becomes a sequence.

    Attributes:
        row: index of each piece's record; int64 ``[m]``.
        start: where each piece begins in the content tokens of its record; int64 ``[m]``.
        length: number of tokens of each piece; int64 ``[m]``.
    """

    row: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]


def cut(lengths: NDArray[np.int64], room: int, over_long: OverLong) -> Pieces:
    """Cut records into pieces of at most `room` tokens; an empty record gives no piece.

    `lengths` are the numbers of tokens of the n records, int64 ``[n]``. A record of at most `room` tokens is one piece.
    For a longer record, `over_long` decides. "split" gives pieces of `room` tokens, and one with the remaining tokens,
    if any remain. "truncate" gives the first of these pieces only, and "drop" gives none. With "error", the caller must
    have checked that no record has more than `room` tokens.
    """
    pieces = -(-lengths // room)
    if over_long != "split":
        pieces[lengths > room] = 1 if over_long == "truncate" else 0
    row = np.repeat(np.arange(lengths.size), pieces)
    start = (np.arange(row.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * room
    return Pieces(row, start, np.minimum(lengths[row] - start, room))


def outcome(lengths: NDArray[np.int64], record: NDArray[np.int64], pieces: Pieces) -> dict[str, int]:
    """Return how many records were split, truncated or dropped by `cut`, or skipped as empty, and the tokens lost.

    The keys are field names of `Counts`. `lengths` are the numbers of tokens of n sequences before they were cut,
    int64 ``[n]``; `pieces` are what they were cut into. `record` is the number of each sequence's record, ascending,
    int64 ``[n]``. A record is counted as a whole: it is dropped or skipped only if no piece of it is left. If pieces
    are left, but one of its sequences was cut, dropped or empty, it is truncated.
    """
    which = np.cumsum(np.diff(record, prepend=-1) != 0) - 1
    count = np.bincount(pieces.row, minlength=lengths.size)
    lost = lengths - np.bincount(pieces.row, pieces.length, lengths.size).astype(np.int64)
    kept, harmed = np.bincount(which, count) > 0, np.bincount(which, (lost > 0) | (lengths == 0)) > 0
    over, left = np.bincount(which, lost) > 0, kept[which]
    return {
        "split": int(np.count_nonzero(np.bincount(which, count > 1))),
        "truncated": int(np.count_nonzero(kept & harmed)),
        "truncated_tokens": int(lost[left].sum()),
        "dropped": int(np.count_nonzero(~kept & over)),
        "dropped_tokens": int(lost[~left].sum()),
        "empty_skipped": int(np.count_nonzero(~kept & ~over)),
    }


def assemble(
    tokens: NDArray[Any],
    lengths: NDArray[np.int64],
    pieces: Pieces,
    prefix: NDArray[np.int32] | None = None,
    suffix: NDArray[np.int32] | None = None,
) -> NDArray[Any]:
    """Return the tokens of all pieces, one piece after the other, each with `prefix` before it and `suffix` after it.

    `tokens` holds the tokens of n records, one after the other; `lengths` is the number of tokens in each record, int64
    ``[n]``. `pieces` says which parts of the records are wanted (`cut`). `prefix` and `suffix` are ids of special
    tokens; None adds nothing. The result has the dtype of `tokens`. It is `tokens` itself if nothing changes.
    """
    before, after = 0 if prefix is None else prefix.size, 0 if suffix is None else suffix.size
    source = (np.cumsum(lengths) - lengths)[pieces.row] + pieces.start
    end = np.cumsum(pieces.length + (before + after))
    begin = end - after - pieces.length
    total = int(pieces.length.sum())
    if total == tokens.size and not before + after:  # nothing was cut
        return tokens
    offset = np.arange(total) - np.repeat(np.cumsum(pieces.length) - pieces.length, pieces.length)
    out = np.empty(total + pieces.row.size * (before + after), dtype=tokens.dtype)
    out[np.repeat(begin, pieces.length) + offset] = tokens[np.repeat(source, pieces.length) + offset]
    if prefix is not None:
        out[(begin - before)[:, None] + np.arange(before)] = prefix
    if suffix is not None:
        out[(end - after)[:, None] + np.arange(after)] = suffix
    return out
