"""Check the arguments that users pass to a batch: NumPy or torch arrays, dicts of columns, and padding values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nopad.errors import BatchError, LengthError, OptionError, load_torch
from nopad.options import shown

if TYPE_CHECKING:
    from nopad.batch.layout import Layout

__all__ = ["check_embeddings", "check_fill", "ignored", "joined", "named", "shape_of", "told"]


def shape_of(values: Any) -> Any:
    """Return the shape of a NumPy array or torch tensor.

    Raises:
        BatchError: `values` has no shape, such as a list or a model's output with several results.
    """
    if isinstance(values, Mapping):
        names = ", ".join(f".{name}" for name, value in values.items() if hasattr(value, "shape"))
        raise BatchError(f"a {type(values).__name__} is no array; give one of its results: {names or 'it has none'}")
    if not hasattr(values, "shape") or not hasattr(values, "reshape"):
        raise BatchError(
            f"a {type(values).__name__} is no array; give a tensor or a NumPy array, such as a model's "
            ".last_hidden_state or .logits"
        )
    return values.shape


def ignored(labels: Any) -> Any:
    """Return an array with the shape of `labels` in which no label counts: -100 for integers and booleans, else NaN.

    `labels` is a NumPy array or torch tensor, and so is the result. The dtype stays the same, except that booleans and
    unsigned integers become int64, since they cannot hold -100.
    """
    if isinstance(labels, np.ndarray):
        if labels.dtype.kind in "bu":
            return np.full(labels.shape, -100, dtype=np.int64)
        return np.full_like(labels, -100 if labels.dtype.kind == "i" else np.nan)
    import torch

    if labels.is_floating_point():
        return torch.full_like(labels, float("nan"))
    return torch.full_like(labels, -100, dtype=labels.dtype if labels.dtype.is_signed else torch.int64)


def named(what: str, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return `given`, or an empty dict if it is None; error messages call the argument `what`.

    Raises:
        OptionError: `given` is neither a mapping nor None.
    """
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(f"{what} are of type {type(given).__name__}; expected a dict by the names of columns")
    return given or {}


def check_fill(name: str, value: Any, dtype: np.dtype[Any]) -> None:
    """Check that column `name`, which has this `dtype`, can hold the padding value `value`.

    Raises:
        OptionError: `value` is not a number; `dtype` is an integer or boolean dtype that cannot hold it exactly; or
            `dtype` is a float dtype for which it is too large.
    """
    if type(value) is int and value == 0:
        return
    held = isinstance(value, int | float | np.integer | np.floating)
    whole = dtype.kind in "iub"
    if held and whole:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        held = bool(low <= value <= high) and value == int(value)
    elif held:
        held = _is_float(value, dtype)
    if not held:
        kind = f"{'an integer' if whole else 'a number'} that {dtype} holds"
        raise OptionError(f"padding of {name} is {shown(value)}; expected {kind}")


def _is_float(value: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a float dtype can hold a number, rounded; it cannot if a finite number becomes infinite."""
    try:
        number = float(value)
    except OverflowError:
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float64(number).astype(dtype))) or not np.isfinite(number)


def check_embeddings(given: Any) -> None:
    """Check the embeddings of a batch: one float tensor ``[length, H]`` per sequence, of one H, dtype and device.

    Raises:
        LengthError: a sequence has no token.
        BatchError: `given` is not a list of such tensors, or it is empty.
    """
    torch = load_torch("a batch of embeddings")
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not given:
        raise BatchError(f"embeddings are {told(given)}; expected a list of tensors [length, H], one per sequence")
    for number, one in enumerate(given):
        if not isinstance(one, torch.Tensor) or one.dim() != 2 or not one.is_floating_point():
            raise BatchError(
                f"the embeddings of sequence {number} are {told(one)}; expected a float tensor [length, H]"
            )
        if not len(one):
            raise LengthError(f"sequence {number} has no token; leave empty ones out")
        first = given[0]
        if (one.shape[1], one.dtype, one.device) != (first.shape[1], first.dtype, first.device):
            raise BatchError(
                f"the embeddings of sequence {number} are {told(one)} on {one.device}, and those of sequence 0 "
                f"{told(first)} on {first.device}; make them of one width, dtype and device"
            )


def joined(values: Any, layout: Layout) -> Any:
    """Join one array ``[length, ...]`` per sequence into one stream ``[T, ...]``, in the layout's stream order.

    `values` are the arrays, NumPy or torch, in the order in which the sequences were given.

    Raises:
        BatchError: there is not one array for each sequence, an array is not as long as its sequence, or the arrays
            differ in type or in the dimensions after the first.
    """
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) != layout.sequences:
        said = f"{len(values)} of them" if isinstance(values, Sequence) else told(values)
        raise BatchError(
            f"values to lay out are {said}; expected a list of arrays [length, ...], one for each of the "
            f"{layout.sequences} sequences"
        )
    for number, (one, length) in enumerate(zip(values, layout.seq_lengths.tolist(), strict=True)):
        shape, first = tuple(shape_of(one)), tuple(shape_of(values[0]))
        if shape[:1] != (length,) or shape[1:] != first[1:] or type(one) is not type(values[0]):
            raise BatchError(
                f"values of sequence {number} are {told(one)}; expected {[length, *first[1:]]} of "
                f"{type(values[0]).__name__}, one value per token"
            )
    parts = [values[number] for number in layout.order.tolist()]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(parts)


def told(value: Any) -> str:
    """Return a description of a value for error messages: its type and, if it is an array, its shape and dtype.

    An empty list or tuple is described as "empty".
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__} {list(value.shape)} of {value.dtype}"
    return f"a {type(value).__name__}" if not isinstance(value, list | tuple) or value else "empty"
