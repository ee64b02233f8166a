"""Refuse features that depend on a whole batch or row: with them a sequence would not get the result it gets alone.

These features are refused, each with an error that names it:

* rotary frequencies that change with the longest sequence of a batch (longrope, dynamic rope);
* activations that are quantised with one scale for the whole batch (torch.ao, torchao), also in training
  (`FakeQuantize` with an enabled observer), or with outlier columns found in the whole batch (bitsandbytes); one scale
  per token is allowed, and so is a fixed one;
* a cache of earlier tokens (``past_key_values``, ``cache_params``), which belongs to rows and not to sequences;
* PEFT adapters that are chosen or switched on per row;
* noise on embeddings that is scaled by the width of a row (NEFTune);
* experts of limited capacity, which drop tokens if a row or a batch has too many for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from nopad.batch.layout import Layout
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model.embedded import input_embeddings
from nopad.model.known import walk

__all__ = ["check_arguments", "check_embeddings", "check_experts", "check_layers", "check_rope"]

CACHES = ("past_key_values", "cache_params", "state")
FAKE = "torch.ao fake"  # FakeQuantize, which rounds as quantised layers will, in training for quantisation
PER_ROW = ("adapter_names", "alora_offsets")  # arguments that PEFT passes to layers by hooks, during a call


def check_arguments(named: Mapping[str, Any]) -> None:
    """Check that a packed call is given no cache of earlier tokens; `named` are its arguments by name.

    Raises:
        BatchError: an argument in `CACHES`, such as ``past_key_values``, was given.
    """
    given = next((name for name in CACHES if named.get(name) is not None), None)
    if given is not None:
        raise BatchError(
            f"{given} hold earlier tokens of rows, and a packed batch has sequences: every one would see them; "
            "leave them out, or generate with the sequences padded"
        )


def check_embeddings(model: Any) -> None:
    """Check that NEFTune adds no noise to the input embeddings: its noise is scaled by the width of a row.

    Raises:
        UnsupportedModelError: NEFTune's hook is on the embeddings (the trainers' option `neftune_noise_alpha`).
    """
    hooks = getattr(input_embeddings(model), "_forward_hooks", None) or {}
    if any(getattr(hook, "__name__", "") == "neftune_post_forward_hook" for hook in hooks.values()):
        raise UnsupportedModelError(
            "NEFTune adds noise to embeddings that is weaker in wider rows, so what a sequence gets depends on who "
            "shares its batch; set neftune_noise_alpha to None"
        )


def check_experts(model: Any, *, also: Any = None) -> None:
    """Check that no experts have a limited capacity: such experts drop tokens if a row or a batch has too many.

    Such a limit is recognised by its name: a number above 0 in an attribute with "capacity" in its name
    (`expert_capacity`, `capacity_factor`), unless the same object has `drop_tokens=False`. The attributes of all
    modules are read. `also` is one more object whose attributes are read: the configuration, for a model whose code
    nopad does not know; None: only the modules.

    Raises:
        UnsupportedModelError: there is such a limit.
    """
    named = [(f"{name or 'the model'} ({type(module).__name__})", module) for name, module in model.named_modules()]
    for where, holder in [*named, ("the configuration", also)] if also is not None else named:
        for field, value in vars(holder).items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
            if "capacity" in field and number and getattr(holder, "drop_tokens", None) is not False:
                raise UnsupportedModelError(
                    f"{where} of {type(model).__name__} has experts of limited capacity ({field} = {value:g}): which "
                    "tokens they drop depends on who shares the row or the batch, so no sequence gets in a pack what "
                    "it gets alone; take experts without a limit, or run each sequence by itself"
                )


def check_rope(model: Any, layout: Layout) -> None:
    """Check that no sequence changes the rotary frequencies of the others.

    Longrope has two sets of frequencies; the long one applies to the whole batch when its longest sequence exceeds
    `original_max_position_embeddings`. With dynamic rope, a sequence longer than `max_position_embeddings` changes the
    frequencies of the whole batch, and of later calls. If an earlier call has changed those of a dynamic rope, they are
    reset here.

    Raises:
        BatchError: some sequences are longer than `original_max_position_embeddings` and others are not (longrope), or
            a sequence is longer than `max_position_embeddings` (dynamic rope).
    """
    config = model.config.get_text_config()
    for rope in _ropes(config):
        kind = str(rope.get("rope_type", "default"))
        if kind == "longrope" or "long_mscale" in rope:
            switch = rope.get("original_max_position_embeddings") or config.original_max_position_embeddings
            _check_side(layout, int(switch))
        elif "dynamic" in kind:
            if layout.max_seqlen > config.max_position_embeddings:
                at = int(layout.seq_lengths.argmax())
                raise BatchError(
                    f"sequence {at} has {layout.max_seqlen} tokens, and beyond {config.max_position_embeddings} "
                    "(max_position_embeddings) this model's dynamic rope stretches the frequencies of the whole batch; "
                    "truncate it, or run it alone"
                )
            _reset_frequencies(model)


def check_layers(model: nn.Module) -> None:
    """Check that no layer quantises the activations of a whole batch together, or gets one value per row from PEFT.

    Quantisation is recognised only in layers of torch.ao, bitsandbytes and torchao.

    Raises:
        UnsupportedModelError: a layer quantises in this way, or hooks of PEFT give it one value per row. These hooks
            are first removed from all layers, so that they are not there in the next call.
    """
    why, given = None, dict[str, None]()
    for module in walk(model):  # at each call: most modules end at the first `continue`
        if module._forward_pre_hooks:
            given.update(dict.fromkeys(_per_row(module).values()))
        kind: Any = type(module)
        known, weight = _library(kind), module._parameters.get("weight")
        if not known and (weight is None or type(weight) is nn.Parameter):
            continue
        if why is not None or (known == FAKE and _is_of_weights(model, module)):
            continue
        if (reason := _together(module, known, weight)) is not None:
            why = f"{type(module).__name__} {reason}"
    if given:
        for module in walk(model):  # PEFT removes them only after calls without an error
            for number in _per_row(module):
                del module._forward_pre_hooks[number]
        raise UnsupportedModelError(
            f"PEFT hands {', '.join(given)} to each layer, one per row, and rows hold several sequences; "
            "run one adapter at a time (model.set_adapter), and adapters with alora_invocation_tokens without packs"
        )
    if why is not None:
        raise UnsupportedModelError(
            f"{why}, so what a sequence gets depends on who shares its batch; quantise with one scale per token, or "
            "weights only"
        )


def _per_row(module: nn.Module) -> dict[int, str]:
    """Return the hooks by which PEFT passes a layer an argument that has one value per row, such as ``adapter_names``.

    `module` is the layer. The result is ``{key in module._forward_pre_hooks: name of the argument}``, empty if there
    are no such hooks.
    """
    hooks = module._forward_pre_hooks
    if not hooks:
        return {}
    found = ((number, set(PER_ROW) & set(getattr(hook, "keywords", ()))) for number, hook in hooks.items())
    return {number: names.pop() for number, names in found if names}


def _is_of_weights(model: nn.Module, fake: nn.Module) -> bool:
    """Return whether `fake`, a `FakeQuantize` in a model, quantises only weights: all its names begin with "weight"."""
    names = [name for parent in walk(model) for name, child in parent._modules.items() if child is fake]
    return all(name.startswith("weight") for name in names)


def _ropes(config: Any) -> list[Mapping[str, Any]]:
    """Return the rotary settings of a configuration: one mapping, or one per type of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in found.values() if isinstance(value, Mapping)]
    return nested or [found]


