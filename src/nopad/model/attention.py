"""The attention function that nopad registers with transformers, for layers that look it up there.

Pack-safe models call it with the layer's settings (causality, window, scale, position bias) and with nopad's mask. A
`Placement` is attached to the mask: the batch's layout, as tensors on the model's device. The function passes the
settings and the `Placement` to a backend. Compiled graphs and copied masks lose the `Placement`. Then the function
computes attention from the mask's numbers, or raises an error if these mean nothing (`nopad.batch.device.OPAQUE`).

Batches that are not packed go to transformers' own SDPA, or to eager attention in layers with a softcap or sinks. So a
pack-safe model still runs ordinary batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nopad.batch.device import DENSE, NUMBERS, OPAQUE, Cross, carried_by
from nopad.errors import UnsupportedModelError
from nopad.model.backends import backend_of
from nopad.model.backends.core import Heads, allowed, attend
from nopad.model.backends.mask import block_mask
from nopad.model.calls import runs

if TYPE_CHECKING:
    from nopad.model.calls import Call

__all__ = [
    "NAME",
    "begin",
    "check_replaceable",
    "end",
    "inside",
    "looks_up",
    "lost",
    "packed_attention",
    "register",
    "silent",
    "slides",
    "tell",
    "watched",
]

NAME = "nopad"
# s_aux: attention sinks. The others are ignored, since queries and keys already contain positions.
KNOWN = ("s_aux", "position_ids", "cache_position")

_watch: ContextVar[Callable[[nn.Module], None] | None] = ContextVar("nopad_watch", default=None)
_inside: ContextVar[Call | None] = ContextVar("nopad_inside", default=None)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of one layer; return ``(attention output [R, L, H, D], None)``, as transformers expects it.

    transformers calls this function with these arguments; `module` is the layer. `query`, `key` and `value` are
    ``[R, H, L, D]``: rows, heads, slots, and the size of a head. `key` and `value` may have fewer heads, and in cross
    attention another L. `attention_mask` is one of nopad's masks, which carry the batch's layout, or any mask in an
    ordinary call (one without a packed batch). `others` may hold attention sinks as `s_aux`.

    Raises:
        UnsupportedModelError: the layer does not say whether it is causal. In a packed call: the layer has a sliding
            window and does not pass it on, passes on tensors that nopad does not know, or gets a mask from which the
            layout cannot be read. In an ordinary call: the layer has a softcap or sinks, and gets a mask that is not
            bool.
        BatchError: the backend does not support the batch, or a setting of the layer.
    """
    causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    if causal is None:
        raise UnsupportedModelError(
            f"{type(module).__name__} does not say whether it attends causally (is_causal), and nopad does not guess; "
            "run its sequences padded, without nopad.packed"
        )
    heads = Heads(
        scaling=scaling,
        causal=bool(causal),
        window=sliding_window,
        dropout=dropout,
        bias=position_bias,
        softcap=softcap,
        sinks=others.get("s_aux"),
    )
    # nopad's masks are int32, int16 or int8, others are bool, float or int64, so the dtype tells them apart.
    if attention_mask is None or attention_mask.dtype not in (NUMBERS, OPAQUE, DENSE):
        if inside() is not None:
            raise lost(module)
        if softcap is not None or heads.sinks is not None:  # SDPA has neither; such models run eagerly
            return _eager(query, key, value, attention_mask, heads), None
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        alone: tuple[Tensor, None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            position_bias=position_bias,
            softcap=softcap,
            **others,
        )
        return alone
    _check_layer(module, heads, others)
    if not torch.compiler.is_compiling():
        tell(module)
    placed = None if torch.compiler.is_compiling() else carried_by(attention_mask)
    if placed is None:  # compiled graphs and copied masks keep only the mask's numbers
        keep = _keep_of(module, attention_mask, query, key, heads)
        return attend(query, key, value, keep, heads).transpose(1, 2), None
    if isinstance(placed, Cross):
        key, value = placed.in_own_rows(key), placed.in_own_rows(value)
    return backend_of(placed.backend)(query, key, value, placed, heads).contiguous(), None


