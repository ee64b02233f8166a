"""`Search`: find the innermost modules of a model that move information between tokens ("mix") by themselves.

A module is called again with its recorded arguments, except that one token's values are changed. If its output for
other tokens changes, it mixes. Of nested modules that mix, the innermost are found. A module that contains mixing
modules mixes *by itself* if it still mixes while these return their recorded outputs; it is then found in their place.
The code of the user's own modules is also followed (`nopad.admitting.local`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from nopad.admitting.local import Run, backward_of_ones_own, crossing, varying
from nopad.model.calls import parameters
from nopad.model.known import class_of
from nopad.model.own import is_own

__all__ = ["CLOSE", "FACTORS", "Probed", "Search", "Seen", "beside", "moved"]

FACTORS = (-30.0, 1e3, -1e3)  # by which a token's values are multiplied
OFTEN = 3  # modules of one of the user's own classes that are tried on all sizes; later ones on fewer
MANY, LONGEST = 9, 600  # most rows, and most tokens of a row, with which gradients are looked at
CLOSE = 1e-9  # relative to the largest value: more than rounding in float64 does


@dataclass
class Seen:
    """The first call of a module.

    Attributes:
        given: its arguments by name, without caches.
        output: what it returned.
        calls: how often the module was called while the model ran once.
    """

    given: dict[str, Any]
    output: Any
    calls: int = 1


@dataclass
class Probed:
    """What probing found.

    Attributes:
        tokens: the token ids of the sequence.
        seen: the first call of each module.
        attended: how often each module called registered attention, the function chosen by ``attn_implementation``.
        mixing: the innermost modules that mix tokens by themselves, and not by registered attention. In the result of
            `nopad.admitting.probing.probe`, also the other modules of their classes.
        close: differences of at most this, relative to an output's largest value, are rounding.
        unsplit: the model or its base model, if it mixes tokens outside of the modules inside it; None: it does not.
        alone: the modules in `mixing` that must run on one sequence at a time, since the rest of a row or batch may
            change what they compute.
        gradients: the user's own modules that change gradients by code of their own. Each has the name of the autograd
            function, or of the PyTorch method that attached a hook to a gradient. Modules in `mixing`, and those inside
            them, are left out.
        varies: (module, reason) of one of the user's own modules that does not always compute the same. It is the model
            or its base model, or returns nothing per token, so it cannot run sequence by sequence. None: there is none.
    """

    tokens: list[int]
    seen: dict[nn.Module, Seen]
    attended: Counter[nn.Module] = field(default_factory=Counter)
    mixing: list[nn.Module] = field(default_factory=list)
    close: float = CLOSE
    unsplit: nn.Module | None = None
    alone: set[nn.Module] = field(default_factory=set)
    gradients: dict[nn.Module, str] = field(default_factory=dict)
    varies: tuple[nn.Module, str] | None = None


class Search:
    """The search for the innermost modules that mix tokens (move information between them) by themselves.

    The argument `probed` has the recorded calls of all modules, and gets the findings. `whole` holds the model and its
    base model, which cannot be run sequence by sequence.
    """

    def __init__(self, probed: Probed, whole: set[nn.Module]) -> None:
        self.probed, self.whole = probed, whole
        self.length = len(probed.tokens)
        self.times: Counter[type] = Counter()  # how many modules of a class were looked into

    def of(self, module: nn.Module) -> list[nn.Module]:
        """Return the innermost modules inside `module` that mix tokens; or only `module`, if it mixes tokens by itself.

        The model and its base model are never returned. If one of them mixes tokens by itself, it is stored as
        `Probed.unsplit` (unless another module is stored there already), and the modules inside it are returned.
        """
        inside = [one for child in module.children() for one in self.of(child)]
        inside = list(dict.fromkeys(inside))
        if module not in self.probed.seen:
            return inside
        mixes = self._mixes(module, inside)
        if is_own(class_of(module)):
            mixes = self._looked_into(module, inside, mixes)
        if mixes:
            if module in self.whole:
                if self.probed.unsplit is None:  # a module may be false: `len` of an empty list of modules is 0
                    self.probed.unsplit = module
                return inside
            return [module]
        return inside

    def _looked_into(self, module: nn.Module, mixing: list[nn.Module], mixes: bool) -> bool:
        """Return whether `module`, one of the user's own, mixes tokens, or may do so for other inputs.

        `mixing` are the modules inside it that mix tokens; `mixes` is whether changed values have shown that `module`
        mixes. The module's code is followed, and run on other sizes (`nopad.admitting.local`). Findings are stored in
        `alone` and `gradients` of `self.probed`.

        A module in `whole`, or one that returns nothing per token, cannot run sequence by sequence. If such a module
        does not mix tokens, but may not always compute the same, this is stored in `self.probed.varies`; the result
        stays False.
        """
        probed, seen = self.probed, self.probed.seen[module]
        held = {one: probed.seen[one].output for one in (*mixing, *_stock(module, probed.seen))}
        run = Run(module, _given(module, seen.given, probed.tokens), held, self.length, probed.close)
        per_token = any(tuple(one.shape[:2]) == (1, self.length) for one in _floats(seen.output))
        try:
            crosses, reads = crossing(run, probed.tokens, mixes)
        except Exception as error:  # a module's code may raise anything
            crosses, reads = True, True
            said = f"it cannot be followed ({type(error).__name__}: {error})"
        else:
            said = "it reads numbers out of tensors, and may decide by them" if reads else ""
        mixes |= crosses and per_token
        if module in self.whole or not mixes:  # embeddings are not run: their tables end
            tables = [one for one in module.modules() if isinstance(one, nn.Embedding) and one in probed.seen]
            clean = [one for one in module.children() if is_own(class_of(one)) and one in probed.seen]
            held |= {one: probed.seen[one].output for one in (*tables, *clean)}
        self.times[class_of(module)] += 1
        brief = self.times[class_of(module)] > OFTEN
        varied, by_rows = varying(run, mixes, module in self.whole, brief)
        backward = backward_of_ones_own(run, 1 if brief else MANY, 0 if mixes or brief else LONGEST)
        if backward:
            probed.gradients[module] = backward
        if module in self.whole or not per_token:
            if not mixes and (said or varied):
                probed.varies = probed.varies or (module, said or varied)
        else:
            if reads or by_rows or (varied and not mixes):
                probed.alone.add(module)
            mixes |= bool(reads or varied or backward)
            if mixes and _takes_ids(run.given, probed.tokens):  # by some ids, it might mix the rows of a batch
                probed.alone.add(module)
        return mixes

    def _mixes(self, module: nn.Module, frozen: list[nn.Module]) -> bool:
        """Return whether changing one token's values changes what a module returns for other tokens.

        The modules in `frozen` return their recorded outputs meanwhile. The result is False if the module cannot be
        called by itself.
        """
        given = self.probed.seen[module].given
        middle = self.length // 2
        changes = [(1, 0.0), (middle, 0.0), (self.length - 2, 0.0), *((middle, factor) for factor in FACTORS)]
        with torch.no_grad(), _frozen(frozen, self.probed.seen):
            try:
                before = module.forward(**given)
                for place, factor in changes:
                    other = _changed(given, self.probed.tokens, place, factor)
                    if other is None:
                        continue
                    if moved(before, module.forward(**other), self.length, self.probed.close) - {place}:
                        return True
            except Exception:  # it cannot be called by itself: what is inside it was looked at
                return False
        return False


def _stock(module: nn.Module, seen: dict[nn.Module, Seen]) -> list[nn.Module]:
    """Return the modules of transformers' own classes inside a module, without modules inside these.

    Only modules that ran are returned; `seen` has all that ran.
    """
    found = []
    for child in module.children():
        if class_of(child).__module__.startswith("transformers.") and child in seen:
            found.append(child)
        else:
            found += _stock(child, seen)
    return found


def _given(module: nn.Module, given: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
    """Return `given`, the arguments of a module by name, with a mask and positions if the token ids are among them.

    The mask has only ones, and the positions count from 0; both are int64 ``[1, L]``. Each is added if the module takes
    it, and it is missing or None. Arguments that are None are left out. Without token ids, `given` itself is returned.
    """
    length, takes = len(tokens), parameters(type(module).forward)
    more = {"attention_mask": torch.ones(1, length, dtype=torch.long), "position_ids": torch.arange(length)[None]}
    if not _takes_ids(given, tokens):
        return given
    return {**{name: value for name, value in more.items() if name in takes}, **_without_none(given)}


def _takes_ids(given: dict[str, Any], tokens: list[int]) -> bool:
    """Return whether the token ids are among `given`, the arguments of a module by name."""
    ids = (one for one in given.values() if isinstance(one, Tensor) and one.dtype == torch.long)
    return any(one.flatten().tolist() == tokens for one in ids)


def _without_none(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _floats(output: Any) -> list[Tensor]:
    return [one for one in tree_leaves(_plain(output)) if isinstance(one, Tensor) and one.is_floating_point()]


def _changed(given: dict[str, Any], tokens: list[int], place: int, factor: float) -> dict[str, Any] | None:
    """Return the arguments `given`, with other values for the token at `place`; None: nothing could be changed.

    Only tensors ``[1, L, ...]`` are changed. Floats are multiplied by `factor`. If it is 0, noise is added to floats
    instead, and token ids become others. A large factor also changes what a module decides by the values of a whole
    row.
    """
    changed = False

    def change(value: Any) -> Any:
        nonlocal changed
        if not isinstance(value, Tensor) or tuple(value.shape[:2]) != (1, len(tokens)):
            return value
        out = value.clone()
        if value.is_floating_point() and factor:
            out[:, place] *= factor
        elif value.is_floating_point():
            generator = torch.Generator().manual_seed(place)
            noise = torch.randn(value[:, place].shape, generator=generator, dtype=torch.float64)
            out[:, place] += noise.to(value) * value.std().clamp(min=0.1)
        elif value.dtype == torch.long and value[0].tolist() == tokens and not factor:
            out[:, place] = (out[:, place] + 1) % max(tokens)
        else:
            return value
        changed = True
        return out

    made = {name: tree_map(change, value) for name, value in given.items()}
    return made if changed else None


def beside(probed: Probed, module: nn.Module) -> bool:
    """Return whether a module's output for a row stays the same if another row is in the batch.

    The first row is that of the module's recorded call (in `probed`). The other row is a copy of the first, with floats
    multiplied by -1000.
    """
    seen, length = probed.seen[module], len(probed.tokens)

    def twice(value: Any) -> Any:
        if not isinstance(value, Tensor) or tuple(value.shape[:2]) != (1, length):
            return value
        return torch.cat([value, value * FACTORS[-1] if value.is_floating_point() else value])

    def first(value: Any) -> Any:
        return value[:1] if isinstance(value, Tensor) and tuple(value.shape[:2]) == (2, length) else value

    with torch.no_grad():
        alone = module.forward(**seen.given)
        both = module.forward(**{name: tree_map(twice, value) for name, value in seen.given.items()})
    return not moved(alone, tree_map(first, _plain(both)), length, probed.close)


@contextmanager
def _frozen(modules: list[nn.Module], seen: dict[nn.Module, Seen]) -> Iterator[None]:
    """For a ``with`` block, let modules return their recorded output, whatever their arguments.

    ``seen[module]`` is the module's first call in an earlier run.
    """

    def same(output: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: output

    for module in modules:
        module.__dict__["forward"] = same(seen[module].output)
    try:
        yield
    finally:
        for module in modules:
            module.__dict__.pop("forward", None)


def moved(before: Any, after: Any, length: int, close: float) -> set[int]:
    """Return the positions (0 to L - 1) of the tokens for which two outputs of a module differ.

    Only floating-point tensors with one entry per token, ``[1, L, ...]``, are compared; `length` is L. Differences of
    at most `close`, relative to the largest absolute value in the tensor of `before`, do not count. If a shape differs,
    all positions are returned.
    """
    found: set[int] = set()
    for one, two in zip(tree_leaves(_plain(before)), tree_leaves(_plain(after)), strict=False):
        if not (isinstance(one, Tensor) and one.is_floating_point() and tuple(one.shape[:2]) == (1, length)):
            continue
        if not isinstance(two, Tensor) or two.shape != one.shape:
            return set(range(length))
        scale = float(one.abs().max()) if one.numel() else 0.0
        apart = (one - two).abs().reshape(length, -1).amax(1)
        found |= {at for at in range(length) if not float(apart[at]) <= close * max(scale, 1e-30)}
    return found


def _plain(value: Any) -> Any:
    """Return a model's output as a dict, which PyTorch's tree functions can walk through; other values as they are."""
    return dict(value.items()) if hasattr(value, "items") else value
