"""Convert the lists, arrays, tensors and single values that users pass into NumPy arrays.

In the columns of a batch, integers are int64. Floats in tensors and arrays keep their dtype, but bfloat16 becomes
float32, since NumPy does not have it. Python floats become float32, as in transformers' collators. Strings are in
object arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence, Set
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import BatchError

__all__ = [
    "UNREADABLE",
    "common",
    "concatenated",
    "converted",
    "flat_array",
    "is_list",
    "joined",
    "listed",
    "narrow",
    "readable",
    "signed",
    "single_values",
    "wide",
]

INTEGERS = ("seq_lengths", "input_ids")  # columns whose floats stay as they are here, since callers refuse them


_PLAIN = {bool, int, float, str, bytes, type(None), *np.sctypeDict.values()}  # values in which nothing is hidden
UNREADABLE = (TypeError, ValueError, OverflowError, RuntimeError)  # what libraries raise of values they cannot read
_ARROW_FLOATS = {"halffloat": np.float16, "float": np.float32, "double": np.float64}  # by Arrow's names


def is_list(entry: Any) -> bool:
    """Return whether `entry` has a length: a list, or an array with at least one dimension.

    Texts, bytes and nested tensors do not count.
    """
    if getattr(entry, "is_nested", False) or _is_text(entry):
        return False
    return hasattr(entry, "__len__") and getattr(entry, "ndim", 1) > 0


def _is_text(entry: Any) -> bool:
    """Return whether `entry` is a text or bytes of any kind, and so one value.

    NumPy would read some kinds of bytes, such as a bytearray, as lists of numbers.
    """
    if isinstance(entry, str | bytes) or hasattr(entry, "as_buffer"):  # the latter are scalars of Arrow
        return True
    if isinstance(entry, list | tuple) or hasattr(entry, "dtype") or hasattr(entry, "typecode"):
        return False
    try:
        return memoryview(entry).itemsize == 1  # a bytearray, a memoryview or mmap of bytes, a Buffer of Arrow
    except (TypeError, ValueError, BufferError):
        return False


def readable(entry: Any, what: str) -> Any:
    """Return `entry` in a form that NumPy reads correctly; the error message calls it `what`.

    Only this function knows all kinds of objects that users pass. Columns of pandas and polars become arrays or lists,
    without an index. Arrow's lists become arrays or lists, its floats become NumPy floats of the same width, and its
    other scalars become Python objects. Bytes of any kind become `bytes`. Sequences such as a deque become lists. Other
    objects are returned unchanged. The entries of lists are changed in the same way.

    Raises:
        BatchError: `entry` has values that are masked or null; it is a nested tensor, which has several sequences; or
            it cannot be read, such as a list that holds itself.
    """
    try:
        return _readable(entry, what)
    except BatchError:
        raise
    except UNREADABLE as error:
        raise BatchError(f"{what} is no list of numbers or single value ({error})") from error


def _readable(entry: Any, what: str) -> Any:
    if type(entry) is list or type(entry) is tuple:
        return entry if _PLAIN.issuperset(map(type, entry)) else [_readable(one, what) for one in entry]
    if type(entry) in _PLAIN or type(entry) is np.ndarray:
        return entry
    if getattr(entry, "is_nested", False):
        raise BatchError(f"{what} is a nested tensor, of several sequences; give an entry for each: nested.unbind()")
    if hasattr(entry, "detach"):  # a tensor
        return entry
    entry = _unlabelled(entry)
    nulls: Any = getattr(entry, "null_count", 0)
    if np.ma.is_masked(entry) or nulls:
        raise BatchError(
            f"{what} has values that are masked or null; leave them out (array.compressed(), drop_null()), or put "
            "values there (array.filled(0), fill_null(0))"
        )
    if hasattr(entry, "as_py"):
        return _from_arrow(entry, what)
    if hasattr(getattr(entry, "type", None), "value_type"):  # lists of Arrow
        return [_readable(one, what) for one in entry]
    if _is_text(entry):
        return entry if isinstance(entry, str | bytes) else bytes(entry)
    buffer = hasattr(entry, "typecode") or isinstance(entry, memoryview)  # NumPy reads these faster than lists
    return _readable(list(entry), what) if isinstance(entry, Sequence) and not buffer else entry


def _unlabelled(given: Any) -> Any:
    """Return a column of pandas or polars as an array or list; any other object unchanged.

    An index of pandas may be anything, so ``given[0]`` is not always the first entry.
    """
    if getattr(given, "ndim", 1) == 1 and hasattr(given, "iloc"):  # of pandas
        objects = hasattr(given.dtype, "freq") or hasattr(
            given.dtype, "subtype"
        )  # periods or intervals: Arrow has none
        if hasattr(given.array, "__arrow_array__") and not objects:  # it may have values that are missing
            return given.array.__arrow_array__()
        return given.to_numpy() if given.dtype.kind in "biuf" else list(given)
    return given.to_arrow() if hasattr(given, "to_arrow") else given


def _from_arrow(scalar: Any, what: str) -> Any:
    """Return an Arrow scalar as `readable` describes it; None if it is null."""
    if _is_arrow_list(scalar):
        return _readable(scalar.values, what)
    inner = getattr(scalar, "value", None)  # of a dictionary, or an extension type, which may have its own `as_py`
    if _is_arrow_list(inner) or str(getattr(inner, "type", None)) in _ARROW_FLOATS:
        return _from_arrow(inner, what)
    kind = _ARROW_FLOATS.get(str(scalar.type))
    found = scalar.as_py()
    return found if kind is None or found is None else kind(found)


def _is_arrow_list(scalar: Any) -> bool:
    """Return whether `scalar` is a list of Arrow that is not null.

    A struct of Arrow has `values` too, but they are a method.
    """
    return hasattr(getattr(scalar, "values", None), "type")


def listed(given: Any, name: str, each: str = "sequence") -> Sequence[Any]:
    """Return `given`, or a list of its entries if it cannot be indexed, or is a nested tensor.

    Columns of pandas and polars become arrays or lists, in which entries are found by their place.

    The error message uses `name`, the name of the argument, and `each`, the word for what an entry belongs to, such as
    "sequence".

    Raises:
        BatchError: `given` is no list, array or other ordered iterable (texts, dicts, sets and tables are refused); or
            it cannot be read.
    """
    unordered = isinstance(given, Mapping | Set) or _is_text(given) or hasattr(given, "columns")  # the last are tables
    if unordered or not hasattr(given, "__iter__") or isinstance(given, type) or getattr(given, "ndim", 1) == 0:
        raise BatchError(f"{name} are of type {type(given).__name__}; expected a list with an entry for each {each}")
    if getattr(given, "is_nested", False):  # it has no length
        return list(given.unbind())
    try:
        given = _unlabelled(given)
    except UNREADABLE as error:
        kind = type(given).__name__
        raise BatchError(f"{name} are of type {kind}, and cannot be read ({error}); give a list") from error
    return given if hasattr(given, "__getitem__") else list(given)


def converted(entry: Any, name: str, n: int) -> NDArray[Any]:
    """Return a list, array or tensor of numbers as a NumPy array of the same shape.

    Python floats become float32, except in ``input_ids`` and ``seq_lengths``: callers refuse floats there, so they stay
    float64. Arrays and tensors keep their dtype, but bfloat16 becomes float32. Error messages name the column `name`
    and the index `n` of the sequence.

    Raises:
        BatchError: NumPy cannot make an array of `entry`, some of its values are masked or null, or a Python float is
            beyond float32.
    """
    entry = readable(entry, f"{name} of sequence {n}")
    try:
        kind = _float_of(entry)
        if kind is not None and str(getattr(entry, "dtype", kind)) == "torch.bfloat16":
            entry = entry.float()
        found = np.asarray(entry.cpu() if hasattr(entry, "cpu") else entry)
    except UNREADABLE as error:  # NotImplementedError of meta tensors too
        raise BatchError(f"{name} of sequence {n} is no list of numbers ({error})") from error
    from_python = found.dtype == np.float64 and kind == np.float32
    return narrow(found, name) if from_python and name not in INTEGERS else found


def flat_array(entry: Any, name: str, n: int) -> NDArray[Any]:
    """Return the per-token values of one sequence as a one-dimensional array.

    `entry` is a list, array or tensor of numbers. Error messages name the column `name` and the index `n` of the
    sequence. Python floats (except in ``input_ids`` and ``seq_lengths``) and bfloat16 become float32, and uint64
    becomes int64; other dtypes are kept.

    Raises:
        BatchError: `entry` does not hold numbers in one dimension, some are masked or null, or a number does not fit
            into int64 or float32.
    """
    found = entry if type(entry) is np.ndarray else converted(entry, name, n)
    if found.ndim != 1:
        other = "" if found.ndim else f", got {type(entry).__name__}"
        raise BatchError(
            f"{name} of sequence {n} has {found.ndim} dimensions; expected one, with a value per token{other}"
        )
    if found.dtype.kind not in "biuf" and found.size:
        raise BatchError(f"{name} of sequence {n} is of {found.dtype}; expected numbers: leave this column out")
    return signed(found, name, n) if found.dtype == np.uint64 else found


def concatenated(given: Sequence[Any], name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Concatenate n lists of numbers; return one flat array, and the length of each list, int64 ``[n]``.

    Error messages call the lists `name`.

    Raises:
        BatchError: there is no list; a list does not hold numbers in one dimension, or some are masked or null; or a
            number does not fit into int64 or float32.
    """
    if not len(given):
        raise BatchError("a batch needs at least one sequence, and there is none")
    # only lists: the numbers of bytes, and of the keys of a dict, would be taken as values
    if all(type(entry) is list for entry in given) and given[0] and type(given[0][0]) is int:
        try:  # four times as fast as one array per list
            ids = array("q", chain.from_iterable(given))
            return np.frombuffer(ids, dtype=np.int64).copy(), np.fromiter(map(len, given), np.int64, len(given))
        except (TypeError, OverflowError, RuntimeError):
            pass  # the slow way finds the list at fault
    arrays = [flat_array(entry, name, n) for n, entry in enumerate(given)]
    return joined(arrays), np.fromiter(map(len, arrays), np.int64, len(arrays))


