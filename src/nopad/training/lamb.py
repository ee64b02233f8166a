r"""LAMB, with a named option for each point in which implementations of LAMB differ. Needs torch.

The update rule, for a parameter p with gradient g at its update number t; G is the norm of all gradients together::

    g = g / max(1, G / max_grad_norm)                         pre-normalisation
    m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
    u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p
    r = min(|p|, max_weight_norm) / |u|, or 1 where |p| or |u| is 0; in both cases, at most max_trust_ratio
    p = p - lr r u

With its defaults this is the LAMB of MLPerf (apex's FusedLAMB, timm): with bias correction, gradients first clipped by
their global norm, an unclamped trust ratio r, and r = 1 for groups without weight decay (biases, normalisation). For
the LAMB of the paper's third version, which torch_optimizer and pytorch_optimizer follow, give
``bias_correction=False, max_grad_norm=None, max_weight_norm=10, adapt_undecayed=True``.

One routine updates lists of parameters: with ``foreach``, a list has all parameters of a group that share device and
dtype; without it, one parameter. Both ways give the same bits if torch's foreach functions give the same bits as its
ordinary functions. Memory: m and v. A step needs, in addition, twice the memory of the parameters in one list (three
times if it clips gradients). Source: You et al., arXiv 1904.00962.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from nopad.errors import OptionError, TrainingError
from nopad.options import is_number, shown

__all__ = ["Lamb", "decay_groups"]

_LOW = (torch.float16, torch.bfloat16)
_Held = tuple[list[Tensor], list[Tensor]]  # parameters, and their gradients


class Lamb(torch.optim.Optimizer):
    """The LAMB optimiser, by default as in MLPerf; the module docstring has the update rule.

    Args:
        params: parameters, or groups of them (`decay_groups` makes the two that BERT has).
        lr: learning rate; a float, not a tensor.
        betas: decay rates of the two moments, from 0 to below 1; `nopad.training.scale_for_packing` can raise them to
            the power of the packing factor.
        eps: added to the square root of the second moment. It must be above 0 in the dtype of each parameter, since
            the update would be 0 / 0 where a gradient is 0.
        weight_decay: this number times the parameter is added to the update, before the trust ratio is taken. Groups
            with a weight decay of 0 get no trust ratio, unless `adapt_undecayed`.
        bias_correction: divide the moments by 1 - beta^t; t counts the updates of each parameter.
        max_grad_norm: gradients are scaled down if the norm of all of them together is above this; None: no clipping,
            for trainers that clip gradients themselves.
        max_weight_norm: upper limit of |p| in the trust ratio; None: no limit.
        max_trust_ratio: upper limit of the trust ratio; None: no limit.
        adapt_undecayed: give groups without weight decay a trust ratio too.
        foreach: update all parameters of a group that share device and dtype together; None: only those on CUDA.

    Moments have the dtype of their parameter. Norms of half-precision tensors are taken in float32.

    Raises:
        OptionError: an option is out of range; groups differ in `max_grad_norm`; a parameter is sparse or not of real
            floats; a parameter is a piece of a tensor (FSDP1), so the norm of the whole tensor is not known; or no
            group has weight decay or `adapt_undecayed`, so this would be Adam.

    >>> import torch
    >>> from nopad.training import Lamb
    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = Lamb([weight], lr=0.1, weight_decay=0.01, eps=1e-12)
    >>> weight.grad = torch.tensor([0.1, -0.1])
    >>> optimizer.step()
    >>> [round(value, 3) for value in weight.tolist()]  # |p| = 5, so |change| = 0.1 * 5
    [2.634, 4.341]
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        bias_correction: bool = True,
        max_grad_norm: float | None = 1.0,
        max_weight_norm: float | None = None,
        max_trust_ratio: float | None = None,
        adapt_undecayed: bool = False,
        foreach: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "max_grad_norm": max_grad_norm,
            "max_weight_norm": max_weight_norm,
            "max_trust_ratio": max_trust_ratio,
            "adapt_undecayed": adapt_undecayed,
            "foreach": foreach,
        }
        super().__init__(params, defaults)
        if not any(group["weight_decay"] or group["adapt_undecayed"] for group in self.param_groups):
            raise OptionError(
                "weight_decay is 0 in every group, and LAMB adapts only groups with decay, so this would be Adam; give "
                "a weight_decay (MLPerf: 0.01), or adapt_undecayed=True"
            )

    @staticmethod
    def of(args: Any, **switches: Any) -> tuple[type[Lamb], dict[str, Any]]:
        """Return ``(Lamb, options)``, for the argument `optimizer_cls_and_kwargs` of transformers' Trainer.

        The Trainer clips gradients itself (``max_grad_norm``), and makes the parameter groups, so that biases and
        normalisation layers have no weight decay.

        Args:
            args: `transformers.TrainingArguments`; `learning_rate`, `adam_beta1`, `adam_beta2`, `adam_epsilon` and
                `weight_decay` are read. Set `weight_decay`: its default there is 0, which `Lamb` refuses without
                `adapt_undecayed`.
            switches: further options of `Lamb`, such as `adapt_undecayed`.
        """
        own = {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
        return Lamb, {**own, "weight_decay": args.weight_decay, "max_grad_norm": None, **switches}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters.

        Raises:
            OptionError: an option or parameter is one that the class refuses, or the group's `max_grad_norm` differs
                from that of the other groups. The group is then not added.
        """
        super().add_param_group(param_group)
        group, number = self.param_groups[-1], len(self.param_groups) - 1
        try:
            _check_options(group, number)
            for at, param in enumerate(group["params"]):
                _check_parameter(param, number, at)
                _check_eps(group["eps"], param.dtype, number)
            if group["max_grad_norm"] != self.param_groups[0]["max_grad_norm"]:
                raise OptionError(
                    f"group {number} has max_grad_norm {group['max_grad_norm']}, and group 0 "
                    f"{self.param_groups[0]['max_grad_norm']}; it is of all gradients together, so give all the same"
                )
        except OptionError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients; return the result of `closure`, or None without one.

        Raises:
            OptionError: a gradient is sparse.
            TrainingError: the norm of a gradient, or of all gradients together, is not finite. Parameters, moments and
                update counts are then unchanged.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        held = [self._held(group, number) for number, group in enumerate(self.param_groups)]
        divisor = self._divisor([gradients for _, gradients in held])
        for group, (params, gradients) in zip(self.param_groups, held, strict=True):
            for some, theirs in _lists(params, gradients, group["foreach"]):
                self._update(group, some, theirs, divisor)
        return loss

    def _held(self, group: Mapping[str, Any], number: int) -> _Held:
        """Return the parameters of a group that have gradients, and their gradients.

        `number` is the group's index, for messages.

        Raises:
            OptionError: a gradient is sparse.
        """
        params: list[Tensor] = []
        for at, param in enumerate(group["params"]):
            if param.grad is None:
                continue
            if param.grad.layout != torch.strided:
                raise OptionError(
                    f"the gradient of parameter {at} of group {number} is sparse, and LAMB needs the whole of it; make "
                    "the embedding with sparse=False"
                )
            params.append(param)
        return params, [cast(Tensor, param.grad) for param in params]

    def _divisor(self, gradients: list[list[Tensor]]) -> float:
        """Return the number by which gradients are divided to clip them (1: no clipping).

        The call waits until the device has computed the norms.

        Raises:
            TrainingError: the norm of a gradient, or of all gradients, is not finite.
        """
        norms = [_norms(some) for some in gradients]
        flat = [norm for some in norms for norm in some]
        if not flat:
            return 1.0
        kind = max((norm.dtype for norm in flat), key=lambda dtype: dtype.itemsize)
        total = math.hypot(*torch.stack([norm.to(flat[0].device, kind) for norm in flat]).tolist())
        if not math.isfinite(total):
            places = ((n, i, norm.item()) for n, some in enumerate(norms) for i, norm in enumerate(some))
            number, at, _ = max(places, key=lambda place: (not math.isfinite(place[2]), place[2]))
            raise TrainingError(
                f"a gradient of shape {tuple(gradients[number][at].shape)}, number {at} of group {number}, holds NaN "
                "or infinite values, or is too large for its norm; nothing was changed. Lower the learning rate, warm "
                "up longer, or, in float16, scale the loss (torch.amp.GradScaler)"
            )
        most = self.param_groups[0]["max_grad_norm"]
        return 1.0 if most is None else max(1.0, total / most)

    def _update(self, group: Mapping[str, Any], params: list[Tensor], grads: list[Tensor], by: float) -> None:
        """Update parameters of one device and dtype; `by` is the number by which gradients are divided."""
        beta1, beta2 = group["betas"]
        states = [self._state(param) for param in params]
        moments, squares = [one["exp_avg"] for one in states], [one["exp_avg_sq"] for one in states]
        torch._foreach_add_([one["step"] for one in states], 1)
        if by != 1:
            grads = list(torch._foreach_div(grads, by))
        torch._foreach_mul_(moments, beta1)
        torch._foreach_add_(moments, grads, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
        taken = [one["step"].item() for one in states] if group["bias_correction"] else [math.inf] * len(states)
        updates = torch._foreach_div(moments, [1 - beta1**t for t in taken])
        roots = torch._foreach_div(squares, [1 - beta2**t for t in taken])
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_div_(updates, roots)
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        if group["weight_decay"] or group["adapt_undecayed"]:
            torch._foreach_mul_(updates, _trust(group, params, updates))
        torch._foreach_add_(params, updates, alpha=-group["lr"])

    def _state(self, param: Tensor) -> dict[str, Tensor]:
        state = cast(dict[str, Tensor], self.state[param])
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)  # on the CPU, as torch's own optimisers have it
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return state


def decay_groups(model: torch.nn.Module, weight_decay: float = 0.01) -> list[dict[str, Any]]:
    """Return a model's trainable parameters as two groups for an optimiser: with weight decay, and without.

    The second group holds biases, and all parameters of normalisation layers (classes with "norm" in their name), as in
    BERT. Each group is a dict with ``params`` and ``weight_decay``; a parameter that modules share occurs once.

    >>> import torch
    >>> layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    >>> [(len(group["params"]), group["weight_decay"]) for group in decay_groups(layer)]
    [(1, 0.01), (3, 0.0)]
    """
    kinds: dict[bool, list[Tensor]] = {True: [], False: []}
    seen: set[int] = set()
    for module in model.modules():
        for name, param in module.named_parameters(recurse=False):
            if param.requires_grad and id(param) not in seen:
                seen.add(id(param))
                kinds["bias" not in name and "norm" not in type(module).__name__.lower()].append(param)
    return [{"params": kinds[True], "weight_decay": weight_decay}, {"params": kinds[False], "weight_decay": 0.0}]


def _lists(params: list[Tensor], grads: list[Tensor], foreach: bool | None) -> Iterator[_Held]:
    """Yield lists of parameters that are updated together, with their gradients.

    With `foreach` True, all parameters of one device and dtype are updated together; with False, each parameter alone.
    None: parameters on a GPU together, and others alone.
    """
    together: dict[Any, _Held] = {}
    for at, (param, grad) in enumerate(zip(params, grads, strict=True)):
        joined = param.is_cuda if foreach is None else foreach
        some, theirs = together.setdefault((param.device, param.dtype) if joined else at, ([], []))
        some.append(param)
        theirs.append(grad)
    yield from together.values()


def _norms(tensors: list[Tensor]) -> list[Tensor]:
    """Return the norm of each tensor; of a tensor that is sharded over ranks, the norm of the whole tensor."""
    found: list[Any] = [torch.linalg.vector_norm(one, dtype=_kind(one)) for one in tensors]
    return [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in found]


def _kind(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which the norm and trust ratio of a tensor are computed."""
    return torch.float32 if tensor.dtype in _LOW else tensor.dtype


def _trust(group: Mapping[str, Any], params: list[Tensor], updates: list[Tensor] | tuple[Tensor, ...]) -> list[Tensor]:
    """Return the trust ratio r of each parameter, as 0-dim tensors; `updates` are the u of the module's formula."""
    weights, sizes = torch.stack(_norms(params)), torch.stack(_norms(list(updates)))
    one = torch.ones_like(weights)
    counted = weights if group["max_weight_norm"] is None else weights.clamp(max=group["max_weight_norm"])
    ratio = torch.where((weights > 0) & (sizes > 0), counted / torch.where(sizes > 0, sizes, one), one)
    if group["max_trust_ratio"] is not None:
        ratio = ratio.clamp(max=group["max_trust_ratio"])
    return list(ratio.unbind())


def _check_options(group: Mapping[str, Any], number: int) -> None:
    """Refuse options of a parameter group that are out of range or of a wrong type.

    Raises:
        OptionError: there is such an option; the message names it, the group and the allowed values.
    """

    def refuse(name: str, allowed: str) -> None:
        raise OptionError(f"{name} of group {number} is {shown(group[name])}; it must be {allowed}")

    for name in ("lr", "eps", "weight_decay"):
        if not _is_number(group[name]) or group[name] < 0:
            refuse(name, "a finite number from 0, and no tensor")
    betas = group["betas"]
    if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(_is_number(b) and 0 <= b < 1 for b in betas):
        refuse("betas", "two numbers from 0 to below 1")
    for name in ("max_grad_norm", "max_weight_norm", "max_trust_ratio"):
        if group[name] is not None and not (_is_number(group[name]) and group[name] > 0):
            refuse(name, "a finite number above 0, or None")
    for name in ("bias_correction", "adapt_undecayed"):
        if not isinstance(group[name], bool):
            refuse(name, "True or False")
    if group["foreach"] not in (None, True, False):
        refuse("foreach", "True, False or None")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and is_number(value)


def _check_eps(eps: float, dtype: torch.dtype, group: int) -> None:
    """Refuse an `eps` that is 0 in the dtype of a parameter: where a gradient is 0, the parameter would become NaN.

    Raises:
        OptionError: `eps` is 0 in this dtype.
    """
    least = torch.finfo(dtype).smallest_normal
    if not torch.tensor(eps, dtype=dtype) > 0:
        raise OptionError(
            f"eps of group {group} is {eps!r}, which is 0 in {str(dtype).removeprefix('torch.')}; take at least "
            f"{least:.1g}"
        )


def _check_parameter(param: Tensor, group: int, at: int) -> None:
    """Refuse a parameter that is not a dense tensor of real floats, or is only a piece of a tensor (FSDP1).

    Raises:
        OptionError: the parameter is one of these.
    """
    if not param.is_floating_point() or param.layout != torch.strided:
        kind = param.dtype if param.layout == torch.strided else param.layout
        raise OptionError(
            f"parameter {at} of group {group} is {kind}, and LAMB is defined for dense real numbers; leave it out, or "
            "give real and imaginary part as parameters of their own (torch.view_as_real)"
        )
    if getattr(param, "_is_flat_param", False) or getattr(param, "_fsdp_flattened", False):
        raise OptionError(
            f"parameter {at} of group {group} is a piece that FSDP1 has cut, and LAMB needs the norm of each whole "
            "tensor; use FSDP2 (fully_shard; in transformers fsdp_version 2)"
        )