def _check_side(layout: Layout, switch: int) -> None:
    long = layout.seq_lengths > switch
    if long.any() and not long.all():
        over, under = int(long.argmax()), int(long.argmin())
        raise BatchError(
            f"sequence {over} has {layout.seq_lengths[over]} tokens and sequence {under} has "
            f"{layout.seq_lengths[under]}: beyond {switch} (original_max_position_embeddings) this model's "
            "longrope switches the frequencies of the whole batch; put longer sequences into batches of their own"
        )


def _reset_frequencies(model: nn.Module) -> None:
    """Reset the rotary frequencies of a model's modules to those that they had before dynamic rope stretched them."""
    for module in walk(model):
        for name in [name for name in (*vars(module), *module._buffers) if name.endswith("original_inv_freq")]:
            first, prefix = getattr(module, name), name.removesuffix("original_inv_freq")
            now = getattr(module, f"{prefix}inv_freq")
            if (
                isinstance(first, torch.Tensor)
                and now.data_ptr() != first.data_ptr()
                and not torch.equal(now, first.to(now.device))
            ):
                module.register_buffer(f"{prefix}inv_freq", first.to(now.device), persistent=False)
                setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


@lru_cache(maxsize=1024)
def _library(kind: type) -> str:
    """Return the library of a layer that may quantise the activations of a whole batch together; "": any other layer.

    The libraries are "torch.ao", "torch.ao fake", "bitsandbytes" and "torchao float8". `kind` is the layer's class.
    """
    where, name = kind.__module__, kind.__name__
    if where == "torch.ao.quantization.fake_quantize" and name != "FixedQParamsFakeQuantize":
        return FAKE
    if where.startswith(("torch.ao.nn.quantized.dynamic", "torch.ao.nn.intrinsic.quantized.dynamic")):
        return "torch.ao"
    return {"Linear8bitLt": "bitsandbytes", "Float8Linear": "torchao float8"}.get(name, "")


def _together(module: Any, kind: str, weight: Any) -> str | None:
    """Return why a sequence's values depend on the rest of the batch in this layer, in words; None: they do not.

    `module` is the layer, and `weight` is the layer's parameter "weight", or None. `kind` is the library that quantises
    the layer (`_library`). If `kind` is "", torchao's settings in `weight` decide.
    """
    scale = "quantises activations with one scale for the whole batch"
    if kind == "torch.ao":
        # With float16 weights, activations are not quantised.
        half = getattr(getattr(module, "_packed_params", None), "dtype", None) == torch.float16
        return None if half else scale
    if kind == FAKE:
        return (
            "takes one scale of activations from the whole batch (model.apply(torch.ao.quantization.disable_observer) "
            "fixes the scale)"
            if module.observer_enabled[0] and module.fake_quant_enabled[0]
            else None
        )
    if kind == "bitsandbytes":
        return (
            "looks for outlier columns in the whole batch (llm_int8_threshold above 0)"
            if module.state.threshold
            else None
        )
    if kind == "torchao float8":
        granularity = module.config.cast_config_input.scaling_granularity
        return scale if str(getattr(granularity, "value", granularity)) == "tensorwise" else None
    # In torchao, the class of the weight holds the settings of quantisation.
    granularity = getattr(getattr(weight, "act_quant_kwargs", None), "granularity", None)
    return scale if type(granularity).__name__ == "PerTensor" else None
