"""Buffers that a caller gives as ``out=``, for a runner to write results into; they are checked before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nopad.errors import OptionError
from nopad.options import shown

__all__ = ["Output", "check_buffers", "filled"]


@dataclass(frozen=True)
class Output:
    """The form of one of a model's outputs.

    Attributes:
        per_token: True: the output has a value for each token of a sequence. False: it has one value for the whole
            sequence.
        tail: shape of one such value.
        dtype: dtype of the values.
    """

    per_token: bool
    tail: tuple[int, ...]
    dtype: torch.dtype


def check_buffers(out: Any, outputs: Mapping[str, Output], rows: tuple[int, ...], width: int) -> None:
    """Check the buffers `out`, a dict by name of output, into which the results of one request are to be written.

    `outputs` has the form of each output. `rows` is (B,) for a request of B padded rows, and () for one sequence.
    `width` is the number of tokens, padding included, for which outputs per token have values.

    Raises:
        OptionError: `outputs` is empty; `out` is not a dict of plain tensors or arrays; a name is not an output; a
            buffer has another shape or dtype, is nested, sparse or not contiguous, cannot be written to, requires
            gradients, has no memory (device "meta", or a storage that was resized), or overlaps another one.
    """
    if not outputs:
        raise OptionError("out needs to know the model's outputs; give it to a runner that warms up before it is ready")
    if not isinstance(out, Mapping):
        raise OptionError(f"out is of type {type(out).__name__}; expected a dict of buffers by the names of outputs")
    seen: list[tuple[torch.device, int, int, str]] = []
    for name, buffer in out.items():
        if name not in outputs:
            raise OptionError(f"out has {shown(name)}, and the model's outputs are {', '.join(outputs)}")
        tensor, form = _tensor(name, buffer), outputs[name]
        if tensor.is_nested or tensor.layout != torch.strided or tensor.is_meta:
            what = "nested" if tensor.is_nested else "on device meta" if tensor.is_meta else str(tensor.layout)
            raise OptionError(f"out[{name!r}] is {what}; give a buffer with memory of its own, without gaps")
        shape = (*rows, *((width,) if form.per_token else ()), *form.tail)
        if tuple(tensor.shape) != shape or tensor.dtype != form.dtype:
            raise OptionError(
                f"out[{name!r}] is {list(tensor.shape)} of {tensor.dtype}; this request gives {list(shape)} of "
                f"{form.dtype}"
            )
        if not tensor.is_contiguous():
            raise OptionError(f"out[{name!r}] is not contiguous; give a buffer without gaps")
        _check_memory(name, tensor)
        if tensor.requires_grad:
            raise OptionError(f"out[{name!r}] requires gradients, and is overwritten; give a detached buffer")
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()
        for device, first, last, other in seen:
            if device == tensor.device and begin < last and first < end:
                raise OptionError(f"out[{name!r}] shares memory with out[{other!r}]; give buffers that do not overlap")
        seen.append((tensor.device, begin, end, name))


def filled(buffer: Any, value: Tensor) -> Any:
    """Copy the result `value` into its buffer, in place, and return the buffer.

    Raises:
        OptionError: the buffer has lost its memory, or become read-only, since it was checked.
    """
    with torch.inference_mode(isinstance(buffer, Tensor) and buffer.is_inference()):
        tensor = _tensor("", buffer)
        _check_memory("", tensor)  # writing to a freed storage would end the process
        tensor.copy_(value)
    return buffer


def _check_memory(name: str, tensor: Tensor) -> None:
    """Check that a buffer has memory of its own for all its values.

    Raises:
        OptionError: its storage ends before the buffer does, or it is a zero tensor of torch, which has no memory.
    """
    needed = (tensor.storage_offset() + tensor.numel()) * tensor.element_size() if tensor.numel() else 0
    if tensor._is_zerotensor() or tensor.untyped_storage().nbytes() < needed:
        raise OptionError(f"out[{name!r}] has lost its memory: its storage was resized; give another buffer")


def _tensor(name: str, buffer: Any) -> Tensor:
    """Return a buffer as a tensor that shares its memory; a tensor is returned itself.

    Raises:
        OptionError: the buffer is neither a plain tensor nor an array; or it is an array that cannot be written to, is
            not contiguous, or has a dtype that torch lacks.
    """
    if type(buffer) in (Tensor, torch.nn.Parameter) and not torch._is_functional_tensor(buffer):
        plain: Tensor = buffer
        return plain
    if isinstance(buffer, Tensor):  # subclasses may hold no memory of their own, or more than values
        raise OptionError(f"out[{name!r}] is a {type(buffer).__name__} of a special kind; give a plain torch.Tensor")
    if not isinstance(buffer, np.ndarray) or isinstance(buffer, np.ma.MaskedArray):
        raise OptionError(f"out[{name!r}] is of type {type(buffer).__name__}; expected a tensor or a NumPy array")
    if not buffer.flags.writeable:
        raise OptionError(f"out[{name!r}] is read-only; give a buffer that can be written to")
    if not buffer.flags.c_contiguous:
        raise OptionError(f"out[{name!r}] is not contiguous; give a buffer without gaps")
    try:
        return torch.from_numpy(buffer)
    except (TypeError, ValueError) as error:
        raise OptionError(f"out[{name!r}] has the dtype {buffer.dtype}, which no tensor has") from error
