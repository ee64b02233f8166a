"""Turn lists, rows of a packed dataset, or dicts into `Sequences`, which hold one flat array per column.

Columns with a value per token, such as ``input_ids``, hold numbers; integers become int64. Floats in tensors and arrays
keep their dtype, but bfloat16 becomes float32, since NumPy does not have it. Python floats become float32, as in
transformers' collators. Columns with a value per sequence are NumPy arrays; strings are in object arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch.images import Images, one_row, take_images
from nopad.batch.layout import checked
from nopad.errors import BatchError, LengthError
from nopad.sequences import Sequences, labelled

if TYPE_CHECKING:
    from nopad.store.reader import PackedRow

__all__ = ["Records", "from_columns", "from_features", "from_rows", "from_sequences", "narrowed", "per_sequence"]

LENGTHS = "seq_lengths"  # the column of lengths in a row of a packed dataset
RECORDS = ("seq_index", "seq_start", "seq_source")  # where a sequence of a packed dataset comes from
OWN = (LENGTHS, *RECORDS)  # columns that nopad adds to the content
MASK = "attention_mask"
POSITIONS = "position_ids"  # the layout computes these

Records = Mapping[str, NDArray[Any]]  # where each sequence of a packed dataset comes from, by name: ``[n]``


def from_sequences(sequences: Sequence[Any], columns: Mapping[str, Any], *, name: str = "input_ids") -> Sequences:
    """Return `Sequences` with these lists of ids as ``input_ids``, and with further columns; dtypes as in the module.

    `columns` are further columns by name. A column has one entry for each sequence: either lists with one value per
    token, or single values. Error messages call the sequences `name`.

    Raises:
        LengthError: a sequence has no token.
        BatchError: there is no sequence, ids are not integers, a column does not have one entry per sequence, a list is
            not as long as its sequence, or a column has values that cannot be used, such as None or texts per token.
    """
    ids, lens = _flat(_listed(sequences, name), name)
    if not lens.all():
        raise LengthError(f"sequence {int(lens.argmin())} has no token; leave empty ones out")
    if ids.dtype.kind not in "iu":
        raise BatchError(f"{name} must be integers, got {ids.dtype}")
    tokens: dict[str, NDArray[Any]] = {"input_ids": ids.astype(np.int64, copy=False)}
    values: dict[str, NDArray[Any]] = {}
    for column, entries in columns.items():
        given = _listed(entries, column)
        if len(given) != lens.size:
            raise BatchError(f"column {column!r} has {len(given)} entries for {lens.size} sequences")
        if len(given) and _is_list(given[0]):
            flat, other = _flat(given, column)
            if not np.array_equal(other, lens):
                at = int((other != lens).argmax())
                raise BatchError(f"column {column!r} has {other[at]} values for the {lens[at]} tokens of sequence {at}")
            tokens[column] = _wide(flat, column)
        else:
            for n, entry in enumerate(given):
                if _is_list(entry):
                    raise BatchError(f"column {column!r} has one value for sequence 0 and a list for sequence {n}")
            values[column] = _values(given, column)
    return Sequences(seq_lengths=lens.astype(np.int32), tokens=tokens, values=values)


def from_features(features: Sequence[Mapping[str, Any]]) -> tuple[Sequences, Records, Images | None]:
    """Turn dicts into columns; each dict is one sequence, or one row of a packed dataset.

    If each dict is a sequence, a list holds one value per token, and a single value belongs to the whole sequence; a
    column may also be one row ``[1, L]``. If each dict is a row of a packed dataset (it has ``seq_lengths``), a list
    holds one value per token, or one per sequence. Tokens whose ``attention_mask`` is 0 are padding and are removed.
    ``position_ids`` are dropped, since the layout computes them. If there are no ``labels``, ``label`` or ``label_ids``
    is renamed to ``labels``, as transformers' collators do.

    Returns:
        The sequences; arrays that say where each sequence of a packed dataset comes from (none if each dict is a
        sequence); and the images of the sequences (``pixel_values``, ``image_grid_thw``), or None if there are none.

    Raises:
        LengthError: a sequence has no token, or its mask is all 0.
        BatchError: `features` are not dicts, or there are none; a dict has other keys than the first one or no
            ``input_ids``; a mask has a 0 between ones, or a value other than 0 and 1; a list is not as long as its
            ``input_ids``; a column has values that cannot be used; there are both ``label`` and ``label_ids``, but no
            ``labels``; images are not as `take_images` expects; or ``position_ids`` do not count from 0 in each
            sequence.
    """
    features = _listed(features, "features")
    if not len(features):
        raise BatchError("a batch needs at least one sequence, and there is none")
    for n, feature in enumerate(features):
        if not isinstance(feature, Mapping):
            raise BatchError(f"feature {n} is of type {type(feature).__name__}; expected a dict of columns")
    features, images = take_images([one_row(feature) for feature in features])
    names = list(features[0])
    if "input_ids" not in names:
        raise BatchError(f"a feature needs input_ids; this one has {', '.join(names) or 'nothing'}")
    for n, feature in enumerate(features):
        if feature.keys() != features[0].keys():
            odd = ", ".join(sorted(feature.keys() ^ features[0].keys()))
            raise BatchError(f"features 0 and {n} do not have the same keys: {odd}")
    packed = LENGTHS in names
    stacked, records = _packed_features(features) if packed else (_plain_features(features, names), {})
    return labelled(_without_positions(stacked)), records, images


def _plain_features(features: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Sequences:
    """Turn one dict per sequence into `Sequences` with the columns `names`.

    Tokens whose ``attention_mask`` is 0 are removed, and so is this column.

    Raises:
        LengthError: a sequence has no token, or its mask is all 0.
        BatchError: a mask has a 0 between ones, or a value other than 0 and 1; a list is not as long as its sequence or
            mask; or a column has values that cannot be used.
    """
    kept = [name for name in names if name != MASK]
    given = {name: [feature[name] for feature in features] for name in kept}
    if MASK in names:
        for n, feature in enumerate(features):
            if not _is_list(feature[MASK]):
                raise BatchError(f"the {MASK} of feature {n} is {feature[MASK]!r}; expected a list of 0 and 1")
        spans = [_span(feature[MASK], n) for n, feature in enumerate(features)]
        for name, entries in given.items():
            if _is_list(entries[0]):
                _check_widths(name, entries, features)
                pairs = zip(entries, spans, strict=True)
                given[name] = [e if end - begin == len(e) else e[begin:end] for e, (begin, end) in pairs]
    return from_sequences(given.pop("input_ids"), given)


def _without_positions(stacked: Sequences) -> Sequences:
    """Return the sequences without their ``position_ids``, since the layout computes these.

    Raises:
        BatchError: the given ``position_ids`` do not count from 0 in each sequence.
    """
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


def _check_widths(name: str, entries: Sequence[Any], features: Sequence[Mapping[str, Any]]) -> None:
    for n, (entry, feature) in enumerate(zip(entries, features, strict=True)):
        if not _is_list(entry):
            raise BatchError(
                f"{name!r} is a list in feature 0 and {entry!r} in feature {n}; give lists, or values, to all"
            )
        if len(entry) != len(feature[MASK]):
            raise BatchError(f"{name!r} has {len(entry)} values for the {len(feature[MASK])} of {MASK} in feature {n}")


def _packed_features(features: Sequence[Mapping[str, Any]]) -> tuple[Sequences, Records]:
    """Split rows of a packed dataset into sequences, without padding.

    Returns the sequences, and the arrays that say where each one comes from, by name (`Records`).

    Raises:
        LengthError: a sequence has no token, or a row's mask is all 0.
        BatchError: there is no sequence; the lengths or the mask of a row do not fit its tokens; or a column has
            neither one number per token nor one value per sequence.
    """
    rows = [_row({name: _of_row(value, name, n) for name, value in row.items()}, n) for n, row in enumerate(features)]
    lens = checked(np.concatenate([row[LENGTHS] for row in rows]))
    if not lens.size:
        raise BatchError("a batch needs at least one sequence, and there is none")
    tokens, values = {}, {}
    for name in rows[0]:
        if name in (LENGTHS, MASK):
            continue
        per_token = all(row[name].size == row["input_ids"].size for row in rows)
        per_sequence = all(row[name].size == row[LENGTHS].size for row in rows)
        column = _joined([row[name] for row in rows])
        if name != "input_ids" and per_sequence and (name in OWN or not per_token):
            values[name] = column
        elif per_token and column.dtype.kind != "O":
            tokens[name] = _wide(column, name)
        elif per_token:
            raise BatchError(f"column {name!r} is of {column.dtype} per token; expected numbers: leave it out")
        else:
            raise BatchError(f"column {name!r} has neither one value per token nor one per sequence")
    records = {name: values.pop(name) for name in RECORDS if name in values}
    return Sequences(seq_lengths=lens, tokens=tokens, values=values), records


def _of_row(value: Any, name: str, n: int) -> NDArray[Any]:
    """Return `value`, column `name` of row `n`, as a one-dimensional array of numbers, or an object array of strings.

    Raises:
        BatchError: the column is not a list of numbers or strings, ids or lengths are not integers, or a number does
            not fit into int64.
    """
    found = value if type(value) is np.ndarray else _converted(value, name, n)
    if found.ndim != 1 or (found.dtype.kind not in "biufUO" and found.size):
        raise BatchError(f"column {name!r} of row {n} is {_told(found)}; expected a list")
    if name in (LENGTHS, "input_ids") and found.size and found.dtype.kind not in "iu":
        raise BatchError(f"{name} of row {n} are {_told(found)}; expected integers")
    found = _signed(found, name, n) if found.dtype == np.uint64 else found
    return found.astype(object) if found.dtype.kind == "U" else found


def _told(found: NDArray[Any]) -> str:
    return f"of {found.dtype} in {found.ndim} dimensions"


def _row(row: dict[str, NDArray[Any]], n: int) -> dict[str, NDArray[Any]]:
    """Return the columns of a row without the padding that its mask marks; `n` is the row's number, for messages.

    Raises:
        LengthError: the mask is all 0.
        BatchError: the mask or the lengths do not fit the tokens, or the mask has a 0 between ones, or a value other
            than 0 and 1.
    """
    width, tokens = row["input_ids"].size, int(row[LENGTHS].sum())
    if MASK in row and row[MASK].size != width:
        raise BatchError(f"{MASK} of row {n} has {row[MASK].size} values for {width} input_ids")
    begin, end = _span(row[MASK], n) if MASK in row else (0, width)
    if end - begin != tokens:
        raise BatchError(
            f"{LENGTHS} of row {n} add up to {tokens}, and it has {end - begin} tokens; give an {MASK} of a padded row"
        )
    return {name: value[begin:end] if value.size == width and name != LENGTHS else value for name, value in row.items()}


def from_rows(rows: Sequence[PackedRow]) -> tuple[Sequences, Records, NDArray[np.int64]]:
    """Turn rows of a packed dataset into columns; integers become int64, and float64 becomes float32.

    Returns:
        The sequences, row after row; arrays that say where each sequence comes from (``seq_index``, and ``seq_start``
        and ``seq_source`` if the dataset has them); and the number of sequences of each row, int64 ``[R]``.

    Raises:
        BatchError: there is no row, an entry is not a row of `nopad.open_packed`, the dataset is index-only (its rows
            hold no tokens), a number does not fit into int64 or float32, there are both ``label`` and ``label_ids`` but
            no ``labels``, or ``position_ids`` do not count from 0 in each sequence.
    """
    rows = _listed(rows, "rows", "row")
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
    values = {name: np.concatenate([row[name] for row in rows]) for name in per_sequence if name != LENGTHS}
    records = {name: values.pop(name) for name in RECORDS if name in values}
    stacked = narrowed(
        Sequences(
            seq_lengths=np.concatenate([row.seq_lengths for row in rows]),
            tokens={name: _wide(np.concatenate([row[name] for row in rows]), name) for name in per_token},
            values=values,
        )
    )
    per_row = np.array([row.seq_lengths.size for row in rows], dtype=np.int64)
    return labelled(_without_positions(stacked)), records, per_row


def narrowed(stored: Sequences) -> Sequences:
    """Return stored sequences with float32 in place of float64, as `datasets` gives them to PyTorch.

    JSON and Python have one kind of float, which is stored as float64; models and losses compute in float32. Without a
    float64 column, `stored` itself is returned.

    Raises:
        BatchError: a finite number is beyond float32.
    """
    columns = (*stored.tokens.items(), *stored.values.items())
    found = {name: _narrowed(column, name) for name, column in columns if getattr(column, "dtype", None) == np.float64}
    if not found:
        return stored
    tokens = {name: found.get(name, column) for name, column in stored.tokens.items()}
    return replace(stored, tokens=tokens, values={name: found.get(name, one) for name, one in stored.values.items()})


def from_columns(sequences: Sequences) -> tuple[Sequences, Records]:
    """Prepare sequences for a batch: integers become int64, and labels get the name ``labels`` (`labelled`).

    Returns the sequences, and the arrays that say where each one comes from, by name: those of ``seq_index``,
    ``seq_start`` and ``seq_source`` that `sequences` has. They are no longer columns of the sequences. Columns that
    need no change are not copied; ``position_ids`` are dropped.

    Raises:
        BatchError: there is no sequence, there are no ``input_ids``, an integer does not fit into int64, there are both
            ``label`` and ``label_ids`` but no ``labels``, or ``position_ids`` do not count from 0 in each sequence.
    """
    if not len(sequences):
        raise BatchError("a batch needs at least one sequence, and there is none")
    if "input_ids" not in sequences.tokens:
        raise BatchError(f"sequences have no input_ids; columns per token: {', '.join(sequences.tokens) or 'none'}")
    gathered = sequences.gathered()
    values = dict(gathered.values)
    records = {name: values.pop(name) for name in RECORDS if name in values}
    tokens = {name: _wide(column, name) for name, column in gathered.tokens.items()}
    stacked = Sequences(
        seq_lengths=gathered.seq_lengths,
        tokens=tokens,
        values={name: _wide(column, name) for name, column in values.items()},
    )
    return labelled(_without_positions(stacked)), records


def per_sequence(name: str, given: Sequence[Any], sequences: int) -> NDArray[Any]:
    """Stack one array per sequence, all of one shape; return ``[S, ...]``, with dtypes as in the module.

    `given` are the arrays, and `sequences` is the number S of sequences. Error messages call the column `name`.

    Raises:
        BatchError: there is not one array per sequence, an entry is no array of numbers, the shapes differ, or a number
            does not fit into int64 or float32.
    """
    arrays = [_converted(entry, name, n) for n, entry in enumerate(_listed(given, name))]
    if len(arrays) != sequences or len({array.shape for array in arrays}) > 1:
        shapes = sorted({array.shape for array in arrays})
        raise BatchError(
            f"column {name!r} has {len(arrays)} entries of shapes {shapes}; expected {sequences} of one shape"
        )
    return _wide(np.stack(arrays, dtype=_common(arrays)), name)


def _is_list(entry: Any) -> bool:
    return not isinstance(entry, str | bytes) and hasattr(entry, "__len__") and getattr(entry, "ndim", 1) > 0


def _array(entry: Any, name: str, n: int) -> NDArray[Any]:
    found = entry if type(entry) is np.ndarray else _converted(entry, name, n)
    if found.ndim != 1:
        raise BatchError(f"{name} of sequence {n} has {found.ndim} dimensions; expected one, with a value per token")
    if found.dtype.kind not in "biuf" and found.size:
        raise BatchError(f"{name} of sequence {n} is of {found.dtype}; expected numbers: leave this column out")
    return _signed(found, name, n) if found.dtype == np.uint64 else found


def _converted(entry: Any, name: str, n: int) -> NDArray[Any]:
    try:
        kind = _float_of(entry)
        if kind is not None and str(getattr(entry, "dtype", kind)) == "torch.bfloat16":
            entry = entry.float()
        found = np.asarray(entry.cpu() if hasattr(entry, "cpu") else entry)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # NotImplementedError of meta tensors too
        raise BatchError(f"{name} of sequence {n} is no list of numbers ({error})") from error
    narrow = (
        found.dtype == np.float64 and kind == np.float32 and name not in (LENGTHS, "input_ids")
    )  # these are refused
    return _narrowed(found, name) if narrow else found


def _float_of(entry: Any) -> np.dtype[Any] | None:
    """Return the float dtype that an entry gets if it holds floats; None if it cannot hold floats.

    An entry is a number, or a list or array of numbers; the first value of a list decides. Float arrays and tensors
    keep their dtype, or become float32 if NumPy does not have it. Python numbers, also integers, give float32.
    """
    while isinstance(entry, list | tuple) and entry:
        entry = entry[0]
    if not hasattr(entry, "dtype"):
        return np.dtype(np.float32) if isinstance(entry, int | float) else None
    name = str(entry.dtype).removeprefix("torch.")
    if not name.startswith(("float", "bfloat")):
        return None
    return np.dtype(name if name in ("float16", "float32", "float64") else "float32")


def _narrowed(column: NDArray[Any], name: str) -> NDArray[Any]:
    """Return a float64 column as float32; error messages call it `name`.

    Raises:
        BatchError: a finite number is beyond float32.
    """
    with np.errstate(over="ignore"):
        found = column.astype(np.float32)
    if not np.array_equal(np.isfinite(found), np.isfinite(column)):
        odd = column[np.isfinite(found) != np.isfinite(column)][0]
        raise BatchError(f"column {name!r} holds {odd}, which is beyond float32; give it as a float64 array or tensor")
    return found


def _common(arrays: Sequence[NDArray[Any]]) -> np.dtype[Any] | None:
    """Return the dtype for joining arrays: the widest float dtype among them, so that integers do not widen floats.

    Returns None, so that NumPy decides, if no array holds floats, or an array holds something else than numbers.
    """
    floats = {array.dtype for array in arrays if array.dtype.kind == "f" and array.size}
    return np.result_type(*floats) if floats and all(array.dtype.kind in "biuf" for array in arrays) else None


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(arrays, dtype=_common(arrays))


def _signed(array: NDArray[Any], name: str, n: int) -> NDArray[np.int64]:
    """Return unsigned integers as int64; `name` and `n`, the index of the sequence, are for the error message.

    Raises:
        BatchError: a value does not fit into int64.
    """
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise BatchError(f"{name} of sequence {n} holds {array.max()}, which is beyond 64-bit integers")
    return array.astype(np.int64)


def _listed(given: Any, name: str, each: str = "sequence") -> Sequence[Any]:
    """Return `given`, or a list of its entries if it cannot be indexed.

    `name` and `each` are for error messages: what `given` is called, and what one entry of it is for.

    Raises:
        BatchError: `given` is not a list, an array or another ordered iterable.
    """
    unordered = isinstance(given, str | bytes | Mapping | Set)
    if unordered or not hasattr(given, "__iter__") or isinstance(given, type) or getattr(given, "ndim", 1) == 0:
        raise BatchError(f"{name} are of type {type(given).__name__}; expected a list with an entry for each {each}")
    return given if hasattr(given, "__getitem__") else list(given)


def _flat(given: Sequence[Any], name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Concatenate n lists of numbers; return one flat array, and the length of each list, int64 ``[n]``.

    Error messages call the lists `name`.

    Raises:
        BatchError: there is no list, or a list does not hold numbers in one dimension.
    """
    if not len(given):
        raise BatchError("a batch needs at least one sequence, and there is none")
    if type(given[0]) is list and given[0] and type(given[0][0]) is int:
        try:  # four times as fast as one array per list
            ids = array("q", chain.from_iterable(given))
            return np.frombuffer(ids, dtype=np.int64).copy(), np.fromiter(map(len, given), np.int64, len(given))
        except (TypeError, OverflowError, RuntimeError):
            pass  # the slow way finds the list at fault
    arrays = [_array(entry, name, n) for n, entry in enumerate(given)]
    return _joined(arrays), np.fromiter(map(len, arrays), np.int64, len(arrays))


