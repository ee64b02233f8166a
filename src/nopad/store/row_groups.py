"""The objects that reading a packed dataset returns: row groups (`RowGroup`), and the packs in them (`PackedRow`).

`row_group_problems` finds what is wrong with a row group, compared with the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.selection import OWN
from nopad.sequences import Sequences, gather_runs
from nopad.store.manifest import Manifest
from nopad.wording import counted

__all__ = ["PackedRow", "RowGroup", "row_group_problems"]


class RowGroup:
    """Consecutive packs that were decoded together.

    Attributes:
        indptr: the sequences of pack p are those from ``indptr[p]`` to ``indptr[p + 1]`` (exclusive); integers
            ``[packs + 1]``.
        token_indptr: the values of pack p in a per-token column are those from ``token_indptr[p]`` to
            ``token_indptr[p + 1]`` (exclusive); integers ``[packs + 1]``. In an index-only dataset, it holds zeros.
        sequences: the sequences of all packs, concatenated without padding. The per-sequence columns include
            ``seq_index``; ``seq_start`` if several sequences were made of some record; and ``seq_source`` if sources
            were named. An index-only dataset has no per-token columns.
        bounds, token_bounds: `indptr` and `token_indptr` as lists, since slicing is three times as fast with Python
            integers.

    >>> import nopad, tempfile
    >>> out = tempfile.mkdtemp()
    >>> _ = nopad.pack_corpus(nopad.open_source([[7, 8, 9], [5], [1, 2]]), out, nopad.CorpusOptions(capacity=4))
    >>> group = nopad.open_packed(out).row_group(0)
    >>> group.indptr.tolist(), group.sequences.seq_lengths.size
    ([0, 2, 3], 3)
    """

    __slots__ = ("bounds", "indptr", "sequences", "token_bounds", "token_indptr")

    def __init__(self, indptr: NDArray[Any], token_indptr: NDArray[Any], sequences: Sequences) -> None:
        """Store the arrays without copying them."""
        self.indptr, self.token_indptr, self.sequences = indptr, token_indptr, sequences
        self.bounds: list[int] = indptr.tolist()
        self.token_bounds: list[int] = token_indptr.tolist()

    def __len__(self) -> int:
        """Return the number of packs."""
        return self.indptr.size - 1

    def take(self, packs: NDArray[np.int64]) -> tuple[Sequences, NDArray[np.int64]]:
        """Return the sequences of the packs with these numbers, pack after pack, and how many sequences each pack has.

        `packs` are numbers within the row group, from 0; int64 ``[n]``. The second result is int64 ``[n]``. Tokens are
        copied. This takes O(tokens) time, without a Python loop over packs.
        """
        begins = self.token_indptr[packs].astype(np.int64)
        tokens = self.token_indptr[packs + 1] - begins
        first = self.indptr[packs].astype(np.int64)
        sizes = self.indptr[packs + 1] - first
        ends = np.cumsum(sizes)
        index = np.arange(int(ends[-1]) if ends.size else 0) + np.repeat(first - ends + sizes, sizes)
        found = self.sequences
        return Sequences(
            seq_lengths=found.seq_lengths[index],
            tokens={name: gather_runs(column, begins, tokens)[0] for name, column in found.tokens.items()},
            values={name: column[index] for name, column in found.values.items()},
        ), sizes


class PackedRow(Mapping[str, NDArray[Any]]):
    """One pack: a mapping from column names to flat arrays, which are views into the row group.

    ``row[name]`` is a stored column; `cu_seqlens`, `position_ids` and `sequence_ids` are computed from the lengths.

    >>> import tempfile, nopad
    >>> from nopad.corpus import CorpusOptions, IterableSource
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = nopad.pack_corpus(IterableSource([[7, 8, 9], [5]]), out, CorpusOptions(capacity=4))
    ...     row = nopad.open_packed(out)[0]
    ...     row.input_ids.tolist(), row.seq_lengths.tolist(), row.position_ids.tolist(), row.sequence_ids.tolist()
    ([7, 8, 9, 5], [3, 1], [0, 1, 2, 0], [1, 1, 1, 2])
    """

    __slots__ = ("_at", "_row_group")

    def __init__(self, row_group: RowGroup, at: int) -> None:
        """Refer to row `at` of `row_group`, without copying it."""
        self._row_group = row_group
        self._at = at

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a stored column of this pack: one value per token, ``[tokens]``, or per sequence, ``[sequences]``.

        Raises:
            KeyError: there is no such column; an index-only dataset has no ``input_ids``.
        """
        row_group, at = self._row_group, self._at
        column = row_group.sequences.tokens.get(name)
        if column is not None:
            return column[row_group.token_bounds[at] : row_group.token_bounds[at + 1]]
        column = row_group.sequences.seq_lengths if name == "seq_lengths" else row_group.sequences.values.get(name)
        if column is not None:
            found: NDArray[Any] = column[row_group.bounds[at] : row_group.bounds[at + 1]]
            return found
        hint = "" if row_group.sequences.tokens else "; an index-only dataset leaves the tokens in its source"
        raise KeyError(f"no column {name!r}; there are: {', '.join(self)}{hint}")

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the stored columns."""
        per_token, per_sequence = self.column_names
        return iter([*per_sequence, *per_token])

    def __len__(self) -> int:
        """Return the number of stored columns."""
        return sum(map(len, self.column_names))

    @property
    def column_names(self) -> tuple[list[str], list[str]]:
        """Two lists: the names of the stored per-token columns, and the names of the stored per-sequence columns."""
        sequences = self._row_group.sequences
        return list(sequences.tokens), ["seq_lengths", *sequences.values]

    __eq__ = object.__eq__  # comparing arrays gives an array, not a truth value
    __hash__ = object.__hash__

    @property
    def seq_lengths(self) -> NDArray[np.int32]:
        """Length of each sequence in tokens; int32 ``[sequences]``."""
        row_group, at = self._row_group, self._at
        return row_group.sequences.seq_lengths[row_group.bounds[at] : row_group.bounds[at + 1]]

    @property
    def seq_index(self) -> NDArray[np.int64]:
        """Number of each sequence's record, from 0, counted through all sources of a mixture; int64 ``[sequences]``."""
        return self["seq_index"]

    @property
    def seq_start(self) -> NDArray[np.int64]:
        """For each sequence, the index within its record of the sequence's first token; int64 ``[sequences]``.

        It is 0 for every sequence that is the only one made of its record.
        """
        if "seq_start" in self._row_group.sequences.values:
            return self["seq_start"]
        return np.zeros(self.seq_lengths.size, dtype=np.int64)

    @property
    def input_ids(self) -> NDArray[np.int32]:
        """Token ids, sequence after sequence, without padding; int32 ``[tokens]``.

        Raises:
            KeyError: the dataset is index-only.
        """
        row_group, at = self._row_group, self._at
        tokens = row_group.sequences.tokens
        if "input_ids" not in tokens:
            return self["input_ids"]  # says which columns there are
        return tokens["input_ids"][row_group.token_bounds[at] : row_group.token_bounds[at + 1]]

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Cumulative `seq_lengths` with a leading 0; int32 ``[sequences + 1]``."""
        out = np.zeros(self.seq_lengths.size + 1, dtype=np.int32)
        np.cumsum(self.seq_lengths, out=out[1:])
        return out

    @property
    def position_ids(self) -> NDArray[np.int32]:
        """Position of each token in its sequence, from 0; int32 ``[tokens]``."""
        bounds = self.cu_seqlens
        return np.arange(bounds[-1], dtype=np.int32) - np.repeat(bounds[:-1], self.seq_lengths)

    @property
    def sequence_ids(self) -> NDArray[np.int32]:
        """Number of each token's sequence in the pack, from 1; int32 ``[tokens]``."""
        return np.repeat(np.arange(1, self.seq_lengths.size + 1, dtype=np.int32), self.seq_lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a copy of this pack alone, not the whole row group."""
        row_group, at = self._row_group, self._at
        sequences = Sequences(
            seq_lengths=self.seq_lengths.copy(),
            tokens={name: self[name].copy() for name in row_group.sequences.tokens},
            values={name: self[name].copy() for name in row_group.sequences.values},
        )
        bounds, token_bounds = (ends[at : at + 2] - ends[at] for ends in (row_group.indptr, row_group.token_indptr))
        return PackedRow, (RowGroup(bounds, token_bounds, sequences), 0)

    def __repr__(self) -> str:
        """Return how many sequences and tokens the pack has, in one line."""
        return (
            f"PackedRow({counted(self.seq_lengths.size, 'sequence')}, {counted(int(self.seq_lengths.sum()), 'token')})"
        )


def row_group_problems(row_group: RowGroup, first: int, m: Manifest) -> list[str]:
    """Return the problems of a row group whose first pack is number `first` of the dataset; [] if there are none.

    No pack and no sequence may be empty; if one is, only this problem is returned. No pack may exceed the capacity or
    depth that the manifest `m` states. Unless the dataset is index-only, the number of tokens in a pack must be the sum
    of its lengths. ``seq_index``, ``seq_start`` and ``seq_source`` must not be negative. Of each kind, at most three
    problems are listed.
    """
    lens, sizes = row_group.sequences.seq_lengths, np.diff(row_group.indptr)
    if sizes.min(initial=1) < 1 or lens.min(initial=1) < 1:
        return [f"a pack from {first} on is empty, or a sequence in it is"]
    problems: list[str] = []
    tokens = np.add.reduceat(lens, row_group.indptr[:-1], dtype=np.int64) if sizes.size else sizes
    if m.kind == "packed":
        held = np.diff(row_group.token_indptr)
        for p in np.flatnonzero(tokens != held)[:3]:
            problems.append(f"pack {first + p}: seq_lengths add up to {tokens[p]}, it holds {held[p]} tokens")
    for p in np.flatnonzero(tokens > m.capacity)[:3]:
        problems.append(f"pack {first + p} holds {tokens[p]:,} tokens, above the capacity of {m.capacity:,}")
    for p in np.flatnonzero(sizes > m.depth)[:3] if m.depth is not None else ():
        problems.append(f"pack {first + p} holds {sizes[p]} sequences, above the depth of {m.depth}")
    values = row_group.sequences.values
    for name in OWN:
        if name in values and values[name].min(initial=0) < 0:
            problems.append(f"a pack from {first} on has a negative number in {name}")
    return problems
