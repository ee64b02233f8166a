"""`Int8Linear`: a linear layer with 8-bit weights and activations, for inference on CPUs.

Weights have one scale per output feature. Activations get one scale per token when the layer runs, so that a token's
result depends on nothing but the token. PyTorch multiplies the 8-bit matrices (by oneDNN, with the instructions VNNI or
AMX if the CPU has them). One compiled pass over the activations rounds them before the multiplication, and one pass
scales the products after it. Eager PyTorch would need about eight passes for this work; they take longer than the
multiplication does in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nopad.errors import UnsupportedModelError
from nopad.model import _int8_kernels
from nopad.model.linear import is_plain_layer
from nopad.model.replacing import replace_modules

__all__ = ["Int8Linear", "in_int8"]

FEWEST_INPUTS = 2  # of a layer; with a single one, PyTorch 2.13 multiplies wrong numbers
SMALLEST, NORMAL = 2.0**-149, 2.0**-126  # float32's smallest number above 0, and the smallest with all its bits
MOST_INPUTS = (2**31 - 1) // 127**2  # more products might not fit into 32 bits


class Int8Linear(nn.Module):
    """A linear layer that multiplies 8-bit integers; its result differs from that of the float32 layer by rounding.

    Attributes:
        in_features, out_features: as in `torch.nn.Linear`.
        whole: the weights as integers, int8 ``[out_features, in_features]``.
        weight_scale: the factor from integers to weights, one per output feature; float32 ``[out_features]``.
        bias: float32 ``[out_features]``, or None.

    >>> import torch
    >>> from nopad.model.int8 import Int8Linear
    >>> exact = torch.nn.Linear(64, 8)
    >>> rough, states = Int8Linear(exact), torch.randn(5, 64)
    >>> bool(torch.allclose(rough(states), exact(states), atol=0.05))
    True
    """

    whole: Tensor
    weight_scale: Tensor
    bias: Tensor | None

    def __init__(self, exact: nn.Linear) -> None:
        """Round the weights of `exact` and copy its bias; `exact` itself does not change.

        `exact` is a float32 layer on a CPU. It has 2 to 133,144 inputs and at least one output.

        Raises:
            UnsupportedModelError: PyTorch does not multiply 8-bit integers exactly on this CPU.
        """
        super().__init__()
        self.in_features, self.out_features = exact.in_features, exact.out_features
        with torch.no_grad():
            exact_weight = exact.weight.double()
            largest = exact_weight.abs().amax(1)
            scale = (largest / 127).float()
            scale += SMALLEST * ((scale < NORMAL) & (scale.double() * 127 < largest))  # rounded up where bits are few
            whole = (exact_weight / scale.double().clamp_min(SMALLEST)[:, None]).round().clamp(-127, 127)
            # A row with NaN or infinity keeps a scale of NaN, so that its output is NaN
            self.register_buffer("whole", whole.nan_to_num(0, 0, 0).to(torch.int8))
            self.register_buffer("weight_scale", torch.where(scale.isfinite(), scale, torch.nan))
            self.register_buffer("bias", None if exact.bias is None else exact.bias.detach().float().clone())
        _check_products(self.whole)

    @property
    def weight(self) -> Tensor:
        """The rounded weights as float32, ``[out_features, in_features]``; computed at each access.

        Some models (Mamba) read a layer's weights or their dtype, and multiply by the weights without calling the
        layer.
        """
        return self.whole * self.weight_scale[:, None]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *given: Any) -> None:
        if f"{prefix}weight" in state_dict:  # ``strict=False`` would take the bias only
            errors: list[str] = given[-1]
            errors.append(f"{prefix}weight is of a layer that is not in int8; load the model before it is lowered")
            return
        super()._load_from_state_dict(state_dict, prefix, *given)

    def extra_repr(self) -> str:
        """Return the layer's sizes and whether it has a bias, as text for ``repr``, like `torch.nn.Linear`."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, states: Tensor) -> Tensor:
        """Return float32 ``[..., out_features]`` for float32 `states` ``[..., in_features]`` on a CPU.

        Raises:
            UnsupportedModelError: `states` are on another device or of another dtype, or they require gradients while
                gradients are enabled.
        """
        if states.device.type != "cpu" or states.dtype != torch.float32:
            raise UnsupportedModelError(
                f"int8 layers take float32 on a CPU, and these states are {states.dtype} on {states.device.type}; on a "
                "GPU, and under autocast, lower the model to bfloat16 instead"
            )
        if torch.is_grad_enabled() and states.requires_grad:
            raise UnsupportedModelError(
                "int8 layers are for inference and have no gradient; use torch.inference_mode()"
            )
        rows = states.detach().reshape(-1, self.in_features).contiguous()
        # Dtypes and devices are named: those of PyTorch may have been set to others
        whole = torch.empty(rows.shape, dtype=torch.int8, device="cpu")
        scales = torch.empty(len(rows), dtype=torch.float32, device="cpu")
        found = torch.empty(len(rows), self.out_features, dtype=torch.float32, device="cpu")
        if len(rows):
            _int8_kernels.quantise(
                rows.numpy(), rows.view(torch.int32).numpy().view("uint32"), whole.numpy(), scales.numpy()
            )
            products = torch._int_mm(whole, self.whole.t())
            bias = torch.zeros_like(self.weight_scale) if self.bias is None else self.bias
            _int8_kernels.dequantise(
                products.numpy(), scales.numpy(), self.weight_scale.numpy(), bias.numpy(), found.numpy()
            )
        return found.view(*states.shape[:-1], self.out_features)


def _check_products(weight: Tensor) -> None:
    """Check that PyTorch multiplies the int8 matrix `weight` exactly, up to the largest sums that can occur.

    In some kernels, large sums saturate: they stop at a limit, and the result is wrong.

    Raises:
        UnsupportedModelError: a product is not exact on this CPU.
    """
    rows = torch.stack([torch.full_like(weight[0], 127), weight[0].sign() * 127, weight[-1]])
    exact = rows.double() @ weight.double().t()
    if not torch.equal(torch._int_mm(rows, weight.t()).double(), exact):
        raise UnsupportedModelError(
            f"PyTorch {torch.__version__} does not multiply 8-bit integers exactly on this CPU (a layer of "
            f"{weight.shape[1]} inputs and {weight.shape[0]} outputs); take bfloat16, or float32"
        )


def in_int8(model: Any) -> Any:
    """Replace the linear layers inside a model by `Int8Linear`, in place, and return the model.

    Gradients are switched off for all parameters. These layers stay as they are: subclasses of `torch.nn.Linear`,
    layers with hooks, layers with fewer than 2 or more than 133,144 inputs, and layers without outputs. A layer that
    several modules share stays shared.

    Raises:
        UnsupportedModelError: PyTorch does not multiply 8-bit integers exactly on this CPU.
    """

    def in_8_bits(layer: Any) -> Int8Linear | None:
        fits = is_plain_layer(layer) and FEWEST_INPUTS <= layer.in_features <= MOST_INPUTS and layer.out_features
        return Int8Linear(layer) if fits else None

    model.requires_grad_(False)
    replace_modules(model, in_8_bits)
    return model
