"""Check the arguments of losses and metrics before any arithmetic: types, devices, and the range of labels.

By default, the values of labels are checked on the CPU only. On an accelerator, the check would have to wait for the
device. CUDA's own kernels report invalid labels, but later, and without their place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.errors import BatchError, OptionError
from nopad.options import check_number, shown
from nopad.sequences import IGNORED

__all__ = [
    "check_batch",
    "check_classes",
    "check_floating",
    "check_integers",
    "check_per",
    "check_places",
    "check_smoothing",
    "check_tensors",
    "is_plain",
]

_INTEGERS = {torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.int64}


def check_tensors(**given: Any) -> None:
    """Refuse arguments that are not dense tensors of real numbers on one device; they are given by name, for messages.

    Raises:
        BatchError: an argument is not a tensor, is sparse, nested, quantised or complex, or is on another device than
            the others.
    """
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise BatchError(f"{name} are of type {type(value).__name__}; expected a torch tensor")
        if not is_plain(value):
            kind = "nested" if value.is_nested else value.layout if value.layout != torch.strided else value.dtype
            raise BatchError(f"{name} are {kind}; expected a dense tensor of real numbers")
    if len({value.device for value in given.values()}) > 1:
        places = ", ".join(f"{name} on {value.device}" for name, value in given.items())
        raise BatchError(f"there are {places}; expected one device")


def is_plain(value: Tensor) -> bool:
    """Return whether a tensor is dense and holds real numbers; with others, arithmetic fails or drops a part."""
    odd = value.is_nested or value.is_quantized or value.is_complex()
    return value.layout == torch.strided and not odd


def check_floating(**given: Tensor) -> None:
    """Refuse tensors that do not hold floating-point numbers; they are given by name, for the message.

    Raises:
        BatchError: an argument has another dtype.
    """
    for name, value in given.items():
        if not value.is_floating_point():
            raise BatchError(f"{name} are {value.dtype}; expected floating-point numbers")


def check_batch(batch: Any) -> None:
    """Refuse a batch that is not a `PackedBatch`, or that is for an encoder-decoder model.

    A batch for an encoder-decoder model has two layouts, one for its sources and one for its targets.

    Raises:
        BatchError: the batch has another type, or has sources and targets.
    """
    if not isinstance(batch, PackedBatch):
        raise BatchError(f"the batch is of type {type(batch).__name__}; expected the PackedBatch that the model got")
    if "decoder_attention_mask" in batch:
        raise BatchError(
            "this batch has sources and targets, each with a layout of their own; give batch.targets for what the "
            "decoder gives, batch.sources for what the encoder gives"
        )


def check_per(per: str) -> None:
    """Refuse a `per` that is neither "token" nor "sequence".

    Raises:
        OptionError: `per` has another value.
    """
    if per not in ("token", "sequence"):
        raise OptionError(f"unknown per {shown(per)}; it is 'token' or 'sequence'")


def check_smoothing(smoothing: Any, dynamic: bool) -> float:
    """Return the label smoothing of a loss per token, as a float; with `dynamic`, it must be 0.

    Raises:
        OptionError: `smoothing` is not a number from 0 to 1, or is above 0 although `dynamic` is True.
    """
    share = check_number("smoothing", smoothing, low=0, high=1)
    if share and dynamic:
        raise OptionError("smoothing and dynamic are two losses; give one of them")
    return share


def check_integers(expected: str, **given: Tensor) -> list[Tensor]:
    """Return tensors of integers as int64, since other dtypes may not hold -100 or differences: in uint8, -100 is 156.

    The tensors are given by name; for the message, `expected` says what the integers are.

    Raises:
        BatchError: an argument does not hold integers, or holds uint64, whose numbers may be beyond int64.
    """
    for name, value in given.items():
        if value.dtype not in _INTEGERS:
            raise BatchError(f"{name} are {value.dtype}; expected {expected}, integers up to int64")
    return [value.long() for value in given.values()]


def check_classes(labels: Tensor, classes: int, name: str = "labels", *, anywhere: bool = False) -> Tensor:
    """Return labels as int64, after checking that they are classes from 0 to ``classes - 1``, or -100 (ignored).

    On an accelerator, only the dtype is checked; with `anywhere` the values are checked too, which waits for the
    device. Error messages call the labels `name`.

    Raises:
        BatchError: the labels are not integers; or a value that is checked is neither -100 nor a class.
    """
    (labels,) = check_integers("numbers of classes", **{name: labels})
    if not labels.numel() or (labels.device.type != "cpu" and not anywhere):
        return labels
    low, high = (int(side) for side in labels.aminmax())
    if high < classes and (low >= 0 or not bool(((labels < 0) & (labels != IGNORED)).any())):
        return labels
    wrong = ((labels < 0) & (labels != IGNORED)) | (labels >= classes)
    at = wrong.nonzero()[0].tolist()
    raise BatchError(
        f"{name}{at} is {int(labels[tuple(at)])}; there are {classes} classes, from 0, and {IGNORED} is where nothing "
        "is to be learnt"
    )


def check_places(**given: Tensor) -> list[Tensor]:
    """Return tensors of token positions as int64; they are given by name, for the message.

    Raises:
        BatchError: an argument does not hold integers, or holds uint64.
    """
    return check_integers("places in the sequence", **given)
