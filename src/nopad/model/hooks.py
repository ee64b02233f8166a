"""The hooks of a pack-safe model: they replace the mask, feed the heads, and compute learned positions.

A hook refers to the model's `Cell` and to no module, so modules may be copied, replaced and wrapped after
`nopad.packed`: before each packed call, `State.renew` puts hooks on the modules that the model uses now. Runs are
counted by role. A packed call raises an error if a counted hook (`State.roles`) did not run as often as it must: once,
with two exceptions (`nopad.model.postconditions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from nopad.batch.device import Cross
from nopad.errors import UnsupportedModelError
from nopad.model.backends.mask import dense_cross
from nopad.model.calls import Call, Cell, bound, parameters, takes
from nopad.model.encoders import encoder_mask, pack_again, unpack_first
from nopad.model.pooling import last_true, pool, static_pooled

__all__ = [
    "Count",
    "Feed",
    "Hook",
    "Keep",
    "Lookup",
    "NoLookup",
    "NoPositions",
    "PackAgain",
    "Positions",
    "Swap",
    "UnpackFirst",
    "attach",
    "take_off",
    "unwrapped",
]


@dataclass(eq=False)
class Hook:
    """Base class of all hooks of nopad. nopad recognises its own hooks by this class when it removes them.

    PyTorch calls a hook with the positional and keyword arguments of the forward call.

    Attributes:
        cell: the state that all hooks of the model share.
        role: name under which the hook's runs are counted.
        moment: "before" or "after": whether the hook runs before or after its module.
        harmless: whether the module gives the same results without the hook. Then a faster module without the hook may
            replace the module.
    """

    harmless: ClassVar[bool] = False
    cell: Cell
    role: str = ""
    moment: Literal["before", "after"] = "before"


def attach(module: nn.Module, hook: Any) -> None:
    """Register a hook on a module; PyTorch runs it before or after the forward method, as `hook.moment` says.

    A hook with the role "leave" also runs if the forward method raises an exception.
    """
    if hook.moment == "before":
        module.register_forward_pre_hook(hook, with_kwargs=True)
    else:
        # The last hook also runs after an exception, so that every call is ended.
        module.register_forward_hook(hook, with_kwargs=True, always_call=hook.role == "leave")


def take_off(module: nn.Module, cell: Cell) -> None:
    """Remove from a module the hooks of the model that has this `cell`, and hooks that were copied with the module.

    Hooks of other pack-safe models stay.
    """
    # Not by PyTorch's handles, which do not exist for the hooks of a copied module.
    before: tuple[Any, ...] = (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)
    after: tuple[Any, ...] = (
        module._forward_hooks,
        module._forward_hooks_with_kwargs,
        module._forward_hooks_always_called,
    )
    for tables in (before, after):
        hooks: Any = tables[0]
        ours = [n for n, h in hooks.items() if isinstance(h, Hook) and (h.cell is cell or not h.cell.owned)]
        for number in ours:
            for table in tables:
                table.pop(number, None)


@dataclass(eq=False)
class Swap(Hook):
    """Gives the base model (or its encoder or decoder) a mask that carries the batch's layout, in place of its own.

    A base model that must get no mask (`Family.masked` is False) gets None. A decoder gets a second mask, for its cross
    attention.

    Attributes:
        part: "encoder" or "decoder": which part the hook is on; "encoder" also for a model without these parts.
    """

    part: str = "encoder"

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the module's arguments with the new mask, ``(args, kwargs)``; None outside of packed calls.

        For a decoder, the encoder's states are laid out in as many rows as the targets have.

        Raises:
            BatchError: the attention backend cannot run this model; with a dense mask, a sequence may go on in the next
                row; in compiled layers, a sequence and its target are in different rows; or the batch does not have as
                many targets as sequences.
            UnsupportedModelError: a compiler traces the hook during a packed call.
        """
        self.cell.refuse_compiling()
        call = self.cell.call
        if call is None:
            return None
        call.ran[self.role] += 1
        named = bound(module, args, kwargs)
        call.inside = self.part
        family = call.head.family
        if family.route == "encoder mask":
            dtype = named["hidden_states"].dtype
            named["attention_mask"] = encoder_mask(call.placed, family, dtype, module, call.compiled)
        elif self.part == "decoder":
            assert call.target is not None
            named["attention_mask"] = call.target.mask()
            cross = Cross(call.target, call.placed)
            named["encoder_attention_mask"] = dense_cross(cross) if call.compiled else cross.mask()
            if isinstance(named.get("encoder_hidden_states"), torch.Tensor):
                named["encoder_hidden_states"] = cross.in_rows_of_queries(named["encoder_hidden_states"])
        elif takes(module, "attention_mask"):
            named["attention_mask"] = call.placed.mask() if family.masked else None
        call.note(module, named)
        return (), named


