"""The columns of a trace: the tokens of a batch, sequence by sequence, and each module's values for these tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.auditing.limits import largest_finite
from nopad.auditing.probes import Places
from nopad.auditing.recording import on_outputs, states_of
from nopad.model.safety import bare

__all__ = ["Columns", "Values", "moved_by", "recorded"]

Numbers = NDArray[np.int64]


class Values(NamedTuple):
    """The values of a module's output for the tokens of a batch; each token is called a column.

    Attributes:
        here: the n columns that have values: a slice, or their indices, int64 ``[n]``.
        values: ``[k, v]``: v numbers in each of k rows. Several columns may share a row, so k may be less than n.
        owner: for each of the n columns, the index of its row in `values`; int64 ``[n]``. None: k is n, and row i
            belongs to the i-th of these columns.
    """

    here: slice | Numbers
    values: Tensor
    owner: Numbers | None = None


@dataclass(frozen=True, eq=False)
class Columns:
    """The tokens of a batch, one column each, in the order in which their sequences lie in the batch.

    Tokens of targets, which an encoder–decoder's decoder reads, come last. T is the number of columns.

    Attributes:
        places: where the sequences lie in the batch.
        sequences: index of each token's sequence; int64 ``[T]``.
        positions: index of each token in its sequence; int64 ``[T]``.
        rows: index of each token's row in the batch; int64 ``[T]``.
        source: number of columns that are tokens of sequences; the others are tokens of their targets.
    """

    places: Places
    sequences: Numbers
    positions: Numbers
    rows: Numbers
    source: int

    @classmethod
    def of(cls, places: Places) -> Columns:
        """Return the columns of a batch in which the sequences lie at `places`."""
        sides = [places] if places.target is None else [places, places.target]
        parts = [(side, number) for side in sides for number in _order(side)]
        return cls(
            places,
            np.concatenate([np.full(len(side.of[number]), number) for side, number in parts]),
            np.concatenate([np.arange(len(side.of[number])) for side, number in parts]),
            np.concatenate([side.of[number] // side.shape[1] for side, number in parts]),
            sum(map(len, places.of)),
        )

    def __len__(self) -> int:
        return len(self.sequences)

    def spread(self, value: Tensor, pooled: bool) -> tuple[slice, Tensor] | None:
        """Return the columns that a module's output has values for, and these values, ``[n columns, values]``.

        With `pooled`, an output with one row per sequence is also taken: its row then counts for every token of the
        sequence. The result is None if the output cannot be divided among tokens.
        """
        target = self.places.target
        if target is not None and tuple(value.shape[:2]) == target.shape:
            return slice(self.source, len(self)), _taken(value, target)
        shape = self.places.shape
        if tuple(value.shape[:2]) == shape:
            return slice(0, self.source), _taken(value, self.places)
        if self.flat(value):
            return slice(0, self.source), _taken(value.reshape(*shape, -1), self.places)
        parts = self.places.split(value, "sequence") if pooled and value.dim() == 2 else None
        if parts is None:
            return None
        return slice(0, self.source), _repeated(parts, self.places)

    def flat(self, value: Tensor) -> bool:
        """Return whether an output may have one entry per slot, with the batch's rows joined: ``[R * L, values]``.

        Routers return such outputs, and so does an expert that gets all tokens, since it keeps their order.
        """
        shape = self.places.shape
        return value.dim() == 2 and tuple(value.shape) != shape and value.shape[0] == shape[0] * shape[1]

    def joined(self, parts: list[Tensor], kind: str) -> tuple[slice, Tensor]:
        """Return the columns that an output has values for, and these values, ``[n columns, values]``.

        `parts` is the output, one part per sequence. `kind` says what its values belong to: "token", "target" (a
        target's token) or "sequence"; a sequence's values count for every token of it.
        """
        if kind == "sequence":
            return slice(0, self.source), _repeated(parts, self.places)
        target = self.places.target if kind == "target" else None
        here = slice(0, self.source) if target is None else slice(self.source, len(self))
        order = _order(self.places if target is None else target)
        return here, torch.cat([parts[number].reshape(parts[number].shape[0], -1) for number in order])


def _order(places: Places) -> list[int]:
    """Return the indices of the sequences, in the order in which the sequences lie in the batch."""
    return sorted(range(len(places.of)), key=lambda number: int(places.of[number][0]))


def _repeated(parts: list[Tensor], places: Places) -> Tensor:
    order = _order(places)
    return torch.cat([parts[number].reshape(1, -1).expand(len(places.of[number]), -1) for number in order])


def _taken(value: Tensor, places: Places) -> Tensor:
    flat = value.reshape(value.shape[0] * value.shape[1], -1)
    at = np.concatenate([places.of[number] for number in _order(places)])
    return flat[torch.from_numpy(at).to(flat.device)]


def moved_by(before: Tensor, after: Tensor) -> NDArray[np.float64]:
    """Return the largest change of a value in each row, relative to the largest finite value of `before`.

    `before` and `after` are ``[n, values]``; the result is float64 ``[n]``. If one of two values is infinite or NaN,
    and the other is not the same, the change is infinite.
    """
    same = (before == after) | (before.isnan() & after.isnan())
    apart = (before - after).double().abs().masked_fill(same, 0)
    apart = apart.masked_fill(~apart.isfinite(), float("inf"))
    worst = apart.amax(1) if apart.shape[1] else apart.new_zeros(len(apart))
    found: NDArray[np.float64] = (worst / max(largest_finite(before), 1e-30)).cpu().numpy()
    return found


@contextmanager
def recorded(model: Any, keep: Callable[[str, int, Tensor], None]) -> Iterator[None]:
    """Inside this context, call ``keep(name, number, output)`` each time that a module of the model finishes.

    `output` is the module's output, or its first entry if it is a tuple or list. Only floating-point tensors with at
    least 2 dimensions are passed to `keep`, and never the output of the model itself. `number` counts the calls of
    `keep` for this module, from 1.
    """
    calls: dict[str, int] = {}

    def seen(name: str, output: Any) -> None:
        value = states_of(output)
        if name and value is not None:
            calls[name] = calls.get(name, 0) + 1
            keep(name, calls[name], value)

    with on_outputs(bare(model), seen):
        yield
