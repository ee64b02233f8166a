"""`Track`: follow, operation by operation, whether each entry of a tensor is computed from one token or from more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["ROW", "TOKEN", "Track"]

TOKEN, ROW = 1, 2  # what a tensor holds: one value per token, or something of several tokens
# In names of PyTorch's operations that read no values
FILLED = ("_like", "new_", "empty", "zeros", "ones", "full", "arange")
# How a token's values are changed, to see what changes with them; and the ways in which only integers change
CHANGES = ("other", "nan", "switched", "largest")
OF_INTEGERS = CHANGES[2:]
OF_TORCH = ("aten", "prim", "prims", "mkldnn", "onednn", "quantized", "profiler")  # namespaces of operations
# Methods that read a tensor's values, but are no operations that a dispatch mode sees
READERS = ("tolist", "numpy", "__array__", "data_ptr", "__dlpack__")


@dataclass
class State:
    """What is known about a tensor.

    Attributes:
        tensor: the tensor; it is kept, so that its id is not used again.
        holds: 0: its entries are computed from no token; `TOKEN`: each from one token; `ROW`: some from several tokens.
    """

    tensor: Tensor
    holds: int


class Track(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A PyTorch dispatch mode that follows from which tokens the entries of tensors are computed.

    A tensor "holds" 0 if it is not computed from tokens, `TOKEN` if each entry is computed from one token, and `ROW` if
    an entry is computed from several. `put` says what the inputs hold; the mode then works it out for each result.

    Args:
        length: number of tokens; a dimension of this size counts as one of tokens.
        weights: the module's parameters and buffers.
        tries: whether to run each operation on `TOKEN` tensors again with other values, to see if its result is `ROW`.
            False: the result is taken to be `TOKEN`.

    Attributes:
        reads: whether code took a Python number out of a tensor that is computed from tokens, or out of a weight; or
            could decide by such values in another way: inside an operation that is not PyTorch's own, or by the shape
            of a result that depends on them (``ids[ids == 0].numel()``).
        handed: for modules that are not run (see `held`): the largest value (0, `TOKEN` or `ROW`) that one of their
            arguments holds.
        sequences: whether "token" stands for a sequence (`nopad.admitting.local.Run.sequences`); settable.
    """

    def __init__(self, length: int, weights: list[Tensor], tries: bool) -> None:
        make: Any = super().__init__
        make()
        self.length, self.tries = length, tries
        self.states: dict[int, State] = {}  # by id; the tensors are kept, so that ids stay theirs
        self.weights = {id(one): one for one in weights}
        self.reads = False
        self.sequences = False
        self.handed = 0  # what held modules get

    def of(self, tensor: Tensor) -> int:
        """Return from which tokens a tensor's entries are computed: 0 (none), `TOKEN` (one each) or `ROW` (several).

        For a tensor that was not seen before, this is the largest value among the tensors that share its memory; 0 if
        there are none.
        """
        known = self.states.get(id(tensor))
        if known is not None:
            return known.holds
        store = _store(tensor)
        return max((one.holds for one in self.states.values() if store and _store(one.tensor) == store), default=0)

    def put(self, tensor: Tensor, holds: int) -> None:
        """Store from which tokens a tensor's entries are computed: 0 (none), `TOKEN` (one each) or `ROW` (several)."""
        self.states[id(tensor)] = State(tensor, holds)

    def look(self, name: str, args: Sequence[Any]) -> None:
        """Set `reads` if the function `name` reads values out of a weight, or out of a tensor computed from tokens.

        `args` are the function's arguments; only the first one is looked at.
        """
        if name in READERS and args and isinstance(args[0], Tensor):
            self.reads |= bool(self.of(args[0])) or id(args[0]) in self.weights

    def held(self, module: nn.Module, made: Any, given: Any) -> Any:
        """Return `made`, the recorded output of `module`, with its tensors copied; store what each copy holds.

        The module is not run again.

        A copy that is not floating-point holds 0. A floating-point copy holds `TOKEN` if exactly one of its dimensions
        has the size `length`, and no tensor in `given`, the module's arguments, holds `ROW`; otherwise it holds `ROW`.
        If `self.sequences` is True, what `given` holds does not matter for this. `handed` is raised to the largest
        value that a tensor in `given` holds (`TOKEN` if `given` has no tensors).
        """
        worst = max((self.of(one) for one in tree_leaves(given) if isinstance(one, Tensor)), default=TOKEN)
        self.handed = max(self.handed, worst)
        worst = TOKEN if self.sequences else worst

        def copied(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            value = value.clone()
            local = tuple(value.shape).count(self.length) == 1 and worst < ROW
            self.put(value, (TOKEN if local else ROW) if value.is_floating_point() else 0)
            return value

        return tree_map(copied, made)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        worst = max(map(self.of, given), default=0)
        writes = function._schema.is_mutable
        before = tree_map(_copied, (args, kwargs)) if writes and worst == TOKEN else (args, kwargs)
        holds = {id(a): self.of(b) for a, b in zip(_leaves(before), given, strict=True)} if worst == TOKEN else {}
        output = function(*args, **kwargs)
        found = tree_leaves(output)
        weights = bool(given) and all(id(one) in self.weights for one in given)
        if any(isinstance(one, bool | int | float) for one in found):
            self.reads |= worst > 0 or weights
        if worst > 0:
            self.reads |= function.namespace not in OF_TORCH or _sizes_by_values(function, given)
        fills = function.namespace in OF_TORCH and any(part in function._schema.name for part in FILLED)
        state = 0 if fills and not writes else worst
        if state == TOKEN and self.tries and self._crosses(function, before, holds, output):
            state = ROW
        for one in found:
            if isinstance(one, Tensor):
                self.put(one, state)
                if weights:
                    self.weights[id(one)] = one
        if writes:
            self._written(function, args, kwargs, state)
        return output

    def _written(self, function: Any, args: Any, kwargs: Any, holds: int) -> None:
        """Store `holds` for the tensors that an operation wrote to in place, and for all that share their memory.

        `holds` is 0 (computed from no token), `TOKEN` (from one each) or `ROW` (from several). A tensor for which a
        larger value is stored already keeps that one. `args` and `kwargs` are the operation's arguments.
        """
        for at, argument in enumerate(function._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            for one in tree_leaves(value):
                if isinstance(one, Tensor):
                    self.put(one, max(holds, self.of(one)))
                    for state in self.states.values():
                        if _store(state.tensor) == _store(one):
                            state.holds = max(state.holds, holds)

    def _crosses(self, function: Any, before: Any, holds: Mapping[int, int], output: Any) -> bool:
        """Return whether an operation changes its result for a token when the input for another token changes.

        The operation is run again with changed copies of its arguments (`_changed`). Special cases, in this order:

        * True: a tensor in the output does not have exactly one dimension of tokens.
        * False: the operation is random, so that it cannot be compared.
        * True: it raises an error on arguments changed by "other" or "nan". Errors on other changes are ignored.

        Args:
            function: the operation.
            before: its arguments as they were before it ran.
            holds: `TOKEN` for each tensor in `before` whose entries belong to one token each, by the tensor's ``id``.
            output: its result.
        """
        made = [one for one in tree_leaves(output) if isinstance(one, Tensor)]
        dims = [[dim for dim, size in enumerate(one.shape) if size == self.length] for one in made]
        if any(len(one) != 1 for one in dims):
            return True
        # What is written to is what is given back, so it is computed again on copies.
        again = _leaves(_run(function, tree_map(_copied, before)))
        if any(not _equal(a, b) for a, b in zip(made, again, strict=True)):
            return False  # random: there is nothing to compare
        for place, other in ((1, 0), (self.length // 2, 2), (self.length - 2, 3)):
            for way in CHANGES if _integers(before, holds) else CHANGES[:2]:
                try:
                    given = _copied_with(before, holds, partial(self._changed, place=place, other=other, way=way))
                    found = _leaves(_run(function, given))
                except Exception:  # an operation on values that it does not take
                    if way in OF_INTEGERS:
                        continue  # an index beyond a table
                    return True
                for one, two, dim in zip(made, found, [one[0] for one in dims], strict=True):
                    rest = [at for at in range(self.length) if at != place]
                    index = torch.tensor(rest)
                    if one.shape != two.shape or not _equal(one.index_select(dim, index), two.index_select(dim, index)):
                        return True
        return False

    def _changed(self, value: Tensor, place: int, other: int, way: str) -> Tensor:
        """Overwrite in place what the tensor `value` has for the token at index `place`, and return `value`.

        Booleans are negated. Other values are changed in the way `way`:

        * "other": they become those of the token at index `other`.
        * "nan": floats become NaN, and integers change as by "other".
        * "switched": integers become 1 if they were 0, and 0 otherwise; floats stay.
        * "largest": integers become larger than all in `value`; floats stay.

        The last two are needed since two tokens may have the same integers, as in a column of zeros.
        """
        dim = next(dim for dim, size in enumerate(value.shape) if size == self.length)
        mine, theirs = value.select(dim, place), value.select(dim, other)
        if value.dtype == torch.bool:
            mine.logical_not_()
        elif value.is_floating_point():
            if way not in OF_INTEGERS:
                mine.copy_(theirs.clone() if way == "other" else torch.full_like(theirs, torch.nan))
        elif way in OF_INTEGERS:
            mine.copy_(mine == 0 if way == "switched" else value.max() + 1)
        else:
            mine.copy_(theirs.clone())
        return value


def _sizes_by_values(function: Any, given: Sequence[Tensor]) -> bool:
    """Return whether the shape of an operation's result depends on the values of the tensors in its arguments, `given`.

    Indexing is such an operation only with masks (bool, or uint8).
    """
    if torch.Tag.dynamic_output_shape not in function.tags:
        return False
    return function._schema.name != "aten::index" or any(one.dtype in (torch.bool, torch.uint8) for one in given[1:])


def _integers(before: Any, holds: Mapping[int, int]) -> bool:
    """Return whether an operation gets a tensor of integers that holds `TOKEN`: each integer belongs to one token.

    `before` are the operation's arguments, and `holds` says by ``id`` what their tensors hold.
    """
    kinds = {one.dtype for one in _leaves(before) if holds.get(id(one)) == TOKEN}
    return any(not one.is_floating_point and one != torch.bool for one in kinds)


def _run(function: Any, given: Any) -> Any:
    args, kwargs = given
    return function(*args, **kwargs)


def _leaves(value: Any) -> list[Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, Tensor)]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _copied_with(before: Any, holds: Mapping[int, int], change: Callable[[Tensor], Tensor]) -> Any:
    """Return copies of an operation's arguments, `before`; tensors whose entries belong to one token each are changed.

    These are the tensors for which `holds`, by ``id``, has the value `TOKEN`. Their copies are replaced by what
    `change` returns for them.
    """

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return change(value.clone()) if holds.get(id(value)) == TOKEN else value.clone()

    return tree_map(copied, before)


def _equal(one: Tensor, two: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, two)
    return torch.allclose(one, two, 1e-9, 1e-12 * float(one.nan_to_num().abs().max()) if one.numel() else 0.0, True)


def _store(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # a tensor without memory of its own
        return 0
