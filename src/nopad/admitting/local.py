"""Find out whether the user's own code computes each token's result from that token alone, in batches of any size.

Changed values and compared outputs show only what a module does with one input. Its code may do something else for a
longer row, for more rows, at one token, or in training. So more checks are made:

* `crossing` follows every operation, and tries each by itself: does its result for one token change with the input of
  another token? Such a result counts as a value of several tokens, and so does everything that is computed from it,
  even where the code multiplies it by 0. `crossing` also finds numbers that are read out of tensors (``.item()``,
  ``if x.any()``), since code may decide anything by them.
* `varying` runs the module on many lengths and numbers of rows, in which the same tokens are repeated. The module must
  call the same functions each time, and give equal tokens equal results.
* `backward_of_ones_own` looks for the user's own code that changes gradients.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from nopad.admitting.modes import in_mode
from nopad.admitting.tracking import ROW, TOKEN, Track
from nopad.model.own import is_own, is_own_call

__all__ = ["Run", "backward_of_ones_own", "crossing", "crossing_outputs", "first_crossing", "varying"]

# Code may do something else for a multiple of 64 or 128, so some sizes are such multiples, and some are not.
WIDE = (1, 2, 150, 600, 1536, 4096, 20480)  # tokens of a row
MANY = (2, 9, 64, 300)  # rows
MUCH = (20, 300)  # 20 rows of 300 tokens
MOST = 20_000_000  # numbers in a tensor, as far as can be foreseen
RAISES = "it raises"
HOOKS = ("register_hook", "register_post_accumulate_grad_hook")
OPERATOR = "GeneratedBackwardFor_"  # before the name of an operator whose gradient torch.library registered


@dataclass(frozen=True)
class Run:
    """A recorded call of a module, which can be repeated with other sizes.

    Attributes:
        module: the module.
        given: its arguments by name.
        held: modules inside it that are not run: maps each to its recorded output, which it returns instead.
        length: L, the number of tokens in `given`; with `sequences`, the number of sequences.
        close: differences of at most this, relative to an output's largest value, are rounding.
        data: names of arguments that count as computed from tokens, whatever their values. An argument that is not
            named here counts so only if it holds the token ids, or floats with one dimension of tokens.
        sequences: whether results per sequence are followed instead of results per token. Each module in `held` then
            returns L entries, one per sequence.
    """

    module: nn.Module
    given: dict[str, Any]
    held: Mapping[nn.Module, Any]
    length: int
    close: float
    data: tuple[str, ...] = ()
    sequences: bool = False

    @property
    def places(self) -> bool:
        """Whether arguments ``[L, ...]`` are tables of positions, which all rows share, and not data of single tokens.

        They are tables if another argument has the shape ``[1, L, ...]``, since that argument then holds the tokens.
        """
        leaves = [one for one in tree_leaves(self.given) if isinstance(one, Tensor)]
        return any(tuple(one.shape[:2]) == (1, self.length) for one in leaves)

    def fits(self, rows: int, wide: int) -> bool:
        """Return whether the run could be repeated on `rows` rows of `wide` tokens within the limit `MOST`.

        `MOST` is the largest number of elements that an argument or a recorded output may then have.
        """
        leaves = [one for one in tree_leaves((self.given, list(self.held.values()))) if isinstance(one, Tensor)]
        largest = max((one.numel() * (wide / self.length) ** one.shape.count(self.length) for one in leaves), default=0)
        return rows * largest <= MOST

    def at(self, rows: int, wide: int) -> tuple[list[str], Any, int]:
        """Run the module on `rows` rows of `wide` tokens, which repeat the tokens of the recorded call.

        Returns (the names of the PyTorch functions that the module called, in order; its output; the number of elements
        of the largest tensor that a function, or reading an attribute of a tensor, returned).
        """
        size = partial(_sized, length=self.length, rows=rows, wide=wide, table=self.places)
        given, held = tree_map(size, self.given), {module: tree_map(size, made) for module, made in self.held.items()}
        names: list[str] = []
        calls = _Calls(lambda name, args: names.append(name))
        with torch.no_grad(), _holding(held, lambda module, made, got: made), calls:
            made = self.module.forward(**given)
        return names, made, calls.most


def crossing(run: Run, tokens: list[int], mixes: bool = False) -> tuple[bool, bool]:
    """Return whether a module moves information between tokens, and whether it may decide by the values of tensors.

    It may decide by values, for example, if it reads numbers out of tensors with ``.item()`` (`Track.reads`). The
    recorded call `run` is repeated in evaluation mode and in training mode. `tokens` are its token ids, by which
    arguments that hold them are recognised. Information counts as moved only if it reaches an output with one entry per
    token, ``[1, L, ...]``. If `mixes`, the module is known to move information: the first value is then True, and
    the operations in the module are not run again with changed tokens to find it out.

    Raises:
        Exception: the module's code may raise anything.
    """
    crosses, reads = mixes, False
    for training in (False, True):
        track, made = _followed(run, tokens, training, not mixes)
        per_token = [one for one in _tensors(made) if tuple(one.shape[:2]) == (1, run.length)]
        crosses |= any(track.of(one) == ROW for one in per_token)
        reads |= track.reads
    return crosses, reads


def crossing_outputs(run: Run, tokens: list[int]) -> tuple[list[Tensor], bool, bool]:
    """Return the outputs that depend on several tokens, and two booleans, as a tuple.

    The first boolean says whether modules in `Run.held` get tensors that depend on several tokens. The second says
    whether code may decide by the values of tensors (`Track.reads`), for example by a number that ``.item()`` returns.
    The module runs in evaluation mode and in training mode, and the list has the outputs of both. With `Run.sequences`,
    the outputs are those that depend on several sequences.

    Raises:
        Exception: the module's code may raise anything.
    """
    found, handed, reads = [], False, False
    for training in (False, True):
        track, made = _followed(run, tokens, training, True)
        found += [one for one in _tensors(made) if track.of(one) == ROW]
        handed, reads = handed or track.handed == ROW, reads or track.reads
    return found, handed, reads


def backward_of_ones_own(run: Run, many: int = MANY[-1], longest: int = WIDE[-1]) -> str:
    """Look in a module for the user's own code that changes gradients; return its name, or "" if there is none.

    The name is that of an autograd function, or of the PyTorch method that attached a hook to a gradient
    (``register_hook``). What such code does with gradients cannot be followed. Modules in `held` are not looked into.
    The module runs in evaluation mode and in training mode: on one row as recorded, on `many` rows, and on longer rows
    of up to `longest` tokens, as far as memory allows. A run that raises an error finds nothing. After an error on one
    row, no larger sizes are tried in this mode.
    """
    for training in (False, True):
        with in_mode(run.module, training):
            found, most = _backward(run, 1, run.length)
            if not found and many > 1 and run.fits(many, run.length) and most * many <= MOST:
                found, _ = _backward(run, many, run.length)
            before = run.length
            for wide in (one for one in WIDE if run.length < one <= longest):
                if found or not run.fits(1, wide) or most * (wide / before) ** 2 > MOST:
                    break
                found, most = _backward(run, 1, wide)
                before = wide
        if found:
            return found
    return ""


def _backward(run: Run, rows: int, wide: int) -> tuple[str, int]:
    """Run a module on `rows` rows of `wide` tokens, and look for the user's own code in its backward graph.

    Returns ``(name, elements)``. `name` is that of the user's autograd function, or of the PyTorch method that attached
    the user's hook to a gradient; "" if there is neither, or if the module raised an error. `elements` is the number of
    elements of the largest tensor that a function of PyTorch, or reading an attribute of a tensor, returned; `MOST` if
    the module raised an error.
    """
    hooks: list[str] = []
    own = partial(_is_own_hook, found=hooks)
    size = partial(_sized, length=run.length, rows=rows, wide=wide, table=run.places)
    held = {module: tree_map(size, made) for module, made in run.held.items()}
    calls = _Calls(own)
    try:
        with torch.enable_grad(), _holding(held, lambda module, made, got: tree_map(_learned, made)), calls:
            made = run.module.forward(**tree_map(lambda one: _learned(size(one)), run.given))
    except Exception:  # a whole model may refuse long rows
        return "", MOST
    seen, waiting = set(), [one.grad_fn for one in _tensors(made)]
    while waiting and not hooks:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = getattr(node, "_forward_cls", None)
        if kind is not None and _is_own_function(kind):
            return str(kind.__qualname__).removeprefix(OPERATOR), calls.most
        waiting += [one for one, _ in node.next_functions]
    return (hooks[0] if hooks else ""), calls.most


def _is_own_hook(name: str, args: Sequence[Any], found: list[str]) -> None:
    """Add `name` to `found` if a call of the PyTorch function `name` attaches code of the user's own to a gradient.

    `args` are the arguments of the call.
    """
    if name in HOOKS and all(map(is_own_call, args[1:])):
        found.append(name)


def _is_own_function(kind: type) -> bool:
    """Return whether an autograd function is the user's own, or was made by PyTorch for the user's own operator."""
    if not kind.__name__.startswith(OPERATOR):
        return is_own(kind)
    held = inspect.getclosurevars(cast("Any", kind).backward).nonlocals
    return "info" not in held or is_own_call(held["info"]._backward_fn)


def _learned(value: Any) -> Any:
    """Return a floating-point tensor as a copy that gradients go through, as if computed from weights.

    Other values are returned as they are.
    """
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.detach().requires_grad_().clone() if floating else value


def first_crossing(run: Run, tokens: list[int]) -> tuple[nn.Module | None, bool]:
    """Return ``(submodule, by itself)``: the first submodule whose output has values that depend on several tokens.

    `by itself` is True if the inputs of this submodule depend on one token each, so that the submodule moved the
    information. Submodules are looked at in the order in which they finish; those in `held` are left out. The result is
    (None, False) if there is no such submodule. `run` is a recorded call of the module, and `tokens` are its token ids.

    Raises:
        Exception: the module's code may raise anything.
    """
    found: list[tuple[nn.Module, bool]] = []
    for training in (False, True):
        _followed(run, tokens, training, True, found)
    return found[0] if found else (None, False)


def _followed(
    run: Run, tokens: list[int], training: bool, tries: bool, found: list[tuple[nn.Module, bool]] | None = None
) -> tuple[Track, Any]:
    """Run a module, and follow which values depend on several tokens; return (the `Track` that did so, the output).

    Args:
        run: the recorded call of the module, which is repeated.
        tokens: its token ids.
        training: whether the module runs in training mode, without dropout.
        tries: whether each operation is run again with changed tokens, to see if it moves information (see `Track`).
        found: a list that gets a pair for each submodule whose output depends on several tokens: the submodule, and
            whether its inputs depend on one token each. None: submodules are not looked at.

    Raises:
        Exception: the module's code may raise anything.
    """
    track = Track(run.length, [*run.module.parameters(), *run.module.buffers()], tries)
    track.sequences = run.sequences
    given = tree_map(lambda one: one.clone() if isinstance(one, Tensor) else one, run.given)
    for name, value in given.items():
        for leaf in _tensors([value]):
            local = tuple(leaf.shape).count(run.length) == 1
            if _is_data(leaf, tokens) or (name in run.data and local):
                track.put(leaf, TOKEN)
            elif name in run.data:
                track.put(leaf, ROW)

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inputs, outputs = (max(map(track.of, _tensors([value])), default=0) for value in ((args, kwargs), output))
        if outputs == ROW and found is not None:
            found.append((module, inputs < ROW))

    inside = [] if found is None else [one for one in run.module.modules() if one not in (run.module, *run.held)]
    handles = [one.register_forward_hook(after, with_kwargs=True) for one in inside]
    try:
        with torch.no_grad(), in_mode(run.module, training), _holding(run.held, track.held), _Calls(track.look), track:
            return track, run.module.forward(**given)
    finally:
        for handle in handles:
            handle.remove()


def varying(run: Run, mixes: bool, whole: bool = False, brief: bool = False) -> tuple[str, bool]:
    """Run a module on shorter, longer and more rows, and look for a difference; return ``(change, by_rows)``.

    `change` says in words what changes with the size; "": nothing. An error on some size counts as a change; but with
    `whole`, the module is a whole model, and may raise an error on longer rows. `by_rows` is whether something changes
    with more rows. With `mixes`, the module moves information between tokens and may compute something else for rows
    of another length, so only more rows are tried. With `brief`, fewer sizes are tried, and only in evaluation mode.

    Some sizes are not tried: those that would need too much memory, and several rows of a length at which even one row
    raises an error. A mode in which two equal calls give different results is not tried either.
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
    """Return (names of the functions that a module calls on one row of `wide` tokens, its output).

    None: the module raises an error, as it may if it has tables or masks for fewer positions.
    """
    try:
        return run.at(1, wide)[:2]
    except Exception:  # a module's code may raise anything
        return None


