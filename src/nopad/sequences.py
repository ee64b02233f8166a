"""`Sequences`: n sequences stored in columns; nopad reads, packs and writes tokens in this form.

Per-token columns are flat arrays with one value per token, in which each sequence is contiguous; per-sequence columns
have one entry per sequence. Of the methods, only `gathered` and `joined` copy tokens, so selecting sequences of a
memory-mapped corpus does not read their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import BatchError

__all__ = ["COMPUTED", "IGNORED", "LABELS", "MASK", "Sequences", "as_integers", "gather_runs", "labelled"]

IGNORED = -100  # the label of a token that is not learned
LABELS = ("labels", "label", "label_ids")  # Hugging Face's names of labels; a batch has the first one
MASK = "attention_mask"
COMPUTED = ("position_ids", "cu_seqlens", "sequence_ids", MASK)  # what batches compute; no column has these names


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """n sequences with T tokens, stored in columns.

    Attributes:
        seq_lengths: length of each sequence in tokens; int32 ``[n]``.
        tokens: per-token columns by name, with ``input_ids`` if the token ids are known. If `begin` is None, each
            column is the concatenated sequences, ``[T]``.
        values: per-sequence columns by name; ``[n, ...]`` NumPy arrays, or Arrow arrays of n entries.
        begin: where each sequence begins in the per-token columns; int64 ``[n]``. The columns may then hold more tokens
            than those of the n sequences. None: sequences are concatenated, the first at 0.

    The chosen sequences begin at the tokens 3 and 0 of the columns; gathered, their tokens are concatenated:

    >>> made = Sequences(seq_lengths=np.array([2, 1, 3], np.int32), tokens={"input_ids": np.arange(6)})
    >>> chosen = made.take(np.array([2, 0]))
    >>> chosen.begin.tolist(), chosen.gathered().tokens["input_ids"].tolist()
    ([3, 0], [3, 4, 5, 0, 1])
    """

    seq_lengths: NDArray[np.int32]
    tokens: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    begin: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """Number of sequences."""
        return self.seq_lengths.size

    @property
    def begins(self) -> NDArray[np.int64]:
        """Where each sequence begins in the per-token columns; int64 ``[n]``."""
        if self.begin is not None:
            return self.begin
        return np.cumsum(self.seq_lengths, dtype=np.int64) - self.seq_lengths

    def take(self, numbers: NDArray[np.int64]) -> Sequences:
        """Return the sequences at the indices `numbers`, in this order; per-token columns are not copied.

        `numbers` is int64 ``[m]``.
        """

        def entries(column: Any) -> Any:  # of a NumPy array [n, ...], or of an Arrow array
            return column[numbers] if isinstance(column, np.ndarray) else column.take(numbers)

        return self._chosen(numbers, entries)

    def part(self, begin: int, end: int) -> Sequences:
        """Return the sequences from `begin` to `end` (exclusive); their columns are views or slices, not copies."""
        span = slice(begin, end)
        if self.begin is not None:
            return self._chosen(span, lambda column: column[span])
        lengths = self.seq_lengths[span]
        first = int(self.seq_lengths[:begin].sum(dtype=np.int64))
        last = first + int(lengths.sum(dtype=np.int64))
        return Sequences(
            seq_lengths=lengths,
            tokens={name: column[first:last] for name, column in self.tokens.items()},
            values={name: column[span] for name, column in self.values.items()},
        )

    def gathered(self) -> Sequences:
        """Return the same sequences with concatenated per-token columns.

        If `begin` is None, the columns are concatenated already, and the object itself is returned. Otherwise they are
        copied, in O(tokens) time.
        """
        if self.begin is None:
            return self
        ends = np.cumsum(self.seq_lengths, dtype=np.int64)
        total = int(ends[-1]) if ends.size else 0
        # One index per token: its place in the output, shifted to where its sequence begins.
        index = np.arange(total) + np.repeat(self.begin - ends + self.seq_lengths, self.seq_lengths)
        return replace(self, tokens={name: column[index] for name, column in self.tokens.items()}, begin=None)

    @staticmethod
    def joined(parts: SequenceOf[Sequences]) -> Sequences:
        """Return the sequences of all parts, one part after the other; O(tokens).

        There must be at least one part. All parts must have the same columns, as NumPy arrays, with concatenated tokens
        (`gathered`). A single part is returned itself.
        """
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        return Sequences(
            seq_lengths=np.concatenate([part.seq_lengths for part in parts]),
            tokens={name: np.concatenate([part.tokens[name] for part in parts]) for name in first.tokens},
            values={name: np.concatenate([part.values[name] for part in parts]) for name in first.values},
        )

    def _chosen(self, at: Any, of: Callable[[Any], Any]) -> Sequences:
        return replace(
            self,
            seq_lengths=self.seq_lengths[at],
            values={name: of(column) for name, column in self.values.items()},
            begin=self.begins[at] if self.tokens else None,
        )


def labelled(given: Sequences) -> Sequences:
    """Return the sequences with the column ``label`` or ``label_ids`` renamed to ``labels``, as transformers does.

    If there is a column ``labels`` already, or neither of the two others, `given` itself is returned.

    Raises:
        BatchError: there are both ``label`` and ``label_ids``, and no ``labels``.
    """
    names = [*given.tokens, *given.values]
    found = [name for name in LABELS[1:] if name in names]
    if not found or "labels" in names:
        return given
    if len(found) > 1:
        raise BatchError(f"there are {' and '.join(found)}, and only one can be the labels; keep one")

    def named(columns: Mapping[str, Any]) -> dict[str, Any]:
        return {"labels" if name == found[0] else name: column for name, column in columns.items()}

    return replace(given, tokens=named(given.tokens), values=named(given.values))


def as_integers(column: NDArray[Any]) -> NDArray[Any]:
    """Return a view of `column` as signed integers of the same width, so that a kernel is compiled once per width.

    The values of `column` must have 1, 2, 4 or 8 bytes. Signed integers are returned as they are.
    """
    return column if column.dtype in _SIGNED else column.view(_INTEGERS[column.itemsize])


_INTEGERS = {width: np.dtype(f"i{width}") for width in (1, 2, 4, 8)}
_SIGNED = frozenset(_INTEGERS.values())


def gather_runs(column: NDArray[Any], begins: NDArray[np.int64], lengths: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Return ``(runs, bits)``: the runs of a flat column, concatenated, and the bitwise OR of all values in them.

    Run i is ``column[begins[i]:begins[i] + lengths[i]]``, and must lie within the column. For the OR, values are taken
    as signed integers of the same width (`as_integers`).
    """
    from nopad._kernels import gather_tokens

    out = np.empty(int(lengths.sum(dtype=np.int64)), column.dtype)
    return out, gather_tokens(as_integers(column), begins, lengths, as_integers(out))
