"""Whether a model gives the same twice, and whether it computes in float32 where it should in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nopad.auditing.trial import Trial, outputs
from nopad.errors import OptionError
from nopad.model.safety import bare

__all__ = ["steady"]


class _Singles(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches for results in float32."""

    found: bool = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.found |= any(isinstance(leaf, Tensor) and leaf.dtype == torch.float32 for leaf in tree_leaves(result))
        return result


def steady(trial: Trial) -> bool:
    """Run the shortest sequence twice; return whether some of it is computed in float32.

    Raises:
        OptionError: the two differ, so there is nothing to compare.
    """
    shortest = min(trial.sequences, key=len)
    make: Any = _Singles
    with torch.no_grad(), make() as watch:
        first = outputs(trial.alone(shortest))
    with torch.no_grad():
        second = outputs(trial.alone(shortest))
    if any(not torch.equal(value.nan_to_num(), second[name].nan_to_num()) for name, value in first.items()):
        raise OptionError(
            f"{type(bare(trial.model)).__name__} gives one sequence two results in evaluation mode: it draws random "
            "numbers, so there is nothing to compare"
        )
    return bool(watch.found)
