"""The two forms of a batch: `Flat`, one stream, with no padding unless asked for, and `Rows`, padded rows of one width.

`Rows` packs sequences by best-fit decreasing, unless it has `packs` or `end_to_end`. If `align` is 1, up to 256
sequences, as in one request or one training step, are packed without compiled code. Otherwise,
``nopad.pack(..., algorithm="bfd", order="source")`` packs them. With `align` 1, both ways give the same packs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch.layout import Layout, checked
from nopad.errors import LengthError, OptionError
from nopad.options import MAX_LENGTH, Option, check_sizes, shown
from nopad.planning.lpfhp import best_fit_decreasing_few

if TYPE_CHECKING:
    from nopad.packs import Packs

__all__ = ["Flat", "Form", "Rows", "check_form", "pack_few"]

# Up to this many sequences are packed without compiled code, more by `nopad.pack`: 16 take 0.02 ms against 0.14, and
# 256 take 0.3 ms against 0.2. But loading compiled code would delay the first batch of a process by over half a second.
FEW = 256
ALIGN = Option(default=1, high=MAX_LENGTH, help="slots of which each sequence takes a multiple")
MULTIPLE = Option(default=1, high=MAX_LENGTH, help="the width of a flat batch is a multiple of this")
ROWS = Option(default=None, none=True, high=MAX_LENGTH, help="rows of a batch")


@dataclass(frozen=True)
class Flat:
    """One row, ``[1, T]`` for T tokens, with the sequences in the order given; without padding by default.

    Attributes:
        pad_to_multiple_of: padding at the end of the row makes its width a multiple of this; 1: no padding. It is for
            kernels that are compiled for every new width, or that need a multiple (FP8, tensor cores). On a GPU,
            backend "auto" takes flash attention only for flat batches without padding.

    Raises:
        OptionError: `pad_to_multiple_of` is not an integer from 1 to 2^31 - 1.

    >>> import nopad
    >>> batch = nopad.PackedBatch.from_sequences([[7, 8, 9], [5]], nopad.Flat())
    >>> batch.input_ids.tolist(), batch.position_ids.tolist()
    ([[7, 8, 9, 5]], [[0, 1, 2, 0]])
    >>> nopad.PackedBatch.from_sequences([[7, 8, 9], [5]], nopad.Flat(pad_to_multiple_of=3)).input_ids.tolist()
    [[7, 8, 9, 5, 0, 0]]
    """

    _: KW_ONLY
    pad_to_multiple_of: int = 1

    def __post_init__(self) -> None:
        multiple = MULTIPLE.check("pad_to_multiple_of", self.pad_to_multiple_of)
        object.__setattr__(self, "pad_to_multiple_of", multiple)

    def layout(self, seq_lengths: NDArray[np.int32]) -> Layout:
        """Return the layout of sequences of these lengths.

        Raises:
            LengthError: a length is not an integer from 1 to 2^31 - 1, or the row has more than 2^31 - 1 slots.
        """
        flat = Layout.flat(seq_lengths)
        missing = -flat.shape[1] % self.pad_to_multiple_of
        if not missing:
            return flat
        return Layout.rows(seq_lengths, np.array([flat.sequences]), flat.shape[1] + missing)

    def keep(self, seq_lengths: NDArray[np.int32], per_row: NDArray[np.int64]) -> Layout:
        """Return the layout of sequences as one stream; the rows into which a dataset divided them are ignored.

        `per_row`, the number of sequences in each row, is not read.

        Raises:
            LengthError: a length is not an integer from 1 to 2^31 - 1, or the stream has more than 2^31 - 1 slots.
        """
        return self.layout(seq_lengths)


@dataclass(frozen=True)
class Rows:
    """Rows of one width with padding at their ends; by default, best-fit decreasing fills them.

    Attributes:
        capacity: slots per row (a slot holds one token or padding); None: the capacity of `packs`.
        depth: most sequences per row; None: unlimited.
        packs: packs of the sequences, as `nopad.pack` returns them: each becomes a row. None: best-fit decreasing
            decides which sequences share a row, unless `end_to_end` is True.
        rows: number of rows; empty rows are added at the end to reach it. None: as many rows as the sequences take.
        align: every sequence takes a multiple of this many slots, padded at its end; `align` must divide the capacity.
            It is for context parallelism, which needs 2 x its number of ranks, and for FP8 kernels.
            `Layout.cu_seqlens_padded` says where each sequence begins.
        end_to_end: whether every row is filled to its end, so that a sequence may go on in the next row (PopRT's fixed
            grid).

    Raises:
        OptionError: a value is invalid, there is no capacity, or two options contradict each other.

    >>> from nopad import PackedBatch, Rows
    >>> PackedBatch.from_sequences([[7, 8, 9], [1, 2]], Rows(4)).input_ids.tolist()
    [[7, 8, 9, 0], [1, 2, 0, 0]]
    >>> PackedBatch.from_sequences([[7, 8, 9], [1, 2]], Rows(4, end_to_end=True)).input_ids.tolist()
    [[7, 8, 9, 1], [2, 0, 0, 0]]
    """

    capacity: int | None = None
    _: KW_ONLY
    depth: int | None = None
    packs: Packs | None = None
    rows: int | None = None
    align: int = 1
    end_to_end: bool = False

    def __post_init__(self) -> None:
        packs = self.packs
        if type(self.end_to_end) is not bool:
            raise OptionError(f"end_to_end is {shown(self.end_to_end)}; it is True or False")
        if packs is not None:
            if not (hasattr(packs, "indptr") and hasattr(packs, "sequence")):
                raise OptionError(
                    f"packs are of type {type(packs).__name__}; expected nopad.Packs, as nopad.pack gives"
                )
            if self.depth is not None or self.end_to_end:
                raise OptionError("packs say what lies in each row; depth and end_to_end do not go with them")
            if self.capacity not in (None, packs.capacity):
                raise OptionError(
                    f"capacity is {shown(self.capacity)}, and the packs are of {packs.capacity}; leave it out"
                )
            object.__setattr__(self, "capacity", packs.capacity)
        if self.capacity is None:
            raise OptionError("rows need their width: give a capacity")
        if self.end_to_end and self.depth is not None:
            raise OptionError("rows filled end to end have no depth; leave one of the two out")
        capacity, depth = check_sizes(self.capacity, self.depth)
        object.__setattr__(self, "capacity", capacity)
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "rows", ROWS.check("rows", self.rows))
        object.__setattr__(self, "align", ALIGN.check("align", self.align))
        if capacity % self.align:
            raise OptionError(f"the capacity {capacity} is no multiple of align, which is {self.align}")
        if self.align > 1 and self.end_to_end:
            raise OptionError("rows filled end to end have no gaps; leave align or end_to_end out")

    def layout(self, seq_lengths: NDArray[np.int32]) -> Layout:
        """Return the layout of sequences of these lengths.

        Raises:
            LengthError: one of these:

                * a length is not an integer from 1 to 2^31 - 1
                * without `end_to_end`: a sequence, or a pack of `packs`, takes more slots than the capacity
                * with `end_to_end`: the tokens take more rows than `rows`
                * the rows have more than 2^31 - 1 slots in all
            OptionError: without `end_to_end`, the sequences take more rows than `rows`; or `packs` hold another number
                of sequences.
        """
        assert self.capacity is not None
        seq_lengths = checked(seq_lengths)  # packing takes them as they are, and does not end for negative ones
        if self.end_to_end:
            return Layout.end_to_end(seq_lengths, self.capacity, self.rows)
        if self.packs is not None:
            if self.packs.sequences != seq_lengths.size:
                raise OptionError(f"packs hold {self.packs.sequences} sequences, and {seq_lengths.size} are given")
            return self._placed(seq_lengths, np.diff(self.packs.indptr), self.packs.sequence.astype(np.int64))
        if int(seq_lengths.max(initial=0)) > self.capacity:
            at = int(seq_lengths.argmax())
            raise LengthError(
                f"sequence {at} has {seq_lengths[at]:,} tokens, above the capacity of {self.capacity:,}; truncate it, "
                "or give wider rows"
            )
        if seq_lengths.size <= FEW and self.align == 1:
            found = pack_few(seq_lengths.tolist(), self.capacity, self.depth)
            order = [number for row in found for number in row]
            return self._placed(seq_lengths, np.array([len(row) for row in found]), np.array(order, dtype=np.int64))
        from nopad.assignment import pack

        align = {} if self.align == 1 else {"align": self.align}
        packs = pack(seq_lengths, self.capacity, depth=self.depth, algorithm="bfd", order="source", **align)
        return self._placed(seq_lengths, np.diff(packs.indptr), packs.sequence.astype(np.int64))

    def keep(self, seq_lengths: NDArray[np.int32], per_row: NDArray[np.int64]) -> Layout:
        """Return the layout of sequences that a dataset has divided into rows; every sequence stays in its row.

        `per_row` is the number of sequences in each row, int64 ``[rows]``.

        Raises:
            LengthError: the sequences of a row take more slots than the capacity, a length is not an integer from 1 to
                2^31 - 1, or the rows have more than 2^31 - 1 slots in all.
            OptionError: `depth`, `packs` or `end_to_end` is given, which would move sequences to other rows; there are
                more rows than `rows`; or `per_row` does not add up to the number of sequences, or has a negative
                number.
        """
        if self.depth is not None or self.packs is not None or self.end_to_end:
            raise OptionError("rows of a dataset stay the rows they are; give no depth, packs or end_to_end")
        return self._placed(seq_lengths, per_row, None)

    def _placed(self, seq_lengths: NDArray[np.int32], per_row: NDArray[Any], order: NDArray[np.int64] | None) -> Layout:
        assert self.capacity is not None
        if self.rows is not None:
            if self.rows < per_row.size:
                raise OptionError(
                    f"these sequences take {per_row.size} rows of {self.capacity}, and {self.rows} are given"
                )
            per_row = np.concatenate([per_row, np.zeros(self.rows - per_row.size, dtype=per_row.dtype)])
        return Layout.rows(seq_lengths, per_row, self.capacity, order, align=self.align)


Form = Flat | Rows


def check_form(form: Any) -> Form:
    """Return `form` after checking its type.

    Raises:
        OptionError: `form` is neither `Flat` nor `Rows`.
    """
    if not isinstance(form, Flat | Rows):
        raise OptionError(f"form is {shown(form)}; it is nopad.Flat() or nopad.Rows(capacity)")
    return form


def pack_few(lengths: Sequence[int], capacity: int, depth: int | None) -> list[list[int]]:
    """Return the packs that best-fit decreasing makes, each as a list of its sequences' indices into `lengths`.

    The packs are those of ``nopad.pack(..., algorithm="bfd", order="source")``. Each length must be from 1 to
    `capacity`. `depth` is the most sequences per pack; None: unlimited. O(n log n) for n lengths.

    >>> pack_few([3, 1, 2, 2], 4, None)
    [[0, 1], [2, 3]]
    """
    numbers: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        numbers.setdefault(length, []).append(number)
    counts = {length: len(those) for length, those in numbers.items()}
    strategies = best_fit_decreasing_few(counts, capacity, depth)
    if len(numbers) == len(lengths):  # no two of one length, so nothing is left to choose
        return sorted([sorted([numbers[length][0] for length in pack]) for _, pack in strategies])
    return _dealt(lengths, numbers, strategies)


def _dealt(
    lengths: Sequence[int], numbers: dict[int, list[int]], strategies: list[tuple[int, tuple[int, ...]]]
) -> list[list[int]]:
    """Return the indices of the sequences in each pack, as `nopad.assign` in order "source" would assign them.

    All packs are put into a list, in which packs with the same lengths are spread evenly. Then the sequences are taken
    in the order given. A sequence that is not in a pack yet opens the next pack in the list that holds its length. The
    opened pack is filled at once: each of its lengths gets the first sequence of that length that is not in a pack yet.

    Args:
        lengths: the lengths of all sequences.
        numbers: the indices of the sequences of each length, ascending.
        strategies: pairs: a number of packs, and the lengths that each of these packs holds.
    """
    equal: Counter[tuple[int, ...]] = Counter()
    for count, pack in strategies:
        equal[pack] += count
    counts = sorted(equal.items(), reverse=True)
    total = sum(equal.values())
    # Midpoints of `count` equal intervals of the output: copies of a pack are spread evenly.
    places = [((2 * copy + 1) * total // (2 * count), pack) for pack, count in counts for copy in range(count)]
    places.sort(key=lambda place: place[0])
    holders: dict[int, list[int]] = {length: [] for length in numbers}
    for at in range(total - 1, -1, -1):
        for length in set(places[at][1]):
            holders[length].append(at)  # reversed, so that pop() gives the next pack
    free = {length: iter(those) for length, those in numbers.items()}
    dealt, used, rows = [False] * len(lengths), [False] * total, []
    for number, length in enumerate(lengths):
        if dealt[number]:
            continue
        at = holders[length].pop()
        while used[at]:
            at = holders[length].pop()
        used[at] = True
        row = sorted(next(free[one]) for one in places[at][1])
        for member in row:
            dealt[member] = True
        rows.append(row)
    return rows
