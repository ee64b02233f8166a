"""Convert the lists, arrays, tensors and single values that users pass into NumPy arrays.

In the columns of a batch, integers are int64. Floats in tensors and arrays keep their dtype, but bfloat16 becomes
float32, since NumPy does not have it. Python floats become float32, as in transformers' collators. Strings are in
object arrays.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Mapping, MappingView, Sequence, Set
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import BatchError

__all__ = [
    "common",
    "concatenated",
    "converted",
    "flat_array",
    "ids_array",
    "is_list",
    "joined",
    "listed",
    "narrow",
    "read",
    "readable",
    "signed",
    "single_values",
    "wide",
]

INTEGERS = ("seq_lengths", "input_ids")  # columns whose floats stay as they are here, since callers refuse them


# Types of values in which nothing is hidden, such as a null, and which torch has
_PLAIN = {bool, int, float, str, bytes, np.str_, np.bytes_, *(np.dtype(code).type for code in "?bBhHiIlLqQefd")}
_HELD = frozenset(map(np.dtype, "?bBhHiIlLqQefd"))  # in this machine's order of bytes, and torch has them
_ARROW_FLOATS = {"halffloat": np.float16, "float": np.float32, "double": np.float64}  # by Arrow's names
_ARROW_NUMBERS = {*_ARROW_FLOATS, "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
_ARRAYS = ("__array__", "__array_interface__", "__array_struct__")  # each makes an array of an object
_NULL = "has values that are masked or null; leave them out (array.compressed(), drop_null()), or put values there "
_NULL += "(array.filled(0), fill_null(0))"


def is_list(entry: Any) -> bool:
    """Return whether `entry`, a result of `readable`, is a list, or an array with at least one dimension."""
    return isinstance(entry, list | tuple) or (isinstance(entry, np.ndarray) and entry.ndim > 0)


def _is_text(entry: Any) -> bool:
    """Return whether `entry` is a text or bytes of any kind, and so one value.

    NumPy would read some kinds of bytes, such as a bytearray, as lists of numbers.
    """
    if isinstance(entry, str | bytes) or hasattr(entry, "as_buffer"):  # the latter are scalars of Arrow
        return True
    if isinstance(entry, list | tuple) or hasattr(entry, "dtype") or hasattr(entry, "typecode"):
        return False
    return _item_size(entry) == 1  # a bytearray, a memoryview or mmap of bytes, a Buffer of Arrow


def _item_size(entry: Any) -> int:
    """Return how many bytes an item of a buffer has; 0 if `entry` is no buffer that can be read."""
    try:
        return memoryview(entry).itemsize
    except (TypeError, ValueError, BufferError):
        return 0


def readable(entry: Any, what: str) -> Any:
    """Return an object as plain data: the only place that knows the kinds of objects users give.

    The result is one of these:

    * an array of NumPy's own class, not of objects: for arrays, tensors, buffers and columns of numbers
    * a list or tuple, whose entries are results of `readable` and not None: for lists and other sequences
    * None: for null, NaT, and pandas' NA
    * a single value: any other object, unchanged; but scalars of Arrow become Python objects, their floats NumPy's of
      the same width, and bytes of any kind `bytes`

    Indices of pandas are ignored: entries are found by their place. Floats of tensors that NumPy lacks, such as
    bfloat16, become float32. The error message calls the object `what`.

    Raises:
        BatchError: the object has values that are masked or null; it is a nested tensor, which has several sequences; a
            dict, a set or a table; it holds floats that torch lacks; or it cannot be read, whatever its own code
            raises.
    """
    try:
        return _readable(entry, what)
    except (BatchError, MemoryError):
        raise
    except Exception as error:  # the object's own code may raise anything
        raise BatchError(f"{what} is no list of numbers or single value ({error})") from error


def _readable(entry: Any, what: str) -> Any:
    if type(entry) is np.ndarray and entry.dtype in _HELD:  # the usual case; masked arrays have another class
        return entry
    if type(entry) is list or type(entry) is tuple:
        if _PLAIN.issuperset(map(type, entry)):
            return entry
        found = [_readable(one, what) for one in entry]
        if any(one is None for one in found):
            raise BatchError(f"{what} {_NULL}")
        return found
    if type(entry) in _PLAIN or isinstance(entry, type):
        return entry
    if np.ma.is_masked(entry):
        raise BatchError(f"{what} {_NULL}")
    if isinstance(entry, np.ndarray):
        return _own(np.asarray(entry), what)
    if isinstance(entry, np.generic):
        return _scalar(entry, what)
    if entry is None or type(entry).__name__ in ("NAType", "NaTType"):  # the latter are of pandas
        return None
    if hasattr(entry, "detach"):
        return _of_tensor(entry, what)
    if isinstance(entry, Mapping | Set | MappingView) or hasattr(entry, "columns"):  # the last are tables
        raise BatchError(f"{what} is of type {type(entry).__name__}; expected a list of numbers or a single value")
    return _of_other(entry, what)


def _of_other(entry: Any, what: str) -> Any:
    """Return an object that is neither of Python nor of NumPy nor a tensor, as `readable` describes it."""
    column = _unlabelled(entry)
    if column is not entry:
        return _readable(column, what)
    if hasattr(entry, "as_py"):
        return _from_arrow(entry, what)
    if hasattr(entry, "null_count"):  # an array of Arrow
        if entry.null_count:
            raise BatchError(f"{what} {_NULL}")
        return np.asarray(entry) if str(entry.type) in _ARROW_NUMBERS else _readable(list(entry), what)
    if _is_text(entry):
        return entry if isinstance(entry, str | bytes) else bytes(entry)
    if _item_size(entry) or any(hasattr(entry, name) for name in _ARRAYS):
        return _own(np.asarray(entry), what)
    if isinstance(entry, Sequence):
        return _readable(list(entry), what)
    if hasattr(entry, "__len__"):  # NumPy finds out whether it is a sequence
        return _own(np.asarray(entry), what)
    return operator.index(entry) if hasattr(entry, "__index__") else entry


def _own(found: NDArray[Any], what: str) -> Any:
    """Return an array as `readable` describes it: in this machine's order of bytes, and objects as a list.

    Raises:
        BatchError: it is an object that NumPy cannot read, a value in it is null, or torch lacks its dtype.
    """
    if found.dtype == object:
        if not found.ndim:
            raise BatchError(f"{what} is of type {type(found.item()).__name__}; expected a list of numbers")
        return _readable(found.tolist(), what)
    if found.dtype.kind == "f" and found.dtype.itemsize > 8:
        raise BatchError(f"{what} is of {found.dtype}, which torch does not have; give array.astype(np.float64)")
    return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))


def _scalar(entry: np.generic, what: str) -> np.generic | None:
    """Return a scalar of NumPy that may be NaT, for which the result is None.

    Raises:
        BatchError: it is a record, or torch lacks its dtype.
    """
    if isinstance(entry, np.datetime64 | np.timedelta64) and np.isnat(entry):
        return None
    if isinstance(entry, np.void):
        raise BatchError(f"{what} has a value of {entry.dtype}; expected numbers")
    _own(np.asarray(entry), what)
    return entry


def _of_tensor(tensor: Any, what: str) -> NDArray[Any]:
    """Return a tensor as an array; floats that NumPy lacks, such as bfloat16, become float32.

    Raises:
        BatchError: it is nested, or some of its values are masked.
    """
    if getattr(tensor, "is_nested", False):
        raise BatchError(f"{what} is a nested tensor, of several sequences; give an entry for each: nested.unbind()")
    if hasattr(tensor, "get_mask"):
        raise BatchError(f"{what} {_NULL}")
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith(("float", "bfloat")) and name not in ("float16", "float32", "float64"):
        tensor = tensor.float()
    return np.asarray(tensor.cpu())


def _unlabelled(given: Any) -> Any:
    """Return a column of pandas or polars as an array of NumPy or Arrow, or as a list; any other object unchanged.

    An index of pandas may be anything, so ``given[0]`` is not always the first entry. In lists, missing values are
    None.
    """
    if hasattr(given, "isna") and hasattr(given, "dtype"):  # a series, an index or an array of pandas
        column = getattr(given, "array", given)
        if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
            return column.to_numpy()
        objects = hasattr(column.dtype, "freq") or hasattr(column.dtype, "subtype")
        if hasattr(column, "__arrow_array__") and not objects:  # Arrow has no periods and intervals
            return column.__arrow_array__()
        return [None if gone else one for one, gone in zip(column, column.isna(), strict=True)]
    return given.to_arrow() if hasattr(given, "to_arrow") and hasattr(given, "dtype") else given


def _from_arrow(scalar: Any, what: str) -> Any:
    """Return an Arrow scalar as `readable` describes it; None if it is null."""
    if _is_arrow_list(scalar):
        return _readable(scalar.values, what)
    inner = getattr(scalar, "value", None)  # of a dictionary, or an extension type, which may have its own `as_py`
    if _is_arrow_list(inner) or str(getattr(inner, "type", None)) in _ARROW_FLOATS:
        return _from_arrow(inner, what)
    kind = _ARROW_FLOATS.get(str(scalar.type))
    found = scalar.as_py()
    return _readable(found, what) if kind is None or found is None else kind(found)


def _is_arrow_list(scalar: Any) -> bool:
    """Return whether `scalar` is a list of Arrow that is not null.

    A struct of Arrow has `values` too, but they are a method.
    """
    return hasattr(getattr(scalar, "values", None), "type")


def listed(given: Any, name: str, each: str = "sequence") -> Sequence[Any]:
    """Return the entries of `given`, in order, as they are, in a list or tuple.

    Entries of a nested tensor are its tensors. The error message uses `name`, the name of the argument, and `each`, the
    word for what an entry belongs to, such as "sequence".

    Raises:
        BatchError: `given` is no list, array or other ordered iterable (texts, dicts, sets and tables are refused); or
            it cannot be read.
    """
    try:
        unordered = isinstance(given, Mapping | Set) or _is_text(given) or hasattr(given, "columns")  # or a table
        indexed = hasattr(given, "__getitem__") and hasattr(given, "__len__")  # such as a dataset of torch
        if (
            unordered
            or not (hasattr(given, "__iter__") or indexed)
            or isinstance(given, type)
            or getattr(given, "ndim", 1) == 0
        ):
            raise BatchError(
                f"{name} are of type {type(given).__name__}; expected a list with an entry for each {each}"
            )
        if getattr(given, "is_nested", False):  # it has no length
            return list(given.unbind())
        given = _of_tensor(given, name) if hasattr(given, "detach") else _unlabelled(given)
        if isinstance(given, list | tuple):
            return given
        return list(given) if hasattr(given, "__iter__") else [given[at] for at in range(len(given))]
    except (BatchError, MemoryError):
        raise
    except Exception as error:  # the object's own code may raise anything
        kind = type(given).__name__
        raise BatchError(f"{name} are of type {kind}, and cannot be read ({error}); give a list") from error


def read(given: Any, name: str, each: str = "sequence") -> list[Any]:
    """Return the entries of `given`, in order, as plain data (`readable`); the arguments are those of `listed`.

    Raises:
        BatchError: `given` is not an ordered iterable, or an entry cannot be read, or has values that are masked or
            null.
    """
    return [readable(entry, f"{name} of {each} {n}") for n, entry in enumerate(listed(given, name, each))]


def converted(entry: Any, name: str, n: int) -> NDArray[Any]:
    """Return a list or array of numbers, a result of `readable`, as a NumPy array of the same shape.

    Python floats become float32, except in ``input_ids`` and ``seq_lengths``: callers refuse floats there, so they stay
    float64. Arrays keep their dtype. Error messages name the column `name` and the index `n` of the sequence.

    Raises:
        BatchError: NumPy cannot make an array of `entry`, or a Python float is beyond float32.
    """
    if isinstance(entry, np.ndarray):
        return entry
    try:
        found = np.asarray(entry)
    except Exception as error:  # lists of different lengths, or an object's own code
        raise BatchError(f"{name} of sequence {n} is no list of numbers ({error})") from error
    from_python = found.dtype == np.float64 and _float_of(entry) == np.float32
    return narrow(found, name) if from_python and name not in INTEGERS else found


def flat_array(entry: Any, name: str, n: int) -> NDArray[Any]:
    """Return the per-token values of one sequence as a one-dimensional array.

    `entry` is a list or array of numbers, a result of `readable`. Error messages name the column `name` and the index
    `n` of the sequence. Python floats (except in ``input_ids`` and ``seq_lengths``) become float32, and uint64 becomes
    int64; other dtypes are kept.

    Raises:
        BatchError: `entry` does not hold numbers in one dimension, or a number does not fit into int64 or float32.
    """
    found = converted(entry, name, n)
    if found.ndim != 1 or not is_list(entry):  # the latter would not have been cut as its mask says
        other = "" if found.ndim else f", got {type(entry).__name__}"
        raise BatchError(
            f"{name} of sequence {n} has {found.ndim} dimensions; expected one, with a value per token{other}"
        )
    if found.dtype.kind not in "biuf" and found.size:
        raise BatchError(f"{name} of sequence {n} is of {found.dtype}; expected numbers: leave this column out")
    return signed(found, name, n) if found.dtype == np.uint64 else found


def ids_array(entry: Any, name: str, n: int) -> NDArray[Any]:
    """Return the ids of one sequence as a one-dimensional array of integers; the arguments are those of `flat_array`.

    Raises:
        BatchError: `entry` does not hold integers in one dimension, or one does not fit into int64.
    """
    found = flat_array(entry, name, n)
    if found.dtype.kind not in "iu" and found.size:
        raise BatchError(f"{name} must be integers, got {found.dtype} in sequence {n}")
    return found


def concatenated(
    given: Sequence[Any], name: str, array_of: Callable[[Any, str, int], NDArray[Any]] = flat_array
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Concatenate n lists of numbers; return one flat array, and the length of each list, int64 ``[n]``.

    The lists are results of `readable`, and `array_of` (`flat_array` or `ids_array`) makes an array of each. Error
    messages call the lists `name`.

    Raises:
        BatchError: there is no list; a list does not hold numbers in one dimension; or a number does not fit into int64
            or float32.
    """
    if not len(given):
        raise BatchError("a batch needs at least one sequence, and there is none")
    if all(type(entry) is list and entry and type(entry[0]) is int for entry in given):
        try:  # four times as fast as one array per list
            ids = array("q", chain.from_iterable(given))
            return np.frombuffer(ids, dtype=np.int64).copy(), np.fromiter(map(len, given), np.int64, len(given))
        except Exception:  # the slow way finds the list at fault
            pass
    arrays = [array_of(entry, name, n) for n, entry in enumerate(given)]
    return joined(arrays), np.fromiter(map(len, arrays), np.int64, len(arrays))