def _values(given: Sequence[Any], name: str) -> NDArray[Any]:
    try:
        entries = [entry.item() if hasattr(entry, "item") else entry for entry in given]
    except (ValueError, RuntimeError) as error:
        raise BatchError(f"column {name!r} has an entry that is no single value ({error})") from error
    for n, entry in enumerate(entries):
        if entry is None:
            raise BatchError(f"column {name!r} has no value (None) for sequence {n}; give one to each, or leave it out")
    if any(isinstance(entry, str | bytes) for entry in entries):
        return np.array(entries, dtype=object)
    found = np.asarray(entries)
    whole = isinstance(entries[0], int) and not any(isinstance(entry, float) for entry in entries)
    if isinstance(entries[0], int | float) and (found.dtype == object or (whole and found.dtype.kind == "f")):
        raise BatchError(f"column {name!r} mixes numbers with other things, or has some beyond 64 bits")
    if found.dtype.kind == "f":
        kinds = {_float_of(entry) for entry, one in zip(given, entries, strict=True) if isinstance(one, float)}
        kind = np.result_type(*(one for one in kinds if one is not None)) if kinds - {None} else found.dtype
        return found.astype(kind) if kind != np.float32 else _narrowed(found, name)
    return _signed(found, name, int(found.argmax())) if found.dtype == np.uint64 else _wide(found, name)


