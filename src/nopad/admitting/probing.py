"""Find out, by running a model on one sequence, which of its modules move information between tokens ("mix").

The modules are called again with changed values (`nopad.admitting.search`). Attention that is registered in
transformers does not count: while probing, it is replaced by a function that gives each token its own value vector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from nopad.admitting.search import CLOSE, FACTORS, Probed, Search, Seen
from nopad.admitting.small import ran
from nopad.model.calls import bound
from nopad.model.embedded import input_embeddings
from nopad.model.known import class_of

__all__ = ["length_for", "probe", "registered", "unsteady"]

NAME = "nopad_probe"
LENGTHS = (11, 13, 17, 19, 23, 29, 31, 37)


def length_for(model: nn.Module, most: int | None = None) -> int:
    """Return a number of tokens that is, if possible, not a dimension of the model's weights.

    Then a dimension of this size in a module's output must be the dimension of tokens. The number is at most `most`, or
    3 if `most` is below 3 (None: no limit). The primes from 11 to 37 are tried. If all of them are dimensions of
    weights, or above `most`, a number is returned that may be such a dimension.
    """
    sizes = {size for parameter in model.parameters() for size in parameter.shape}
    fitting = [length for length in LENGTHS if most is None or length <= most]
    return next((length for length in fitting if length not in sizes), (fitting or [max(most or 3, 3)])[0])


def probe(model: Any, base: nn.Module, tokens: list[int], close: float = CLOSE) -> Probed:
    """Run a model on one sequence; return which of its modules mix tokens, that is, move information between them.

    The result also says what else was found, such as modules that must run on one sequence at a time. If one module
    mixes tokens by itself, all modules of the same class that ran count as mixing, except those inside another mixing
    module. If one of these modules must run on one sequence at a time, so must all of its class that count as mixing.

    Args:
        model: a model in float64 and in evaluation mode.
        base: its base model.
        tokens: token ids of the sequence.
        close: differences of at most this, relative to an output's largest value, are rounding and no sign of mixing.
    """
    with registered(model) as attended:
        seen = _recorded(model, tokens)
        found = Probed(tokens, seen, Counter(attended), close=close)  # a copy: searching calls modules again
        search = Search(found, {model, base})
        found.mixing = search.of(model)
    odd = set(found.gradients)
    found.alone |= {module for module in found.mixing if not odd.isdisjoint(module.modules())}
    # Modules are told by the names of their classes, so all of one class run in one way.
    kinds = {class_of(module) for module in found.mixing}
    found.alone = {module for module in found.mixing if class_of(module) in {class_of(one) for one in found.alone}}
    inside = {part for module in found.mixing for part in module.modules()}
    found.gradients = {module: name for module, name in found.gradients.items() if module not in inside}
    found.mixing += [one for one in seen if class_of(one) in kinds and one not in inside]
    found.alone |= {one for one in found.mixing if class_of(one) in {class_of(each) for each in found.alone}}
    return found


@contextmanager
def registered(model: Any) -> Iterator[Counter[nn.Module]]:
    """For a ``with`` block, replace a model's registered attention by a function that mixes no tokens.

    Registered attention is the function chosen by ``attn_implementation``. The new function gives each token its own
    value vector. (If there are more or fewer values than queries, each query gets the mean of all values.) Yields a
    counter: how often each module called the new function.
    """
    counts: Counter[nn.Module] = Counter()

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
        counts[module] += 1
        heads = query.shape[1] // value.shape[1]
        value = (
            value
            if value.shape[2] == query.shape[2]
            else value.mean(2, keepdim=True).expand(-1, -1, query.shape[2], -1)
        )
        return value.repeat_interleave(heads, 1).transpose(1, 2).contiguous(), None

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = getattr(model.config, "_attn_implementation", None)
    try:
        if before is not None:
            model.set_attn_implementation(NAME)
        yield counts
    finally:
        if before is not None:
            model.set_attn_implementation(before)


def unsteady(model: Any, probed: Probed) -> str:
    """Return the class name of a module that mixes tokens more or less often if the tokens change; "": there is none.

    The calls that are counted are those of the modules in ``probed.mixing``, and those of registered attention by each
    module. The model runs on other tokens, and on other tokens with embeddings that are multiplied by large factors.
    """
    mixing = set(probed.mixing)
    wanted = probed.attended + Counter({module: probed.seen[module].calls for module in mixing})
    length = len(probed.tokens)
    for seed, factor in enumerate((1.0, 1.0, *FACTORS)):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(max(probed.tokens), (length,), generator=generator).tolist()
        with registered(model) as counts, _counted(mixing, counts), _scaled(model, factor):
            ran(model, tokens)
        different = (wanted - counts) + (counts - wanted)
        if different:
            return type(next(iter(different))).__name__
    return ""


@contextmanager
def _counted(modules: set[nn.Module], counts: Counter[nn.Module]) -> Iterator[None]:
    """For a ``with`` block, add each call of a module in `modules` to `counts`."""

    def after(module: nn.Module, args: Any, output: Any) -> None:
        counts[module] += 1

    handles = [module.register_forward_hook(after) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _scaled(model: Any, factor: float) -> Iterator[None]:
    """For a ``with`` block, multiply a model's token embeddings by `factor`.

    Nothing is done if the model's input embeddings are not found, or are no `nn.Embedding`.
    """
    table = input_embeddings(model)
    if not isinstance(table, nn.Embedding):
        yield
        return
    handle = table.register_forward_hook(lambda module, args, output: output * factor)
    try:
        yield
    finally:
        handle.remove()


def _recorded(model: Any, tokens: list[int]) -> dict[nn.Module, Seen]:
    """Run a model on one sequence; return, for each module, its first call in which all arguments have names.

    A module without such a call is left out.
    """
    seen: dict[nn.Module, Seen] = {}

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if module in seen:
            seen[module].calls += 1
            return
        try:
            given = bound(module, args, kwargs)
            seen[module] = Seen({n: v for n, v in given.items() if not isinstance(v, Cache)}, output)
        except ValueError:  # arguments without names: such a module is looked into, and not called again
            pass

    handles = [module.register_forward_hook(after, with_kwargs=True) for module in model.modules()]
    try:
        ran(model, tokens)
    finally:
        for handle in handles:
            handle.remove()
    return seen
