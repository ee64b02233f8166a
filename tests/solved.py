"""Solutions of the large least squares problems in tests, which SciPy takes up to half a minute each to find.

``solutions/`` holds the values above 0 of each, named by the problem's bytes. A stored solution counts only if it is
optimal for the problem at hand, which its gradient proves (Karush, Kuhn and Tucker); else SciPy solves the problem. To
make the files anew, delete them, and run ``make soak ARGS=tests/test_solved.py``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

STORED = Path(__file__).with_name("solutions")
LARGE = 10_000  # columns
NEAR = 1e-9  # of the lengths of a column and of the target: how far a gradient may be from what it must be


def path_of(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> Path:
    """The file of the solution of this problem."""
    problem = hashlib.sha256(matrix.tobytes() + target.tobytes() + str(matrix.shape).encode())
    return STORED / f"{problem.hexdigest()[:16]}.npz"


def is_optimal(matrix: NDArray[np.float64], target: NDArray[np.float64], mixture: NDArray[np.float64]) -> bool:
    """Whether no x >= 0 gives a smaller norm of ``matrix @ x - target`` than `mixture`.

    It is so if a change of a value above 0 changes nothing at first, and no value of 0 gains by being raised.
    """
    gradient = (matrix @ mixture - target) @ matrix
    near = NEAR * np.linalg.norm(matrix, axis=0) * np.linalg.norm(target)
    return bool((mixture >= 0).all() and (gradient >= -near).all() and (gradient <= near)[mixture > 0].all())


def stored(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> tuple[NDArray[np.float64], float] | None:
    """The stored solution of a large problem and its norm; None if there is none that is optimal."""
    if matrix.shape[1] < LARGE or not (path := path_of(matrix, target)).exists():
        return None
    mixture = np.zeros(matrix.shape[1])
    with np.load(path) as file:
        mixture[file["at"]] = file["values"]
    if not is_optimal(matrix, target, mixture):
        return None
    return mixture, float(np.linalg.norm(matrix @ mixture - target))


def store(matrix: NDArray[np.float64], target: NDArray[np.float64], mixture: NDArray[np.float64]) -> None:
    """Keep a solution."""
    STORED.mkdir(exist_ok=True)
    at = np.flatnonzero(mixture).astype(np.int32)
    np.savez_compressed(path_of(matrix, target), at=at, values=mixture[at])
