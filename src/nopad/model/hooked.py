"""`HookedModel` attaches the hooks that make a model pack-safe to its modules, and removes them again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import is_
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from nopad.errors import UnsupportedModelError
from nopad.model import attention
from nopad.model.batchwide import check_experts
from nopad.model.calls import Cell, parameters, takes_more
from nopad.model.families import Family
from nopad.model.fronts import GiveStates, front_of, takes_states
from nopad.model.heads import Head
from nopad.model.hooks import (
    Count,
    Hook,
    Lookup,
    NoLookup,
    NoPositions,
    PackAgain,
    Positions,
    Swap,
    UnpackFirst,
    attach,
    take_off,
)
from nopad.model.images import TOWER, Ran, image_parts
from nopad.model.known import class_of, walk
from nopad.model.later import Watch, take_off_judges
from nopad.model.mixers import Cut, Join, mixing_hooks, release
from nopad.model.own import changes, foreign, own_modules
from nopad.model.proven import Proven
from nopad.model.unguarded import check_rows
from nopad.model.vocabulary import LabelledOnly
from nopad.model.windows import Seen, Windows, seen_in
from nopad.model.wrapper_parts import Admitted
from nopad.threads import check_free, new_lock

__all__ = ["Enter", "HookedModel", "Leave", "part_of"]


# Tables of positions in encoder–decoders, which count along a row unless they are given `position_ids`.
COUNTERS = (
    "BartLearnedPositionalEmbedding",
    "BlenderbotLearnedPositionalEmbedding",
    "BlenderbotSmallLearnedPositionalEmbedding",
    "MBartLearnedPositionalEmbedding",
    "MarianSinusoidalPositionalEmbedding",
    "PLBartLearnedPositionalEmbedding",
    "PegasusSinusoidalPositionalEmbedding",
)


# The states whose models have nopad's attention, by id: some have one configuration object, which holds the setting
_states: WeakValueDictionary[int, HookedModel] = WeakValueDictionary()


@dataclass(eq=False)
class HookedModel:
    """The hooks and settings that make one model pack-safe.

    Attributes:
        model: the transformers model, without wrappers.
        family: the facts about its model type.
        backend: name of the attention backend, as given to `packed`.
        head: the model's head.
        most: largest number of sequences that a batch may have; None: unlimited.
        takes: names of the model's arguments in packed calls.
        before: the attention implementation that the model had before it was made pack-safe; "": it was not changed.
        cell: the state that the hooks share.
        modules: the modules that the model had when hooks were last attached. If it has other modules at a call, hooks
            are attached again.
        kinds: classes of these modules.
        own: the user's own classes that modules of the model had when it was made pack-safe, by qualified name.
        watch: looks for code of the user's own that is added later.
        proven: the code of the classes in `own`, and the values that this code reads, when the model was made
            pack-safe; None if `own` is empty.
        admitted: which arguments a proof of the model's own class covers; None: there was no such proof.
        attends: those modules of `attending` that look up their attention function in transformers' registry, when
            hooks were last attached; () if `Family.route` is not "interface".
        windows: the windows that `attends` must have; None: not yet known.
        first: what the modules said about what tokens see, when the model was made pack-safe.
        reason: what `Family.refuse` said of the configuration then: a proof may admit what it refuses.
        roles: roles of the hooks whose runs are checked at the end of a packed call (`nopad.model.postconditions`).
        lock: held while hooks are attached anew.
    """

    model: Any
    family: Family
    backend: str
    head: Head
    most: int | None = None
    takes: tuple[str, ...] = ()
    before: str = ""
    cell: Cell = field(default_factory=Cell)
    modules: tuple[nn.Module, ...] = ()
    kinds: frozenset[type] = frozenset()
    own: dict[str, type] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)
    proven: Proven | None = None
    admitted: Admitted | None = None
    attends: tuple[nn.Module, ...] = ()
    windows: Windows | None = None
    first: Seen = field(default_factory=dict)
    reason: str | None = None
    roles: tuple[str, ...] = ()
    lock: Any = field(default_factory=new_lock)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lock": None, "modules": (), "attends": (), "windows": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "lock": new_lock()})
        attention.register()  # perhaps in another process
        _states[id(self)] = self

    @property
    def attending(self) -> Any:
        """The part of the model that gets nopad's attention: the model itself, or its text part if it takes images."""
        return self.model if self.family.images is None else image_parts(self.head.base, self.family)[1]

    def install(self) -> None:
        """Make the model pack-safe: register nopad's attention with transformers, and attach all hooks.

        If `Family.route` is "interface", this also makes the model use nopad's attention.

        Raises:
            UnsupportedModelError: nopad does not know a module that it would have to hook; the head mixes the tokens of
                a row; experts have a limited capacity; the model's attention is a function of the user's or of another
                library; or the model, or a part of it, does not take nopad's attention.
        """
        attention.register()
        model = self.model
        self.first, self.reason = seen_in(self.attending), self.family.refuse(model.config)
        self.own, self.watch = foreign(model), Watch([call for _, call in changes(model)])
        self.proven = Proven.of([one for _, one in own_modules(model)], model.config) if self.own else None
        self.cell.owned = True
        self.takes = parameters(type(model).forward)
        if not self.head.stock and takes_more(type(model).forward):
            self.takes += parameters(type(self.head.base).forward)
        self.takes = takes_states(self.head.base, self.family, self.takes)
        list(self._hooks())  # raises for modules that cannot be hooked, before anything is changed
        if self.family.route == "interface":
            part = self.attending
            attention.check_replaceable(part)
            sharing = self._sharing(part)
            self.before = sharing[0].before if sharing else part.config._attn_implementation
            part.set_attn_implementation(attention.NAME)
            if part.config._attn_implementation != attention.NAME:
                import transformers

                raise UnsupportedModelError(
                    f"{type(model).__name__} of transformers {transformers.__version__} does not take a registered "
                    "attention; newer versions may (T5 does from 5.20)"
                )
            try:
                self.check_parts(self._attends())
            except UnsupportedModelError:
                self._restore(part)
                raise
            _states[id(self)] = self
        attach(model, Enter(self.cell, "enter", state=self))
        attach(model, Leave(self.cell, "leave", "after", state=self))
        self.renew()

    def _sharing(self, part: Any) -> list[HookedModel]:
        """Return the states of other pack-safe models that have the configuration object of `part`.

        They have one attention implementation. `part` is what gets nopad's attention in this model.
        """
        others = [state for known in _states.valuerefs() if (state := known()) is not None and state is not self]
        return [state for state in others if state.before and state._config() is part.config]

    def _config(self) -> Any:
        """Return the configuration of `attending`; None for a model that is being copied or unpickled right now."""
        try:
            return self.attending.config
        except (AttributeError, UnsupportedModelError):
            return None

    def _restore(self, part: Any) -> None:
        """Restore the attention implementation, except in configurations that another pack-safe model has too."""
        _states.pop(id(self), None)
        others = self._sharing(part)
        if not others:
            part.set_attn_implementation(self.before)
            return
        held = {id(getattr(one, "config", None)) for state in others for one in walk(state.attending)}
        stack: Any
        for stack in walk(part):  # T5's stacks have configurations of their own
            if hasattr(stack, "set_attn_implementation") and id(stack.config) not in held:
                stack.set_attn_implementation(self.before)

    def _attends(self) -> tuple[nn.Module, ...]:
        return tuple(one for one in walk(self.attending) if attention.looks_up(class_of(one)))

    def check_parts(self, attends: Iterable[nn.Module]) -> None:
        """Check that all modules in `attends` find nopad's attention when they look up their attention function.

        `attends` are modules of the model. A module that came from another model finds another attention. In older
        versions of transformers, so does a part that has a configuration of its own.

        Raises:
            UnsupportedModelError: a module finds another attention.
        """
        for part in attends:
            own = getattr(getattr(part, "config", None), "_attn_implementation", attention.NAME)
            if own != attention.NAME:
                name = next(name for name, one in self.model.named_modules() if one is part)
                raise UnsupportedModelError(
                    f"the {type(part).__name__} in this {type(self.model).__name__}, {name}, has a configuration of "
                    f"its own, and its attention is {own!r}, not nopad's; give it the object that the other layers "
                    "have as their config (module.config = ..., for each module in it that has one)"
                )

    def check_windows(self) -> None:
        """Check that what tokens see is what the model's configuration states, and what it stated at `packed`.

        Raises:
            UnsupportedModelError: a layer has another window, or no model can be built from the configuration; or the
                configuration was changed in what decides this, or to one that `Family.refuse` refuses.
        """
        reason = self.family.refuse(self.model.config)
        if reason is not None and reason != self.reason:
            raise UnsupportedModelError(
                f"the configuration of this {type(self.model).__name__} was changed after it was made pack-safe, and "
                f"it cannot run on packs any more: {reason}; run its sequences padded"
            )
        windows = self.windows
        if windows is None or not windows.are_current:
            windows = self.windows = Windows(self.attending, self.attends, self.first)
        windows.check()

    def remove(self) -> None:
        """Remove all of nopad's hooks from the model, and restore the attention implementation that it had before."""
        for module in {*walk(self.model), *self.modules}:
            take_off(module, self.cell)
        release(walk(self.model))
        take_off_judges(walk(self.model))
        if self.before:
            self._restore(self.attending)

    def renew(self) -> None:
        """Attach hooks to the model's modules, if modules were added, replaced or removed since this was last done.

        Raises:
            UnsupportedModelError: nopad does not know a module that it would have to hook; the head mixes the tokens of
                a row; experts have a limited capacity; or the model now has a class of the user's own that it did not
                have when it was made pack-safe.
        """
        modules = tuple(walk(self.model))
        if len(modules) == len(self.modules) and all(map(is_, modules, self.modules)):
            return
        self.cell.owned = True  # also for a cell that came with a copied model
        # Threads share the modules, so only one may change their hooks at a time.
        check_free(self.lock, "runs a model")
        with self.lock:
            if len(modules) == len(self.modules) and all(map(is_, modules, self.modules)):
                return  # another thread has done it, and may run the model already
            hooks = list(self._hooks())
            self._refuse_later()
            for module in {*modules, *self.modules}:
                if module is not self.model:
                    take_off(module, self.cell)
            first = not self.roles  # the model's own hooks are attached once: PyTorch is running them right now
            for module, hook in hooks:
                if module is not self.model or first:
                    attach(module, hook)
            # In transformers' own classes, `Count` need not run (OPT's bypass the base model); in others, it must.
            also = (Count,) if self.head.stock else ()
            free = (UnpackFirst, PackAgain, NoPositions, NoLookup, Cut, Join, LabelledOnly, *also)
            counted = (hook for _, hook in hooks if not isinstance(hook, free))
            self.roles = tuple(hook.role for hook in counted)
            self.attends = self._attends() if self.family.route == "interface" else ()
            self.windows = None
            self.modules, self.kinds = modules, frozenset(map(type, modules))
        self.tell_cell()

    def _refuse_later(self) -> None:
        """Refuse a class of the user's own that came into the model after it was made pack-safe.

        Nothing is proven of such a class. A new module of a class that the model already had is accepted.

        Raises:
            UnsupportedModelError: there is such a class.
        """
        later = {name: kind for name, kind in foreign(self.model).items() if self.own.get(name) is not kind}
        if later:
            raise UnsupportedModelError(
                f"modules of your own class {', '.join(later)} were put into this {type(self.model).__name__} after it "
                "was made pack-safe, and may mix tokens; make it so anew: nopad.packed(nopad.unpacked(model))"
            )

    def tell_cell(self) -> None:
        """Copy two settings to `cell`, for hooks in calls with static shapes: `most`, and `head.pooling()`."""
        self.cell.most, self.cell.how = self.most, self.head.pooling()

    def _hooks(self) -> Iterator[tuple[nn.Module, Hook]]:
        """Yield (module, hook) pairs for the modules that the model uses now; one module may have several hooks.

        Raises:
            UnsupportedModelError: nopad does not know a module that it would have to hook; the head mixes the tokens of
                a row; or experts have a limited capacity.
        """
        cell, model, family = self.cell, self.model, self.family
        check_rows(model, self.head.base, family.mixers)
        check_experts(model)
        base = self.head.base
        if family.images is not None:
            tower, text = image_parts(base, family)
            yield tower, Ran(cell, TOWER)
            yield text, Count(cell, "text model")
        elif base is not model and "position_ids" in parameters(type(base).forward):
            yield base, Count(cell, "base model")
        for name, module in self._entries():
            yield module, Swap(cell, name, part=name)
        if family.front is not None:
            yield front_of(base, family), GiveStates(cell, "front end")
        if family.route == "encoder mask":
            for module in self.head.base.encoder.modules():
                if class_of(module).__name__ in family.attention:
                    yield module, UnpackFirst(cell)
                    yield module, PackAgain(cell)
        encoder = part_of(model, "encoder")
        inside = set() if encoder is None else set(encoder.modules())
        for module in walk(model):
            if type(module).__name__ in COUNTERS:
                yield module, NoPositions(cell)
                yield module, Positions(cell, f"{'encoder' if module in inside else 'decoder'} positions")
        for table, offset in family.tables:
            for name, module in model.named_modules():
                if name.rpartition(".")[2] == table and isinstance(module, nn.Embedding):
                    yield module, NoLookup(cell)
                    yield module, Lookup(cell, f"positions of {table}", offset=offset)
        yield from mixing_hooks(cell, walk(model), family)
        yield from self.head.hooks(cell)

    def _entries(self) -> list[tuple[str, nn.Module]]:
        """Return the modules at which the mask is replaced, as (part, module) pairs.

        A part is "encoder" or "decoder"; for a model without these parts, it is "encoder".
        """
        if self.family.encoder_decoder:
            found = [(name, part_of(self.model, name)) for name in ("encoder", "decoder")]
            return [(name, module) for name, module in found if module is not None]
        base = self.head.base
        return [("encoder", getattr(base, self.family.mask_at) if self.family.mask_at else base)]


@dataclass(eq=False)
class Enter(Hook):
    """The hook on a whole model, or on a wrapper around one, that begins each of its calls.

    Attributes:
        state: the `State` or `Wrapper` whose method `enter` the hook calls.
    """

    state: Any = None

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Begin the call; return the model's new ``(args, kwargs)``, or None if they stay as they are."""
        return self.state.enter(module, args, kwargs, None if torch.compiler.is_compiling() else sys._getframe(1))


@dataclass(eq=False)
class Leave(Hook):
    """The hook on a whole model, or on a wrapper around one, that ends each of its calls, also after an exception.

    Attributes:
        state: the `State` or `Wrapper` whose method `leave` the hook calls.
    """

    state: Any = None

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """End the call; return the model's new output, or None if it stays as it is."""
        return self.state.leave(module, args, kwargs, output)


def part_of(model: Any, name: str) -> Any:
    """Return the encoder or the decoder of a model; None: the model has no such part.

    `name` is "encoder" or "decoder".
    """
    for holder in (model, getattr(model, "model", None), getattr(model, "transformer", None)):
        found = getattr(holder, name, None)
        if isinstance(found, nn.Module):
            return found
    return None
