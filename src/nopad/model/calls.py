"""A packed call under way, and the arguments of a forward method by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import nn

from nopad.model.placement import Placement

__all__ = ["Call", "bound", "parameters"]


@dataclass
class Call:
    """One packed call of a model.

    Attributes:
        placed: the batch's layout on the model's device.
        target: that of the decoder's batch, where there is a decoder.
        inside: which part runs now: "encoder" or "decoder".
        as_tuple: the caller wants a tuple.
        labels: what the head computes its loss from afterwards, by name.
        seen: states that hooks keep for the head.
        token: of `nopad.model.attention.begin`.
        mode: a `FastLinear` that is on.
    """

    placed: Placement
    target: Placement | None = None
    inside: str = "encoder"
    as_tuple: bool = False
    labels: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    token: Any = None
    mode: Any = None


def bound(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a forward call by name."""
    if not args:
        return dict(kwargs)
    names = parameters(type(module).forward)
    return {**dict(zip(names, args, strict=False)), **kwargs}


@lru_cache(maxsize=256)
def parameters(forward: Any) -> tuple[str, ...]:
    """Names of the arguments of a forward method, without self and ``**kwargs``."""
    found = inspect.signature(forward).parameters.values()
    return tuple(p.name for p in found if p.name != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
