"""Turn Arrow tables into records: runs of good rows as `Records`, and each bad row as a `BadRecord`.

Array operations do this in about 3 ns per token; Python loops over rows only where some are bad. Padding is removed if
it is marked by an attention mask, or by a padding id that the user names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nopad.corpus import records
from nopad.corpus.batches import as_bytes
from nopad.corpus.inputs import not_utf8
from nopad.corpus.records import MAX_ID, BadRecord, Records, good_and_bad
from nopad.corpus.selection import Selection, is_string
from nopad.sequences import IGNORED, LABELS, Sequences

__all__ = ["decode_rows", "numbers", "without_broken_text"]


def decode_rows(
    batch: pa.RecordBatch,
    first_row: int | NDArray[np.int64],
    *,
    selection: Selection,
    known_bad: Mapping[int, str] | None = None,
) -> Iterator[Records | BadRecord]:
    """Yield the rows of a batch as records, in order: runs of good rows, and single bad rows between them.

    Args:
        batch: the rows, with the columns that `selection` names.
        first_row: 1-based position of the first row in its file, or the position of every row, int64 ``[rows]``.
        selection: which columns are read, and how.
        known_bad: reason for each row (from 0) that is already known to be bad; None: there is none.
    """
    rows = np.arange(first_row, first_row + batch.num_rows) if isinstance(first_row, int) else first_row
    bad = dict(known_bad or {})
    batch = without_broken_text(batch, bad)
    if selection.kind == "text":
        column = batch.column(selection.content)
        for row, reason in _null_rows(column, selection.content).items():
            bad.setdefault(row, reason)
        _find_bad_sequences(batch, selection, bad)
        texts = column.to_pylist()
        carried = _sequence_columns(batch, selection)
        for begin, end, why_not in good_and_bad(batch.num_rows, bad):
            if why_not is not None:
                yield BadRecord(line=int(rows[begin]), reason=why_not)
            else:
                columns = {name: values.slice(begin, end - begin) for name, values in carried.items()}
                yield Records(lines=rows[begin:end], texts=texts[begin:end], values=columns)
        return
    yield from _decode_ids(batch, rows, selection, bad)


def _decode_ids(
    batch: pa.RecordBatch, rows: NDArray[np.int64], selection: Selection, bad: dict[int, str]
) -> Iterator[Records | BadRecord]:
    ids = _Ragged.of(batch.column(selection.content), selection.content)
    for row, reason in ids.bad.items():
        bad.setdefault(row, reason)
    for row in np.flatnonzero(ids.lengths > records.MAX_TOKENS).tolist():
        bad.setdefault(row, records.too_many(int(ids.lengths[row])))
    outside = np.flatnonzero((ids.values < 0) | (ids.values > MAX_ID))
    _mark_first(
        bad,
        ids,
        outside,
        lambda at, value: f"{selection.content}[{at}] is {value}; ids are integers from 0 to {MAX_ID}",
    )
    beside: dict[str, _Ragged] = {}
    per_token = [column.name for column in selection.carried if column.per == "token"]
    if selection.learned:
        per_token = [selection.learned if name == LABELS[0] else name for name in per_token]
    for name in ([selection.mask] if selection.mask else []) + per_token:
        beside[name] = _Ragged.of(batch.column(name), name)
        for row, reason in beside[name].bad.items():
            bad.setdefault(row, reason)
        for row in np.flatnonzero(beside[name].lengths != ids.lengths).tolist():
            have, want = beside[name].lengths[row], ids.lengths[row]
            reason = f"{name!r} has {have} values beside {want} in {selection.content!r}"
            hint = "" if name == selection.mask else " (if it is no column of tokens, leave it out of carry=)"
            bad.setdefault(row, reason + hint)
    _find_bad_sequences(batch, selection, bad)
    if selection.learned:
        _find_bad_marks(beside[selection.learned], selection.learned, bad)
    begin, length = ids.begins, ids.lengths
    if selection.mask:
        begin, length = _by_mask(beside.pop(selection.mask), ids, selection.mask, bad)
    elif selection.pad_id is not None:
        begin, length = _by_pad_id(ids, selection.pad_id)
    carried = _sequence_columns(batch, selection)
    padded = bool(selection.mask) or selection.pad_id is not None
    for first, end, why_not in good_and_bad(batch.num_rows, bad):
        if why_not is not None:
            yield BadRecord(line=int(rows[first]), reason=why_not)
            continue
        here = slice(first, end)
        taken = _taken(ids.values, begin[here], length[here]).astype(np.int32, copy=False)
        others = {
            name: _taken(column.values, (begin + column.begins - ids.begins)[here], length[here])
            for name, column in beside.items()
        }
        if selection.learned:
            learned = others.pop(selection.learned).astype(bool)
            others[LABELS[0]] = np.where(learned, taken, IGNORED).astype(np.int32)
        yield Records(
            lines=rows[here],
            ids=Sequences(seq_lengths=length[here].astype(np.int32), tokens={"input_ids": taken, **others}),
            values={name: values.slice(first, end - first) for name, values in carried.items()},
            padding=(ids.lengths - length)[here] if padded else None,
        )


@dataclass(frozen=True)
class _Ragged:
    """A list column: row i is ``values[begins[i]:begins[i] + lengths[i]]``.

    A row that is null or contains a null is bad: `bad` has the reason, by the row's index. A null row has length 0.
    """

    values: NDArray[Any]
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    bad: dict[int, str]

    @classmethod
    def of(cls, array: pa.Array, name: str) -> _Ragged:
        bad = _null_rows(array, name)
        if pa.types.is_fixed_size_list(array.type):
            width = array.type.list_size
            offsets = np.arange(len(array) + 1, dtype=np.int64) * width
            flat = array.values.slice(array.offset * width, len(array) * width)
        else:
            offsets = array.offsets.to_numpy().astype(np.int64)
            flat = array.values.slice(offsets[0], offsets[-1] - offsets[0]) if len(array) else array.values
            offsets -= offsets[0] if offsets.size else 0
        begins, lengths = offsets[:-1].copy(), np.diff(offsets)
        if bad:  # Arrow may keep values under a null
            lengths[list(bad)] = 0
        made = cls(numbers(flat), begins, lengths, bad)
        if flat.null_count:
            nulls = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))
            _mark_first(bad, made, nulls, lambda at, value: f"{name}[{at}] is null")
        return made


def numbers(flat: pa.Array) -> NDArray[Any]:
    """Return an Arrow array of numbers or booleans as a NumPy array.

    Nulls become 0 or False, so the caller must mark their rows as bad.
    """
    if flat.null_count:
        flat = flat.fill_null(False if pa.types.is_boolean(flat.type) else 0)
    values: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return values


def _mark_first(bad: dict[int, str], ragged: _Ragged, places: NDArray[np.int64], reason: Any) -> None:
    """Add to `bad` each row of `ragged` that contains one of `places`, with a reason.

    `places` are indices of ``ragged.values``, ascending. ``reason(index in the row, value)`` returns the reason for a
    value; the first place in a row gives the row's reason. `bad` has the reasons by the row's index. A row that is in
    `bad` already keeps its reason.
    """
    held = np.flatnonzero(ragged.lengths)
    if not places.size or not held.size:
        return
    row = held[np.searchsorted(ragged.begins[held], places, side="right") - 1]
    inside = places - ragged.begins[row]
    for place, at, which in zip(places.tolist(), inside.tolist(), row.tolist(), strict=True):
        if 0 <= at < ragged.lengths[which]:  # otherwise the value is hidden under a null row
            bad.setdefault(which, reason(at, ragged.values[place]))


def _find_bad_marks(mask: _Ragged, name: str, bad: dict[int, str]) -> None:
    """Find the rows of a mask that have a value other than 0 and 1, and add them to `bad`.

    `bad` has the reason for each bad row, by the row's index. `name` is the name of the mask's column.
    """
    odd = np.flatnonzero((mask.values != 0) & (mask.values != 1))
    _mark_first(bad, mask, odd, lambda at, value: f"{name}[{at}] is {value}; a mask holds 0 and 1")


def _by_mask(
    mask: _Ragged, ids: _Ragged, name: str, bad: dict[int, str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each row's content begins in the values of `ids`, and its length; int64 ``[rows]`` each.

    The content is where the row's mask is 1; if the mask has no 1, the length is 0. A row is bad if its mask has a
    value other than 0 and 1, or a 0 between two 1: then the reason is added to `bad`, by the row's index. A row that is
    in `bad` already keeps its reason. `name` is the name of the mask's column.
    """
    _find_bad_marks(mask, name, bad)
    ones = np.flatnonzero(mask.values)
    # `ones` ascends, so two searches count the ones of each row; without a hole, they are adjacent.
    ends = np.searchsorted(ones, mask.begins + mask.lengths)
    starts = np.searchsorted(ones, mask.begins)
    count = ends - starts
    some = count > 0
    if not ones.size:
        return ids.begins, count
    first: NDArray[np.int64] = np.where(some, ones[np.minimum(starts, ones.size - 1)], mask.begins)
    last = np.where(some, ones[np.maximum(ends - 1, 0)], first - 1)
    for row in np.flatnonzero(some & (last - first + 1 != count)).tolist():
        run = ones[starts[row] : ends[row]]
        hole = int(run[np.flatnonzero(np.diff(run) > 1)[0]]) + 1
        bad.setdefault(
            row, f"{name} has a hole: 0 at {hole - mask.begins[row]}, and 1 after it; padding is at the ends"
        )
    return ids.begins + (first - mask.begins), count


