"""Inference on CPUs: linear layers on whichever kernel is faster here, found by trying both once.

PyTorch multiplies float32 matrices by MKL. On CPUs with AVX-512 that are not Intel's, oneDNN with weights laid out
beforehand is up to 1.85 times as fast; on CPUs with AVX2 only, MKL is. So both are timed on one of the model's own
layers, and the answer is logged. Parameters and `state_dict` stay as they are: laid-out copies live beside them (as
much memory again) and are made anew when a parameter changes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["FastLinear"]

log = logging.getLogger("nopad")

WORTH = 1.15  # times faster, below which the copies are not worth their memory
TRIED_TOKENS = 256
_linear = nn.functional.linear


class FastLinear(TorchFunctionMode):
    """Inside, linear layers in float32 without gradients run on weights laid out by oneDNN."""

    def __init__(self) -> None:
        super().__init__()
        self._laid_out: dict[int, tuple[int, Tensor, Tensor]] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is _linear and not torch.is_grad_enabled() and not kwargs:
            weight = args[1]
            if weight.dtype == torch.float32 and args[0].dtype == torch.float32 and isinstance(weight, nn.Parameter):
                return _by_onednn(args[0], self._packed(weight), args[2] if len(args) > 2 else None)
        return function(*args, **(kwargs or {}))

    def _packed(self, weight: Tensor) -> Tensor:
        """Lay a weight out, once for each state of it."""
        known = self._laid_out.get(id(weight))
        if known is None or known[0] != weight._version or known[1] is not weight:
            known = (weight._version, weight, _lay_out(weight))
            self._laid_out[id(weight)] = known
        return known[2]

    @classmethod
    def where_faster(cls, model: nn.Module) -> FastLinear | None:
        """Try both ways on the model's commonest linear layer; return the mode where it pays, and say so."""
        sizes = [(m.in_features, m.out_features) for m in model.modules() if type(m) is nn.Linear]
        available: Any = torch.backends.mkldnn.is_available
        if not sizes or not available():
            return None
        inputs, outputs = max(set(sizes), key=sizes.count)
        return cls() if _gain(inputs, outputs) >= WORTH else None


@cache
def _gain(inputs: int, outputs: int) -> float:
    """How many times as fast oneDNN is as PyTorch's own on one linear layer; tried once in a process, and logged."""
    states, weight = torch.ones(TRIED_TOKENS, inputs), torch.ones(outputs, inputs)
    with torch.inference_mode():
        laid_out = _lay_out(weight)
        plain, packed = _fastest(lambda: _linear(states, weight), lambda: _by_onednn(states, laid_out, None))
    gain = plain / packed
    log.info(
        f"linear layers of {inputs} x {outputs} on this CPU: oneDNN with laid-out weights is {gain:.2f} times as "
        f"fast as PyTorch's own; {'taken for inference' if gain >= WORTH else 'not taken'}"
    )
    return gain


def _lay_out(weight: Tensor) -> Tensor:
    laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    return laid_out


def _by_onednn(states: Tensor, laid_out: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(states, laid_out, bias, "none", [], "")
    return out


def _fastest(*ways: Callable[[], Any], turns: int = 9) -> list[float]:
    """The fastest call of each way, in seconds, after a warm one; in turn, so that a busy machine slows all of them."""
    best = [float("inf")] * len(ways)
    for turn in range(turns + 1):
        for which, way in enumerate(ways):
            start = time.perf_counter()
            way()
            if turn:
                best[which] = min(best[which], time.perf_counter() - start)
    return best
