"""Estimate how much memory training will need, from shapes alone, without weights or a device.

The model is built and run once without data (torch's "meta" device) on one micro-step of padded rows. Its attention is
replaced by one that keeps the same tensors for the backward pass as fused kernels do. All tensors that autograd would
keep for the backward pass are counted. The formula, in bytes, for P parameters of b bytes each, p of them trained::

    parameters   b P
    gradients    b p
    optimiser    s c p, s = 3 (AdEMAMix, GrokAdamW), 2 (Adam and most others), 1 (Adagrad, RMSprop, Lion, schedule-free
                 SGD), 0 (SGD, Adafactor, LOMO, AdaLomo, and what APOLLO and GaLore project); momentum adds 1 to SGD and
                 RMSprop, and `centered` another one to RMSprop. c = 1 byte for 8-bit optimisers, 1/2 for 4-bit ones, 4
                 for the other ones of bitsandbytes, and b for the rest
    activations  what autograd keeps of one micro-step (with checkpointing: the layers' inputs, and what it would keep
                 of one layer); twice the largest kept tensor, for gradients during the backward pass; and 3 x 4 bytes
                 per logit for the loss: a float32 copy, its softmax, and the gradient. With bf16 or fp16: half of
                 these, and 2 P for copies of the weights

The sum is the peak: the memory at the beginning of a backward pass, when the gradients of earlier micro-steps are still
held. It does not include the memory of the device's libraries (a CUDA context has some hundred MB), buckets of DDP
(another b p), or fragmentation. On a CPU with attention dropout, no fused kernel runs; the attention matrices that are
then kept are not included either. Without that dropout, the estimate for a CPU is within a tenth of the memory that is
allocated (``tests/training/test_memory.py``); malloc may hold a fifth more.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Estimate", "estimate", "given_to"]

_STATES = {  # numbers per parameter, by a word of the optimiser's name; 2 for all others
    "galore": 0,
    "apollo": 0,
    "schedule": 1,  # with "sgd"
    "sgd": 0,
    "adafactor": 0,
    "lomo": 0,
    "adalomo": 0,
    "adagrad": 1,
    "rmsprop": 1,
    "lion": 1,
    "ademamix": 3,
    "grokadamw": 3,
}
_LOSS = 3 * 4
_KERNEL = "nopad_counted"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes that training needs on each rank. The module's docstring has the formula.

    Attributes:
        parameters, gradients, optimizer: bytes of the model's parameters, their gradients and the optimiser's state.
        activations: bytes of the activations of one micro-step, including the loss; None: this model cannot be run
            without data.
        trained: number of trained parameters.
        total: number of all parameters.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int | None
    trained: int
    total: int

    @property
    def peak(self) -> int:
        """Sum of parameters, gradients, optimiser state and, if they are known, activations; in bytes."""
        return self.parameters + self.gradients + self.optimizer + (self.activations or 0)

    def __str__(self) -> str:
        """Return the estimate as one line of text."""
        parts = [f"{_size(getattr(self, name))} {name}" for name in ("parameters", "gradients", "optimizer")]
        parts.append("activations not known" if self.activations is None else f"{_size(self.activations)} activations")
        return f"about {_size(self.peak)} per rank: {', '.join(parts)}"


def estimate(model: Any, *, slots: tuple[int, int], args: Any) -> Estimate:
    """Return an estimate of the memory that training this model needs.

    Args:
        model: a model of transformers, best on the "meta" device.
        slots: (number of rows of a micro-step, number of slots in a row).
        args: `transformers.TrainingArguments`.
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    size, own = sum(map(_bytes, model.parameters())), sum(map(_bytes, trained))
    half = bool(args.bf16 or args.fp16)
    checkpointing = getattr(args, "activation_checkpointing", None) or args.gradient_checkpointing
    activations = _activations(model, slots, bool(checkpointing))
    if half and activations is not None:  # autocast keeps most activations, and copies of weights, in half
        activations = activations // 2 + sum(one.numel() for one in model.parameters()) * 2
    return Estimate(
        parameters=size,
        gradients=own,
        optimizer=_states(str(getattr(args.optim, "value", args.optim)), trained, given_to(args)),
        activations=activations,
        trained=sum(one.numel() for one in trained),
        total=sum(one.numel() for one in model.parameters()),
    )


def given_to(args: Any) -> dict[str, str]:
    """Return the options in ``optim_args`` of `transformers.TrainingArguments`, such as ``"momentum=0.9"``, by name."""
    pairs = (one.partition("=") for one in str(args.optim_args or "").replace(" ", "").split(","))
    return {name: value for name, _, value in pairs if name}


