"""`to_dataset`: make a packed `datasets.Dataset` from packs and a `datasets.Dataset`, in memory. O(tokens)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nopad.arrow import list_array, list_parts
from nopad.corpus.objects import as_arrow
from nopad.corpus.selection import MASK, OWN
from nopad.errors import LengthError, MissingExtraError, OptionError, PlanMismatchError
from nopad.packs import Packs, lengths_sha256

__all__ = ["to_dataset"]


def to_dataset(packs: Packs, dataset: Any) -> Any:
    """Return a `datasets.Dataset` with one row per pack, in memory.

    Sequence i of `packs` is row i of `dataset`, and its tokens are that row's ``input_ids``. In each row of the result,
    a column with one value per token is a flat list of the pack's tokens, and any other column is a list with one value
    per sequence. The first two columns are ``seq_lengths`` and ``seq_index`` (the row number of each sequence).

    Raises:
        PlanMismatchError: the number or the lengths of the rows differ from those that the packs were made for, for
            example because rows were reordered, padding was removed, or records were truncated or split.
        LengthError: a pack would exceed the capacity, or a row has no token.
        OptionError: an argument has the wrong type; there is no column ``input_ids`` of lists of integers; a column
            has a name that nopad uses itself, or nulls among its tokens; or ``attention_mask`` marks padding.
        SourceError: the dataset has a transform.
        MissingExtraError: `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("to_dataset needs: pip install datasets") from error
    if not isinstance(packs, Packs):
        raise OptionError(f"to_dataset takes nopad.Packs, not {type(packs).__name__}; make them with nopad.pack")
    if not isinstance(dataset, datasets.Dataset):
        raise OptionError(f"to_dataset takes a datasets.Dataset, not {type(dataset).__name__}")
    shown = as_arrow(dataset)
    _check_columns(shown.features.arrow_schema, shown.format["columns"])
    if len(dataset) != packs.sequences:
        raise PlanMismatchError(f"the packs hold {packs.sequences:,} sequences, the dataset has {len(dataset):,} rows")
    return datasets.Dataset(_gathered(packs, shown[:]))


def _check_columns(schema: pa.Schema, names: list[str]) -> None:
    """Refuse a dataset without lists of ids, or with a column that has the name of one that nopad writes."""
    if "input_ids" not in names:
        raise OptionError(f"the dataset has no column 'input_ids'; it has {', '.join(names)}")
    kind = schema.field("input_ids").type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
        raise OptionError(f"the column 'input_ids' is {kind}, not lists of integers; convert it")
    own = [name for name in names if name in OWN]
    if own:
        raise OptionError(f"the dataset has a column {own[0]!r}, and nopad writes one of that name; rename it")


def _check_rows(packs: Packs, ids: pa.Array, lengths: NDArray[np.int64]) -> None:
    """Check, as far as the packs can tell, that they were made for these rows."""
    if ids.null_count or ids.flatten().null_count:
        raise OptionError("the column 'input_ids' holds nulls; leave those rows out, and plan the others")
    if not lengths.all():
        raise LengthError(f"row {int(np.argmin(lengths))} has no token; leave it out, and plan the others")
    if disorder := packs.disorder(lengths.size):
        raise PlanMismatchError(disorder)
    tokens = np.add.reduceat(lengths[packs.sequence], packs.indptr[:-1]) if len(packs) else lengths
    over = np.flatnonzero(tokens > packs.capacity)
    if over.size:
        raise LengthError(
            f"pack {over[0]} would hold {tokens[over[0]]} tokens, above the capacity of {packs.capacity}: "
            f"these are not the packs of this dataset{_why(packs)}"
        )
    if packs.lengths_sha256 not in (None, lengths_sha256(lengths.astype(np.int32))):
        raise PlanMismatchError(
            f"these packs were made for rows of other lengths, or in another order{_why(packs)}; "
            "pack the lengths of this dataset instead"
        )


def _why(packs: Packs) -> str:
    return f" ({packs.selection} when they were made)" if packs.selection else ""


def _check_mask(table: pa.Table) -> None:
    """Refuse rows whose mask marks padding, since it would be packed as content."""
    if MASK not in table.column_names:
        return
    mask = table.column(MASK).combine_chunks()
    if not (pa.types.is_list(mask.type) or pa.types.is_large_list(mask.type)):
        return
    offsets, values = list_parts(mask)
    zeros = np.flatnonzero(values == 0)
    if zeros.size:
        row = int(np.searchsorted(offsets, zeros[0], side="right")) - 1
        raise OptionError(
            f"row {row} is padded: its {MASK} has a 0 at {int(zeros[0] - offsets[row])}, and padding would be content "
            f"of a pack; cut it off, or leave the column {MASK} out"
        )


def _gathered(packs: Packs, table: pa.Table) -> pa.Table:
    """Return a table with one row per pack; columns of one value per token become flat lists."""
    ids = table.column("input_ids").combine_chunks()
    _check_rows(packs, ids, np.diff(list_parts(ids)[0]).astype(np.int64))
    _check_mask(table)
    table = table.take(pa.array(packs.sequence))
    arrays = {name: table.column(name).combine_chunks() for name in table.column_names}
    lists = [
        name for name, array in arrays.items() if pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    ]
    parts = {name: list_parts(arrays[name]) for name in lists if not arrays[name].null_count}
    lengths = np.diff(parts["input_ids"][0]).astype(np.int32)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[packs.indptr]
    kind = pa.LargeListArray if packs.indptr.dtype == np.int64 else pa.ListArray
    out = {"seq_lengths": list_array(packs.indptr, lengths), "seq_index": list_array(packs.indptr, packs.sequence)}
    for name, array in arrays.items():
        if name in parts and np.array_equal(np.diff(parts[name][0]), lengths):
            if array.flatten().null_count:
                raise OptionError(
                    f"the column {name!r} has one value per token, and some are null; fill them, or drop it"
                )
            flat = parts[name][1]
            out[name] = (
                list_array(ends, flat) if flat.dtype != object else pa.LargeListArray.from_arrays(ends, array.flatten())
            )
        else:
            out[name] = kind.from_arrays(pa.array(packs.indptr), array)
    return pa.table(out)
