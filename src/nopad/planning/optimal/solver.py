"""Make and solve HiGHS models that are serial, repeatable, and limited by a budget.

HiGHS has one thread pool per process. The first solved model decides the number of its threads, and HiGHS refuses a
later model that asks for another number. nopad's models ask for one thread. If another library solved a model first,
nopad's models are solved in the pool of that library. The algorithms stay serial, so the result is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from nopad.planning.optimal.budget import Budget

__all__ = ["SolverError", "columns_of", "new_model", "run", "solve_linear"]

_ITERATIONS = 200  # simplex iterations that are always allowed: about what a small change of a solved program takes
_STALLED, _STALLED_EACH = 1_000, 3  # a program has stalled after so many iterations, plus so many per row and column
_SLICE = 2_000  # most iterations at a time, whose operations are charged together
_SAMPLES = 5  # rows of the inverse of the basis that are looked at
_BEGIN_STEPS, _ENTRY_STEPS = 70_000, 90  # operations of beginning to solve; and for each entry of the matrix
_ITERATION_STEPS, _PASSED_STEPS = 7_000, 2.2  # operations of a simplex iteration; and for each entry of the matrix
_FILLED_STEPS, _DENSE_STEPS = 75, 0.05  # further ones for each entry in a row of the basis' inverse; per its square
_PERTURBATIONS = ("dual_simplex_cost_perturbation_multiplier", "primal_simplex_bound_perturbation_multiplier")


class SolverError(Exception):
    """HiGHS ended without an optimum; the caller uses the best plan so far, and a note says so."""


def new_model(**options: Any) -> highspy.Highs:
    """Return an empty HiGHS model that is silent, serial and repeatable; `options` are further options of HiGHS."""
    model = highspy.Highs()
    for name, value in {"output_flag": False, "threads": 1, "parallel": "off", "random_seed": 0, **options}.items():
        model.setOptionValue(name, value)
    return model


def columns_of(patterns: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Return patterns of item numbers as sparse columns of a model: (where each column begins, row numbers, values).

    A value says how often the item of that row occurs in the pattern. The three arrays are int32, int32 and float64.
    """
    amounts = [Counter(pattern) for pattern in patterns]
    starts = np.append(0, np.cumsum([len(held) for held in amounts]))[:-1].astype(np.int32)
    rows = np.array([item for held in amounts for item in held], dtype=np.int32)
    return starts, rows, np.array([count for held in amounts for count in held.values()], dtype=float)


def solve_linear(model: highspy.Highs, budget: Budget) -> bool:
    """Solve a linear program by the simplex method; return True at its optimum, False if the budget ends first.

    The program is solved in slices of at most 2,000 iterations. After each slice, its operations are charged, and the
    next one gets only as many iterations as the budget then allows. A degenerate program may stall, with hundreds of
    thousands of iterations that improve nothing. After far more iterations than usual, the solver goes on with HiGHS'
    perturbation, even if the model's options turn it off.

    Raises:
        SolverError: HiGHS ended without an optimum, for another reason than the budget.
    """
    if budget.spent():
        return False
    budget.begin_program()
    stalled = _STALLED + _STALLED_EACH * (model.getNumRow() + model.getNumCol())
    if _solved_within(model, budget, stalled):
        return True
    if budget.spent():
        return False
    own = [model.getOptionValue(name)[1] for name in _PERTURBATIONS]
    try:
        for name in _PERTURBATIONS:
            model.setOptionValue(name, 1.0)
        return _solved_within(model, budget, None)
    finally:
        for name, value in zip(_PERTURBATIONS, own, strict=True):
            model.setOptionValue(name, value)


def _solved_within(model: highspy.Highs, budget: Budget, most: int | None) -> bool:
    """Go on solving for at most `most` iterations (None: no limit) within the budget.

    Returns True if the optimum was reached, and False if the iterations or the budget ended first. At least 200
    iterations are always allowed, unless `most` is lower.

    Raises:
        SolverError: HiGHS ended for any other reason.
    """
    done, filled = 0, _filled(model)
    while True:
        each = _iteration_steps(model, filled)
        allowed = min(_SLICE, _ITERATIONS + max(0, budget.most) // each)
        model.setOptionValue("simplex_iteration_limit", allowed if most is None else min(allowed, most - done))
        run(model)
        made = max(model.getInfo().simplex_iteration_count, 1)
        done += made
        before, filled = filled, _filled(model)
        each = _iteration_steps(model, (before + filled) / 2)
        budget.charge(made * each + _BEGIN_STEPS + _ENTRY_STEPS * model.getNumNz())
        status = model.getModelStatus()
        if status == highspy.HighsModelStatus.kOptimal:
            return True
        if status != highspy.HighsModelStatus.kIterationLimit:
            raise SolverError(model.modelStatusToString(status))
        if budget.spent() or (most is not None and done >= most):
            return False


def _iteration_steps(model: highspy.Highs, filled: float) -> int:
    """Return the estimated number of operations of a simplex iteration.

    `filled` is the mean number of entries in a row of the inverse of the basis. The time of an iteration depends on
    this number more than on anything else, and may differ tenfold between two programs with the same number of rows.
    """
    basis = filled * (_FILLED_STEPS + _DENSE_STEPS * filled)
    return int(_ITERATION_STEPS + basis + _PASSED_STEPS * model.getNumNz())


def _filled(model: highspy.Highs) -> float:
    """Return about how many entries other than 0 a row of the inverse of the basis has: the mean of a few rows.

    The result is at least 1, and at most the number of rows. Before the model is solved for the first time, there is no
    inverse. Then a quarter of the number of rows is assumed.
    """
    rows = int(model.getNumRow())
    found: list[int] = []
    for sample in range(_SAMPLES):
        status, _, entries, _ = model.getBasisInverseRowSparse((2 * sample + 1) * rows // (2 * _SAMPLES))
        if status != highspy.HighsStatus.kOk:
            return max(1.0, rows / 4)
        found.append(max(1, int(entries)))
    return sum(found) / _SAMPLES


def run(model: highspy.Highs) -> None:
    """Solve `model`; its model status then gives the outcome.

    If HiGHS refuses the number of threads, the model is solved again with the number of threads of the pool.
    """
    status = model.run()
    if status == highspy.HighsStatus.kError and model.getModelStatus() == highspy.HighsModelStatus.kNotset:
        model.setOptionValue("threads", 0)  # as many as the pool has
        model.run()