def single_values(given: Sequence[Any], name: str) -> NDArray[Any]:
    """Return n single values, one per sequence, as an array ``[n]``; error messages call the column `name`.

    Integers become int64, and Python floats and bfloat16 become float32; other floats keep their dtype. If dtypes of
    floats differ, the result has the widest. If any value is a string, bytes or a time in nanoseconds, the result has
    dtype object and holds the values as they are. Callers check that no value is a list.

    Raises:
        BatchError: a value is None, masked or null, or a tensor of several values; a number does not fit into int64 or
            float32; or, without strings, bytes and times in nanoseconds, the first value is a number and another one is
            not, such as a date.
    """
    given = [readable(entry, f"{name} of sequence {n}") for n, entry in enumerate(given)]
    try:
        entries = [_single(entry) for entry in given]
    except UNREADABLE as error:
        raise BatchError(f"column {name!r} has an entry that is no single value ({error})") from error
    for n, entry in enumerate(entries):
        if entry is None:
            raise BatchError(f"column {name!r} has no value (None) for sequence {n}; give one to each, or leave it out")
    if any(isinstance(entry, str | bytes | np.datetime64 | np.timedelta64) for entry in entries):
        return np.array(entries, dtype=object)
    found = np.asarray(entries)
    whole = isinstance(entries[0], int) and not any(isinstance(entry, float) for entry in entries)
    if isinstance(entries[0], int | float) and (found.dtype == object or (whole and found.dtype.kind == "f")):
        raise BatchError(f"column {name!r} mixes numbers with other things, or has some beyond 64 bits")
    if found.dtype.kind == "f":
        kinds = {_float_of(entry) for entry, one in zip(given, entries, strict=True) if isinstance(one, float)}
        kind = np.result_type(*(one for one in kinds if one is not None)) if kinds - {None} else found.dtype
        return found.astype(kind) if kind != np.float32 else narrow(found, name)
    return signed(found, name, int(found.argmax())) if found.dtype == np.uint64 else wide(found, name)


