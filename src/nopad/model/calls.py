"""A packed call under way, and the arguments of a forward method by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from threading import local
from typing import Any

from torch import Tensor, nn

from nopad.batch.device import Placement

__all__ = ["Call", "Calls", "Static", "bound", "parameters"]


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


@dataclass
class Static:
    """A call of static shapes under way.

    Attributes:
        ids: the sequence numbers, int32 ``[R, 1, 1, L]``; None: there is no such call.
        kept: what its head reads.
        tokens: token ids ``[R, L]``, where they are given.
    """

    ids: Tensor | None = None
    kept: Tensor | None = None
    tokens: Tensor | None = None


class Calls(local):
    """The packed calls under way in this thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[Call | None] = []
        self.static = Static()


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
