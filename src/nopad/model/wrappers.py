"""`Wrapper`: the hooks with which a wrapper runs on packs, once its proof has admitted it.

A wrapper is the user's own module around one transformers model, its base, which is made pack-safe by itself
(`nopad.model.state`). In a packed call, the wrapper gets an ordinary mask (1 for a token, 0 for padding) in place of
the batch's own. Where it calls its base, the base gets the batch's own mask. An error is raised if the wrapper gives
its base another mask, calls its base twice, or gets arguments that the proof did not cover. At the end of a call, the
shapes of the wrapper's outputs are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from nopad.batch.device import is_static
from nopad.batch.guard import PackedMask, is_of_batch, layout_of, mark
from nopad.batch.layout import Layout
from nopad.errors import BatchError, UnsupportedModelError
from nopad.losses.checks import check_classes
from nopad.model.admission import device_of, leave_columns
from nopad.model.arguments import check_inputs
from nopad.model.calls import Cell, bound
from nopad.model.hooked import Enter, Leave
from nopad.model.hooks import Hook, attach, take_off
from nopad.model.known import class_of
from nopad.model.later import Watch, came_before, check_given, take_off_judges
from nopad.model.nested import kept
from nopad.model.own import changes
from nopad.model.proven import Proven
from nopad.model.safety import STATE
from nopad.model.unguarded import refuse_unguarded
from nopad.model.wrapper_parts import PLAIN, Admitted, accepted, bases_of, check_proven, leaves_of, outer_modules
from nopad.sequences import IGNORED

__all__ = ["Wrapper", "wrap"]


@dataclass
class WrapperCall:
    """The state of one packed call of a wrapper.

    Attributes:
        guard: the batch's own mask.
        mask: the ordinary mask that the wrapper gets: 1 for a token, 0 for padding; int64 ``[R, L]``.
        layout: the batch's layout.
        labelled: whether labels were given.
        ran: how often the base (the transformers model inside the wrapper) was called.
        own: the tensors that the base returned.
        frame: the Python frame that called the wrapper; None after the call.
        given: the wrapper and a copy of its arguments, if a hook that was added after the wrapper was made pack-safe
            may change them; else None.
    """

    guard: PackedMask
    mask: Tensor
    layout: Layout
    labelled: bool = False
    ran: int = 0
    own: list[Tensor] = field(default_factory=list)
    frame: FrameType | None = None
    given: Any = None


@dataclass(eq=False)
class Wrapper:
    """The hooks that make a wrapper pack-safe. Its base, the model inside, is already pack-safe.

    Attributes:
        model: the wrapper.
        base: the transformers model inside.
        admitted: what the proof found.
        accepts: names of the arguments of the wrapper's forward method; with ``**kwargs``, also those of its base.
        kinds: classes of the wrapper's modules outside of the base, by name, when the hooks were attached.
        proven: the code of the wrapper's modules, and the values that it reads, when the hooks were attached.
        watch: looks for the user's own code that is added later.
        cell: the state that the hooks share.
    """

    model: Any
    base: Any
    admitted: Admitted
    accepts: tuple[str, ...] = ()
    kinds: dict[str, type] = field(default_factory=dict)
    proven: Any = None
    watch: Watch = field(default_factory=Watch)
    cell: Cell = field(default_factory=Cell)

    @property
    def backend(self) -> str:
        """Name of the base's attention backend, as given to `nopad.packed`."""
        return str(vars(self.base)[STATE].backend)

    def install(self) -> None:
        """Attach the hooks to the wrapper and its base, and store the wrapper's code as it is now.

        Raises:
            OptionError: the wrapper's forward method takes no ``input_ids``.
        """
        self.accepts = accepted(self.model, self.base)
        self.kinds = {name: class_of(module) for name, module in outer_modules(self.model).items()}
        self.proven = Proven.of(list(outer_modules(self.model).values()), self.base.config)
        self.watch = Watch([call for _, call in changes(self.model)])
        self.cell.owned = True
        attach(self.model, Enter(self.cell, "enter", state=self))
        attach(self.model, Leave(self.cell, "leave", "after", state=self))
        hook = _Hand(self.cell, "hand on", state=self)  # before the base's own hooks, which need the batch's mask
        self.base.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
        attach(self.base, _Got(self.cell, "got", "after", state=self))

    def remove(self) -> None:
        """Remove the hooks, and make the base an ordinary model again."""
        for module in (self.model, self.base):
            take_off(module, self.cell)
        take_off_judges(outer_modules(self.model).values())
        state = vars(self.base).get(STATE)
        if state is not None:
            state.remove()
            object.__delattr__(self.base, STATE)

    def enter(self, module: nn.Module, args: Any, kwargs: dict[str, Any], frame: FrameType | None) -> Any:
        """Begin a call; return the new ``(args, kwargs)`` if it is a packed call.

        The result is None for an ordinary call (one without a packed batch), and while compiling. `frame` is the Python
        stack frame that calls the wrapper.

        Raises:
            BatchError: a batch is given as one argument, or without its own mask; or an argument does not fit the
                batch, or was not part of the proof.
            UnsupportedModelError: the inputs are those of `nopad.model.static_inputs`; modules or code of the wrapper
                were changed since the proof; or there are more positional arguments than the wrapper has names for.
        """
        if torch.compiler.is_compiling():
            return None  # a `PackedMask` raises its own error while compiling
        self.cell.owned = True  # also for a cell that came with a copied model
        self.cell.settle()
        stack = self.cell.calls.begin()
        if args and isinstance(args[0], Mapping):
            raise BatchError("a batch was given as one argument; call model(**batch)")
        named = bound(module, args, kwargs)
        guard: Any = named.get("attention_mask")
        if is_static(guard):
            raise UnsupportedModelError(
                f"{type(module).__name__} is a class of your own, and what it hands on cannot be checked in a compiled "
                "graph; compile the layers of its base one by one instead, each with layer.compile()"
            )
        if not isinstance(guard, PackedMask):
            refuse_unguarded(named)
            return None
        self._check_parts()
        layout = layout_of(guard)
        self._check_arguments(named, layout)
        mask = torch.from_numpy(layout.sequence_ids != 0).to(device_of(self.base), torch.long)
        mark(mask)
        call: Any = WrapperCall(guard, mask, layout, named.get("labels") is not None, frame=frame)
        if "attention_mask" in self.admitted.columns:
            named["attention_mask"] = mask
        else:
            named.pop("attention_mask")
        self._set_labels(named, call)
        self.cell.count(1)
        stack[-1] = call
        call.given = (module, kept(named)) if came_before(module) else None
        return (), named

    def hand_on(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the arguments of the base with the batch's own mask, ``(args, kwargs)``.

        The result is None outside of a packed call. `module` is the base, the transformers model inside the wrapper.

        Raises:
            UnsupportedModelError: the wrapper calls its base a second time, or gives it another mask than the wrapper
                got; or a compiler traces this during a packed call.
            BatchError: no packed call runs, but the base is given the mask of a packed call. Gradient checkpointing
                around the base leads to this.
        """
        self.cell.refuse_compiling()
        call: Any = self.cell.call
        named = bound(module, args, kwargs)
        given = named.get("attention_mask")
        if call is None:
            if is_of_batch(given):
                raise BatchError(
                    f"{type(module).__name__} is given the mask of a packed batch outside of a call of "
                    f"{type(self.model).__name__} (checkpointing around it does so); checkpoint the layers inside of it"
                )
            return None
        call.ran += 1
        if call.ran > 1:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} calls {type(module).__name__} more than once, and nopad follows one "
                "call of it; call it once, and compute from its states what you need"
            )
        if given is not None and given is not call.mask and not _same_mask(given, call.mask):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} gives {type(module).__name__} an attention_mask of its own, in which "
                "nopad cannot keep sequences apart; hand attention_mask on as it comes"
            )
        named["attention_mask"] = call.guard
        return (), named

    def got(self, output: Any) -> None:
        """In a packed call, store the tensors that the base returned."""
        call: Any = None if torch.compiler.is_compiling() else self.cell.call
        if call is not None:
            call.own += [one for _, one in leaves_of(output) if isinstance(one, Tensor)]

    def leave(self, module: nn.Module, args: Any, given: Mapping[str, Any], output: Any) -> None:
        """End a call. If it is a packed call, check that the base ran, and check the shapes of the wrapper's outputs.

        Each output must be a tensor with one entry per slot, ``[R, L, ...]``. If the proof found outputs with one entry
        per sequence, ``[S, ...]`` is allowed too. Some outputs are not checked: numbers, strings, None, tensors that
        the base returned, and, in a call with labels, scalar tensors. `given` are the wrapper's arguments by name.

        Raises:
            UnsupportedModelError: the base did not run; a hook that was added later changed the arguments; or an output
                that is checked is not a tensor, or has another shape.
        """
        if torch.compiler.is_compiling():
            return
        call: Any = self.cell.calls.end()
        if call is None:
            return
        self.cell.count(-1)
        call.frame = None
        if output is None:  # the forward call raised
            return
        check_given(module, call, given)
        name = type(module).__name__
        if call.ran != 1:
            raise UnsupportedModelError(
                f"{type(self.base).__name__} of {name} was to run once in a packed call, and did not run"
            )
        own = {id(one) for one in call.own}
        for full, value in leaves_of(output):
            if isinstance(value, PLAIN) or id(value) in own:
                continue
            if not isinstance(value, Tensor):
                raise UnsupportedModelError(f"{full} of {name} is a {type(value).__name__}, in which nopad cannot look")
            if value.dim() == 0 and call.labelled:
                continue
            wanted = [call.layout.shape, *([(call.layout.sequences,)] if self.admitted.sequences else [])]
            if not any(tuple(value.shape[: len(size)]) == size for size in wanted):
                sizes = " or ".join(f"[{', '.join(map(str, size))}, ...]" for size in wanted)
                raise UnsupportedModelError(
                    f"{full} of {name} has the shape {list(value.shape)} and not {sizes}: it is of rows or of "
                    "something else, not what each sequence gets alone"
                )

    def _check_parts(self) -> None:
        """Check that the wrapper has the modules and the code that its proof was about.

        Raises:
            UnsupportedModelError: the base or another module was replaced; the wrapper's code, or a value that the code
                reads, was changed; a method was replaced, or other code of the user's own was added that changes the
                wrapper; or the base is not pack-safe any more.
        """
        name, again = type(self.model).__name__, "make it so anew: nopad.packed(nopad.unpacked(model))"
        bases = bases_of(self.model)
        if list(bases.values()) != [self.base]:
            other = next((key for key, one in bases.items() if one is not self.base), "the model inside")
            raise UnsupportedModelError(f"{other} of {name} was put there after it was made pack-safe; {again}")
        if STATE not in vars(self.base):
            raise UnsupportedModelError(f"{next(iter(bases))} of {name} is no longer pack-safe by itself; {again}")
        kinds = {key: class_of(module) for key, module in outer_modules(self.model).items()}
        if kinds != self.kinds:
            odd = [key for key in (*kinds, *self.kinds) if kinds.get(key) is not self.kinds.get(key)]
            raise UnsupportedModelError(
                f"{odd[0] or name} of {name} is another module than when it was made pack-safe, and may mix tokens; "
                f"{again}"
            )
        modules = list(outer_modules(self.model).values())
        self.proven.check(modules, self.base.config)
        self.watch.look(modules, self.cell)

    def _check_arguments(self, named: dict[str, Any], layout: Layout) -> None:
        """Check the arguments of a packed call, and remove from `named` those columns that the wrapper does not take.

        Raises:
            BatchError: an argument was not part of the proof, or does not fit the batch's layout; or there are no
                ``input_ids``.
        """
        name, columns = type(self.model).__name__, self.admitted.columns
        if "position_ids" not in self.accepts:
            named.pop("position_ids", None)
        leave_columns(self.model, self.accepts, named)
        check_proven(self.model, self.admitted, named)
        if named.get("input_ids") is None:
            raise BatchError(f"no input_ids were given to {name}; the batch is laid out in {list(layout.shape)}")
        check_inputs(self.base, columns, True, {key: named[key] for key in columns if key in named}, layout)

    def _set_labels(self, named: dict[str, Any], call: WrapperCall) -> None:
        """Set labels per token in `named` to -100 in padding, and at first tokens if the wrapper shifts labels.

        `named` are the arguments by name, and a first token is the first of its sequence. Labels per sequence are
        checked and stay as they are.

        Raises:
            BatchError: labels do not have the shape that the batch needs, are not integers, or are negative and not
                -100; or the wrapper shifts labels, and a sequence may go on in the next row.
        """
        labels = named.get("labels")
        if labels is None:
            return
        layout, per_sequence = call.layout, self.admitted.labels == "classification"
        wanted = (layout.sequences,) if per_sequence else layout.shape
        if not isinstance(labels, Tensor) or tuple(labels.shape) != wanted:
            raise BatchError(f"labels of {type(self.model).__name__} must be a tensor of integers {list(wanted)}")
        check_classes(labels, 2**31)
        if per_sequence:
            return
        out = call.mask == 0
        if self.admitted.labels == "causal":
            if layout.crossing:
                raise BatchError(
                    f"{type(self.model).__name__} shifts labels within rows, and these rows are filled end to end; "
                    "take labels out and use nopad.losses.token_loss(causal=True)"
                )
            out = out | torch.from_numpy(layout.position_ids == 0).to(out.device)
        named["labels"] = labels.long().masked_fill(out, IGNORED)


def wrap(model: nn.Module, admitted: Admitted, make: Callable[[Any], Any]) -> None:
    """Make a wrapper (the user's own module around a transformers model, its base) pack-safe, in place.

    `admitted` is what the proof of the wrapper found. `make` is a function that makes the base pack-safe, in place.

    Raises:
        OptionError: the wrapper's forward method takes no ``input_ids``.
    """
    [base] = bases_of(model).values()
    make(base)
    state = Wrapper(model, base, admitted)
    state.install()
    object.__setattr__(model, STATE, state)


def _same_mask(given: Any, mask: Tensor) -> bool:
    """Return whether `given` is a mask that hides the same slots as `mask`, the one that the wrapper got.

    The two masks may have different dtypes.
    """
    return isinstance(given, Tensor) and given.shape == mask.shape and torch.equal((given != 0).long(), mask)


@dataclass(eq=False)
class _Hand(Hook):
    """The hook that gives a wrapper's base the mask of the packed batch, in place of the wrapper's plain mask.

    Attributes:
        state: the `Wrapper` whose method `hand_on` the hook calls.
    """

    state: Any = None

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the base's new ``(args, kwargs)``; None outside of a packed call (`Wrapper.hand_on`)."""
        return self.state.hand_on(module, args, kwargs)


@dataclass(eq=False)
class _Got(Hook):
    """The hook that records what a wrapper's base (the transformers model inside) returned.

    Attributes:
        state: the `Wrapper` whose method `got` the hook calls.
    """

    state: Any = None

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Record the base's output, and leave it unchanged."""
        self.state.got(output)