@dataclass(eq=False)
class Count(Hook):
    """Counts the runs of the base model, and gives it the batch's positions.

    If the model takes images, the hook is on the text part of the base model instead. Positions are given here since
    the class around this module may not pass them on. If the module takes `use_cache`, and this argument is missing or
    None, it becomes False.
    """

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the module's arguments with the batch's positions, ``(args, kwargs)``; None outside of packed calls.

        Raises:
            UnsupportedModelError: the module is given other positions than the batch's.
        """
        call = self.cell.call
        if call is None:
            return None
        call.ran[self.role] += 1
        named = bound(module, args, kwargs)
        given = named.get("position_ids")
        if given is not None and given is not call.positions and not torch.equal(given, call.positions):
            raise UnsupportedModelError(
                f"{type(module).__name__} is given position_ids that are not those of the batch, so its sequences "
                "would not begin at their first position; hand position_ids on as they come, or leave them out"
            )
        if named.get("use_cache") is None and "use_cache" in parameters(type(module).forward):
            named["use_cache"] = False
        named["position_ids"] = call.positions
        call.note(module, named)
        return (), named


@dataclass(eq=False)
class UnpackFirst(Hook):
    """Gives one sequence per row to an attention module that does not use transformers' registry, such as DeBERTa's.

    The module gets the sequences of the batch's first group (`nopad.model.groups`). `PackAgain` runs it on the others.
    """

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the module's ``(args, kwargs)`` for the first group; None: they stay as they are (`unpack_first`).

        Raises:
            UnsupportedModelError: the mask of a packed call reached the module without the batch's layout.
        """
        return unpack_first(module, args, kwargs)


@dataclass(eq=False)
class PackAgain(Hook):
    """Runs an attention module on the groups that `UnpackFirst` left, and packs all outputs into the batch's rows.

    Attributes:
        moment: when PyTorch calls the hook; always "after", when the module has computed the first group.
    """

    moment: Literal["before", "after"] = "after"

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """Return the module's output in the batch's rows; None if its input was not unpacked (`pack_again`)."""
        return pack_again(module, kwargs, output)