def single_values(given: Sequence[Any], name: str) -> NDArray[Any]:
    """Return n single values, results of `readable`, as an array ``[n]``; error messages call the column `name`.

    Integers become int64, and Python floats become float32; other floats keep their dtype. If dtypes of floats differ,
    the result has the widest. If any value is a string, bytes or a time in nanoseconds, the result has dtype object and
    holds the values as they are.

    Raises:
        BatchError: a value is None, or is not a single value; the first value is a number, and another one is neither a
            number nor a string; or a number does not fit into int64 or float32.
    """
    try:
        entries = [_single(entry) for entry in given]
    except Exception as error:  # an object's own code may raise anything
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
    """Return a scalar of NumPy, or an array without dimensions, as a Python object; any other object unchanged.

    Times in nanoseconds remain NumPy's: Python has no object for them, and NumPy would give an integer.
    """
    found = entry.item() if isinstance(entry, np.generic | np.ndarray) else entry
    return entry if isinstance(entry, np.datetime64 | np.timedelta64) and isinstance(found, int) else found


def _float_of(entry: Any) -> np.dtype[Any] | None:
    """Return the dtype that `entry` gets if stored as floats; None if it holds neither floats nor Python numbers.

    `entry` is a number, or a list or array of numbers; the first value of a list decides. The result is float32 for
    Python numbers, integers included; the dtype of NumPy's floats; and None for anything else.
    """
    while isinstance(entry, list | tuple) and entry:
        entry = entry[0]
    if isinstance(entry, np.generic | np.ndarray):
        return entry.dtype if entry.dtype.kind == "f" else None
    return np.dtype(np.float32) if isinstance(entry, int | float) else None


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