def _wide(column: NDArray[Any], name: str) -> NDArray[Any]:
    """Return `column` with integers as int64, as embeddings and losses require; other dtypes are returned unchanged.

    Raises:
        BatchError: an integer does not fit into int64.
    """
    if column.dtype == np.uint64 and column.size and int(column.max()) > np.iinfo(np.int64).max:
        raise BatchError(f"column {name!r} holds {column.max()}, which is beyond 64-bit integers")
    return column.astype(np.int64, copy=False) if column.dtype.kind in "iu" else column


def _span(mask: Any, n: int) -> tuple[int, int]:
    """Return ``(begin, end)``: where the ones in the mask of feature `n` begin, and where they end (exclusive).

    Raises:
        LengthError: the mask has no 1.
        BatchError: the mask has a 0 between ones, or a value other than 0 and 1.
    """
    if type(mask) is list and mask and mask.count(1) == len(mask):  # fast path for the usual case, without an array
        return 0, len(mask)
    found = _array(mask, MASK, n)
    ones = np.flatnonzero(found == 1)
    if np.count_nonzero(found == 0) + ones.size != found.size:
        odd = found[(found != 0) & (found != 1)][0]
        raise BatchError(f"the {MASK} of feature {n} has the value {odd}; it is 1 at tokens and 0 at padding")
    if not ones.size:
        raise LengthError(f"feature {n} has no real token: its {MASK} is all 0; leave it out")
    begin, end = int(ones[0]), int(ones[-1]) + 1
    if end - begin != ones.size:
        raise BatchError(f"the {MASK} of feature {n} has a hole; a sequence is one run of tokens")
    return begin, end
