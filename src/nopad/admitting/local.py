"""Find out whether the user's own code computes each token's result from that token alone, whatever is around it.

Changing values and looking at outputs shows only what a module does now. Its code may do something else for a longer
row, for more rows, at one token, or in training. So two more checks are made, which do not wait for such a case:

* `crossing` follows every operation, and tries each by itself: does its result for one token change with the input of
  another token? If so, this result, and everything that is computed from it, counts as a value of several tokens, even
  where the code multiplies it by 0. It also finds numbers that are read out of tensors (``.item()``, ``if x.any()``),
  since code may decide anything by them.
* `varying` runs the module on many lengths and numbers of rows, in which the same tokens are repeated. It must call the
  same functions, and give equal tokens equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from nopad.admitting.modes import in_mode

__all__ = ["Run", "crossing", "varying"]

WIDE = (1, 2, 150, 600, 1500, 5000, 20000)  # tokens of a row
MANY = (2, 9, 70, 300)  # rows
MUCH = (20, 300)  # rows of so many tokens
MOST = 20_000_000  # numbers in a tensor, as far as can be foreseen
TOKEN, ROW = 1, 2  # what a tensor holds: one value per token, or something of several tokens
FILLED = ("_like", "new_", "empty", "zeros", "ones", "full", "arange")  # in names of operations that read no values
RAISES = "it raises"
READERS = ("tolist", "numpy", "__array__", "data_ptr", "__dlpack__")  # of tensors, and no operations of PyTorch


@dataclass(frozen=True)
class Run:
    """A recorded call of a module, to be made again.

    Attributes:
        module: the module.
        given: its arguments by name.
        held: modules inside it that are not run, each with the output that it returns instead.
        length: number of tokens in `given`, L.
        close: differences of at most this, relative to an output's largest value, are rounding.
    """

    module: nn.Module
    given: dict[str, Any]
    held: Mapping[nn.Module, Any]
    length: int
    close: float

    @property
    def places(self) -> bool:
        """Whether arguments ``[L, ...]`` are tables of positions, which all rows share, and not tokens.

        They are if another argument is ``[1, L, ...]``: then this one holds the tokens.
        """
        leaves = [one for one in tree_leaves(self.given) if isinstance(one, Tensor)]
        return any(tuple(one.shape[:2]) == (1, self.length) for one in leaves)

    def fits(self, rows: int, wide: int) -> bool:
        """Return whether no argument would have more than `MOST` numbers for `rows` rows of `wide` tokens."""
        leaves = [one for one in tree_leaves((self.given, list(self.held.values()))) if isinstance(one, Tensor)]
        largest = max((one.numel() * (wide / self.length) ** one.shape.count(self.length) for one in leaves), default=0)
        return rows * largest <= MOST

    def at(self, rows: int, wide: int) -> tuple[list[str], Any, int]:
        """Run the module on `rows` rows of `wide` tokens, which repeat the tokens of the recorded call.

        Returns the names of the PyTorch functions that it called, in order, its output, and the number of elements of
        the largest tensor that one of them returned.
        """
        size = partial(_sized, length=self.length, rows=rows, wide=wide, table=self.places)
        given, held = tree_map(size, self.given), {module: tree_map(size, made) for module, made in self.held.items()}
        names: list[str] = []
        calls = _Calls(lambda name, args: names.append(name))
        with torch.no_grad(), _holding(held, lambda module, made, got: made), calls:
            made = self.module.forward(**given)
        return names, made, calls.most


def crossing(run: Run, tokens: list[int], mixes: bool = False) -> tuple[bool, bool]:
    """Return whether a module moves information between tokens, and whether it reads numbers out of tensors.

    Information counts as moved only if it reaches an output with one entry per token, ``[1, L, ...]``. The module runs
    on `tokens` in evaluation mode and in training mode. If `mixes`, it is known to move information: then operations
    are not tried, and the first value is True.
    """
    crosses, reads = mixes, False
    for training in (False, True):
        track = _Track(run.length, [*run.module.parameters(), *run.module.buffers()], not mixes)
        given = tree_map(lambda one: one.clone() if isinstance(one, Tensor) else one, run.given)
        for leaf in tree_leaves(given):
            if isinstance(leaf, Tensor) and _is_data(leaf, tokens):
                track.put(leaf, TOKEN)
        holding = _holding(run.held, track.held)
        with torch.no_grad(), in_mode(run.module, training), holding, _Calls(track.look), track:
            made = run.module.forward(**given)
        per_token = [one for one in _tensors(made) if tuple(one.shape[:2]) == (1, run.length)]
        crosses |= any(track.of(one) == ROW for one in per_token)
        reads |= track.reads
    return crosses, reads


def varying(run: Run, mixes: bool, whole: bool = False, brief: bool = False) -> tuple[str, bool]:
    """Return, in words, what changes if a module gets longer rows or more rows, and whether more rows change something.

    The words are "" if nothing changes. An error on some size counts as a change, except that a `whole` model may raise
    one on long rows. A module that `mixes` tokens may compute something else for longer rows, so only more rows are
    tried. With `brief`, fewer sizes are tried, and only in evaluation mode. Left out are sizes that would need too much
    memory, several rows of a length that even one row may not have, and a mode in which the module is random.
    """
    said, by_rows = "", False
    for training in (False,) if brief else (False, True):
        with in_mode(run.module, training):
            names, made, most = run.at(1, run.length)
            if not _alike(run, made, run.at(1, run.length)[1], 1, run.length):
                continue  # random in training, as dropout is: there is nothing to compare
            for rows, wide in (*((rows, run.length) for rows in MANY[training + 2 * brief :]), MUCH):
                if by_rows or not run.fits(rows, wide):
                    continue
                alone = (names, made) if wide == run.length else _one_row(run, wide)
                if alone is not None:
                    why, _ = _differs(run, *alone, rows, wide, wide)
                    said, by_rows = said or why, bool(why)
            before = run.length
            for wide in () if mixes else WIDE[3 * (training or brief) :]:
                if said or not run.fits(1, wide) or (wide > before and most * (wide / before) ** 2 > MOST):
                    break
                said, found = _differs(run, names, made, 1, wide, run.length)
                if said.startswith(RAISES) and whole and wide > run.length:
                    said = ""
                    break
                before, most = (wide, found) if wide > before else (before, most)
    return said, by_rows


def _one_row(run: Run, wide: int) -> tuple[list[str], Any] | None:
    """Return the functions that a module calls on one row of `wide` tokens, and its output; None: it raises an error.

    A module may have tables or masks for fewer positions.
    """
    try:
        return run.at(1, wide)[:2]
    except Exception:  # a module's code may raise anything
        return None


def _differs(run: Run, names: list[str], made: Any, rows: int, wide: int, base: int) -> tuple[str, int]:
    """Run a module on another size; return, in words, how it differs from a run on one row of `base` tokens, or "".

    `names` and `made` are the functions that it called in that run, and its output. The second value is the number of
    elements of the largest tensor in the new run.
    """
    try:
        again, after, most = run.at(rows, wide)
    except Exception as error:  # a module's code may raise anything
        return f"{RAISES} {type(error).__name__} on {rows} x {wide} tokens", 0
    if again != names:
        return f"it calls other functions on {rows} x {wide} tokens than on {base}", most
    same = _alike(run, made, after, rows, wide, base)
    return "" if same else f"tokens get other values on {rows} x {wide} tokens", most


def _alike(run: Run, before: Any, after: Any, rows: int, wide: int, base: int = 0) -> bool:
    """Return whether `after` repeats, in rows of `wide` tokens, what each token got in `before`.

    `before` is the output for one row of `base` tokens (0: as many as were recorded), `after` for `rows` rows. Only
    floating-point tensors with a dimension of tokens are compared.
    """
    base = base or run.length
    if len(_tensors(before)) != len(_tensors(after)):
        return False
    for one, two in zip(_tensors(before), _tensors(after), strict=True):
        if base not in one.shape or not one.is_floating_point():
            continue
        wanted = _sized(one, base, rows, wide, run.places)
        scale = float(one.nan_to_num().abs().max()) if one.numel() else 0.0
        if two.shape != wanted.shape or not torch.allclose(two, wanted, 0.0, run.close * max(scale, 1e-30), True):
            return False
    return True


def _sized(value: Any, length: int, rows: int, wide: int, table: bool) -> Any:
    """Return an argument or output for one row of `length` tokens, repeated to `rows` rows of `wide` tokens.

    In tensors, each dimension of size `length` is repeated or cut to `wide`; a first dimension of 1, or of flattened
    tokens, is repeated `rows` times. An integer that equals `length` becomes `wide`. All else is returned as it is.
    `table`: a tensor ``[length, ...]`` is a table of positions, not flattened tokens.
    """
    if type(value) is int and value == length:
        return wide
    if not isinstance(value, Tensor) or length not in value.shape:
        return value
    flat = value.dim() <= 2 and value.shape[0] == length and not table
    for dim, size in enumerate(value.shape):
        if size == length:
            value = torch.cat([value] * (-(-wide // length)), dim).narrow(dim, 0, wide)
    if flat:
        return torch.cat([value] * rows)
    if value.dim() > 1 and value.shape[0] == 1:
        value = torch.cat([value] * rows)
    return value


def _is_data(value: Tensor, tokens: list[int]) -> bool:
    """Return whether a tensor holds data of the tokens: their ids, or floats with exactly one dimension of tokens.

    Masks of integers and positions are no data.
    """
    if tuple(value.shape).count(len(tokens)) != 1:
        return False
    return value.is_floating_point() or (value.dtype == torch.long and value.flatten().tolist() == tokens)


def _tensors(made: Any) -> list[Tensor]:
    made = dict(made.items()) if hasattr(made, "items") else made
    return [one for one in tree_leaves(made) if isinstance(one, Tensor)]


@contextmanager
def _holding(held: Mapping[nn.Module, Any], give: Callable[[nn.Module, Any, Any], Any]) -> Iterator[None]:
    """For a ``with`` block, replace the forward methods of the modules in `held`.

    Instead, each module returns ``give(module, held[module], (args, kwargs))``.
    """

    def instead(module: nn.Module, made: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: give(module, made, (args, kwargs))

    before = {module: module.__dict__.get("forward") for module in held}
    for module, made in held.items():
        module.__dict__["forward"] = instead(module, made)
    try:
        yield
    finally:
        for module, was in before.items():
            module.__dict__.pop("forward", None)
            if was is not None:
                module.__dict__["forward"] = was


class _Calls(TorchFunctionMode):
    """A PyTorch function mode that calls ``look(name, args)`` for each function of PyTorch that is called.

    Its attribute `most` is the number of elements of the largest tensor that such a function returned.
    """

    def __init__(self, look: Callable[[str, Sequence[Any]], None]) -> None:
        super().__init__()
        self.look, self.most = look, 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name != "__get__":
            self.look(name, args)
        found = function(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.most = max(self.most, found.numel())
        return found


@dataclass
class _State:
    tensor: Tensor
    holds: int


class _Track(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A PyTorch dispatch mode that follows what tensors are computed from.

    A tensor holds 0 (nothing of the tokens), `TOKEN` (each entry is of one token) or `ROW` (entries are of several
    tokens). With `tries`, each operation on `TOKEN` is tried, to see if its result is `ROW`. The attribute `reads`
    tells whether numbers were read out of such a tensor, or out of a weight.
    """

    def __init__(self, length: int, weights: list[Tensor], tries: bool) -> None:
        make: Any = super().__init__
        make()
        self.length, self.tries = length, tries
        self.states: dict[int, _State] = {}  # by id; the tensors are kept, so that ids stay theirs
        self.weights = {id(one): one for one in weights}
        self.reads = False

    def of(self, tensor: Tensor) -> int:
        """Return what a tensor holds: 0, `TOKEN` or `ROW`.

        A tensor that was not seen before holds what those hold that share memory with it.
        """
        known = self.states.get(id(tensor))
        if known is not None:
            return known.holds
        store = _store(tensor)
        return max((one.holds for one in self.states.values() if store and _store(one.tensor) == store), default=0)

    def put(self, tensor: Tensor, holds: int) -> None:
        self.states[id(tensor)] = _State(tensor, holds)

    def look(self, name: str, args: Sequence[Any]) -> None:
        """Set `reads` if the function `name` reads numbers out of a weight, or of something computed from tokens."""
        if name in READERS and args and isinstance(args[0], Tensor):
            self.reads |= bool(self.of(args[0])) or id(args[0]) in self.weights

    def held(self, module: nn.Module, made: Any, given: Any) -> Any:
        """Return copies of `made`, the output that a module returns without being run.

        Floating-point tensors are `ROW` if one of its arguments, `given`, is, or if they do not have exactly one
        dimension of tokens; else they are `TOKEN`. Other tensors hold 0.
        """
        worst = max((self.of(one) for one in tree_leaves(given) if isinstance(one, Tensor)), default=TOKEN)

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
        name = function._schema.name.rpartition("::")[2]
        state = 0 if any(part in name for part in FILLED) and not writes else worst
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
        """Note what the tensors hold that an operation wrote to in place, and all that share memory with them."""
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

        True also if this cannot be tried; False if the operation is random.
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
            for poison in (False, True):
                try:
                    given = _copied_with(before, holds, partial(self._changed, place=place, other=other, poison=poison))
                    found = _leaves(_run(function, given))
                except Exception:  # an operation on values that it does not take
                    return True
                for one, two, dim in zip(made, found, [one[0] for one in dims], strict=True):
                    rest = [at for at in range(self.length) if at != place]
                    index = torch.tensor(rest)
                    if one.shape != two.shape or not _equal(one.index_select(dim, index), two.index_select(dim, index)):
                        return True
        return False

    def _changed(self, value: Tensor, place: int, other: int, poison: bool) -> Tensor:
        """Overwrite what `value` holds for the token `place`, and return `value`.

        Booleans are negated; other numbers become those of the token `other`, or NaN with `poison`.
        """
        dim = next(dim for dim, size in enumerate(value.shape) if size == self.length)
        mine, theirs = value.select(dim, place), value.select(dim, other)
        if value.dtype == torch.bool:
            mine.logical_not_()
        elif poison and value.is_floating_point():
            mine.fill_(torch.nan)
        else:
            mine.copy_(theirs.clone())
        return value


def _run(function: Any, given: Any) -> Any:
    args, kwargs = given
    return function(*args, **kwargs)


def _leaves(value: Any) -> list[Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, Tensor)]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _copied_with(before: Any, holds: Mapping[int, int], change: Callable[[Tensor], Tensor]) -> Any:
    """Return copies of an operation's arguments, with `change` applied to the tensors that hold `TOKEN`."""

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
