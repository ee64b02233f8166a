"""A packed call under way, what its hooks share, and the arguments of a forward method by name."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock, local
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nopad.batch.device import Placement
from nopad.errors import UnsupportedModelError

if TYPE_CHECKING:
    from nopad.model.heads import Head

__all__ = ["Call", "Calls", "Cell", "Static", "bound", "parameters", "runs", "takes_more"]


@dataclass
class Call:
    """One packed call of a model.

    Attributes:
        head: what the model does with its states.
        placed: the batch's layout on the model's device.
        target: that of the decoder's batch, where there is a decoder.
        encodes: whether the encoder runs in this call; not where its states are given.
        compiled: whether parts of the model are compiled, where attention and hooks do not report.
        positions: of each token, as the model counts them; ``[R, L]``.
        inside: which part runs now: "encoder" or "decoder".
        as_tuple: the caller wants a tuple.
        labels: what the head computes its loss from afterwards, by name.
        seen: states that hooks keep for the head.
        ran: how often each hook ran, by its role.
        attended: how often each attention module attended, by its id.
        kinds: classes of the modules that attended.
        frame: in which the module is called, as long as that lasts.
        outer: the call inside of which this one is.
        token: of `nopad.model.attention.begin`.
    """

    head: Head
    placed: Placement
    target: Placement | None = None
    encodes: bool = True
    compiled: bool = False
    positions: Any = None
    inside: str = "encoder"
    as_tuple: bool = False
    labels: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    ran: Counter[str] = field(default_factory=Counter)
    attended: Counter[int] = field(default_factory=Counter)
    kinds: set[type] = field(default_factory=set)
    frame: FrameType | None = None
    outer: Call | None = None
    token: Any = None

    @property
    def side(self) -> Placement:
        """The layout of what comes out: that of the targets where there is a decoder."""
        return self.placed if self.target is None else self.target


@dataclass
class Static:
    """A call of static shapes under way.

    Attributes:
        ids: the sequence numbers, int32 ``[R, 1, 1, L]``; None: there is no such call.
        kept: what its head reads.
        tokens: token ids ``[R, L]``, where they are given.
        frame: in which the module is called, as long as that lasts; None while compiling.
    """

    ids: Tensor | None = None
    kept: Tensor | None = None
    tokens: Tensor | None = None
    frame: FrameType | None = None

    def clear(self) -> None:
        """Forget the call."""
        self.ids = self.kept = self.tokens = self.frame = None


class Calls(local):
    """The calls under way in this thread, innermost last; None: an ordinary one."""

    def __init__(self) -> None:
        self.stack: list[Call | None] = []
        self.static = Static()


class Cell:
    """What all hooks of one pack-safe model share: the calls under way. Small: whoever copies a module copies it too.

    A copied model gets one cell of its own, for all its hooks. A module copied by itself (PEFT does it) gets one that
    no call ever reaches, so its hooks do nothing until `State.renew` replaces them.

    Attributes:
        calls: those of each thread.
        compiled: the call of static shapes while compiling, for a compiler does not see what is a thread's own.
        most: most sequences of a batch; None: any number.
        how: from which tokens a sequence's result is read, in calls of static shapes.
        opened: how many packed calls are under way, in all threads; a compiler sees that much.
        owned: whether it is a model's; not that of a module which was copied by itself.
    """

    def __init__(self, most: int | None = None, how: str = "first") -> None:
        self.calls = Calls()
        self.compiled = Static()
        self.most = most
        self.how = how
        self.opened = 0
        self.owned = False
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Cell, (self.most, self.how)

    @property
    def call(self) -> Call | None:
        """The packed call under way; None in an ordinary one, and while compiling."""
        if torch.compiler.is_compiling():
            return None
        stack = self.calls.stack
        if stack and stack[-1] is not None:
            self.settle()
        return stack[-1] if stack else None

    def count(self, more: int) -> None:
        """Count packed calls that are opened, or closed (below 0)."""
        with self._lock:
            self.opened += more

    def settle(self) -> None:
        """Close packed calls of this thread that an interrupt (Ctrl-C) ended: PyTorch runs no hook then."""
        stack = self.calls.stack
        while stack:
            call = stack[-1]
            if call is None or runs(call.frame):
                break
            stack.pop()
            self.count(-1)

    def refuse_compiling(self) -> None:
        """Keep the compiler off a hook while a packed call is under way: it would be left out of it in silence.

        What raises while compiling runs as it is instead, which is right.

        Raises:
            UnsupportedModelError: the compiler is at it.
        """
        if torch.compiler.is_compiling() and self.opened:
            raise UnsupportedModelError(
                "a packed batch went through a model that is compiled whole; compile its layers one by one, or feed it "
                "nopad.model.static_inputs(model, batch)"
            )

    @property
    def static(self) -> Static:
        """The call of static shapes under way; where there is none, a `Static` whose `ids` are None."""
        if torch.compiler.is_compiling():
            return self.compiled
        static = self.calls.static
        if static.ids is not None and not runs(static.frame):
            static.clear()
        return static


def runs(frame: FrameType | None) -> bool:
    """Whether this frame is running in this thread: what began in it and did not end was interrupted if it is not."""
    at: FrameType | None = sys._getframe(1)
    while at is not None:
        if at is frame:
            return True
        at = at.f_back
    return False


def bound(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a forward call by name.

    Raises:
        UnsupportedModelError: the module takes its arguments under no name (a wrapper's ``*args``).
    """
    if not args:
        return dict(kwargs)
    names = parameters(type(module).forward)
    if len(args) > len(names):
        raise UnsupportedModelError(
            f"{type(module).__name__} takes {len(args)} arguments that have no names, so nopad cannot tell which is "
            "the mask; is it a wrapper? Make the model inside pack-safe, or pass arguments by name"
        )
    return {**dict(zip(names, args, strict=False)), **kwargs}


@lru_cache(maxsize=256)
def takes_more(forward: Any) -> bool:
    """Whether a forward method takes arguments by any name."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(forward).parameters.values())


@lru_cache(maxsize=256)
def parameters(forward: Any) -> tuple[str, ...]:
    """Names of the arguments of a forward method, without self and ``**kwargs``."""
    found = inspect.signature(forward).parameters.values()
    return tuple(p.name for p in found if p.name != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
