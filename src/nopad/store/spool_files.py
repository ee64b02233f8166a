"""The files of a spool (`nopad.store.spool`): one per column of fixed-width values, and two per column of strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nopad.corpus import Carried
from nopad.sequences import Sequences
from nopad.store.index import hashes

__all__ = ["SpoolFile", "spool_files", "text_array"]


@dataclass(frozen=True, kw_only=True)
class SpoolFile:
    """One file of a spool.

    Attributes:
        dtype: NumPy dtype of the file's values.
        per: what the file holds: "token": one value per token; "sequence": one value per sequence; "end": a leading 0,
            then the offset in bytes at which each string ends; "text": the UTF-8 bytes of all strings.
        values: function that returns the file's values for a batch; for "end", without the leading 0, and counted from
            the beginning of the batch's text.
    """

    dtype: Any
    per: Literal["token", "sequence", "end", "text"]
    values: Callable[[Sequences], Any]


def spool_files(keep_tokens: bool, carried: Sequence[Carried]) -> dict[str, SpoolFile]:
    """Return a description of each file of a spool, by the file's name.

    `carried` are the columns that are packed along with the tokens. Their files are named by number, since a column may
    have any name. If `keep_tokens` is False, a file with a hash of each sequence replaces the files of tokens and
    carried columns.
    """
    files = {
        "lengths": SpoolFile(dtype=np.int32, per="sequence", values=lambda batch: batch.seq_lengths),
        "record": SpoolFile(dtype=np.int64, per="sequence", values=lambda batch: batch.values["seq_index"]),
        "start": SpoolFile(dtype=np.int64, per="sequence", values=lambda batch: batch.values["seq_start"]),
    }
    if not keep_tokens:
        return {**files, "hash": SpoolFile(dtype=np.uint32, per="sequence", values=_hashes)}
    ids = SpoolFile(dtype=np.int32, per="token", values=partial(_of_tokens, "input_ids"))
    files = {"tokens": ids, **files}
    for at, column in enumerate(carried):
        name = f"column-{at}"
        if column.type == "string":
            files[f"{name}-ends"] = SpoolFile(dtype=np.int64, per="end", values=partial(_ends, column.name))
            files[name] = SpoolFile(dtype=np.uint8, per="text", values=partial(_text, column.name))
            continue
        of = _of_tokens if column.per == "token" else _of_sequences
        dtype = pa.type_for_alias(column.type).to_pandas_dtype()
        files[name] = SpoolFile(dtype=dtype, per=column.per, values=partial(of, column.name))
    return files


def text_array(ends: NDArray[np.int64], text: NDArray[np.uint8]) -> pa.LargeStringArray:
    """Return the strings of a column as an Arrow array, which is a view of `ends` and `text`.

    `text` has the UTF-8 bytes of all strings. `ends` has a 0, then the offset in `text` at which each string ends. The
    spool's files hold the two arrays in this form.
    """
    return pa.LargeStringArray.from_buffers(ends.size - 1, pa.py_buffer(ends), pa.py_buffer(text))


def _hashes(batch: Sequences) -> NDArray[np.uint32]:
    return hashes(batch.tokens["input_ids"], batch.seq_lengths)


def _of_tokens(name: str, batch: Sequences) -> NDArray[Any]:
    return batch.tokens[name]


def _of_sequences(name: str, batch: Sequences) -> NDArray[Any]:
    values: NDArray[Any] = batch.values[name].to_numpy(zero_copy_only=False)
    return values


def _offsets(name: str, batch: Sequences) -> tuple[NDArray[np.int64], Any]:
    array = batch.values[name].cast(pa.large_string())
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    return offsets, array.buffers()[2]


def _ends(name: str, batch: Sequences) -> NDArray[np.int64]:
    offsets, _ = _offsets(name, batch)
    ends: NDArray[np.int64] = offsets[1:] - offsets[0]
    return ends


def _text(name: str, batch: Sequences) -> NDArray[np.uint8]:
    offsets, data = _offsets(name, batch)
    if data is None or not offsets.size:
        return np.empty(0, dtype=np.uint8)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
