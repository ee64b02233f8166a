"""`Layout`: where the tokens of several sequences lie in a batch, which is rows of one width or one stream.

All offsets, positions and sequence numbers follow from the lengths and the rows. The *order given* is the order in
which the caller passed the sequences. The *stream order* is the order in which they lie in the batch: row after row,
and sequence after sequence within a row. Arrays with an entry per sequence are in the order given; only `order`,
`stream_lengths`, `cu_seqlens` and `cu_seqlens_padded` are in stream order. Every array is computed in O(tokens) without
a Python loop over sequences.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nopad.errors import BatchError, LengthError, OptionError
from nopad.histogram import integers
from nopad.options import MAX_LENGTH
from nopad.properties import cached_property

__all__ = ["Layout", "checked"]


@dataclass(frozen=True, eq=False)
class Layout:
    """Where S sequences, T tokens in total, lie in a batch of R rows of L slots; a slot holds a token or padding.

    Attributes:
        form: "rows", or "flat": one row of T slots and no padding.
        shape: ``(R, L)``.
        seq_lengths: length of each sequence in tokens, in the order given; int32 ``[S]``.
        starts: where each sequence begins in the concatenated rows, in the order given; int64 ``[S]``. The tokens of a
            sequence are contiguous there, even if it goes on in the next row.
        order: the sequences in stream order (row after row), each by its index in the order given; int64 ``[S]``.
        crossing: whether a sequence may go on in the next row ("end to end": PopRT's fixed grid without gaps).
        causal: whether the batch was made for a causal language model. Labels of first tokens, if there are any, are
            then -100, since such a model does not predict these tokens.
        records: where each sequence of a packed dataset comes from, in the order given: arrays ``seq_index`` (number of
            its record), and if the dataset has them, ``seq_start`` (where it begins in the record) and ``seq_source``
            (number of its source). They are ``[S]``, or ``[0]`` in a stand-in. The dict is empty if the sequences are
            not from a packed dataset.
        row_tokens: number of tokens of each row, int64 ``[R]``. None unless the layout was made by `rows` without
            `order`, and with `align` 1.
        stand_in: whether the batch is a stand-in for a rank that has no sequence left (`PackedBatch.weight` is 0).
        images: number of images of each sequence, in the order given; int64 ``[S]``; None: the batch has no images.
        videos: number of videos of each sequence, in the order given; int64 ``[S]``; None: the batch has no videos.
        not_per_token: names of the columns that the batch was made with and that have no value per token: those per
            sequence, and those of images and videos. The shape does not tell: ``[S, C]`` may be equal to ``[R, L]``.
    """

    form: Literal["rows", "flat"]
    shape: tuple[int, int]
    seq_lengths: NDArray[np.int32]
    starts: NDArray[np.int64]
    order: NDArray[np.int64]
    crossing: bool = False
    causal: bool = False
    records: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    stand_in: bool = False
    row_tokens: NDArray[np.int64] | None = None
    images: NDArray[np.int64] | None = None
    videos: NDArray[np.int64] | None = None
    not_per_token: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Check the number of slots, since `cu_seqlens` and `cu_seqlens_padded` are int32, as attention kernels need.

        Raises:
            LengthError: the batch has more than 2^31 - 1 slots.
        """
        if self.slots > MAX_LENGTH:
            raise LengthError(f"a batch has {self.slots:,} slots, and at most {MAX_LENGTH:,}; make smaller ones")

    @classmethod
    def flat(cls, seq_lengths: NDArray[Any]) -> Layout:
        """Return the layout of one row without padding, with sequences of these lengths in the order given.

        Raises:
            LengthError: a length is not an integer from 1 to 2^31 - 1, or the sum of all lengths is above this.

        >>> Layout.flat(np.array([3, 1])).position_ids.tolist()
        [[0, 1, 2, 0]]
        """
        lens = checked(seq_lengths)
        ends: NDArray[np.int64] = lens.cumsum(dtype=np.int64)
        return cls("flat", (1, int(ends[-1]) if ends.size else 0), lens, ends - lens, np.arange(lens.size))

    @classmethod
    def rows(
        cls,
        seq_lengths: NDArray[Any],
        per_row: NDArray[Any],
        width: int,
        order: NDArray[Any] | None = None,
        *,
        align: int = 1,
    ) -> Layout:
        """Return the layout of rows of `width` slots, with whole sequences in each row and padding at its end.

        Args:
            seq_lengths: length of each sequence in tokens, in the order given; ``[S]``.
            per_row: number of sequences in each row; ``[R]``.
            width: slots per row.
            order: indices of the sequences as the rows take them, row after row; ``[S]``; None: the order given.
            align: every sequence takes a multiple of this many slots, padded at its end.

        Raises:
            LengthError: a row takes more than `width` slots, a length is not an integer from 1 to 2^31 - 1, `order`
                does not hold integers, or the rows have more than 2^31 - 1 slots in all.
            OptionError: `per_row` does not add up to the number of sequences, or has a negative number; or `order` does
                not have each sequence once.

        >>> Layout.rows(np.array([3, 1, 2]), np.array([2, 1]), 4).sequence_ids.tolist()
        [[1, 1, 1, 2], [3, 3, 0, 0]]
        >>> Layout.rows(np.array([3, 1, 2]), np.array([2, 1]), 4, np.array([2, 1, 0])).sequence_ids.tolist()
        [[3, 3, 2, 0], [1, 1, 1, 0]]
        """
        given = checked(seq_lengths)
        places = np.arange(given.size) if order is None else _each_once(order, given.size)
        lens = given if order is None else given[places]
        per_row = np.asarray(per_row, dtype=np.int64)
        begins, tokens = _in_rows(lens, per_row, width, align)
        if tokens.max(initial=0) > width:
            row = int(tokens.argmax())
            aligned = "" if align == 1 else f" in multiples of {align}"
            raise LengthError(
                f"row {row} holds {tokens[row]} tokens{aligned}, and {width} is the capacity; give a larger one"
            )
        if order is None:
            shape, runs = (per_row.size, width), tokens if align == 1 else None
            return cls("rows", shape, given, begins, places, row_tokens=runs)
        starts = np.empty(lens.size, dtype=np.int64)
        starts[places] = begins
        return cls("rows", (per_row.size, width), given, starts, places)

    @classmethod
    def end_to_end(cls, seq_lengths: NDArray[Any], width: int, rows: int | None = None) -> Layout:
        """Return the layout of rows of `width` slots without gaps: a sequence may go on in the next row.

        All padding is after the last token.

        Args:
            seq_lengths: length of each sequence in tokens, in the order given; ``[S]``.
            width: slots per row.
            rows: number of rows; None: as many as the tokens take, but at least 1.

        Raises:
            LengthError: the tokens take more than `rows` rows, a length is not an integer from 1 to 2^31 - 1, or the
                rows have more than 2^31 - 1 slots in all.

        >>> Layout.end_to_end(np.array([3, 2]), 4).sequence_ids.tolist()
        [[1, 1, 1, 2], [2, 0, 0, 0]]
        """
        lens = checked(seq_lengths)
        tokens = int(lens.sum(dtype=np.int64))
        least = max(-(-tokens // width), 1)
        if rows is not None and rows < least:
            raise LengthError(f"{tokens} tokens need {least} rows of {width}, and {rows} are given")
        starts = (lens.cumsum() - lens).astype(np.int64)
        return cls("rows", (rows or least, width), lens, starts, np.arange(lens.size), crossing=True)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields only: cached arrays are not sent to other processes."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @property
    def sequences(self) -> int:
        """Number of sequences, S."""
        return self.seq_lengths.size

    @cached_property
    def tokens(self) -> int:
        """Number of real tokens, T."""
        return int(self.seq_lengths.sum(dtype=np.int64))

    @property
    def slots(self) -> int:
        """Number of slots, tokens and padding together: R x L."""
        return self.shape[0] * self.shape[1]

    @cached_property
    def _inside(self) -> NDArray[np.int64]:
        """Position of each token in its sequence, from 0; int64 ``[T]``, with sequences in the order given."""
        begins = self.seq_lengths.cumsum(dtype=np.int64) - self.seq_lengths
        compiled = _compiled()
        if compiled is None:
            return np.arange(self.tokens) - begins.repeat(self.seq_lengths)
        out = np.empty(self.tokens, dtype=np.int64)
        compiled.count_up(begins, self.seq_lengths, out)
        return out

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Where each token lies in the concatenated rows; int64 ``[T]``, with sequences in the order given."""
        return self._inside + self.starts.repeat(self.seq_lengths)

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """Where each token lies in the concatenated rows; int64 ``[T]``, in stream order, so ascending."""
        if self.form == "flat" or self.crossing:
            return np.arange(self.tokens)
        # A token's place in the stream, plus the padding before its sequence; this needs no loop over sequences.
        offsets = self.starts[self.order] - self.cu_seqlens[:-1]
        return np.arange(self.tokens) + offsets.repeat(self.stream_lengths)

    @cached_property
    def stream_lengths(self) -> NDArray[np.int32]:
        """Length of each sequence in tokens, in stream order; int32 ``[S]``."""
        return self.seq_lengths[self.order]

    @cached_property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Where each sequence begins in the stream without padding, in stream order; int32 ``[S + 1]``.

        The last value is T.
        """
        out = np.zeros(self.sequences + 1, dtype=np.int32)
        np.cumsum(self.stream_lengths, out=out[1:])
        return out

    @cached_property
    def cu_seqlens_padded(self) -> NDArray[np.int32]:
        """Where each sequence begins in the concatenated rows, padding included, in stream order; int32 ``[S + 1]``.

        The last value is R x L. Padding belongs to the sequence before it, as in Megatron's THD layout.
        """
        out = np.full(self.sequences + 1, self.slots, dtype=np.int32)
        out[:-1] = self.starts[self.order]
        return out

    @cached_property
    def max_seqlen(self) -> int:
        """Number of tokens of the longest sequence; 0 if there is no sequence."""
        return int(self.seq_lengths.max(initial=0))

    @cached_property
    def depth(self) -> int:
        """Largest number of sequences that begin in one row; 0 if there is no sequence."""
        if not self.sequences:
            return 0
        return int(np.bincount(self.starts // self.shape[1]).max())

    @cached_property
    def position_ids(self) -> NDArray[np.int64]:
        """Position of each token in its sequence, from 0; 0 in padding; int64 ``[R, L]``."""
        compiled = _compiled()
        if compiled is None or self.form == "flat":
            return self.scatter(self._inside, 0)
        out = np.zeros(self.slots, dtype=np.int64)
        compiled.count_up(self.starts, self.seq_lengths, out)
        return out.reshape(self.shape)

    @cached_property
    def sequence_ids(self) -> NDArray[np.int32]:
        """Number of each token's sequence in the order given, from 1; 0 in padding; int32 ``[R, L]``."""
        return self.scatter(np.arange(1, self.sequences + 1, dtype=np.int32).repeat(self.seq_lengths), 0)

    @cached_property
    def segment_ids(self) -> NDArray[np.int32]:
        """Number of each token's sequence within its row, from 1; 0 in padding; int32 ``[R, L]``.

        Raises:
            BatchError: rows are filled end to end: a sequence that goes on in the next row has no number there.
        """
        if self.crossing:
            raise BatchError("rows filled end to end have no numbers of sequences by row; use sequence_ids")
        rows = self.starts[self.order] // max(self.shape[1], 1)
        numbers = np.empty(self.sequences, dtype=np.int32)
        numbers[self.order] = np.arange(1, self.sequences + 1) - np.searchsorted(rows, rows)
        return self.scatter(numbers.repeat(self.seq_lengths), 0)

    def same_places(self, other: Layout) -> bool:
        """Return whether this layout and `other` have sequences of the same lengths, which begin at the same places.

        The place is the index in the concatenated rows.
        """
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.seq_lengths, other.seq_lengths)

    def scatter(self, tokens: NDArray[Any], fill: Any) -> NDArray[Any]:
        """Return rows ``[R, L]`` with one value per token; padding gets `fill`.

        `tokens` are the values, ``[T]``, with sequences in the order given. In the flat form, the result is a view of
        `tokens`.
        """
        if self.form == "flat":
            return tokens.reshape(self.shape)
        if self.row_tokens is None:
            out = np.full(self.slots, fill, dtype=tokens.dtype)
            out[self.places] = tokens
            return out.reshape(self.shape)
        rows = np.empty(self.shape, dtype=tokens.dtype)
        compiled = _compiled()
        if compiled is not None and tokens.dtype == np.int64:
            compiled.fill_rows(tokens, self.row_tokens, fill, rows)
            return rows
        begin = 0
        for row, size in zip(rows, self.row_tokens.tolist(), strict=True):  # ten times as fast as an index per token
            row[:size] = tokens[begin : begin + size]
            row[size:] = fill
            begin += size
        return rows

    def marked(self, **changed: Any) -> Layout:
        """Return a copy with new values for some of the fields.

        They are `causal`, `records`, `stand_in`, `images`, `videos` and `not_per_token`, which do not say where tokens
        lie. The copy shares the arrays of this layout, also those that were already computed.
        """
        made = object.__new__(Layout)
        vars(made).update(vars(self), **changed)
        return made


def _each_once(order: NDArray[Any], sequences: int) -> NDArray[np.int64]:
    """Return `order` as int64 ``[S]``, after checking that it has each index from 0 to S - 1 once.

    `sequences` is S.

    Raises:
        OptionError: an index is missing, repeated or out of range.
        LengthError: `order` does not hold integers in one dimension.
    """
    places = integers(order, "order").astype(np.int64, copy=False)
    if places.size != sequences or not np.array_equal(np.sort(places), np.arange(sequences)):
        raise OptionError(f"order must have each index of the {sequences} sequences once")
    return places


def _in_rows(
    lens: NDArray[np.int32], per_row: NDArray[np.int64], width: int, align: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each sequence begins in the concatenated rows, and for each row how many of its slots are taken.

    Row r takes the next ``per_row[r]`` sequences, in the order of `lens`. Each sequence takes its length, rounded up to
    a multiple of `align`. The results are int64 ``[S]`` and ``[R]``. Whether the sequences of a row fit into its
    `width` slots is not checked.

    Raises:
        OptionError: the numbers in `per_row` do not add up to the number of sequences, or one is negative.
    """
    compiled = _compiled()
    if compiled is not None:
        starts, tokens = np.empty(lens.size, dtype=np.int64), np.empty(per_row.size, dtype=np.int64)
        fits = compiled.lay_rows(lens, per_row, width, align, starts, tokens)
    else:
        fits = int(per_row.sum()) == lens.size and not (per_row < 0).any()
    if not fits:
        row = int(per_row.argmin()) if per_row.size else 0
        negative = f"; row {row} holds {per_row[row]}: give each at least 0" if per_row.min(initial=0) < 0 else ""
        raise OptionError(f"the rows hold {int(per_row.sum())} sequences, and there are {lens.size} lengths{negative}")
    if compiled is not None:
        return starts, tokens
    ends = np.zeros(lens.size + 1, dtype=np.int64)
    (lens if align == 1 else -(-lens.astype(np.int64) // align) * align).cumsum(out=ends[1:])
    bounds = np.zeros(per_row.size + 1, dtype=np.int64)
    per_row.cumsum(out=bounds[1:])
    bounds = ends[bounds]
    # A sequence's start in the stream, plus the padding of all earlier rows, is its start in the concatenated rows.
    return ends[:-1] + (np.arange(per_row.size) * width - bounds[:-1]).repeat(per_row), np.diff(bounds)


def _compiled() -> Any:
    """Return the module of compiled loops if it is loaded already, otherwise None.

    It is not loaded here, since this would delay a batch by half a second.
    """
    return sys.modules.get("nopad._kernels")


def checked(seq_lengths: NDArray[Any]) -> NDArray[np.int32]:
    """Check the lengths of S sequences, and return them as int32 ``[S]``; S may be 0.

    Raises:
        LengthError: the lengths are not integers in one dimension, or one is below 1 or above 2^31 - 1.
    """
    lens = np.asarray(seq_lengths)
    if lens.ndim != 1 or (lens.size and lens.dtype.kind not in "iu"):
        raise LengthError(f"seq_lengths must be integers in one dimension, got {lens.dtype} of shape {lens.shape}")
    if lens.size and lens.min() < 1:
        at = int(lens.argmin())
        raise LengthError(f"sequence {at} has {lens[at]} tokens; each needs at least 1: leave empty ones out")
    if lens.size and lens.max() > MAX_LENGTH:
        at = int(lens.argmax())
        raise LengthError(f"sequence {at} has {lens[at]:,} tokens; a sequence may have at most {MAX_LENGTH:,}")
    return lens.astype(np.int32)
