"""Turn sequences of ids, rows of a packed dataset, or columns into `Sequences`, which hold one array per column.

Columns with a value per token, such as ``input_ids``, hold numbers. Columns with a value per sequence are NumPy arrays;
strings are in object arrays. Integers become int64, and Python floats and bfloat16 become float32; other floats keep
their dtype, except that float64 in rows of a packed dataset becomes float32. `nopad.batch.features` turns dicts into
`Sequences`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch.arrays import (
    common,
    concatenated,
    converted,
    ids_array,
    is_list,
    listed,
    narrow,
    read,
    single_values,
    wide,
)
from nopad.errors import BatchError, LengthError
from nopad.sequences import COMPUTED, MASK, Sequences, labelled

if TYPE_CHECKING:
    from nopad.store.reader import PackedRow

__all__ = [
    "Records",
    "from_columns",
    "from_read",
    "from_rows",
    "from_sequences",
    "narrowed",
    "per_sequence",
    "without_computed",
]

LENGTHS = "seq_lengths"  # the column of lengths in a row of a packed dataset
RECORDS = ("seq_index", "seq_start", "seq_source")  # where a sequence of a packed dataset comes from
POSITIONS = "position_ids"  # the layout computes these

Records = Mapping[str, NDArray[Any]]  # where each sequence of a packed dataset comes from, by name: ``[n]``


def from_sequences(sequences: Sequence[Any], columns: Mapping[str, Any], *, name: str = "input_ids") -> Sequences:
    """Return `Sequences` with the ids in `sequences` as ``input_ids``, and with further columns.

    `sequences` are lists or integer arrays ``[length]``. `columns` are the further columns by name: each has one entry
    per sequence, either lists with one value per token, or single values. Integers become int64, and Python floats and
    bfloat16 become float32; other floats keep their dtype. Error messages call the sequences `name`.

    Raises:
        LengthError: a sequence has no token.
        BatchError: one of these:

            * there is no sequence, or ids are not integers
            * a column does not have one entry per sequence, or a list is not as long as its sequence
            * a column has values that cannot be used, such as None or texts per token
    """
    return from_read(read(sequences, name), {column: read(given, column) for column, given in columns.items()}, name)


def from_read(sequences: Sequence[Any], columns: Mapping[str, Sequence[Any]], name: str = "input_ids") -> Sequences:
    """Do what `from_sequences` does, with results of `nopad.batch.arrays.readable` as sequences and entries.

    Raises:
        LengthError: a sequence has no token.
        BatchError: another reason of those of `from_sequences`.
    """
    ids, lens = concatenated(sequences, name, ids_array)
    if not lens.all():
        raise LengthError(f"sequence {int(lens.argmin())} has no token; leave empty ones out")
    tokens: dict[str, NDArray[Any]] = {"input_ids": ids.astype(np.int64, copy=False)}
    values: dict[str, NDArray[Any]] = {}
    for column, given in columns.items():
        if len(given) != lens.size:
            raise BatchError(f"column {column!r} has {len(given)} entries for {lens.size} sequences")
        if len(given) and is_list(given[0]):
            flat, other = concatenated(given, column)
            if not np.array_equal(other, lens):
                at = int((other != lens).argmax())
                raise BatchError(f"column {column!r} has {other[at]} values for the {lens[at]} tokens of sequence {at}")
            tokens[column] = wide(flat, column)
        else:
            for n, entry in enumerate(given):
                if is_list(entry):
                    raise BatchError(f"column {column!r} has one value for sequence 0 and a list for sequence {n}")
            values[column] = single_values(given, column)
    return Sequences(seq_lengths=lens.astype(np.int32), tokens=tokens, values=values)


def from_rows(rows: Sequence[PackedRow]) -> tuple[Sequences, Records, NDArray[np.int64]]:
    """Turn rows of a packed dataset into columns; integers become int64, and float64 becomes float32.

    Returns:
        The sequences, row after row; arrays that say where each sequence comes from (``seq_index``, and ``seq_start``
        and ``seq_source`` if the dataset has them); and the number of sequences of each row, int64 ``[R]``.

    Raises:
        BatchError: one of these:

            * there is no row, or an entry is not a row of `nopad.open_packed`
            * the dataset is index-only: its rows hold no tokens
            * a number does not fit into int64 or float32
            * there are both ``label`` and ``label_ids``, but no ``labels``
            * ``position_ids`` do not count from 0 in each sequence; or a column is called ``cu_seqlens``,
              ``sequence_ids`` or ``attention_mask``, which the batch computes
    """
    rows = listed(rows, "rows", "row")
    if not len(rows):
        raise BatchError("a batch needs at least one row, and there is none")
    for n, row in enumerate(rows):
        if not hasattr(row, "column_names"):
            raise BatchError(
                f"row {n} is of type {type(row).__name__}; expected rows of nopad.open_packed, and dicts go to "
                "from_features"
            )
    per_token, per_sequence = rows[0].column_names
    if "input_ids" not in per_token:
        raise BatchError("these rows hold no tokens (an index-only dataset); take the tokens from their source")
    values = {name: wide(np.concatenate([row[name] for row in rows]), name) for name in per_sequence if name != LENGTHS}
    records = {name: values.pop(name) for name in RECORDS if name in values}
    stacked = narrowed(
        Sequences(
            seq_lengths=np.concatenate([row.seq_lengths for row in rows]),
            tokens={name: wide(np.concatenate([row[name] for row in rows]), name) for name in per_token},
            values=values,
        )
    )
    per_row = np.array([row.seq_lengths.size for row in rows], dtype=np.int64)
    return labelled(without_computed(stacked)), records, per_row


def from_columns(sequences: Sequences) -> tuple[Sequences, Records]:
    """Prepare sequences for a batch: integers become int64, and labels get the name ``labels``.

    A column ``label`` or ``label_ids`` is renamed to ``labels``, unless there is a column ``labels`` already.

    Returns ``(sequences, records)``. The records are a dict of arrays by name, which say where each sequence comes
    from: the columns ``seq_index``, ``seq_start`` and ``seq_source``, as far as `sequences` has them. The returned
    sequences have neither these columns nor ``position_ids``.

    Raises:
        BatchError: one of these:

            * there is no sequence, or there are no ``input_ids``
            * an integer does not fit into int64
            * a column of Arrow has a null, lists of different lengths, or lists of other values than numbers
            * there are both ``label`` and ``label_ids``, but no ``labels``
            * ``position_ids`` do not count from 0 in each sequence; or a column is called ``cu_seqlens``,
              ``sequence_ids`` or ``attention_mask``, which the batch computes
    """
    if not len(sequences):
        raise BatchError("a batch needs at least one sequence, and there is none")
    if "input_ids" not in sequences.tokens:
        raise BatchError(f"sequences have no input_ids; columns per token: {', '.join(sequences.tokens) or 'none'}")
    gathered = sequences.gathered()
    values = dict(gathered.values)
    records = {name: np.asarray(values.pop(name)) for name in RECORDS if name in values}
    tokens = {name: wide(column, name) for name, column in gathered.tokens.items()}
    stacked = Sequences(
        seq_lengths=gathered.seq_lengths,
        tokens=tokens,
        values={name: _read(column, name) for name, column in values.items()},
    )
    return labelled(without_computed(stacked)), records


def _read(column: Any, name: str) -> NDArray[Any]:
    """Return a per-sequence column of `Sequences` as a NumPy array, with integers as int64.

    Raises:
        BatchError: an integer does not fit into int64; or the column is of Arrow, and has a null, lists of different
            lengths, or lists of other values than numbers.
    """
    if isinstance(column, np.ndarray):
        return wide(column, name)
    given = read(column, name)
    return per_sequence(name, given, len(given)) if is_list(given[0]) else single_values(given, name)


def per_sequence(name: str, given: Sequence[Any], sequences: int) -> NDArray[Any]:
    """Stack one array per sequence, all of one shape, into an array ``[S, ...]``.

    `given` are the arrays, and `sequences` is the number S of sequences. Integers become int64, and Python floats and
    bfloat16 become float32; other floats keep their dtype. Error messages call the column `name`.

    Raises:
        BatchError: there is not one array per sequence, an entry is no array of numbers, the shapes differ, or a number
            does not fit into int64 or float32.
    """
    arrays = [converted(entry, name, n) for n, entry in enumerate(read(given, name))]
    odd = [array.dtype for array in arrays if array.dtype.kind not in "biuf"]
    if odd:
        raise BatchError(f"column {name!r} has arrays of {odd[0]}; expected numbers: leave it out of sequence_columns")
    if len(arrays) != sequences or len({array.shape for array in arrays}) > 1:
        shapes = sorted({array.shape for array in arrays})
        raise BatchError(
            f"column {name!r} has {len(arrays)} entries of shapes {shapes}; expected {sequences} of one shape"
        )
    return wide(np.stack(arrays, dtype=common(arrays)), name)


def narrowed(stored: Sequences) -> Sequences:
    """Return stored sequences with float32 in place of float64, as `datasets` gives them to PyTorch.

    JSON and Python have one kind of float, which is stored as float64; models and losses compute in float32. Without a
    float64 column, `stored` itself is returned.

    Raises:
        BatchError: a finite number is beyond float32.
    """
    columns = (*stored.tokens.items(), *stored.values.items())
    found = {name: narrow(column, name) for name, column in columns if getattr(column, "dtype", None) == np.float64}
    if not found:
        return stored
    tokens = {name: found.get(name, column) for name, column in stored.tokens.items()}
    return replace(stored, tokens=tokens, values={name: found.get(name, one) for name, one in stored.values.items()})


def without_computed(stacked: Sequences) -> Sequences:
    """Return the sequences without the column ``position_ids``, since the layout computes it.

    Raises:
        BatchError: there are ``position_ids``, and they do not count from 0 in each sequence; or another column has a
            name of `COMPUTED`.
    """
    for name in COMPUTED:
        if name != POSITIONS and (name in stacked.tokens or name in stacked.values):
            verb = "is" if name == MASK else "are"
            raise BatchError(
                f"{name} {verb} computed from the lengths, and {verb} no column; rename it, or leave it out"
            )
    given = stacked.tokens.get(POSITIONS)
    if given is None and POSITIONS not in stacked.values:
        return stacked
    lens = stacked.seq_lengths
    if given is None or not np.array_equal(given, np.arange(int(lens.sum())) - np.repeat(stacked.begins, lens)):
        raise BatchError(
            f"{POSITIONS} are made by the layout, 0, 1, 2, ... in each sequence, and the given ones are others; leave "
            "them out, and where they are on purpose run these sequences without packs"
        )
    return replace(stacked, tokens={name: column for name, column in stacked.tokens.items() if name != POSITIONS})