def _single(entry: Any) -> Any:
    """Return a scalar of NumPy or PyTorch as a Python object, and any other object unchanged.

    Times in nanoseconds remain NumPy's: Python has no object for them, and NumPy would give an integer.
    """
    found = entry.item() if hasattr(entry, "item") else entry
    return entry if isinstance(entry, np.datetime64 | np.timedelta64) and isinstance(found, int) else found


def _float_of(entry: Any) -> np.dtype[Any] | None:
    """Return the dtype that `entry` gets if stored as floats; None if it holds neither floats nor Python numbers.

    `entry` is a number, or a list, array or tensor of numbers; the first value of a list decides. The result is float32
    for Python numbers, integers included. The dtypes float16, float32 and float64 are returned as they are; for any
    other float dtype, such as bfloat16, the result is float32. It is None for other dtypes, such as int64, and for
    objects that are not numbers.
    """
    while isinstance(entry, list | tuple) and entry:
        entry = entry[0]
    if not hasattr(entry, "dtype"):
        return np.dtype(np.float32) if isinstance(entry, int | float) else None
    name = str(entry.dtype).removeprefix("torch.")
    if not name.startswith(("float", "bfloat")):
        return None
    return np.dtype(name if name in ("float16", "float32", "float64") else "float32")


def narrow(column: NDArray[Any], name: str) -> NDArray[Any]:
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


def wide(column: NDArray[Any], name: str) -> NDArray[Any]:
    """Return `column` with integers as int64, as embeddings and losses require; other dtypes are returned unchanged.

    Raises:
        BatchError: an integer does not fit into int64.
    """
    if column.dtype == np.uint64 and column.size and int(column.max()) > np.iinfo(np.int64).max:
        raise BatchError(f"column {name!r} holds {column.max()}, which is beyond 64-bit integers")
    return column.astype(np.int64, copy=False) if column.dtype.kind in "iu" else column


def signed(array: NDArray[Any], name: str, n: int) -> NDArray[np.int64]:
    """Return an array of unsigned integers as int64.

    The error message names the column `name` and the index `n` of the sequence.

    Raises:
        BatchError: a value does not fit into int64.
    """
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise BatchError(f"{name} of sequence {n} holds {array.max()}, which is beyond 64-bit integers")
    return array.astype(np.int64)


def common(arrays: Sequence[NDArray[Any]]) -> np.dtype[Any] | None:
    """Return the dtype for joining arrays: the widest float dtype among them, or None, which lets NumPy choose.

    The result is None if no array holds floats, or if one holds something other than numbers. Empty float arrays do not
    count. NumPy alone would join float32 and int64 to float64; this dtype depends on the float arrays only.
    """
    floats = {array.dtype for array in arrays if array.dtype.kind == "f" and array.size}
    return np.result_type(*floats) if floats and all(array.dtype.kind in "biuf" for array in arrays) else None


def joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the arrays concatenated along the first dimension.

    If all hold numbers and some hold floats, the dtype is the widest float dtype; otherwise NumPy chooses it.
    """
    return np.concatenate(arrays, dtype=common(arrays))
