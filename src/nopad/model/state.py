"""`State`: makes one model pack-safe, by putting hooks on its modules and running each packed call."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import is_
from threading import Lock
from types import FrameType
from typing import Any

import torch
from torch import nn

from nopad.batch.device import is_static, place
from nopad.batch.guard import PackedMask, layout_of
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model import attention
from nopad.model.admission import check_call, device_of, leave_columns, refuse_attentions
from nopad.model.arguments import check_labels
from nopad.model.backends import AUTOMATIC
from nopad.model.backends.varlen import HALF, autocast_dtype, on_kernel
from nopad.model.batchwide import check_experts
from nopad.model.calls import Call, Cell, bound, parameters, takes_more
from nopad.model.families import Family
from nopad.model.fronts import STATES, GiveStates, blank, check_raw, front_of, refuse_static_front, takes_states
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
from nopad.model.images import (
    TOWER,
    Ran,
    attending_part,
    check_images,
    image_parts,
    ordinary_arguments,
    refuse_others,
)
from nopad.model.known import class_of
from nopad.model.later import Watch, came_before, check_given, take_off_judges
from nopad.model.mixers import Cut, Join, carry, mixing_hooks, refuse_compiled, release
from nopad.model.nested import kept
from nopad.model.own import changes, foreign, is_own, own_modules
from nopad.model.positions import positions
from nopad.model.postconditions import check_attended, check_output, check_ran
from nopad.model.proven import Proven
from nopad.model.routers import check_losses, of_real_tokens
from nopad.model.static import enter_static, leave_static
from nopad.model.unguarded import check_rows, refuse_marked, refuse_unguarded

__all__ = ["State", "part_of"]

log = logging.getLogger("nopad")

TYPES = "token_type_ids"


@dataclass(eq=False)
class State:
    """The hooks and settings that make one model pack-safe.

    Attributes:
        model: the transformers model, without wrappers.
        family: the facts about its model type.
        backend: name of the attention backend, as given to `packed`.
        head: the model's head.
        most: most sequences that a batch may have; None: unlimited.
        takes: names of the model's arguments in packed calls.
        before: the attention implementation that the model had before; "": it was not changed.
        cell: the state that the hooks share.
        modules: the modules that the model had when hooks were last attached; if it has others at a call, hooks are
            attached again.
        kinds: classes of these modules.
        own: the user's own classes among its modules when it was made pack-safe, by qualified name.
        watch: looks for code of the user's own that changes its modules later.
        proven: the code of these classes, and what it reads, as they were then; None: there are none.
        roles: roles of the hooks that must run once in a call.
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
    roles: tuple[str, ...] = ()
    lock: Any = field(default_factory=Lock)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lock": None, "modules": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "lock": Lock()})
        attention.register()  # perhaps in another process

    @property
    def attending(self) -> Any:
        """The part of the model that gets nopad's attention: the model itself, or its text part if it takes images."""
        return attending_part(self.model, self.head.base, self.family)

    def install(self) -> None:
        """Register nopad's attention, and attach all hooks.

        Raises:
            UnsupportedModelError: the model cannot be hooked, or does not take nopad's attention.
        """
        attention.register()
        model = self.model
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
            self.before = part.config._attn_implementation
            part.set_attn_implementation(attention.NAME)
            if part.config._attn_implementation != attention.NAME:
                import transformers

                raise UnsupportedModelError(
                    f"{type(model).__name__} of transformers {transformers.__version__} does not take a registered "
                    "attention; newer versions may (T5 does from 5.20)"
                )
            self._check_parts()
        attach(model, Enter(self.cell, "enter", state=self))
        attach(model, Leave(self.cell, "leave", "after", state=self))
        self.renew()

    def _check_parts(self) -> None:
        """Refuse a model with a part that did not get nopad's attention.

        This happens in older versions of transformers, where a part has a configuration of its own.

        Raises:
            UnsupportedModelError: there is such a part.
        """
        from transformers import PreTrainedModel

        whole = self.attending
        for part in _walk(whole):
            own = getattr(getattr(part, "config", None), "_attn_implementation", attention.NAME)
            if own != attention.NAME and isinstance(part, PreTrainedModel):
                whole.set_attn_implementation(self.before)
                raise UnsupportedModelError(
                    f"the {type(part).__name__} in this {type(self.model).__name__} has a configuration of its own, "
                    f"and its attention stays {own!r}; give both the same config object, or take a newer transformers"
                )

    def remove(self) -> None:
        """Remove all hooks and restore the attention implementation."""
        for module in {*_walk(self.model), *self.modules}:
            take_off(module, self.cell)
        release(_walk(self.model))
        take_off_judges(_walk(self.model))
        if self.before:
            self.attending.set_attn_implementation(self.before)

    def renew(self) -> None:
        """Attach hooks to the modules that the model uses now, unless hooks were last attached to the same modules.

        Raises:
            UnsupportedModelError: a module that needs a hook was replaced by one that nopad does not know.
        """
        modules = tuple(_walk(self.model))
        if len(modules) == len(self.modules) and all(map(is_, modules, self.modules)):
            return
        self.cell.owned = True  # also for a cell that came with a copied model
        # Threads share the modules, so only one may change their hooks at a time.
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
            free = (UnpackFirst, PackAgain, NoPositions, NoLookup, Cut, Join, *((Count,) if self.head.stock else ()))
            counted = (hook for _, hook in hooks if not isinstance(hook, free))
            self.roles = tuple(hook.role for hook in counted)
            self.modules, self.kinds = modules, frozenset(map(type, modules))
        self.tell_cell()

    def _refuse_later(self) -> None:
        """Check that no module of the user's own classes came after the model was made pack-safe.

        Nothing is proven of such a module.

        Raises:
            UnsupportedModelError: there is one.
        """
        later = {name: kind for name, kind in foreign(self.model).items() if self.own.get(name) is not kind}
        if later:
            raise UnsupportedModelError(
                f"modules of your own class {', '.join(later)} were put into this {type(self.model).__name__} after it "
                "was made pack-safe, and may mix tokens; make it so anew: nopad.packed(nopad.unpacked(model))"
            )

    def tell_cell(self) -> None:
        """Copy to `cell` what hooks need in calls with static shapes: `most`, and how the head pools."""
        self.cell.most, self.cell.how = self.most, self.head.pooling()

    def _hooks(self) -> Iterator[tuple[nn.Module, Hook]]:
        """Yield (module, hook) pairs for the modules that the model uses now, also several pairs for one module."""
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
        for module in _walk(model):
            if type(module).__name__ == "BartLearnedPositionalEmbedding":
                yield module, NoPositions(cell)
                yield module, Positions(cell, f"{'encoder' if module in inside else 'decoder'} positions")
        for table, offset in family.tables:
            for name, module in model.named_modules():
                if name.rpartition(".")[2] == table and isinstance(module, nn.Embedding):
                    yield module, NoLookup(cell)
                    yield module, Lookup(cell, f"positions of {table}", offset=offset)
        yield from mixing_hooks(cell, _walk(model), family)
        yield from self.head.hooks(cell)

    def _entries(self) -> list[tuple[str, nn.Module]]:
        """Return (part, module) pairs for the modules at which the mask is replaced: part "encoder" or "decoder"."""
        if self.family.encoder_decoder:
            found = [(name, part_of(self.model, name)) for name in ("encoder", "decoder")]
            return [(name, module) for name, module in found if module is not None]
        base = self.head.base
        return [("encoder", getattr(base, self.family.mask_at) if self.family.mask_at else base)]

    def enter(self, module: nn.Module, args: Any, kwargs: dict[str, Any], frame: FrameType | None) -> Any:
        """Begin a call: check that batch and model fit, and turn the batch into the model's own arguments.

        Returns the new ``(args, kwargs)``, or None for a call that goes on unchanged: a call with static shapes
        (`nopad.model.static_inputs`), or an ordinary call. `frame` is the frame that calls the module; None while
        compiling.

        Raises:
            BatchError: the batch does not fit the model; or an ordinary call, which does not run inside another packed
                call, has tensors of a packed batch.
            UnsupportedModelError: the model cannot run this batch, or was changed after it was made pack-safe.
        """
        if torch.compiler.is_compiling():
            arguments = bound(module, args, kwargs)
            numbers: Any = arguments.get("attention_mask")
            if is_static(numbers):
                refuse_static_front(module, self.family)
                refuse_compiled(module, self.family)
                enter_static(self.cell, self.head, arguments, None)
            elif not isinstance(numbers, PackedMask):  # a `PackedMask` raises its own error while compiling
                refuse_marked(arguments)
            return None
        self.cell.settle()
        stack = self.cell.calls.begin()
        if args and isinstance(args[0], Mapping):
            raise BatchError("a batch was given as one argument; call model(**batch)")
        named = bound(module, args, kwargs)
        guard: Any = named.get("attention_mask")
        if self.family.route == "interface":
            refuse_attentions(module, named)
        if is_static(guard):
            refuse_static_front(module, self.family)
            refuse_compiled(module, self.family)
            stack.pop()
            enter_static(self.cell, self.head, named, frame)
            return None
        if not isinstance(guard, PackedMask):
            if attention.inside() is None:  # otherwise this model is a part of a pack-safe model and gets its tensors
                refuse_unguarded(named)
            return None
        now = self.attending.config._attn_implementation
        if self.before and now != attention.NAME:
            raise UnsupportedModelError(
                f"attention of this {type(module).__name__} was set to {now!r} after it "
                "was made pack-safe; make it so anew: nopad.packed(nopad.unpacked(model))"
            )
        self.renew()
        self.watch.look(self.modules, self.cell)
        if self.proven is not None:
            self.proven.check([one for one in self.modules if is_own(class_of(one))], self.model.config)
        if self.family.mixers:
            carry(self.cell, self.modules)
        check_raw(module, self.head.base, self.family, named)
        refuse_others(module, self.family, named)
        call = self._opened(guard, named, module)
        takes, layout = ordinary_arguments(self.takes, self.family), call.placed.layout
        check_call(module, self.family, self.most, takes, self.head.stock, named, layout)
        axes = None
        if self.family.images is not None:
            axes = check_images(module, self.head.base, self.family, named, layout)
            call.images = 0 if layout.images is None else int(layout.images.sum())
        self._fit(named, call, axes)
        check_labels(self.model, self.head.by_token, named)
        self.head.enter(call, named)
        call.frame = frame
        self.cell.count(1)
        stack[-1] = call
        call.token = attention.begin(call)
        call.given = (module, kept(named)) if came_before(module) else None
        return (), named

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """End a packed call: check that hooks and layers ran as they must, and return the output, pooled per sequence.

        `leave_static` ends a call with static shapes. The output of an ordinary call, or of a call that raised, does
        not change.

        Raises:
            UnsupportedModelError, BatchError: a check at the end fails (`nopad.model.postconditions`,
                `nopad.model.routers`).
        """
        if is_static(bound(module, args, kwargs).get("attention_mask")):
            return leave_static(module, self.cell, self.head, output)
        self.cell.refuse_compiling()
        if torch.compiler.is_compiling():
            return output
        call = self.cell.calls.end()
        if call is None:
            return None
        self.cell.count(-1)
        attention.end(call.token)
        call.frame = None
        if output is None:  # the forward call raised
            return None
        check_given(module, call, kwargs)
        check_ran(module, call, self.roles)
        check_attended(module, self.family, call, self.modules)
        output = self.head.leave(call, output)
        check_output(module, self.head, call, output)
        check_losses(module, call.placed, output)
        output = of_real_tokens(module, call.placed, output)
        return output.to_tuple() if call.as_tuple and hasattr(output, "to_tuple") else output

    def _opened(self, guard: PackedMask, named: Mapping[str, Any], module: nn.Module) -> Call:
        """Return the `Call` for the batch whose `attention_mask` is `guard`.

        Raises:
            BatchError: targets are missing or not wanted, or the batch's layout does not suit compiled layers or the
                head.
            UnsupportedModelError: layers are compiled, and this model does not allow that.
        """
        compiled = any(one._compiled_call_impl is not None or "_orig_mod" in one._modules for one in self.modules)
        if compiled:
            refuse_compiled(module, self.family)
        layouts, target = [layout_of(guard)], named.get("decoder_attention_mask")
        decodes = self.family.encoder_decoder and part_of(module, "decoder") is not None
        if decodes and not isinstance(target, PackedMask):
            raise BatchError("this model has a decoder: build the batch with batch.with_decoder(targets, start_id)")
        if isinstance(target, PackedMask):
            if not decodes:
                raise BatchError(
                    f"the batch has targets, and {type(module).__name__} has no decoder; give it batch.sources"
                )
            layouts.append(layout_of(target))
        if compiled and any(layout.crossing for layout in layouts):
            raise BatchError(
                "compiled layers know which slots see each other by sequence numbers alone, and cannot follow a "
                "sequence into the next row; build the batch without end_to_end, or do not compile"
            )
        if not self.head.stock:
            _refuse_ambiguous(self.head, layouts[-1])
        placed = place(guard, device_of(module), self._choice(guard, module, compiled))
        aimed = None
        if isinstance(target, PackedMask):
            aimed = place(target, device_of(module), self._choice(target, module, compiled))
        return Call(self.head, placed, aimed, named.get("encoder_outputs") is None, compiled)

    def _choice(self, guard: PackedMask, module: nn.Module, compiled: bool) -> str:
        """Return the name of the attention backend; for "auto", choose it by device, dtype and form of the batch.

        `compiled`: whether layers are compiled. Each choice for "auto" is logged once.
        """
        if self.backend != "auto":
            return self.backend
        device, layout = device_of(module), layout_of(guard)
        dtype = autocast_dtype(device) or next(module.parameters()).dtype
        own = self.family.route != "interface"
        if compiled and own:
            chosen = "mask"
        elif device.type == "cpu":
            chosen = "segments"
        elif layout.form == "flat" and dtype in HALF and not own and on_kernel(device):
            chosen = AUTOMATIC
        else:
            chosen = "repack" if layout.crossing else "mask"
        _say_once(f"{type(module).__name__} on {device.type}: attention backend {chosen!r} for {layout.form} batches")
        return chosen

    def _types_are_narrow(self, width: int) -> bool:
        """Return whether the table of zeros that stands for token types left out is narrower than rows (ConvBERT's)."""
        table = getattr(getattr(self.head.base, "embeddings", None), TYPES, None)
        return isinstance(table, torch.Tensor) and table.dim() == 2 and table.shape[1] < width

    def _fit(self, named: dict[str, Any], call: Call, axes: torch.Tensor | None) -> None:
        """Replace the batch's items in `named` by the arguments that the model takes.

        `axes` are positions with three axes, ``[3, R, L]``, in place of ordinary ones; None: there are none. Also sets
        `positions` and `as_tuple` of `call`, and, for a model with a front end, the states in `call.seen`.

        Raises:
            BatchError: a column of the batch does not fit the model (`leave_columns`).
        """
        takes = self.takes
        placed = call.placed
        if "attention_mask" in takes:
            named["attention_mask"] = (placed.ids != 0).to(torch.long)
        else:
            named.pop("attention_mask")  # FNet has no use for one
        if call.target is not None:
            named["decoder_attention_mask"] = (call.target.ids != 0).to(torch.long)
        named.pop("position_ids", None)  # already checked to be the layout's
        given = placed.positions
        call.positions = positions(self.model, self.family, given, named.get("input_ids"), placed.ids, placed.first)
        if axes is not None:
            call.positions = axes.to(given.device)
        if "position_ids" in takes:
            named["position_ids"] = call.positions
        if "use_cache" in parameters(type(self.model).forward):
            named["use_cache"] = False
        asked = named.get("return_dict")
        call.as_tuple = (self.model.config.return_dict if asked is None else asked) is False
        if asked is not None or (call.as_tuple and (self.head.stock or "return_dict" in takes)):
            named["return_dict"] = True
        leave_columns(self.model, takes, named)
        # A class of one's own may take it and not hand it on
        missing = self.head.stock and TYPES in takes and named.get(TYPES) is None
        if missing and self._types_are_narrow(placed.layout.shape[1]):
            named[TYPES] = torch.zeros_like(placed.ids, dtype=torch.long)
        if self.family.front is not None:
            call.seen[STATES] = named.pop(STATES)
            named[self.family.front[1]] = blank(self.model.config, next(self.model.parameters()))


