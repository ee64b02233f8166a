"""`packed`: make a transformers model pack-safe, and `unpacked`: undo it. Registries and hooks; no copy of model code.

The model stays the object it was, with the same parameters and `state_dict`; called with anything but a `PackedBatch`
it does what it did. Called with one, every sequence gets what it would get alone:

* the outermost hook takes the guard off the batch, checks that batch and model fit, and puts positions right;
* where the base model (or its encoder) begins, the mask becomes one that carries the layout to each layer's attention;
* where a head pools, it is handed each sequence's states instead of each row's (`nopad.model.heads`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from nopad.batch.device import Cross, Placement, is_static, place
from nopad.batch.guard import PackedMask, layout_of
from nopad.errors import BatchError, OptionError, UnsupportedModelError
from nopad.model import attention
from nopad.model.admission import check_call, device_of, leave_columns, refuse_attentions
from nopad.model.arguments import check_labels
from nopad.model.backends import BACKENDS
from nopad.model.calls import Call, Calls, Static, bound, parameters
from nopad.model.encoders import encoder_mask, hook_encoder
from nopad.model.families import Family, family_of
from nopad.model.heads import Head, head_of
from nopad.options import Option

__all__ = ["bare", "is_packed", "packed", "part_of", "state_of", "unpacked"]

log = logging.getLogger("nopad")
STATE = "_nopad_state"
MOST = Option(default=None, none=True, help="most sequences of a batch")


def packed(model: Any, *, backend: str = "auto", max_sequences: int | None = None) -> Any:
    """Make a model pack-safe; the same object comes back.

    Args:
        model: a transformers model, bare or with a head, also inside PEFT.
        backend: how sequences are kept apart in attention: one of `BACKENDS`, or "auto": `segments` on a CPU, the
            varlen kernel on a GPU in half precision where the batch is flat, else `mask`.
        max_sequences: most sequences of a batch; more are refused. With it, heads that give a result per sequence have
            static shapes too (`nopad.model.static_inputs`).

    Raises:
        UnsupportedModelError: sequences of this model cannot be kept apart, or nothing is known of it.
        OptionError: there is no such backend, `max_sequences` is no integer from 1, or the model is pack-safe already.

    >>> import nopad, torch
    >>> from transformers import BertConfig, BertModel
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(BertModel(BertConfig(**sizes)).eval())
    >>> batch = nopad.PackedBatch.from_sequences([[101, 7, 102], [101, 102]])
    >>> states = batch.unpack_tokens(model(**batch).last_hidden_state)
    >>> alone = model(torch.tensor([[101, 7, 102]])).last_hidden_state
    >>> torch.allclose(states[0], alone[0], atol=1e-6)
    True
    """
    if backend != "auto" and backend not in BACKENDS:
        raise OptionError(f"unknown backend {backend!r}; there are auto, {', '.join(BACKENDS)}")
    max_sequences = MOST.check("max_sequences", max_sequences)
    inner = bare(model)
    if hasattr(inner, STATE):
        raise OptionError(f"this {type(inner).__name__} is pack-safe already; nopad.unpacked(model) undoes it")
    family = family_of(inner.config)
    state = _State(inner, family, backend, head_of(inner, family))
    state.head.most = max_sequences
    state.install()
    object.__setattr__(inner, STATE, state)
    return model


def unpacked(model: Any) -> Any:
    """Undo `packed`; the same object comes back, as it was.

    Raises:
        OptionError: the model is not pack-safe.
    """
    state_of(model).remove()
    object.__delattr__(bare(model), STATE)
    return model


def is_packed(model: Any) -> bool:
    """Whether `packed` made this model pack-safe."""
    return hasattr(bare(model), STATE)


def state_of(model: Any) -> _State:
    """Return what makes a model pack-safe.

    Raises:
        OptionError: nothing does.
    """
    state: _State | None = getattr(bare(model), STATE, None)
    if state is None:
        raise OptionError(f"this {type(bare(model)).__name__} is not pack-safe; make it so with nopad.packed(model)")
    return state


def bare(model: Any) -> Any:
    """Return the transformers model inside wrappers of PEFT, DDP and torch.compile.

    Raises:
        OptionError: there is none.
        UnsupportedModelError: PEFT adds tokens to its input.
    """
    seen = model
    while True:
        if hasattr(seen, "get_base_model"):
            if any(getattr(one, "is_prompt_learning", False) for one in getattr(seen, "peft_config", {}).values()):
                raise UnsupportedModelError(
                    f"{type(seen).__name__} puts tokens of its own before each row (prompt or prefix tuning), which "
                    "packs have no room for; run its sequences padded"
                )
            seen = seen.get_base_model()
        elif hasattr(seen, "_orig_mod"):
            seen = seen._orig_mod
        elif isinstance(seen, nn.parallel.DistributedDataParallel | nn.DataParallel):
            seen = seen.module
        else:
            break
    if not isinstance(seen, nn.Module) or not hasattr(seen, "config"):
        raise OptionError(f"{type(model).__name__} is no transformers model; give one, bare or wrapped by PEFT")
    return seen


@dataclass
class _State:
    """What makes one model pack-safe."""

    model: Any
    family: Family
    backend: str
    head: Head
    takes: tuple[str, ...] = ()
    before: str = ""
    handles: list[Any] = field(default_factory=list)
    calls: Calls = field(default_factory=Calls)
    compiled: Static = field(default_factory=Static)  # a compiler does not see what is a thread's own

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "calls": None, "compiled": None, "linear": "unknown"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "calls": Calls(), "compiled": Static()})

    @property
    def call(self) -> Call | None:
        """The packed call under way; None in an ordinary one."""
        return self.calls.stack[-1] if self.calls.stack else None

    @property
    def static(self) -> Static:
        """The call of static shapes under way; without ids where there is none."""
        return self.compiled if torch.compiler.is_compiling() else self.calls.static

    def install(self) -> None:
        """Register the attention and all hooks."""
        attention.register()
        model = self.model
        self.takes = parameters(type(model).forward)
        if self.family.route == "interface":
            self.before = model.config._attn_implementation
            model.set_attn_implementation(attention.NAME)
            if model.config._attn_implementation != attention.NAME:
                import transformers

                raise UnsupportedModelError(
                    f"{type(model).__name__} of transformers {transformers.__version__} does not take a registered "
                    "attention; newer versions may (T5 does from 5.20)"
                )
        self._before(model, self._enter)
        self.handles.append(model.register_forward_hook(self._leave, with_kwargs=True, always_call=True))
        for name, module in self._entries():
            self._before(module, _Swap(self, name))
        if self.family.route == "encoder mask":
            self.handles += hook_encoder(model, self.family)
        for module in _position_modules(model):
            self._before(module, self._hide_positions)
            self.handles.append(module.register_forward_hook(self._put_positions))
        self.handles += self.head.install(self)

    def remove(self) -> None:
        """Take all of it off again."""
        for handle in self.handles:
            handle.remove()
        if self.before:
            self.model.set_attn_implementation(self.before)

    def _before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        self.handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def _entries(self) -> list[tuple[str, nn.Module]]:
        """The modules at which the mask is swapped."""
        model = self.model
        if self.family.encoder_decoder:
            found = [(name, part_of(model, name)) for name in ("encoder", "decoder")]
            return [(name, module) for name, module in found if module is not None]
        base = getattr(model, model.base_model_prefix, model)
        return [("encoder", getattr(base, self.family.mask_at) if self.family.mask_at else base)]

    def _enter(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Open a packed call: check that batch and model fit, and turn the batch into the model's own arguments."""
        named = bound(module, args, kwargs)
        guard = named.get("attention_mask")
        if args and isinstance(args[0], Mapping):
            self.calls.stack.append(None)  # the leaving hook takes it off
            raise BatchError("a batch was given as one argument; call model(**batch)")
        if self.family.route == "interface" and not torch.compiler.is_compiling():
            try:
                refuse_attentions(module, named)
            except BatchError:
                self.calls.stack.append(None)
                raise
        if is_static(guard):
            if not torch.compiler.is_compiling():
                self.calls.stack.append(None)
            self.static.ids = guard  # no slice here: hooks of the whole model are frames, and graphs, of their own
            return None
        if torch.compiler.is_compiling():
            return None
        if not isinstance(guard, PackedMask):
            self.calls.stack.append(None)
            return None
        try:
            call = Call(place(guard, device_of(module), self._choice(guard, module)), self._target(named, module))
            check_call(module, self.family, self.head.most, named, call.placed.layout)
            self._fit(named, call)
            check_labels(self.model, self.head.by_token, named)
            self.head.enter(call, named)
        except BaseException:
            self.calls.stack.append(None)  # the leaving hook takes it off
            raise
        self.calls.stack.append(call)
        call.token = attention.begin()
        return (), named

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Close the call, and give what it returned one entry a sequence where it has one a row."""
        if is_static(kwargs.get("attention_mask")):
            output = self.head.leave_static(self, output) if output is not None else None
            self.static.ids = self.static.kept = None
            if torch.compiler.is_compiling():
                return output
            self.calls.stack.pop()
            return output
        if torch.compiler.is_compiling():
            return output
        call = self.calls.stack.pop() if self.calls.stack else None
        if call is None:
            return None
        attended = attention.end(call.token)
        if output is None:  # it raised
            return None
        if not attended and not any(
            part._compiled_call_impl for part in module.modules()
        ):  # compiled layers do not tell
            raise UnsupportedModelError(
                f"no layer of {type(module).__name__} asked nopad's attention: its sequences saw each other; report "
                "this model, please"
            )
        output = self.head.leave(call, output)
        return output.to_tuple() if call.as_tuple else output

    def _choice(self, guard: PackedMask, module: nn.Module) -> str:
        """Choose the backend by device and form, and say it once."""
        if self.backend != "auto":
            return self.backend
        device, dtype, layout = device_of(module), next(module.parameters()).dtype, layout_of(guard)
        if device.type == "cpu":
            chosen = "segments"
        elif layout.form == "flat" and device.type == "cuda" and dtype in (torch.float16, torch.bfloat16):
            chosen = "varlen"
        else:
            chosen = "repack" if layout.crossing else "mask"
        _say_once(f"{type(module).__name__} on {device.type}: attention backend {chosen!r} for {layout.form} batches")
        return chosen

    def _target(self, named: Mapping[str, Any], module: nn.Module) -> Placement | None:
        guard = named.get("decoder_attention_mask")
        if not isinstance(guard, PackedMask):
            if self.family.encoder_decoder and part_of(module, "decoder") is not None:
                raise BatchError("this model has a decoder: build the batch with batch.with_decoder(targets, start_id)")
            return None
        return place(guard, device_of(module), self._choice(guard, module))

    def _fit(self, named: dict[str, Any], call: Call) -> None:
        """Turn what the batch holds into what the model takes."""
        takes = self.takes
        placed = call.placed
        named["attention_mask"] = (placed.ids != 0).to(torch.long)
        if call.target is not None:
            named["decoder_attention_mask"] = (call.target.ids != 0).to(torch.long)
        positions = named.pop("position_ids", None)
        if "position_ids" in takes:
            if positions is None:  # picked out of the batch without them
                positions = torch.from_numpy(placed.layout.position_ids).to(placed.ids.device)
            offset = self.family.offset(self.model.config)
            named["position_ids"] = positions if not offset else positions + offset * (placed.ids != 0)
        if "use_cache" in takes:
            named["use_cache"] = False
        asked = named.get("return_dict")
        call.as_tuple = (self.model.config.return_dict if asked is None else asked) is False
        if asked is not None or call.as_tuple:
            named["return_dict"] = True
        leave_columns(self.model, takes, named)

    def _hide_positions(self, module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Keep such a stack from counting along the whole row, beyond its table."""
        if torch.compiler.is_compiling() or self.call is None:
            return None
        return args, {**kwargs, "position_ids": torch.zeros(1, dtype=torch.long, device=module.weight.device)}

    def _put_positions(self, module: Any, args: Any, output: Any) -> Any:
        """Look learned positions up again where a stack counts them itself (BART)."""
        call = None if torch.compiler.is_compiling() else self.call
        if call is None:
            return None
        side = call.placed if call.inside == "encoder" or call.target is None else call.target
        positions = torch.from_numpy(side.layout.position_ids).to(side.ids.device)
        return nn.functional.embedding(positions + module.offset, module.weight)


