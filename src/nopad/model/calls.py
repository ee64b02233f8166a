"""The state of a packed call, which hooks share, and functions that find the names of a forward method's arguments."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from threading import local
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nopad.batch.device import Placement
from nopad.errors import UnsupportedModelError
from nopad.model.nested import kept
from nopad.threads import new_lock

if TYPE_CHECKING:
    from nopad.model.heads import Head

__all__ = ["Call", "Calls", "Cell", "Static", "bound", "parameters", "runs", "takes", "takes_more"]


@dataclass
class Call:
    """The state of one packed call of a model, which is a call with a `PackedBatch`.

    Attributes:
        head: the model's head, which turns hidden states into results.
        placed: the batch's layout on the model's device.
        target: the layout of the decoder's batch; None without a decoder.
        encodes: whether the encoder runs in this call; False if the caller gives `encoder_outputs`.
        compiled: whether parts of the model are compiled; attention in these parts cannot report that it ran.
        towers: how often a vision tower must run: once if the batch has images, and once more if it has videos.
        positions: position of each token, as the model counts positions; int64 ``[R, L]``, or ``[3, R, L]`` with three
            axes (M-RoPE).
        inside: the part that runs now: "encoder" or "decoder"; always "encoder" in a model without these parts.
        as_tuple: whether the caller wants the output as a tuple (``return_dict=False``).
        labels: by name, the labels from which the head computes the loss after the model ran.
        seen: tensors that hooks and the head store during the call, by name.
        ran: how often each hook ran, by the hook's name (`Hook.role`).
        attended: how often each attention or mixing module reported that it keeps sequences apart, by ``id(module)``.
        kinds: classes of the modules in `attended`.
        frame: the Python stack frame that calls the model, until the call ends.
        outer: the packed call inside which this one runs, or None.
        token: what `nopad.model.attention.begin` returned.
        given: the model and a copy of its arguments, if a hook that was added after the model was made pack-safe may
            change them; else None.
    """

    head: Head
    placed: Placement
    target: Placement | None = None
    encodes: bool = True
    compiled: bool = False
    towers: int = 0
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
    given: Any = None

    def note(self, module: nn.Module, named: Mapping[str, Any]) -> None:
        """Put a copy of `named` into `given`, if `given` already holds arguments of `module`; otherwise do nothing.

        `named` are the arguments by name that one of nopad's hooks returns for `module`. At the end of the call, the
        copy shows whether a hook that was added later has changed the arguments.
        """
        if self.given is not None and self.given[0] is module:
            self.given = module, kept(named)

    @property
    def side(self) -> Placement:
        """The layout of the output: that of the targets if the model has a decoder, else that of the batch."""
        return self.placed if self.target is None else self.target


@dataclass
class Static:
    """The state of a call with static shapes (`nopad.model.static_inputs`).

    Attributes:
        ids: the number of each slot's sequence, from 1, and 0 in padding; int32 ``[R, 1, 1, L]``. None: no call with
            static shapes runs now.
        kept: output of a module, stored for the head by `Keep`.
        tokens: token ids ``[R, L]``, or None.
        frame: the Python stack frame that calls the model, until the call ends; None while compiling.
    """

    ids: Tensor | None = None
    kept: Tensor | None = None
    tokens: Tensor | None = None
    frame: FrameType | None = None

    def clear(self) -> None:
        """Set all attributes to None, at the end of the call."""
        self.ids = self.kept = self.tokens = self.frame = None


class Calls(local):
    """The state of a model's calls in one thread; threads may run the same model at once.

    Attributes:
        stack: the calls of the model that run now, the innermost last; None stands for an ordinary call.
        static: the call with static shapes that runs now.
        again: the layout of the checkpointed layer that runs now, perhaps for the second time (gradient checkpointing).
        ended: whether the call that ended last was a packed one, and no other call has begun since.
    """

    def __init__(self) -> None:
        self.stack: list[Call | None] = []
        self.static = Static()
        self.again: Placement | None = None
        self.ended = False

    def begin(self) -> list[Call | None]:
        """Begin a call: put None on the stack, since a call counts as an ordinary one at first; return the stack.

        Call `end` when the call ends, also if it ends by an exception.
        """
        self.ended = False
        self.stack.append(None)
        return self.stack

    def end(self) -> Call | None:
        """End the innermost call, and return it; None: it was an ordinary one, or no call was running."""
        call = self.stack.pop() if self.stack else None
        self.ended = call is not None
        return call


class Cell:
    """The state that all hooks of one pack-safe model share. It is small, since copying a module copies it too.

    A copied model gets one cell of its own, for all its hooks. A module that is copied by itself (as PEFT does) gets a
    cell that no call ever reaches, so its hooks do nothing until `State.renew` replaces them.

    Attributes:
        calls: the calls of each thread.
        compiled: while compiling, the state of a call with static shapes, since the compiler cannot trace thread-local
            values.
        most: largest number of sequences that a batch may have; None: any number.
        how: how a sequence's result is read from its tokens in calls with static shapes: a value of `Head.pooling`.
        opened: number of packed calls that run now, in all threads. A compiled hook can read this number, but not
            `calls`.
        owned: whether the cell belongs to a model, and not to a module that was copied by itself.
    """

    def __init__(self, most: int | None = None, how: str = "first") -> None:
        self.calls = Calls()
        self.compiled = Static()
        self.most = most
        self.how = how
        self.opened = 0
        self.owned = False
        self._lock = new_lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # Thread-local calls cannot be copied: a copied module gets a cell without any call.
        return Cell, (self.most, self.how)

    @property
    def call(self) -> Call | None:
        """The packed call that runs now; None in an ordinary call, outside of all calls and while compiling."""
        if torch.compiler.is_compiling():
            return None
        stack = self.calls.stack
        if stack and stack[-1] is not None:
            self.settle()
        return stack[-1] if stack else None

    def count(self, more: int) -> None:
        """Add `more` to the number of packed calls that run now: 1 when a call begins, -1 when one ends."""
        with self._lock:
            self.opened += more

    def settle(self) -> None:
        """End the innermost calls of this thread that were interrupted (Ctrl-C); PyTorch ran no hook at their end."""
        stack = self.calls.stack
        while stack:
            call = stack[-1]
            if call is None or runs(call.frame):
                break
            stack.pop()
            self.count(-1)

    def refuse_compiling(self) -> None:
        """Raise an error if the compiler traces a hook during a packed call.

        PyTorch catches the error and runs the hook uncompiled, which gives the right result. Without the error, the
        compiled graph would silently lack the hook.

        Raises:
            UnsupportedModelError: the compiler traces this hook during a packed call.
        """
        if torch.compiler.is_compiling() and self.opened:
            raise UnsupportedModelError(
                "a packed batch went through a model that is compiled whole; compile its layers one by one, or feed it "
                "nopad.model.static_inputs(model, batch)"
            )

    @property
    def static(self) -> Static:
        """The call with static shapes that runs now; if there is none, a `Static` whose `ids` are None."""
        if torch.compiler.is_compiling():
            return self.compiled
        static = self.calls.static
        if static.ids is not None and not runs(static.frame):
            static.clear()
        return static


def runs(frame: FrameType | None) -> bool:
    """Return whether a Python stack frame still runs in this thread, as a caller of this function.

    A model's call that did not end, but whose frame no longer runs, was interrupted. The result is False for None.
    """
    at: FrameType | None = sys._getframe(1)
    while at is not None:
        if at is frame:
            return True
        at = at.f_back
    return False


def bound(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the positional and keyword arguments of a forward call, all by name.

    `args` and `kwargs` are those of the call of `module`.

    Raises:
        UnsupportedModelError: there are more positional arguments than the method has names for (it has ``*args``).
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
    """Return whether a forward method has a ``**kwargs`` argument."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(forward).parameters.values())


def takes(module: nn.Module, name: str) -> bool:
    """Return whether a module's forward method takes an argument of this name, also as one of its ``**kwargs``."""
    forward = type(module).forward
    return name in parameters(forward) or takes_more(forward)


@lru_cache(maxsize=256)
def parameters(forward: Any) -> tuple[str, ...]:
    """Return the names of the arguments of a forward method, without its first (self), ``*args`` and ``**kwargs``."""
    found = inspect.signature(forward).parameters.values()
    return tuple(p.name for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))[1:]
