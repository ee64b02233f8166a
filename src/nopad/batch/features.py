"""Turn dicts into `Sequences`: each dict is one sequence, or one row of a packed dataset, as `datasets` gives it.

Integers become int64, and Python floats and bfloat16 become float32; other floats keep their dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch.arrays import converted, flat_array, is_list, joined, listed, readable, signed, wide
from nopad.batch.columns import LENGTHS, POSITIONS, RECORDS, Records, from_read, without_computed
from nopad.batch.filling import MASK
from nopad.batch.images import NAMES, Pictured, one_row, take_images
from nopad.batch.layout import checked
from nopad.errors import BatchError, LengthError
from nopad.options import shown
from nopad.sequences import Sequences, labelled

__all__ = ["from_features"]


def from_features(
    features: Sequence[Mapping[str, Any]], per_sequence: Sequence[str] | None = None
) -> tuple[Sequences, Records, tuple[Pictured, ...]]:
    """Turn dicts into columns; each dict is one sequence, or one row of a packed dataset.

    If each dict is a sequence, a list holds one value per token, and a single value belongs to the whole sequence; a
    column may also be one row ``[1, L]``. If each dict is a row of a packed dataset (it has ``seq_lengths``), a list
    holds one value per token, or one per sequence. Tokens whose ``attention_mask`` is 0 are padding and are removed.
    ``position_ids`` are dropped, since the layout computes them. A column ``label`` or ``label_ids`` is renamed to
    ``labels``, as transformers' collators do, unless there is a column ``labels`` already.

    `per_sequence` names the columns with one value per sequence, for rows in which every sequence has one token; None:
    they are not known.

    Returns:
        The sequences; arrays by name that say where each sequence of a packed dataset comes from (none if each dict is
        a sequence); and a tuple with the images, then the videos, each only if a sequence has some.

    Raises:
        LengthError: a sequence has no token, or its mask is all 0.
        BatchError: one of these:

            * `features` are not dicts, or there are none
            * values are masked or null, or a value is a nested tensor
            * dicts have different keys, or no ``input_ids``; or both ``label`` and ``label_ids``, but no ``labels``
            * a mask has a 0 between ones, or a value other than 0 and 1
            * a list is not as long as its ``input_ids``, the ``seq_lengths`` of a row do not add up to its tokens, or a
              column has values that cannot be used
            * every sequence of the rows has one token, and `per_sequence` is None, so a column of numbers may have one
              value per token or per sequence
            * ``position_ids`` do not count from 0 in each sequence; or a column is called ``cu_seqlens`` or
              ``sequence_ids``, which the batch computes
            * images are in tiles, with a mask, or in a row of a packed dataset; or images or videos have wrong shapes,
              do not fit their grid, or cannot be concatenated
    """
    features = listed(features, "features")
    if not len(features):
        raise BatchError("a batch needs at least one sequence, and there is none")
    for n, feature in enumerate(features):
        if not isinstance(feature, Mapping):
            raise BatchError(f"feature {n} is of type {type(feature).__name__}; expected a dict of columns")
    # Images and videos are read by `take_images`, as they may stay tensors
    features = [
        {name: one if name in NAMES else readable(one, f"{name} of feature {n}") for name, one in feature.items()}
        for n, feature in enumerate(features)
    ]
    features, images = take_images([one_row(feature) for feature in features])
    names = list(features[0])
    if "input_ids" not in names:
        raise BatchError(f"a feature needs input_ids; this one has {', '.join(names) or 'nothing'}")
    for n, feature in enumerate(features):
        if feature.keys() != features[0].keys():
            odd = ", ".join(sorted(feature.keys() ^ features[0].keys()))
            raise BatchError(f"features 0 and {n} do not have the same keys: {odd}")
    packed = LENGTHS in names
    stacked, records = _packed_features(features, per_sequence) if packed else (_plain_features(features, names), {})
    return labelled(without_computed(stacked)), records, images


def _plain_features(features: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Sequences:
    """Turn one dict per sequence into `Sequences` with the columns `names`.

    Tokens whose ``attention_mask`` is 0 are removed. The column ``attention_mask`` itself is removed too.

    Raises:
        LengthError: a sequence has no token, or its mask is all 0.
        BatchError: a mask is not a list, has a 0 between ones, or has a value other than 0 and 1; a list is not as long
            as its sequence or mask; or a column has values that cannot be used.
    """
    kept = [name for name in names if name != MASK]
    given = {name: [feature[name] for feature in features] for name in kept}
    if MASK in names:
        for n, feature in enumerate(features):
            if not is_list(feature[MASK]):
                raise BatchError(f"the {MASK} of feature {n} is {shown(feature[MASK])}; expected a list of 0 and 1")
        spans = [_span(feature[MASK], n) for n, feature in enumerate(features)]
        for name, entries in given.items():
            if is_list(entries[0]):
                _check_widths(name, entries, features)
                given[name] = [
                    entry if end - begin == len(entry) else flat_array(entry, name, n)[begin:end]
                    for n, (entry, (begin, end)) in enumerate(zip(entries, spans, strict=True))
                ]
    return from_read(given.pop("input_ids"), given)


def _check_widths(name: str, entries: Sequence[Any], features: Sequence[Mapping[str, Any]]) -> None:
    for n, (entry, feature) in enumerate(zip(entries, features, strict=True)):
        if not is_list(entry):
            raise BatchError(
                f"{name!r} is a list in feature 0 and {shown(entry)} in feature {n}; give lists, or values, to all"
            )
        if len(entry) != len(feature[MASK]):
            raise BatchError(f"{name!r} has {len(entry)} values for the {len(feature[MASK])} of {MASK} in feature {n}")


def _packed_features(features: Sequence[Mapping[str, Any]], known: Sequence[str] | None) -> tuple[Sequences, Records]:
    """Split rows of a packed dataset into sequences, without padding.

    `features` has one dict per row, as `datasets` gives it, with ``seq_lengths``. The results are the sequences, and a
    dict of the arrays that say where each sequence comes from, such as ``seq_index``. `known` is the argument
    `per_sequence` of `from_features`.

    Raises:
        LengthError: a sequence has no token, or a row's mask is all 0.
        BatchError: there is no sequence; the lengths or the mask of a row do not fit its tokens; or a column has
            neither one number per token nor one value per sequence, or has both, and it is not known which.
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
        column = joined([row[name] for row in rows])
        if per_token and per_sequence:  # every sequence has one token
            per_token = name in ("input_ids", POSITIONS) or not (
                name in RECORDS or column.dtype.kind == "O" or _is_known(name, known)
            )
        if not per_token and per_sequence:
            values[name] = wide(column, name)
        elif per_token and column.dtype.kind != "O":
            tokens[name] = wide(column, name)
        elif per_token:
            raise BatchError(f"column {name!r} is of {column.dtype} per token; expected numbers: leave it out")
        else:
            raise BatchError(f"column {name!r} has neither one value per token nor one per sequence")
    records = {name: values.pop(name) for name in RECORDS if name in values}
    return Sequences(seq_lengths=lens, tokens=tokens, values=values), records