@dataclass(eq=False)
class NoPositions(Hook):
    """Stops position embeddings (BART's, Marian's) from counting along a row, which could exceed their table."""

    def __call__(self, module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the module's arguments with a single position, 0, as ``(args, kwargs)``; None outside of packed calls.

        This position keeps the lookup inside the table. `Positions` replaces the result.
        """
        if self.cell.call is None:
            return None
        return args, {**kwargs, "position_ids": torch.zeros(1, dtype=torch.long, device=module.weight.device)}


@dataclass(eq=False)
class Positions(Hook):
    """Replaces the output of the position embeddings by embeddings of each token's position in its sequence.

    Attributes:
        moment: when PyTorch calls the hook; always "after", when the module has returned.
    """

    moment: Literal["before", "after"] = "after"

    def __call__(self, module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        """Return the embeddings of the tokens' positions, ``[R, L, H]``; None outside of packed calls."""
        call = self.cell.call
        if call is None:
            return None
        call.ran[self.role] += 1
        side = call.placed if call.inside == "encoder" or call.target is None else call.target
        table = module.weight if output.requires_grad else module.weight.detach()  # Marian computes its own
        return nn.functional.embedding(side.positions + getattr(module, "offset", 0), table)


@dataclass(eq=False)
class NoLookup(Hook):
    """Stops a table of position embeddings from counting along the whole row, which may be longer than the table.

    The table looks up position 0 for each token; `Lookup` replaces the result.
    """

    def __call__(self, module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the table's arguments with position 0 for each token, ``(args, kwargs)``.

        The result is None outside of packed calls, and if the first argument is not a tensor of integers.
        """
        ids = args[0] if args else None
        if self.cell.call is None or not isinstance(ids, Tensor) or ids.is_floating_point():
            return None
        return (torch.zeros_like(ids), *args[1:]), kwargs


@dataclass(eq=False)
class Lookup(Hook):
    """Replaces the output of a table of position embeddings by the embedding of each token's position in its sequence.

    Attributes:
        moment: when PyTorch calls the hook; always "after", when the table has returned.
        offset: row of the table for a sequence's first token.
    """

    moment: Literal["before", "after"] = "after"
    offset: int = 0

    def __call__(self, module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        """Return the embeddings of the tokens' positions, ``[R, L, H]``; None outside of packed calls."""
        call = self.cell.call
        if call is None:
            return None
        call.ran[self.role] += 1
        return nn.functional.embedding(call.placed.positions + self.offset, module.weight)


@dataclass(eq=False)
class Feed(Hook):
    """Gives a module each sequence's pooled states in place of each row's.

    Attributes:
        dims: number of dimensions of the module's input: 2 for ``[S, H]``, or 3 for ``[S, 1, H]`` if the module itself
            takes the first token.
        stock: whether the model is one of transformers' own classes. If not, and `dims` is 2, the input that the model
            gives to the module is checked: it must be each row's states, pooled as the head pools (`Head.pooling`).
    """

    dims: int = 3
    stock: bool = True

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return ``(args, kwargs)``, in which each sequence's pooled states replace the module's first argument.

        The result is None in ordinary calls, and in calls with static shapes without a limit of sequences.

        Raises:
            UnsupportedModelError: in a packed call, the states to pool cannot be found or have another shape. Or `dims`
                is 2, the model's class is not one of transformers' own, and the module's input is not what pooling each
                row gives (`Head.pooling`).
        """
        call, static = self.cell.call, self.cell.static
        if call is not None:
            call.ran[self.role] += 1
            found = pool(self._states(call, module, args), call.placed, call.head.pooling())
        elif static.ids is not None and self.cell.most is not None:
            states = static.kept if self.dims == 2 else args[0]
            assert states is not None
            found = static_pooled(states, static.ids, self.cell.most, self.cell.how)
        else:
            return None
        return (found if self.dims == 2 else found[:, None], *args[1:]), kwargs

    def _states(self, call: Call, module: nn.Module, args: Any) -> Tensor:
        """Return the states to pool, ``[R, L, H]``: the module's input if `dims` is 3, else what `Keep` stored.

        Raises:
            UnsupportedModelError: the states cannot be found or have another shape. Or `dims` is 2, the model's class
                is not one of transformers' own, and the module's input is not what pooling each row gives
                (`Head.pooling`).
        """
        given: Tensor | None = args[0] if args and isinstance(args[0], Tensor) else None
        states: Tensor | None = given if self.dims == 3 else call.seen.get("hidden")
        if given is None or states is None or tuple(states.shape[:2]) != call.placed.layout.shape or states.dim() != 3:
            raise UnsupportedModelError(
                f"{self.role} ({type(module).__name__}) of this model does not get what it gets in transformers' own, "
                "so nopad cannot tell what to hand it for each sequence; run the base model, and pool its states with "
                "nopad.model.pooled"
            )
        how = call.head.pooling()
        if self.dims == 2 and not self.stock and not _pooled_so(given, states, call.placed.ids != 0, how):
            what = {"mean": "the mean of its row's states"}.get(how, f"the {how} token's states")
            raise UnsupportedModelError(
                f"{self.role} ({type(module).__name__}) of this model is not given {what}, as in "
                "transformers' own; run the base model, and pool its states with nopad.model.pooled"
            )
        return states


def _pooled_so(given: Tensor, states: Tensor, real: Tensor, how: str) -> bool:
    """Return whether `given` ``[R, H]`` is the result of pooling each row of `states` ``[R, L, H]`` by `how`.

    `how` is "first", "last" or "mean"; for any other value, the result is True. "last" accepts the state of the last
    real token, or that of the last slot. "mean" accepts the mean over the real tokens, or over all slots, up to
    rounding. `real` says which slots hold tokens, bool ``[R, L]``. Rows without tokens are not compared.
    """
    rows = torch.arange(len(states), device=states.device)[real.any(1)]
    last = last_true(real)
    counts = real.sum(1, keepdim=True).clamp(min=1)
    ways = {
        "first": [states[:, 0]],
        "last": [states[torch.arange(len(states), device=states.device), last], states[:, -1]],
        "mean": [(states * real[..., None]).sum(1) / counts, states.mean(1)],
    }
    if how not in ways or given.shape != states[:, 0].shape:
        return how not in ways
    if how != "mean":
        return any(_same(given[rows], one[rows]) for one in ways[how])
    close = 2e-2 if given.element_size() < 4 else 1e-4
    largest = float(states.detach().abs().nan_to_num().max())
    return any(
        torch.allclose(given[rows].to(one.dtype), one[rows], close, close * largest, equal_nan=True)
        for one in ways["mean"]
    )


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, where NaN counts as 0.

    Infinity counts as the largest finite number of the dtype, and minus infinity as the smallest.
    """
    return torch.equal(one, other) or torch.equal(one.nan_to_num(), other.nan_to_num())


@dataclass(eq=False)
class Keep(Hook):
    """Stores a module's output for the head: in `Call.seen`, or in `Static.kept` if the call has static shapes.

    Attributes:
        moment: when PyTorch calls the hook; always "after", when the module has returned.
        name: key in `Call.seen`.
        first: whether the output is a tuple or mapping of which only the first entry is stored.
    """

    moment: Literal["before", "after"] = "after"
    name: str = ""
    first: bool = False

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Store the module's output, and leave it unchanged."""
        kept = output[0] if self.first else output
        call, static = self.cell.call, self.cell.static
        if call is not None:
            call.ran[self.role] += 1
            call.seen[self.name] = kept
        elif static.ids is not None:
            static.kept = kept


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the original module inside PEFT's `modules_to_save` wrapper; without a wrapper, the module itself."""
    while "modules_to_save" in module._modules and isinstance(module._modules.get("original_module"), nn.Module):
        module = module._modules["original_module"]  # type: ignore[assignment]
    return module
