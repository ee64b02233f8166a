"""The mixer route: modules that move information between tokens, run on each sequence by itself.

A *mixing* module moves information between tokens without transformers' registered attention: a convolution over time,
a state-space scan, linear attention, or an attention of the model's own. `Family.mixers` names their classes. All other
modules, and registered attention, run on the batch's rows as usual.

A hook before a mixing module cuts the module's arguments into groups of sequences, ``[n, l, ...]``, and gives the
module one group. A hook after it runs the module's own `forward` on the other groups, and puts all results into the
batch's rows again. So the module's state begins empty in each sequence, and PyTorch's other hooks see the module
run once.

In a decoder, the n sequences of a group may differ in length: the shorter ones are padded on the right, where their
real tokens cannot see the padding (`nopad.model.groups`). In other models, the sequences of a group have one length.
Modules in `Family.alone` get one sequence at a time.

Gradient checkpointing computes a layer again after the call has ended. So `Carried` wraps the function with which
transformers checkpoints a layer, and keeps the layout for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from nopad.batch.device import ATTRIBUTE, Placement, carried_by
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model import attention
from nopad.model.calls import Cell, bound
from nopad.model.families import Family
from nopad.model.groups import PENDING, Groups, How, Pending, chunk_size, groups_of, runs_once, with_even_chunks
from nopad.model.hooks import Hook
from nopad.model.known import class_of

__all__ = ["Cut", "Join", "carry", "mixing_hooks", "refuse_compiled", "release"]

MASK = "attention_mask"
CHECKPOINT = "_gradient_checkpointing_func"
CACHES = ("past_key_values", "past_key_value", "cache_params", "layer_past", "state")


@dataclass(eq=False)
class Carried:
    """Gradient checkpointing that computes a layer again with the same layout as in its first run.

    It replaces the function that transformers gives to checkpointed layers (`_gradient_checkpointing_func`).

    Attributes:
        cell: the state that the model's hooks share, with the packed call that runs now.
        checkpoint: the function that it replaces.
    """

    cell: Cell
    checkpoint: Callable[..., Any]

    def __call__(self, layer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a layer under gradient checkpointing, and return its output.

        In a packed call, hooks inside the layer find the batch's layout, both when the layer first runs and when it
        runs again for the backward pass.
        """
        call = self.cell.call
        placed = self.cell.calls.again if call is None else call.placed  # checkpointed layers may be nested
        if placed is None:
            return self.checkpoint(layer, *args, **kwargs)
        masks = [number for number, one in enumerate(args) if isinstance(one, Tensor) and carried_by(one) is not None]
        return self.checkpoint(partial(self._again, layer, placed, masks), *args, **kwargs)

    def _again(self, layer: Any, placed: Placement, masks: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        calls = self.cell.calls
        for number in masks:
            setattr(args[number], ATTRIBUTE, placed)  # checkpointing detaches positional arguments
        outer, calls.again = calls.again, placed
        try:
            return layer(*args, **kwargs)
        finally:
            calls.again = outer


@dataclass(eq=False)
class Cut(Hook):
    """Gives a mixing module one group of sequences (`nopad.model.groups`) in place of the batch's rows.

    `Join` runs the module on the other groups.

    Attributes:
        family: the facts about the model type; None: the defaults of `Family`.
    """

    family: Family | None = None

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the module's arguments for one group of sequences, ``(args, kwargs)``.

        Outside of packed calls, the result is None: the arguments stay as they are. A layer that gradient checkpointing
        computes again still belongs to its packed call.

        Raises:
            UnsupportedModelError: one of these:

                * the module gets a cache of earlier tokens, a tensor that is not per token, or no mask although it
                  needs one
                * the module gets no tensor with at least two dimensions, to which the other groups could be attached
                * the module may need several groups, but `fully_shard` was applied to the module itself
                * a compiler traces the hook during a packed call
            BatchError: a sequence that goes on in the next row is longer than an argument with one entry per position.
        """
        self.cell.refuse_compiling()
        if torch.compiler.is_compiling():
            return None
        call = self.cell.call
        placed = self.cell.calls.again if call is None else call.placed
        if placed is None:
            return None
        attention.tell(module)
        family = self.family or Family()
        one = runs_once(module)
        how: How = "mixed" if family.causal else "equal"
        how = "alone" if class_of(module).__name__ in family.alone else "one" if one else how
        if one and (how == "alone" or not family.causal):
            raise UnsupportedModelError(
                f"{class_of(module).__name__} runs once for each length of the batch, and has no weights after its "
                "first run if it is sharded by itself; shard the layer around it (fully_shard)"
            )
        groups = placed.keep(("groups", how), lambda: groups_of(placed, how))
        pieces = _pieces(module, bound(module, args, kwargs), placed, groups, family)
        number = _own(module, placed, groups)
        piece = pieces.pop(number)
        for value in piece.values():
            if isinstance(value, Tensor) and value.dim() > 1:
                setattr(value, PENDING, Pending(placed, groups, pieces, number))
                return (), piece
        raise attention.lost(module)


@dataclass(eq=False)
class Join(Hook):
    """Runs a mixing module on the groups that `Cut` set aside, and puts all outputs into the batch's rows.

    Attributes:
        moment: when PyTorch calls the hook; always "after", when the module has returned.
    """

    moment: Literal["before", "after"] = "after"

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """Return the module's output for all groups, in the batch's rows; None if `Cut` did not cut its arguments.

        Raises:
            UnsupportedModelError: the module's output, or the first of several outputs, does not have one entry per
                token.
        """
        for value in kwargs.values():
            pending: Pending | None = getattr(value, PENDING, None)
            if pending is not None:
                delattr(value, PENDING)
                sizes = [size for number, size in enumerate(pending.groups.sizes) if number != pending.number]
                chunk = chunk_size(module, pending.placed.ids.device)
                outputs = [
                    with_even_chunks(module, length, chunk).forward(**one)
                    for (_, length), one in zip(sizes, pending.others, strict=True)
                ]
                outputs.insert(pending.number, output)
                return _joined(module, outputs, pending)
        return None


def mixing_hooks(cell: Cell, modules: Iterable[nn.Module], family: Family) -> Iterator[tuple[nn.Module, Hook]]:
    """Yield (module, hook) pairs: a `Cut` and a `Join` for each mixing module among `modules`."""
    for module in modules:
        if class_of(module).__name__ in family.mixers:
            yield module, Cut(cell, family=family)
            yield module, Join(cell)


def carry(cell: Cell, modules: Iterable[nn.Module]) -> None:
    """Make gradient checkpointing keep the layout of packed calls, for the mixing modules inside checkpointed layers.

    Raises:
        UnsupportedModelError: layers are checkpointed by torch's wrapper and not by transformers.
    """
    for module in modules:
        if type(module).__name__ == "CheckpointWrapper":
            raise UnsupportedModelError(
                "layers are wrapped by torch's checkpoint_wrapper, which forgets the layout of a packed batch until it "
                "computes them again; use transformers' own, model.activation_checkpointing_enable()"
            )
        found = module.__dict__.get(CHECKPOINT)
        if found is not None and not (isinstance(found, Carried) and found.cell is cell):
            found = found.checkpoint if isinstance(found, Carried) else found
            setattr(module, CHECKPOINT, Carried(cell, found))


def release(modules: Iterable[nn.Module]) -> None:
    """Undo `carry` on these modules."""
    for module in modules:
        found = module.__dict__.get(CHECKPOINT)
        if isinstance(found, Carried):
            setattr(module, CHECKPOINT, found.checkpoint)


def refuse_compiled(model: Any, family: Family) -> None:
    """Refuse a compiled call, or one with static shapes, of a model that cannot run in this way.

    Mixing modules run in groups that differ from batch to batch. Positions counted along the row are replaced by hooks,
    which compiled code would leave out.

    Raises:
        UnsupportedModelError: the model has mixing modules (`Family.mixers`), or learned tables of position embeddings
            for which it counts positions along the row (`Family.tables`).
    """
    if family.tables:
        raise UnsupportedModelError(
            f"{type(model).__name__} counts positions along the row. nopad puts each sequence's own in their place, "
            "which compiled code would leave out; do not compile this model or its layers"
        )
    if family.mixers:
        raise UnsupportedModelError(
            f"the {' and '.join(family.mixers)} modules of {type(model).__name__} are run sequence by sequence, in "
            "groups that differ from batch to batch, which compiled code cannot follow; do not compile this model or "
            "its layers"
        )


def _own(module: nn.Module, placed: Placement, groups: Groups) -> int:
    """Return the index of the group that runs first, with the module's own chunk size.

    This is the group that needs the least padding for whole chunks. The result is 0 if the module has no chunks
    (`chunk_size`).
    """
    chunk = chunk_size(module, placed.ids.device)
    if not chunk:
        return 0
    return int(np.argmin([n * (-length % chunk) for n, length in groups.sizes]))


def _pieces(
    module: nn.Module, named: Mapping[str, Any], placed: Placement, groups: Groups, family: Family
) -> list[dict[str, Any]]:
    """Return a mixing module's arguments, by name, for each group of sequences.

    Tensors with one entry per token are cut, also in tuples and lists. An argument in `Family.places` has one entry per
    position in a row. A group gets as many of these entries as its rows are wide, or all if the dimension in
    `Family.places` is None. Scalars and other objects stay as they are.

    A 4-D ``attention_mask`` is replaced. If the model is a decoder with the route "mixers", the module gets a causal
    mask. Otherwise, if the model makes its own mask (`Family.masked` is False), the module gets a mask that hides
    nothing. In all other cases it gets None. In each case, no real token sees the padding of its group.

    Raises:
        UnsupportedModelError: the module is given a cache of earlier tokens, a tensor that is not per token, or no mask
            although it needs one.
        BatchError: a sequence that goes on in the next row is longer than an argument with one entry per position.
    """
    places = {name: [dim for other, dim in family.places if other == name] for name, _ in family.places}
    dtype = next((one.dtype for one in named.values() if isinstance(one, Tensor) and one.is_floating_point()), None)
    for name in CACHES:
        if named.get(name) is not None:
            raise UnsupportedModelError(
                f"{type(module).__name__} was given {name}, which would hand its state from one sequence on to the "
                "next; run the model without a cache"
            )

    if family.route == "mixers" and family.causal and named.get(MASK) is None:
        raise attention.lost(module)

    def cut(name: str, value: Any) -> list[Any]:
        if isinstance(value, tuple | list):
            return list(map(type(value), zip(*(cut(name, one) for one in value), strict=True)))
        if not isinstance(value, Tensor) or value.dim() == 0:
            return [value] * len(groups.sizes)
        if name == MASK and value.dim() == 4:
            if family.route == "mixers" and family.causal:
                return [_causal(length, value, dtype) for _, length in groups.sizes]
            if not family.masked:  # the model made it: its attention may be causal without one
                return [_visible(length, value) for _, length in groups.sizes]
            return [None] * len(groups.sizes)
        if name in places:
            rows = placed.layout.shape[0]
            return [reduce(lambda v, d: _first(v, d, rows, size), places[name], value) for size in groups.sizes]
        if tuple(value.shape[:2]) == placed.layout.shape:
            return groups.cut(placed.stream(value))
        raise UnsupportedModelError(
            f"{type(module).__name__} is given {name} of the shape {list(value.shape)}, of which nopad does not know "
            "what belongs to which token; run its sequences padded"
        )

    parts = {name: cut(name, value) for name, value in named.items()}
    return [{name: part[number] for name, part in parts.items()} for number in range(len(groups.sizes))]


def _causal(length: int, given: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a causal mask ``[1, 1, length, length]`` in place of the mask `given`, on its device.

    If `given` is bool, so is the result (True: hidden). Otherwise the result is additive and in `dtype`; None: torch's
    default dtype.
    """
    hidden = torch.ones(length, length, dtype=torch.bool, device=given.device).triu(1)[None, None]
    if given.dtype == torch.bool:
        return hidden
    dtype = dtype or torch.get_default_dtype()
    return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)