def _by_pad_id(ids: _Ragged, pad_id: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each row's content begins in the values of `ids`, and its length; int64 ``[rows]`` each.

    The content is the row without the runs of `pad_id` at both ends; a row that holds only `pad_id` has length 0.
    """
    real = np.flatnonzero(ids.values != pad_id)
    starts, ends = np.searchsorted(real, ids.begins), np.searchsorted(real, ids.begins + ids.lengths)
    some = ends > starts
    if not real.size:
        return ids.begins, np.zeros_like(ids.lengths)
    first = np.where(some, real[np.minimum(starts, real.size - 1)], ids.begins)
    last = np.where(some, real[np.maximum(ends - 1, 0)], first - 1)
    return first, last - first + 1


def _taken(values: NDArray[Any], begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the ranges ``values[begins[i]:begins[i] + lengths[i]]`` one after the other, in one array.

    The result is a view of `values` if each range begins where the one before it ends.
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    if total and np.array_equal(begins[1:], begins[0] + ends[:-1]):
        return values[begins[0] : begins[0] + total]
    # One index per token: its place in the output, shifted to where its range begins.
    taken: NDArray[Any] = values[np.arange(total) + np.repeat(begins - (ends - lengths), lengths)]
    return taken


def _sequence_columns(batch: pa.RecordBatch, selection: Selection) -> dict[str, pa.Array]:
    """Return the columns that are packed along and have one value per row, by name; texts become ``pa.string()``."""
    found = {}
    for column in selection.carried:
        if column.per == "sequence":
            values = batch.column(column.name)
            found[column.name] = values.cast(pa.string()) if column.type == "string" else values
    return found


def without_broken_text(batch: pa.RecordBatch, bad: dict[int, str]) -> pa.RecordBatch:
    """Return the batch with null in place of each value that is, or contains, a text that is not UTF-8.

    A value contains the texts in its lists, structs, maps and dictionaries. A row with such a value is bad: the reason
    is added to `bad`, by the row's index, unless `bad` has one for this row already.
    """
    for at, name in enumerate(batch.schema.names):
        column = batch.column(at)
        raw = as_bytes(column)
        if raw is column:
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            found = ((row, _broken_text(value, column.type, name)) for row, value in enumerate(raw))
            broken = {row: reason for row, reason in found if reason is not None}
            if not broken:  # such as text under a null
                continue
            parts = [
                column.slice(begin, end - begin) if reason is None else pa.nulls(1, column.type)
                for begin, end, reason in good_and_bad(len(column), broken)
            ]
            batch = batch.set_column(at, pa.field(name, column.type), pa.concat_arrays(parts))
            for row, reason in broken.items():
                bad.setdefault(row, reason)
    return batch


def _broken_text(value: Any, kind: pa.DataType, path: str) -> str | None:
    """Return a message that says which text in `value` is not UTF-8, and why; None: all texts are UTF-8.

    `value` is an Arrow scalar whose texts were turned into bytes (`as_bytes`), `kind` its type before that, and `path`
    its name in the message.
    """
    if not value.is_valid:
        return None
    if is_string(kind):
        try:
            value.as_py().decode()
        except UnicodeDecodeError as error:
            return f"{path!r} is {not_utf8(value.as_py(), error, 'value')}"
    if pa.types.is_dictionary(kind):
        return _broken_text(value.value, kind.value_type, path)
    if not pa.types.is_nested(kind):
        return None
    if pa.types.is_struct(kind):
        inside = (_broken_text(value[at], field.type, f"{path}.{field.name}") for at, field in enumerate(kind))
    else:  # a map, or a list of some kind
        entry = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
        inside = (_broken_text(one, entry, f"{path}[{at}]") for at, one in enumerate(value.values))
    return next(filter(None, inside), None)


def _find_bad_sequences(batch: pa.RecordBatch, selection: Selection, bad: dict[int, str]) -> None:
    """Find the rows that have a null in a column that is packed along and has one value per row; add them to `bad`.

    `bad` has the reason for each bad row, by the row's index. A row that is in `bad` already keeps its reason.
    """
    for column in selection.carried:
        if column.per == "sequence":
            for row, reason in _null_rows(batch.column(column.name), column.name).items():
                bad.setdefault(row, reason)


def _null_rows(array: pa.Array, name: str) -> dict[int, str]:
    if not array.null_count:
        return {}
    return {int(row): f"{name!r} is null" for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))}