def _states(name: str, trained: list[Tensor], given: dict[str, str]) -> int:
    """Return the bytes of the state of an optimiser, by the formula in the module's docstring.

    Args:
        name: name of the optimiser, as in ``trainer.optim``.
        trained: the parameters that are trained.
        given: the options in ``optim_args``.
    """
    words = name.split("_")
    states = next((known for word, known in _STATES.items() if word in words), 2)
    if words[0] == "schedule" and "sgd" not in words:
        states = 2
    if name in ("sgd", "rmsprop"):
        states += given.get("momentum", "0").strip("0.") != ""
    if name == "rmsprop":
        states += given.get("centered", "").lower() in ("true", "1", "yes")
    if "8bit" in words or "4bit" in words:
        return states * sum(one.numel() for one in trained) // (1 if "8bit" in words else 2)
    if "32bit" in words or name in ("ademamix", "rmsprop_bnb"):
        return states * sum(one.numel() for one in trained) * 4
    return states * sum(map(_bytes, trained))


def _bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()


def _activations(model: Any, slots: tuple[int, int], checkpointing: bool) -> int | None:
    """Return the bytes of activations, by the formula in the module's docstring without bf16 and fp16.

    `slots` is (number of rows, number of slots in a row); `checkpointing` says whether gradient checkpointing is on.
    The result is None if the model cannot run on shapes alone.
    """
    config = model.config
    kept: dict[int, tuple[Tensor, int]] = {}
    own = {one.untyped_storage()._cdata for one in (*model.parameters(), *model.buffers())}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = value, storage.nbytes()  # keeps the tensor alive, so that no other gets this address
        return value

    ids = torch.zeros(slots, dtype=torch.long, device="meta")
    before, was = getattr(config, "_attn_implementation", None), model.training
    try:
        with _counted_attention(model):
            model.train()
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
                # Positions begin again at each sequence: a row may have more slots than the model has positions.
                more = {"position_ids": ids} if "position_ids" in inspect.signature(model.forward).parameters else {}
                outputs = model(input_ids=ids, **more, **({"use_cache": False} if hasattr(config, "use_cache") else {}))
    except Exception:  # a model may do anything, such as routing by values
        return None
    finally:
        config._attn_implementation = before
        model.train(was)
    total = sum(size for _, size in kept.values())
    if checkpointing:
        total = _checkpointed(config, slots, total, model)
    total += 2 * max((size for _, size in kept.values()), default=0)
    named = outputs.items() if hasattr(outputs, "items") else ()
    return total + _LOSS * sum(
        one.numel() for name, one in named if name.endswith("logits") and isinstance(one, Tensor)
    )


def _checkpointed(config: Any, slots: tuple[int, int], total: int, model: Any) -> int:
    """Return the bytes kept with gradient checkpointing: the layers' inputs, and what autograd keeps of one layer.

    What autograd keeps of one layer is `total`, the bytes without checkpointing, divided by the number of layers.
    `slots` is (number of rows, number of slots in a row). The result is at most `total`.
    """
    text, size = config.get_text_config(), next(model.parameters()).element_size()
    layers = max(int(getattr(text, "num_hidden_layers", 1)), 1)
    inputs: int = layers * slots[0] * slots[1] * int(getattr(text, "hidden_size", 0)) * size
    return min(inputs + total // layers, total)


@contextmanager
def _counted_attention(model: Any) -> Iterator[None]:
    """In a ``with`` block, replace a model's attention by `_Fused`, which keeps the same tensors as fused kernels do.

    The tensors are queries, keys, values, results, and the sums of the softmax. The caller must restore the
    configuration's `_attn_implementation` afterwards.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions

    there: Any = functions
    there.register(_KERNEL, _attention)
    try:
        model.config._attn_implementation = _KERNEL
        yield
    finally:
        there._global_mapping.pop(_KERNEL, None)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    fused: Any = _Fused
    return fused.apply(query, key, value), None


class _Fused(torch.autograd.Function):
    """An attention function that computes nothing, but saves for the backward pass what a fused kernel saves."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return an uninitialised tensor with the shape of attention's result, ``[rows, slots, heads, size]``.

        What a fused kernel keeps for the backward pass is kept in `ctx`.
        """
        shape = (query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
        result = torch.empty(shape, dtype=query.dtype, device=query.device)
        sums = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, result, sums)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Raise an error, since only the forward pass is run."""
        raise NotImplementedError


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.2f} {unit}" if unit == "GB" else f"{count / size:,.0f} {unit}"
    return f"{count} bytes"
