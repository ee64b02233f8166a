"""Compare the gradients of all parameters, for sequences packed and alone.

The gradients are those of one sum of all values of all outputs, each multiplied by a random weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nopad.auditing.alone import Alone, Gradients, gradients_of, largest, weighed
from nopad.auditing.limits import EXACT, LIMITS, limit_of
from nopad.auditing.verdict import Check

__all__ = ["Truth", "compare_gradients", "judged"]

TIMES_ALONE = 4  # allowed error of packed relative to that of alone, for gradients that are mostly rounding


@dataclass(frozen=True)
class Truth:
    """Gradients of the sequences alone, in float64, and the parameters whose true gradient is zero.

    For example, a bias of the keys shifts all scores of a query by the same number, so its true gradient is zero and
    its computed gradient is only rounding error. In float64 this error is small enough to tell from a small gradient: a
    gradient counts as zero if its largest value is at most 1e-12 times the largest value of all gradients.

    Attributes:
        alone: the gradients by parameter name.
        zero: names of the parameters whose true gradient is zero.
    """

    alone: Gradients
    zero: tuple[str, ...]

    @classmethod
    def of(cls, alone: Alone, names: tuple[str, ...]) -> Truth:
        """Return the `Truth` with the gradients of the outputs `names` in `alone`, which must be in float64."""
        return cls.among(alone.gradients(names))

    @classmethod
    def among(cls, gradients: Gradients) -> Truth:
        """Return the `Truth` for `gradients`, which were computed in float64 from sequences alone.

        It says which of them are zero.
        """
        sizes = {name: 0.0 if value is None else largest(value) for name, value in gradients.items()}
        finite = [size for size in sizes.values() if math.isfinite(size)]
        most = max(finite, default=0.0) * EXACT
        return cls(gradients, tuple(name for name, size in sizes.items() if size <= most))


def compare_gradients(
    alone: Alone,
    together: dict[str, list[Tensor]],
    dtype: torch.dtype,
    truth: Truth,
    left_out: frozenset[str] = frozenset(),
) -> Check:
    """Compare the gradients of the sequences packed with those of the sequences alone, and return the check.

    All outputs are added up with random weights to one number, and the gradients of this number are compared. The
    difference in a parameter's gradient is relative to the gradient's largest value. If the true gradient is zero
    (`truth`), the difference is relative to the largest value of all gradients instead.

    The limit is `limits.limit_of` for the dtype. In small sums of large numbers (DeBERTa's key biases), rounding alone
    may exceed it. So a gradient may also differ by 4 times the rounding error that it has for the sequences alone, but
    by no more than the dtype's limit times the largest value of all gradients.

    The rounding error is the difference from the float64 gradient. A float64 model gets this allowance only if it
    computes some results in float32 (such as a softmax). Its rounding error is then one rounding of the largest value
    of all gradients to float32, and the dtype's limit is that of float32.

    Args:
        alone: the outputs and gradients of the sequences, each run alone.
        together: the outputs of the packed sequences by name, one part per sequence.
        dtype: the dtype of the model.
        truth: the float64 gradients of the sequences alone, and which of them are zero.
        left_out: names of parameters that are not compared.

    Raises:
        ModelFailedError: the gradients cannot be computed.
    """
    names = tuple(together)
    wanted = [{name: output[name][0] for name in names} for output in alone.outputs]
    parts = [{name: together[name][number] for name in names} for number in range(len(wanted))]
    mine = alone.gradients(names)
    theirs = gradients_of(alone.trial, weighed(alone.trial.seed, wanted, parts), "gradients of packs")
    return judged(mine, theirs, dtype, truth, alone.trial.partly, left_out)


def judged(
    mine: Gradients,
    theirs: Gradients,
    dtype: torch.dtype,
    truth: Truth,
    partly: bool,
    left_out: frozenset[str] = frozenset(),
) -> Check:
    """Compare gradients alone (`mine`) and packed (`theirs`) as `compare_gradients` does, and return the check.

    The values of `theirs` may be overwritten.

    Args:
        mine: the gradients of the sequences alone, by parameter name; None for a parameter without a gradient.
        theirs: the gradients of the packed sequences, in the same form.
        dtype: the dtype of the model.
        truth: the float64 gradients of the sequences alone, and which of them are zero.
        partly: whether the model computes some results in float32, even if its dtype is float64.
        left_out: names of parameters that are not compared.
    """
    sizes = {name: 0.0 if value is None else largest(value) for name, value in mine.items() if name not in left_out}
    most = max(sizes.values(), default=0.0)
    worst = (0.0, 0.0, limit_of(0.0, dtype), "")  # (difference / limit, relative difference, limit, where)
    for name, size in sizes.items():
        value = mine[name]
        scale = max(most if name in truth.zero else size, 1e-30)
        difference = _apart(value, theirs[name]) / scale
        limit, why = limit_of(difference, dtype, partly), ""
        if difference > limit:
            rounding = _rounding(value, truth.alone.get(name), dtype, most) / scale
            small = LIMITS.get(torch.float32 if dtype == torch.float64 else dtype, limit) * most / scale
            excused = min(TIMES_ALONE * rounding, small)  # tensors with large gradients get no such allowance
            if partly or dtype != torch.float64:
                limit, why = max(limit, excused), f", where rounding alone does {rounding:.1e}"
        if difference / limit > worst[0]:
            worst = (difference / limit, difference, limit, f", most at {name}{why}")
    share, difference, limit, where = worst
    detail = f"{len(sizes) - len(set(truth.zero) & sizes.keys())} tensors{where}"
    return Check(name="gradients", passed=share <= 1, value=difference, limit=limit, detail=detail)


def _rounding(value: Tensor | None, true: Tensor | None, dtype: torch.dtype, most: float) -> float:
    """Return the largest rounding error in a gradient of the sequences alone.

    It is the largest difference between the gradient, `value`, and the float64 gradient, `true`; 0 if either is None.
    If `dtype` is float64, it is instead one rounding to float32 of `most`, the largest value of all gradients.
    """
    if dtype == torch.float64:
        return most * torch.finfo(torch.float32).eps
    return 0.0 if value is None or true is None else _apart(true, value.double())


def _apart(mine: Tensor | None, other: Tensor | None) -> float:
    """Return the largest difference of two gradients; 0 if both are None.

    The result is infinite if only one of them is None, or if one has a NaN. The difference may be written into `other`.
    """
    if mine is None or other is None:
        return 0.0 if mine is other else math.inf
    if mine.is_sparse or other.is_sparse:
        both = [value if mine.is_sparse and other.is_sparse else value.to_dense() for value in (mine, other)]
        return largest(both[0] - both[1])
    return largest(other.sub_(mine))
