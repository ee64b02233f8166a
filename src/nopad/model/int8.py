"""`Int8Linear`: a linear layer with 8-bit weights and activations, for inference on CPUs.

Weights have one scale per output feature. Activations get one scale per token when the layer runs, so that a token's
result depends on nothing but the token. One compiled pass over the activations rounds them before the multiplication,
and one pass scales the products after it. Eager PyTorch would need about eight passes for this work; they take longer
than the multiplication does in float32.

PyTorch multiplies 8-bit matrices fast on CPUs with VNNI or AMX (by oneDNN), and in a plain loop on others, about 25
times as slowly as float32 (with AVX2). Float32 matrices can hold the same integers, and sums of up to 1,040 products of
such integers are exact in float32. So both ways are timed once per process, and the faster one is used. The integers
are the same in both, so results are equal to the last bit on all CPUs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from nopad.errors import UnsupportedModelError
from nopad.model import _int8_kernels
from nopad.model.linear import fastest, is_plain_layer
from nopad.model.replacing import replace_modules

__all__ = ["Int8Linear", "gain_of_int8", "in_int8"]

log = logging.getLogger("nopad")

FEWEST_INPUTS = 2  # of a layer; with a single one, PyTorch 2.13 multiplies wrong numbers
SMALLEST, NORMAL = 2.0**-149, 2.0**-126  # float32's smallest number above 0, and the smallest with all its bits
MOST_INPUTS = (2**31 - 1) // 127**2  # more products might not fit into 32 bits
EXACT_INPUTS = 1024  # float32 has all integers up to 2^24, which is above 1024 * 127^2
TRIED_TOKENS, TRIED_WIDTH = 64, 384  # a layer of MiniLM
Product = Callable[[Tensor, Tensor], Tensor]


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
            products = _fastest_product()(whole, self.whole)
            bias = torch.zeros_like(self.weight_scale) if self.bias is None else self.bias
            _int8_kernels.dequantise(
                products.numpy(), scales.numpy(), self.weight_scale.numpy(), bias.numpy(), found.numpy()
            )
        return found.view(*states.shape[:-1], self.out_features)


def _check_products(weight: Tensor) -> None:
    """Check that PyTorch multiplies three rows of 8-bit integers exactly by the int8 matrix `weight`.

    One of these rows gives the largest sum that the first output can have. In some kernels of PyTorch, large sums
    saturate: they stop at a limit, and the result is wrong.

    Raises:
        UnsupportedModelError: a product is not exact on this CPU.
    """
    rows = torch.stack([torch.full_like(weight[0], 127), weight[0].sign() * 127, weight[-1]])
    exact = rows.double() @ weight.double().t()
    if not torch.equal(_fastest_product()(rows, weight).double(), exact):
        raise UnsupportedModelError(
            f"PyTorch {torch.__version__} does not multiply 8-bit integers exactly on this CPU (a layer of "
            f"{weight.shape[1]} inputs and {weight.shape[0]} outputs); take bfloat16, or float32"
        )


def _by_pytorch(states: Tensor, weight: Tensor) -> Tensor:
    """Return ``states @ weight.T`` of two int8 matrices, as int32, by PyTorch's product of integers."""
    return torch._int_mm(states, weight.t())


def _by_float32(states: Tensor, weight: Tensor) -> Tensor:
    """Return ``states @ weight.T`` of two int8 matrices, as int32, by products of float32 matrices.

    All sums are exact, in whatever order a kernel adds: no sum of 1,024 products is above 2^24, up to which float32 has
    all integers. Longer sums are added up in int32.
    """
    found = None
    for begin in range(0, weight.shape[1], EXACT_INPUTS):
        one, other = (matrix[:, begin : begin + EXACT_INPUTS].to(torch.float32) for matrix in (states, weight))
        products = torch.empty(len(one), len(other), dtype=torch.float32, device="cpu")
        torch.mm(one, other.t(), out=products)  # with ``out``, since autocast would otherwise make it bfloat16
        part = products.to(torch.int32)
        found = part if found is None else found.add_(part)
    assert found is not None  # a layer has at least two inputs
    return found


@cache
def _fastest_product() -> Product:
    """Return the faster way to multiply int8 matrices on this CPU; both are timed once per process."""
    weight = torch.ones(TRIED_WIDTH, TRIED_WIDTH, dtype=torch.int8, device="cpu")
    states = weight[:TRIED_TOKENS]
    with torch.inference_mode():
        whole, wide = fastest(lambda: _by_pytorch(states, weight), lambda: _by_float32(states, weight), turns=3)
    log.info(
        f"products of 8-bit integers on this CPU: PyTorch's own take {whole / wide:.2f} times as long as those of the "
        f"same integers in float32, so {'the latter' if wide < whole else 'its own'} are taken"
    )
    return _by_float32 if wide < whole else _by_pytorch


@cache
def gain_of_int8() -> float:
    """Return the time of a float32 linear layer divided by that of its `Int8Linear`; above 1, int8 is faster.

    The layer has 384 inputs and outputs, and gets 256 tokens. It is timed once per process.

    Raises:
        UnsupportedModelError: PyTorch does not multiply 8-bit integers exactly on this CPU.
    """
    with torch.random.fork_rng([]), torch.device("cpu"), torch.inference_mode():  # a new layer draws its weights
        exact = nn.Linear(TRIED_WIDTH, TRIED_WIDTH, dtype=torch.float32)
        states = torch.ones(4 * TRIED_TOKENS, TRIED_WIDTH, dtype=torch.float32, device="cpu")
        rough = Int8Linear(exact)
        wide, whole = fastest(lambda: exact(states), lambda: rough(states))
    return wide / whole


def in_int8(model: Any) -> Any:
    """Replace the linear layers inside a model by `Int8Linear`, in place, and return the model.

    Gradients are switched off for all parameters. These layers stay as they are: subclasses of `torch.nn.Linear`,
    layers with hooks (except harmless ones of nopad), layers with fewer than 2 or more than 133,144 inputs, and layers
    without outputs. A layer that several modules share stays shared.

    Raises:
        UnsupportedModelError: PyTorch does not multiply 8-bit integers exactly on this CPU.
    """

    def in_8_bits(layer: Any) -> Int8Linear | None:
        fits = is_plain_layer(layer) and FEWEST_INPUTS <= layer.in_features <= MOST_INPUTS and layer.out_features
        return Int8Linear(layer) if fits else None

    model.requires_grad_(False)
    replace_modules(model, in_8_bits)
    return model
