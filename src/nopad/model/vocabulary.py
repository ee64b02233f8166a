"""A backward pass for a language model's output embeddings that skips tokens whose logits have a gradient of 0.

In masked language models and chats most tokens have no label, so the gradient of their logits is 0. The backward pass
of the output embeddings has two products of matrices as wide as the vocabulary. In PyTorch, they still multiply these
zeros. In a packed call on a CPU, `LabelledOnly` leaves the zeros out. Values and gradients stay the same, up to the
order in which numbers are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_torch

from nopad.model.hooks import Hook

__all__ = ["LabelledOnly", "output_embeddings"]

SMALLEST = 1024  # outputs of a layer below which its products are too cheap to be worth a look at the gradient
SAMPLE = 32  # rows of the gradient that are looked at first
MOST = 0.75  # share of the tokens with a gradient, up to which copying these takes less time than multiplying zeros


@dataclass(eq=False)
class LabelledOnly(Hook):
    """Gives the output embeddings a backward pass that leaves out tokens whose logits have a gradient of 0.

    The output stays the same. PyTorch's own backward pass is kept in ordinary calls, in compiled code, and in these
    cases: the layer is not of the class `torch.nn.Linear` itself, or has fewer than 1,024 outputs; it runs on another
    device than a CPU, or in another dtype than that of its weights (autocast); FSDP or tensor parallelism has split its
    weights; a transform of `torch.func` is active; the layer's forward method was replaced; or a hook of another
    library or of the user runs after the layer.

    Attributes:
        moment: when PyTorch calls the hook; always "after", when the layer has returned.
        harmless: whether the layer gives the same results without this hook; always True.
    """

    harmless: ClassVar[bool] = True
    moment: Literal["before", "after"] = "after"

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Return the same logits with the other backward pass; None if PyTorch's backward pass is kept."""
        if torch.compiler.is_compiling() or self.cell.call is None or not _is_plain(module, args, kwargs, output):
            return None
        linear = cast(nn.Linear, module)
        return _Linear.apply(args[0], linear.weight, linear.bias, output.detach())  # type: ignore[no-untyped-call]


def output_embeddings(model: Any) -> nn.Module | None:
    """Return the layer of a model that computes a logit for each entry of the vocabulary; None if there is none."""
    find = getattr(model, "get_output_embeddings", None)
    found = None if find is None else find()
    return found if isinstance(found, nn.Module) else None


def _is_plain(module: nn.Module, args: Any, kwargs: Any, output: Any) -> bool:
    """Return whether `_Linear` can replace the backward pass of a call of `module`, and is worth it.

    It can if `module` is a `torch.nn.Linear` on a CPU, with whole weights and its own forward method, and gets a single
    argument. Argument, weights and `output` must have one dtype. No hook of the user or of another library may run
    after the forward method, and no transform of `torch.func` may be active. It is worth it if a gradient is needed and
    the layer has at least 1,024 outputs. `args` and `kwargs` are the arguments of the call.
    """
    if type(module) is not nn.Linear or module.out_features < SMALLEST or "forward" in module.__dict__:
        return False
    if kwargs or len(args) != 1 or type(args[0]) is not Tensor or type(output) is not Tensor:
        return False
    hooks = (*module._forward_hooks.values(), *of_torch._global_forward_hooks.values())
    if not output.requires_grad or not all(isinstance(hook, Hook) for hook in hooks):
        return False
    weights = [module.weight] if module.bias is None else [module.weight, module.bias]
    alike = all(type(one) is nn.Parameter and one.device.type == "cpu" for one in weights)
    whole = module.weight.shape == (output.shape[-1], args[0].shape[-1])  # not a part of them, as under FSDP
    dtypes = {one.dtype for one in (args[0], output, *weights)}
    return alike and whole and len(dtypes) == 1 and not torch._C._are_functorch_transforms_active()


class _Linear(torch.autograd.Function):
    """A linear layer whose result is known; its backward pass leaves out rows of the gradient that are 0 (`_not_zero`).

    For second derivatives, no row is left out.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor) -> Tensor:
        ctx.save_for_backward(states, weight)
        ctx.mark_dirty(output)  # returned as it is, and may be changed in place, as any layer's output
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        of_states, of_weight, of_bias, _ = ctx.needs_input_grad
        rows, given = gradient.flatten(0, -2), states.flatten(0, -2)
        # Second derivatives need all rows: a gradient that is 0 can still depend on something.
        at = None if torch.is_grad_enabled() else _not_zero(rows)
        if at is not None:
            rows, given = rows.index_select(0, at), given.index_select(0, at)
        back = None
        if of_states:
            back = rows @ weight
            if at is not None:
                back = states.new_zeros(gradient.shape[:-1].numel(), states.shape[-1]).index_copy_(0, at, back)
            back = back.view(states.shape)
        return back, rows.t() @ given if of_weight else None, rows.sum(0) if of_bias else None, None


def _not_zero(rows: Tensor) -> Tensor | None:
    """Return the indices of the rows that hold a value other than 0, int64 ``[N]``; None: leave no row out.

    The result is None if more than three quarters of the rows hold such a value. A sample of the rows is read first: if
    more than three quarters of the sample do, the other rows are not read, and the result is None.
    """
    at = torch.empty(0, dtype=torch.long)
    for some in (rows[:: max(len(rows) // SAMPLE, 1)], rows):
        # Largest and smallest are found four times as fast as norms; those of rows with NaN are NaN, which is not 0.
        at = (some.amax(1).ne(0) | some.amin(1).ne(0)).nonzero()[:, 0]
        if len(at) > MOST * len(some):
            return None
    return at