def _differs(run: Run, names: list[str], made: Any, rows: int, wide: int, base: int) -> tuple[str, int]:
    """Run a module on `rows` rows of `wide` tokens; return (difference, number of elements of the largest tensor).

    The difference tells, in words, how this run differs from an earlier one on one row of `base` tokens; "": it does
    not. An error is a difference; the number is then 0. `names` are the functions that the module called in the earlier
    run, and `made` is its output.
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
    """Return whether each token in the output `after` has the values that the same token has in the output `before`.

    `before` is the output for one row of `base` tokens (0: the recorded number). `after` is the output for `rows` rows
    of `wide` tokens, in which the same tokens are repeated. Only floating-point tensors with a dimension of tokens are
    compared. Differences of at most `Run.close` are rounding.
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

    Of tensors, only those with a dimension of size `length` change: each such dimension is repeated or cut to `wide`.
    Then the first dimension is repeated `rows` times if it was 1, or if it holds flattened tokens. Tensors ``[length]``
    and ``[length, n]`` hold flattened tokens, unless `table` says that they are tables of positions. An integer that
    equals `length` becomes `wide`. All else is returned as it is.
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

    Positions and integer masks are no data.
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

    Reading an attribute of a tensor does not count as a call. The attribute `most` is the number of elements of the
    largest tensor that a function, or reading an attribute, returned.
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