@dataclass(eq=False)
class Enter(Hook):
    """The hook that begins each call of the whole model (`State.enter`)."""

    state: Any = None

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the module's new arguments, ``(args, kwargs)``; None: leave them as they are."""
        return self.state.enter(module, args, kwargs, None if torch.compiler.is_compiling() else sys._getframe(1))


@dataclass(eq=False)
class Leave(Hook):
    """The hook that ends each call of the whole model, also after an exception (`State.leave`)."""

    state: Any = None

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Return the module's new output; None: leave it as it is."""
        return self.state.leave(module, args, kwargs, output)


def part_of(model: Any, name: str) -> Any:
    """Return the model's "encoder" or "decoder", as `name` says; None: the model has no such part."""
    for holder in (model, getattr(model, "model", None), getattr(model, "transformer", None)):
        found = getattr(holder, name, None)
        if isinstance(found, nn.Module):
            return found
    return None


def _walk(model: nn.Module) -> Iterator[nn.Module]:
    """Yield all modules of a model, in any order; this runs at each call, and is faster than ``model.modules()``."""
    stack = [model]
    while stack:
        module = stack.pop()
        yield module
        stack.extend(child for child in module._modules.values() if child is not None)


def _refuse_ambiguous(head: Head, layout: Any) -> None:
    """Refuse batches in which an unknown class's results per row would look like results per sequence.

    Raises:
        BatchError: the class gives results per sequence, and the batch has as many rows as sequences, but not one
            sequence in each row.
    """
    rows = layout.shape[0]
    alone = layout.depth == 1 and not layout.crossing
    if head.gives == "sequence" and rows == layout.sequences and not alone:
        raise BatchError(
            f"this batch has as many rows as sequences, {rows}, so results per row of a class that nopad does not know "
            "could not be told from results per sequence; build it with nopad.Flat(), or with another number of rows"
        )


@lru_cache(maxsize=64)
def _say_once(message: str) -> None:
    log.info(message)