@dataclass
class _Swap:
    """A hook that puts the mask in that carries the layout."""

    state: _State
    name: str

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling():
            return None
        call = self.state.call
        if call is None:
            return None
        named = bound(module, args, kwargs)
        call.inside = self.name
        if self.state.family.route == "encoder mask":
            named["attention_mask"] = encoder_mask(call.placed, self.state.family, named["hidden_states"].dtype)
            return (), named
        if self.name == "decoder":
            assert call.target is not None
            named["attention_mask"] = call.target.mask()
            named["encoder_attention_mask"] = Cross(call.target, call.placed).mask()
        else:
            named["attention_mask"] = call.placed.mask()
        return (), named


def part_of(model: Any, name: str) -> Any:
    """The encoder or decoder of a model that has both."""
    for holder in (model, getattr(model, "model", None), getattr(model, "transformer", None)):
        found = getattr(holder, name, None)
        if isinstance(found, nn.Module):
            return found
    return None


def _position_modules(model: nn.Module) -> list[nn.Module]:
    """Learned positions that a stack looks up without being told which (BART)."""
    return [m for m in model.modules() if type(m).__name__ == "BartLearnedPositionalEmbedding"]


@lru_cache(maxsize=64)
def _say_once(message: str) -> None:
    log.info(message)
