"""Compare the gradients of a step with those of the sequences alone, module by module."""

from __future__ import annotations

import math

import torch

from nopad.auditing.steps.truth import Gradients
from nopad.auditing.steps.verdict import ModuleGradients

__all__ = ["by_module", "largest_difference"]

SMALL = 1e-6  # of the norm of all gradients: the least norm to which a module's difference is relative


def by_module(alone: Gradients, step: Gradients) -> list[ModuleGradients]:
    """Return how far the gradients of the step differ from those of its sequences alone; one entry per module.

    `alone` and `step` hold float64 gradients by parameter name. A module here is a layer, or a module outside the
    layers. The entries are in the model's order.
    """
    groups: dict[str, list[str]] = {}
    for name in alone:
        groups.setdefault(_module(name), []).append(name)
    whole = math.sqrt(sum(float(value.square().sum()) for value in alone.values()))
    found = []
    for name, members in groups.items():
        mine = torch.cat([alone[member].reshape(-1) for member in members])
        theirs = torch.cat([step[member].reshape(-1) for member in members])
        norms = float(mine.norm()), float(theirs.norm())
        cosine = float(mine @ theirs) / (norms[0] * norms[1]) if all(norms) else math.nan
        apart = float((mine - theirs).norm())
        difference = apart / max(norms[0], SMALL * whole) if whole else (math.inf if apart else 0.0)
        found.append(
            ModuleGradients(
                name=name,
                norm_alone=norms[0],
                norm=norms[1],
                cosine=max(min(cosine, 1.0), -1.0) if math.isfinite(cosine) else math.nan,
                difference=math.inf if math.isnan(difference) else difference,
            )
        )
    return found


def largest_difference(modules: list[ModuleGradients]) -> tuple[float, str]:
    """Return the largest `difference` of a module, and text that names the module.

    Without modules, return 0.0, and text that says that no parameter is trained.
    """
    worst = max(modules, key=lambda module: module.difference, default=None)
    return (0.0, "no parameter is trained") if worst is None else (worst.difference, f"most at {worst.name}")


def _module(name: str) -> str:
    """Return the module under which a parameter is listed: its layer, or a module outside the layers.

    >>> [_module(name) for name in ("bert.encoder.layer.0.output.dense.weight", "bert.pooler.dense.bias", "score.bias")]
    ['bert.encoder.layer.0', 'bert.pooler', 'score']
    """
    parts = name.split(".")
    for at, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: at + 1])
    begin = 2 if parts[:2] == ["base_model", "model"] else 0  # PEFT's wrapper
    return ".".join(parts[:begin] + parts[begin:-1][:2]) or name
