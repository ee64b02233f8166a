"""Checks of a model without packing: is it deterministic, does it use float32, does it look for special tokens?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nopad.auditing.failure import ModelFailedError, inside_model
from nopad.auditing.limits import apart, largest_finite
from nopad.auditing.tokens import Tokens
from nopad.auditing.trial import Trial
from nopad.errors import OptionError
from nopad.model.embedded import input_embeddings
from nopad.model.safety import bare

__all__ = ["Singles", "looked_for", "steady"]

ANOTHER = 1e-4  # relative to the largest value; more than rounding can explain


class Singles(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which `found` becomes True as soon as any torch operation gives a float32 result."""

    found: bool = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.found |= any(isinstance(leaf, Tensor) and leaf.dtype == torch.float32 for leaf in tree_leaves(result))
        return result


def steady(trial: Trial) -> bool:
    """Run the shortest sequence alone, twice; return whether any operation of the first run gave a float32 result.

    Raises:
        OptionError: the outputs of the two runs differ, so packed and alone cannot be compared.
        ModelFailedError: the model does not run on the token ids of one sequence.
    """
    shortest = min(range(len(trial.sequences)), key=lambda number: len(trial.sequences[number]))
    make: Any = Singles
    with torch.no_grad(), make() as watch:
        first = trial.alone(shortest)
    with torch.no_grad():
        second = trial.alone(shortest)
    if any(not torch.equal(value.nan_to_num(), second[name].nan_to_num()) for name, value in first.items()):
        raise OptionError(
            f"{type(bare(trial.model)).__name__} gives one sequence two results in evaluation mode: it draws random "
            "numbers, so there is nothing to compare"
        )
    return bool(watch.found)


def looked_for(trial: Trial, tokens: Tokens) -> dict[str, int]:
    """Return the ids, by name, of the special tokens that the model itself looks for in its input.

    The results of such a model depend on where these tokens are. Embeddings do not show which tokens are special, so
    the model gives other results for the embeddings of these tokens than for their ids. This is how they are found. The
    dict is empty if the model does not accept embeddings or does not say which module makes them, or if the results
    differ even without special tokens.
    """
    length = min(6, max(map(len, trial.sequences)))

    embed = input_embeddings(bare(trial.model))
    if embed is None:
        return {}

    def differs(token: int | None) -> bool:
        ids = tokens.plain[:length].tolist() if tokens.plain.size >= length else [int(tokens.plain[0])] * length
        for place in (length // 3, length - 1):
            ids[place] = ids[place] if token is None else token
        single = replace(trial, sequences=[ids], others=[ids], targets=None if trial.targets is None else [ids])
        named = single.inputs(0)
        with torch.no_grad():
            told = single.alone(0)
            with inside_model("embeddings"):
                embeddings = embed(named.pop("input_ids"))
            untold = single.run({**named, "inputs_embeds": embeddings}, "of embeddings")
        shared = told.keys() & untold.keys()
        return any(
            told[name].shape != untold[name].shape
            or apart(told[name], untold[name]) > ANOTHER * largest_finite(told[name])
            for name in shared
        )

    try:
        return {} if differs(None) else {name: token for name, token in tokens.special.items() if differs(token)}
    except ModelFailedError:  # the model does not accept embeddings, so this cannot be found out
        return {}