def _visible(length: int, given: Tensor) -> Tensor:
    """Return a mask ``[1, 1, 1, length]`` that hides nothing, with the dtype and device of the mask `given`.

    If `given` is bool, the result is True (visible) everywhere. Otherwise it is an additive mask: 0 everywhere.
    """
    return given.new_full((1, 1, 1, length), given.dtype == torch.bool)


def _first(value: Tensor, dim: int | None, rows: int, size: tuple[int, int]) -> Tensor:
    """Return the first l entries of a tensor along `dim`, for a group of n sequences; `dim` None: the whole tensor.

    `size` is (n, l), and `rows` is the number of rows of the batch. A 3-D tensor must have the same values for each
    row. The result repeats these values for each of the n sequences: ``[rows * heads, 1, L]`` (ALiBi) becomes
    ``[n * heads, 1, l]``.

    Raises:
        BatchError: the tensor has fewer than l entries, since a sequence crosses rows.
    """
    if dim is None:
        return value
    n, length = size
    if value.dim() == 3:
        value = value[: value.shape[0] // rows].repeat(n, 1, 1)
    if value.shape[dim] < length:
        raise BatchError(
            f"a sequence of {length} tokens crosses rows of {value.shape[dim]}, and this model counts positions only "
            "as far as a row is wide; give wider rows"
        )
    return value.narrow(dim, 0, length)


def _joined(module: nn.Module, outputs: list[Any], pending: Pending, strict: bool = True) -> Any:
    """Join a module's outputs for all groups into one output, laid out as the batch's rows.

    `outputs` has one output per group, and `pending` knows the groups. If the module returns several values (a tuple,
    list or mapping), the first must have one entry per token. Another value without one entry per token, such as
    attention weights, becomes None. With `strict` False, the first value becomes None in this case too.

    Raises:
        UnsupportedModelError: `strict` is True, and the output, or its first value, is not per token.
    """
    kind = type(outputs[0])
    if isinstance(outputs[0], Mapping):
        values = _joined(module, [tuple(one.values()) for one in outputs], pending, strict)
        return kind(**dict(zip(outputs[0], values, strict=True)))
    if isinstance(outputs[0], list):
        return list(_joined(module, [tuple(one) for one in outputs], pending, strict))
    if isinstance(outputs[0], tuple):
        first, *others = (list(parts) for parts in zip(*outputs, strict=True))
        return (_joined(module, first, pending, strict), *(_joined(module, one, pending, False) for one in others))
    sizes = [tuple(one.shape[:2]) if isinstance(one, Tensor) else () for one in outputs]
    if sizes == list(pending.groups.sizes) and len({tuple(one.shape[2:]) for one in outputs}) == 1:
        return pending.placed.rows(pending.groups.join(outputs))
    if not strict:
        return None
    raise UnsupportedModelError(
        f"{type(module).__name__} gives {list(sizes[0])} where {list(pending.groups.sizes[0])} tokens were given, so "
        "nopad cannot tell what belongs to which token; run its sequences padded"
    )