def _check_layer(module: nn.Module, heads: Heads, others: dict[str, Any]) -> None:
    """Check that a layer passes its sliding window to the attention function, and no tensors that nopad does not know.

    `module` is the layer. `heads` and `others` are what it passes: the settings of attention, and further keyword
    arguments by name.

    Raises:
        UnsupportedModelError: the layer has a window and `heads` has none, or one below 1; or `others` has a tensor,
            not a scalar, whose name is not in `KNOWN`.
    """
    if heads.window is None and slides(module):
        raise silent(module)
    if heads.window is not None and heads.window < 1:
        raise UnsupportedModelError(
            f"{type(module).__name__} has a window of {heads.window} tokens, so it would see nothing; give at least 1"
        )
    # A scalar tensor cannot be per token: for example, a loss's denominator is passed along.
    unknown = [name for name, one in others.items() if isinstance(one, Tensor) and one.dim() and name not in KNOWN]
    if unknown:
        raise UnsupportedModelError(
            f"{type(module).__name__} hands {', '.join(unknown)} to its attention, of which nopad's knows nothing; run "
            "its sequences padded, without nopad.packed"
        )


def slides(module: nn.Module) -> bool:
    """Return whether a layer attends within a window, by its own attributes, else by its configuration.

    The configuration lists a kind for each layer number. A layer keeps its number when layers before it are removed, so
    the number may be wrong. That is why the layer's attributes come first: `nopad.model.windows` has compared them with
    those that the layer's place requires. The attribute `sliding_window` counts only in transformers' own classes. If
    the list is too short for the number, the result is True if any kind in the list has a window.
    """
    kinds, layer = getattr(getattr(module, "config", None), "layer_types", None), getattr(module, "layer_idx", None)
    said = module.__dict__
    for name in ("layer_type", "attention_type", "is_sliding", "is_local_attention"):
        value = said.get(name)
        if isinstance(value, bool) or (isinstance(value, str) and value in (kinds or ())):
            return value in ("sliding_attention", True)
    if not kinds or layer is None:
        return False
    if "sliding_window" in said and type(module).__module__.startswith("transformers."):
        return said["sliding_window"] is not None
    return "sliding_attention" in (kinds[layer : layer + 1] or kinds)


def silent(module: nn.Module) -> UnsupportedModelError:
    """Return the error for a layer that has a window and does not pass it on."""
    return UnsupportedModelError(
        f"{type(module).__name__} of layer {getattr(module, 'layer_idx', None)} attends within a window and does not "
        "tell its attention of it; run its sequences padded, without nopad.packed"
    )


def _keep_of(module: nn.Module, mask: Tensor, query: Tensor, key: Tensor, heads: Heads) -> Tensor:
    """Return which keys each query sees, read from the values of a mask that has lost its attached layout.

    The result is bool and broadcasts to ``[R, H, Q, K]``, for Q query slots and K key slots per row. `module` is the
    layer, for the message of the error. The dtype of the mask says what its values are. `DENSE` (int8): the mask is 1
    where a query sees a key. `NUMBERS` (int32): the mask holds the number of each slot's sequence. Slots of the same
    number then see each other, as far as the causality and window in `heads` allow.

    Raises:
        UnsupportedModelError: the mask has another dtype, or its shape does not fit the queries and keys.
    """
    if mask.dtype == DENSE and tuple(mask.shape[-2:]) == (query.shape[2], key.shape[2]):
        return mask != 0
    if mask.dtype == NUMBERS and mask.shape[-1] == query.shape[2] == key.shape[2]:
        return block_mask(mask[:, 0, 0], heads)
    raise lost(module)