def _is_known(name: str, known: Sequence[str] | None) -> bool:
    """Return whether the column `name` has one value per sequence, that is, whether `known` has this name.

    The values of the column do not tell: they are numbers, and every sequence has one token. `known` has the names of
    all columns with one value per sequence.

    Raises:
        BatchError: `known` is None.
    """
    if known is None:
        raise BatchError(
            f"column {name!r} may have one value per token or per sequence, since every sequence has one token; make "
            "the batch with the collator() of the dataset, which knows, or leave the column out"
        )
    return name in known


def _of_row(value: Any, name: str, n: int) -> NDArray[Any]:
    """Return `value`, the column `name` of row `n`, as a one-dimensional array of numbers or objects, such as strings.

    Raises:
        BatchError: the column does not make a one-dimensional array, or holds values such as bytes or dates; ids
            or lengths are not integers; or a number does not fit into int64 or float32.
    """
    found = converted(value, name, n)
    if found.ndim != 1 or (found.dtype.kind not in "biufUO" and found.size):
        raise BatchError(f"column {name!r} of row {n} is {_told(found)}; expected a list")
    if name in (LENGTHS, "input_ids") and found.size and found.dtype.kind not in "iu":
        raise BatchError(f"{name} of row {n} are {_told(found)}; expected integers")
    found = signed(found, name, n) if found.dtype == np.uint64 else found
    return found.astype(object) if found.dtype.kind == "U" else found


def _told(found: NDArray[Any]) -> str:
    return f"of {found.dtype} in {found.ndim} dimensions"


def _row(row: dict[str, NDArray[Any]], n: int) -> dict[str, NDArray[Any]]:
    """Return the columns of a row without the slots where its ``attention_mask`` is 0.

    `row` has the columns by name. Columns without one value per slot are returned unchanged. `n` is the index of the
    row, for error messages.

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


def _span(mask: Any, n: int) -> tuple[int, int]:
    """Return ``(begin, end)``: where the ones in the mask of feature `n` begin, and where they end (exclusive).

    Raises:
        LengthError: the mask has no 1.
        BatchError: the mask has a 0 between ones, or a value other than 0 and 1.
    """
    if type(mask) is list and mask and {*map(type, mask)} == {int} and mask.count(1) == len(mask):  # the usual case
        return 0, len(mask)
    found = flat_array(mask, MASK, n)
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
