"""What users hand to a batch: arrays of any library, dicts by column, values of padding; checked before use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import BatchError, OptionError

__all__ = ["check_fill", "ignored", "index_like", "named", "shape_of"]


def index_like(stream: Any, index: NDArray[np.int64]) -> Any:
    """Return `index` in the library of `stream` (NumPy or torch), and on its device."""
    if isinstance(stream, np.ndarray):
        return index
    import torch

    return torch.from_numpy(index).to(stream.device)


def shape_of(values: Any) -> Any:
    """Return the shape of an array.

    Raises:
        BatchError: `values` is not an array.
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
    """Return labels of the same shape and dtype that losses leave out: -100, or NaN where they are not integers."""
    if isinstance(labels, np.ndarray):
        return np.full_like(labels, -100 if labels.dtype.kind in "iu" else np.nan)
    import torch

    return torch.full_like(labels, float("nan") if labels.is_floating_point() else -100)


def named(what: str, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return `given`, or an empty dict if it is None; `what` names the argument in messages.

    Raises:
        OptionError: `given` is not a dict.
    """
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(f"{what} are of type {type(given).__name__}; expected a dict by the names of columns")
    return given or {}


def check_fill(name: str, value: Any, dtype: np.dtype[Any]) -> None:
    """Refuse a padding value that a column of this dtype cannot hold.

    Raises:
        OptionError: `value` is not a number, or not within the dtype.
    """
    if type(value) is int and value == 0:
        return
    held = isinstance(value, int | float | np.integer | np.floating)
    whole = dtype.kind in "iub"
    if held and whole:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        held = bool(low <= value <= high) and value == int(value)
    if not held:
        kind = f"an integer that {dtype} holds" if whole else "a number"
        raise OptionError(f"padding of {name} is {value!r}; expected {kind}")
