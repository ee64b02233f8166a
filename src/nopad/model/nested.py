"""Copy and compare nested values, such as the arguments and outputs of modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["equal", "kept"]


def kept(value: Any) -> Any:
    """Return a copy of a nested value; a later write to a tensor in the value does not change the copy.

    Mappings become dicts; lists and tuples become tuples. Tensors are copied without their gradients. All other objects
    are not copied: the result holds the same ones.
    """
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {name: kept(one) for name, one in value.items()}
    return tuple(map(kept, value)) if isinstance(value, tuple | list) else value


def equal(one: Any, other: Any) -> bool:
    """Return whether two nested values are equal.

    Tensors are compared by shape, dtype and value, and may be on different devices; NaN in a tensor equals NaN. A list
    equals a tuple with equal elements. Two objects whose comparison raises an error, such as NumPy arrays with several
    elements, are equal only if they are the same object.
    """
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        one, other = one.detach().to(other.device), other.detach()
        return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    try:
        return bool(one == other)
    except Exception:  # such as arrays of NumPy
        return False
