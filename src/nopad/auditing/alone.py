"""Run each sequence of a `Trial` (a model and the sequences to audit) alone, and keep its outputs and gradients.

Several comparisons need them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from nopad.auditing.failure import inside_model
from nopad.auditing.trial import Trial, kinds_of

__all__ = ["Alone", "Gradients", "gradients_of", "largest", "listed", "weighed"]

Gradients = dict[str, Tensor | None]
Names = tuple[str, ...]


class Alone:
    """The outputs of an audit's sequences, each run alone, and gradients of these outputs.

    Attributes:
        trial: the model and its sequences.
        outputs: for each sequence, the model's outputs by name, for a batch of this one sequence.
        kinds: for each output's name, what its values belong to: "token" (a token of the sequence), "target" (a token
            of the decoder's target) or "sequence" (the whole sequence).
        graph: whether the outputs keep the autograd graph, so that gradients can be computed.
    """

    def __init__(self, trial: Trial, graph: bool) -> None:
        self.trial, self.graph = trial, graph
        with torch.set_grad_enabled(graph):
            self.outputs = [trial.alone(number) for number in range(len(trial.sequences))]
        self.kinds = kinds_of(self.outputs, trial)
        self._gradients: dict[tuple[Names, tuple[int, ...]], Gradients] = {}
        self._sound: dict[Names, tuple[Alone | None, frozenset[str], list[str]]] = {}

    def gradients(self, names: Names, numbers: Sequence[int] | None = None) -> Gradients:
        """Return, by parameter name, the gradients of a weighted sum of all values of the outputs `names`.

        The sum is over the sequences with the indices `numbers` (None: all). The weights are random numbers. Results
        are kept, so a second call with the same arguments returns the same gradients, and computes nothing.

        Raises:
            ModelFailedError: the gradients cannot be computed.
        """
        chosen = tuple(range(len(self.outputs)) if numbers is None else numbers)
        key = names, chosen
        if key not in self._gradients:
            wanted = [{name: self.outputs[number][name][0] for name in names} for number in chosen]
            total = weighed(self.trial.seed, wanted, wanted)
            self._gradients[key] = gradients_of(self.trial, total, "gradients of sequences alone", keep=True)
        return self._gradients[key]

    def sound(self, names: Names) -> tuple[Alone | None, frozenset[str], list[str]]:
        """Return which gradients can be compared: those that are finite when each sequence runs alone.

        The result is (an `Alone` with the sequences that are kept, names of the parameters left out, notes). A
        parameter is left out if every sequence gives it a gradient that is not finite. A sequence is kept if its
        gradients for all other parameters are finite. If the gradients of all sequences together are finite, nothing is
        left out. Otherwise the first entry is None if fewer than two sequences or no parameter would remain. `names`
        are the outputs whose gradients are computed.

        Raises:
            ModelFailedError: the gradients cannot be computed.
        """
        if names not in self._sound:
            self._sound[names] = self._judged(names)
        return self._sound[names]

    def _judged(self, names: Names) -> tuple[Alone | None, frozenset[str], list[str]]:
        if not _not_finite(self.gradients(names)):
            return self, frozenset(), []
        bad = [_not_finite(self.gradients(names, [number])) for number in range(len(self.outputs))]
        always = reduce(frozenset.__and__, bad)
        left = [number for number, odd in enumerate(bad) if odd <= always]
        notes = []
        if len(left) < len(bad):
            lengths = ", ".join(
                f"{number} (of {len(self.trial.sequences[number])})" for number in range(len(bad)) if number not in left
            )
            notes.append(f"gradients that are not finite even alone, left out: those of sequences {lengths}")
        if always:
            notes.append(f"gradients that are not finite even alone, left out: {listed(sorted(always))}")
        parameters = {name for name, _ in self.trial.model.named_parameters()}
        if len(left) < 2 or always >= parameters:
            return None, always, [*notes, "gradients are not compared: too few of them are finite even alone"]
        return (self if len(left) == len(bad) else Alone(self.trial.only(left), self.graph)), always, notes


def weighed(seed: int, wanted: Sequence[Mapping[str, Tensor]], parts: Sequence[Mapping[str, Tensor]]) -> Any:
    """Return the sum of all values in `parts`, each multiplied by a random weight; a scalar tensor.

    `parts` holds the outputs of each sequence by name. `wanted` holds the outputs of the same sequences, run alone. The
    weights depend only on `seed` and on the order and shapes of `wanted`. So sequences run packed and alone get equal
    weights. If an output in `parts` has a longer first dimension than in `wanted`, it is cut to that length.
    """
    total: Any = 0
    for number, (single, given) in enumerate(zip(wanted, parts, strict=True)):
        generator = torch.Generator().manual_seed(seed * 1000 + number)
        for name, value in single.items():
            weights = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
            part = given[name]
            total = total + (part[: value.shape[0]] if part.shape != value.shape else part).mul(weights).sum()
    return total


def gradients_of(trial: Trial, objective: Tensor, doing: str, keep: bool = False) -> Gradients:
    """Return the gradients of `objective`, a scalar tensor, for all parameters of the trial's model, by name.

    The gradient is None for a parameter that the objective does not depend on. `doing` is text that begins the message
    of an error, such as "gradients of packs". With `keep`, the autograd graph is kept for further calls.

    Raises:
        ModelFailedError: the gradients cannot be computed.
    """
    parameters = dict(trial.model.named_parameters())
    with inside_model(doing):
        found = torch.autograd.grad(objective, list(parameters.values()), allow_unused=True, retain_graph=keep)
    return dict(zip(parameters, found, strict=True))


def largest(values: Tensor) -> float:
    """Return the largest absolute value in a tensor; infinity if any value is NaN, and 0 if there are no values."""
    if values.is_sparse:
        values = values.coalesce().values()
    if not values.numel():
        return 0.0
    least, most = torch.aminmax(values)  # six times as fast as a norm
    found = float(torch.maximum(-least, most))
    return math.inf if math.isnan(found) else found


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return names as text, joined by commas; after the first `most`, the text says only how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _not_finite(gradients: Gradients) -> frozenset[str]:
    return frozenset(
        name for name, value in gradients.items() if value is not None and not math.isfinite(largest(value))
    )
