"""Build a smaller model from the first layers of a large one, so that an audit takes less time and memory."""

from __future__ import annotations

import copy
from typing import Any

import torch

from nopad.errors import OptionError, UnsupportedModelError
from nopad.model.hooks import Hook
from nopad.model.postconditions import LAYERS
from nopad.model.safety import STATE, bare, packed

__all__ = ["layer_count", "missing_kinds", "shortened", "window_of"]


def layer_count(config: Any) -> int:
    """Return the number of layers that a configuration states; 0 if it states none."""
    text = config.get_text_config()
    return next((int(getattr(text, name)) for name in LAYERS if getattr(text, name, None)), 0)


def missing_kinds(model: Any, layers: int) -> str:
    """Return text that names the kinds of layers that the model has only after its first `layers` layers; "" if none.

    An example is ", without any of sliding_attention".
    """
    kinds = list(getattr(model.config.get_text_config(), "layer_types", None) or ())
    later = sorted(set(kinds[layers:]) - set(kinds[:layers]))
    return f", without any of {', '.join(later)}" if later else ""


def window_of(config: Any) -> int:
    """Return the total width of the model's local attention window in tokens; 0 if it has no local attention."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    window = getattr(text, "local_attention", None) or getattr(text, "sliding_window", None) or 0
    return int(window) if kinds is None or "sliding_attention" in kinds else 0


def shortened(model: Any, layers: int) -> Any:
    """Return a copy of a model with only its first `layers` layers, in evaluation mode.

    If the model is pack-safe, so is the copy, with the same backend.

    Raises:
        OptionError: `layers` is below 1, or above the model's number of layers.
        UnsupportedModelError: a module has a replaced `forward`, or forward hooks that are neither nopad's nor
            transformers'; a copy would not have these. Or a model built from the changed configuration has a weight
            that this model lacks or has in another shape, for example because PEFT wraps this model.
    """
    inner = bare(model)
    there = layer_count(inner.config)
    if not 1 <= layers <= there:
        raise OptionError(f"layers is {layers}; this {type(inner).__name__} has {there}")
    for name, module in inner.named_modules():
        if "forward" in vars(module) or _has_hooks(module):
            raise UnsupportedModelError(
                f"{name or type(inner).__name__} has a hook or a forward method of its own, which a copy with fewer "
                "layers would not have; audit the model whole"
            )
    with torch.random.fork_rng(devices=[]):
        made = type(inner)(_fewer(inner.config, there, layers))
    mine = inner.state_dict()
    wanted = made.state_dict()
    if any(name not in mine or mine[name].shape != value.shape for name, value in wanted.items()):
        raise UnsupportedModelError(f"{type(inner).__name__} cannot be cut to its first layers (PEFT?); audit it whole")
    made.load_state_dict({name: mine[name] for name in wanted})
    parameter = next(inner.parameters())
    made = made.to(device=parameter.device, dtype=parameter.dtype).eval()
    made.set_attn_implementation(_attention(inner))
    state = getattr(inner, STATE, None)
    if state is None:
        return made
    head = None if state.head.stock else state.head.name
    return packed(made, backend=state.backend, head=head, family=state.family)


def _has_hooks(module: Any) -> bool:
    """Return whether a module has forward hooks that are neither nopad's nor transformers'.

    The hooks of transformers only record outputs, and those of nopad are set anew on a copy.
    """
    return any(
        not isinstance(hook, Hook) and not (getattr(hook, "__module__", None) or "").startswith("transformers.")
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        for hook in hooks.values()
    )


def _attention(inner: Any) -> str:
    """Return the name of a model's attention implementation, such as "sdpa".

    For a pack-safe model, it is the implementation that `packed` replaced.
    """
    state = getattr(inner, STATE, None)
    return str((state.before if state is not None else "") or inner.config._attn_implementation)


def _fewer(config: Any, there: int, layers: int) -> Any:
    """Return a copy of a configuration of `there` layers, for a model with only the first `layers` of them.

    Lists with one entry per layer are cut too.
    """
    config = copy.deepcopy(config)
    text = config.get_text_config()
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == there:
            setattr(text, name, value[:layers])
    for name in LAYERS:
        if getattr(text, name, None) == there:
            setattr(text, name, layers)
    return config