def _eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, heads: Heads) -> Tensor:
    """Compute attention with softcap or sinks, which SDPA does not have, in a call that is not packed.

    `query`, `key` and `value` are ``[B, H, L, D]``: rows, heads, tokens, and the size of a head. The result is
    ``[B, L, H, D]``. `mask` is bool, True where a key is seen; None: causality and window in `heads` decide.

    Raises:
        UnsupportedModelError: the mask has another dtype.
    """
    if mask is not None and mask.dtype != torch.bool:
        raise UnsupportedModelError("a model with softcap or sinks that is pack-safe takes masks of bool only")
    keep = None if mask is None else mask[..., : key.shape[2]]
    if keep is None:
        places = torch.arange(key.shape[2], device=query.device)
        keep = allowed(places[-query.shape[2] :], places, heads)
    return attend(query, key, value, keep, heads).transpose(1, 2).contiguous()


def register() -> None:
    """Register nopad's attention with transformers under `NAME`.

    For calls that are not packed, transformers then makes the same masks as for SDPA.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def check_replaceable(model: Any) -> None:
    """Check that a model's attention is eager, a function of transformers' own, or nopad's.

    nopad's attention takes the place of this function. Any other function may compute something else than nopad's.

    Raises:
        UnsupportedModelError: the model's attention was registered by the user or by another library.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = model.config._attn_implementation
    given: Any = ALL_ATTENTION_FUNCTIONS.get(name)  # None: eager attention, which the model's own file defines
    where = getattr(getattr(given, "func", given), "__module__", "")
    if given is not None and not where.startswith(("transformers.", __name__)):
        raise UnsupportedModelError(
            f"attention {name!r} of this {type(model).__name__} is a function of {where}, and nopad's would take its "
            "place, which need not compute the same; set one of transformers before, "
            "model.set_attn_implementation('sdpa'), if that is meant"
        )


@lru_cache(maxsize=1024)
def looks_up(kind: type) -> bool:
    """Return whether the ``forward`` of a module class looks up its attention function in transformers' registry.

    The registry is `ALL_ATTENTION_FUNCTIONS`, to which `register` adds nopad's attention.
    """
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)  # type: ignore[attr-defined]
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def tell(module: nn.Module) -> None:
    """Report that a module computes attention, or mixes tokens in another way, and keeps sequences apart.

    The report goes to the current packed call, and to the function that was given to `watched`.
    """
    call, watch = _inside.get(), _watch.get()
    if call is not None:
        call.attended[id(module)] += 1
        call.kinds.add(type(module))
    if watch is not None:
        watch(module)


def inside() -> Call | None:
    """Return the innermost packed call that runs now: the call of a pack-safe model with a `PackedBatch`.

    Calls that were interrupted (Ctrl-C) do not count. The result is None outside of packed calls, and while compiling.
    """
    if torch.compiler.is_compiling():
        return None
    call = known = _inside.get()
    while call is not None and not runs(call.frame):  # the call was interrupted
        call = call.outer
    if call is not known:
        _inside.set(call)
    return call


def lost(module: nn.Module) -> UnsupportedModelError:
    """Return the error to raise for an attention module that did not get the layout."""
    return UnsupportedModelError(
        f"{type(module).__name__} lost the layout of a packed batch on its way, and would let sequences see each "
        "other. Do hooks, compiled layers or a split over devices copy or drop attention masks? Take them off, or "
        "report this model, please"
    )


def begin(call: Call) -> Any:
    """Make `call` the current packed call; return what `end` needs to end it (a `contextvars.Token`)."""
    call.outer = _inside.get()
    return _inside.set(call)


def end(token: Any) -> None:
    """End the packed call that `begin` started; `token` is what `begin` returned."""
    _inside.reset(token)


@contextmanager
def watched(seen: Callable[[nn.Module], None]) -> Any:
    """In a ``with`` block, call `seen` with each attention or mixing module that runs on a packed batch.

    Modules that are compiled are left out: they cannot report that they run.
    """
    token = _watch.set(seen)
    try:
        yield
    finally:
        _watch.reset(token)
