"""Divide the sequences of a batch into groups; a module runs on one group at a time, ``[n, l, ...]``.

The n sequences of a group have one length l, or the shorter ones are padded on the right. No real token sees this
padding: a mask hides it, or the module is causal. `grouped` weighs the padding against the cost of one more call of the
module.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from nopad.batch.device import Placement
from nopad.model.known import class_of

__all__ = ["PENDING", "Groups", "How", "Pending", "chunk_size", "grouped", "groups_of", "runs_once", "with_even_chunks"]

PENDING = "nopad_pending"  # attribute of an argument of one group, which carries the rest to the hook after it
How = Literal["equal", "mixed", "one", "alone"]
CALL = 64  # tokens that a module could have computed in the time that one more call of it takes


@dataclass(frozen=True)
class Groups:
    """How a batch is cut into groups of sequences.

    Attributes:
        sizes: for each group, the pair (n, l): its number of sequences, and their length with padding.
        lengths: for each group, the lengths of its sequences without padding; int64 ``[n]``.
        index: where each token of the stream (the T tokens of the batch, without padding) lies in the concatenated
            groups; int64 ``[T]``.
    """

    sizes: tuple[tuple[int, int], ...]
    lengths: tuple[Tensor, ...]
    index: Tensor

    def cut(self, stream: Tensor) -> list[Tensor]:
        """Cut the stream ``[T, ...]`` into groups ``[n, l, ...]``, with 0 in padding."""
        counts = [n * length for n, length in self.sizes]
        slots = stream.new_zeros(sum(counts), *stream.shape[1:]).index_copy(0, self.index, stream)
        parts = torch.split(slots, counts)
        return [part.reshape(*size, *part.shape[1:]) for part, size in zip(parts, self.sizes, strict=True)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join groups ``[n, l, ...]`` into the stream ``[T, ...]``, without their padding; the inverse of `cut`."""
        return torch.cat([part.flatten(0, 1) for part in parts])[self.index]


@dataclass
class Pending:
    """The groups on which a module still has to run, after it has run on one group.

    Attributes:
        placed: the batch's layout on the model's device.
        groups: how the batch is cut into groups.
        others: one dict for each of the other groups, in order: the module's arguments for this group, by name.
        number: the index of the group on which the module has run, among all groups.
    """

    placed: Placement
    groups: Groups
    others: list[dict[str, Any]]
    number: int = 0


def grouped(lengths: Sequence[int], mixed: bool, call: int = CALL) -> list[list[int]]:
    """Divide sequences into groups, each for one run of a module; return each group's indices into `lengths`.

    Groups of longer sequences come first. Without `mixed`, the sequences of a group have the same length. With `mixed`,
    lengths may differ, and no other division costs less. A group of n sequences, the longest of l tokens, costs n * l
    slots, and `call` slots more for its own call of the module. Run time: O(D^2) for D different lengths, and sorting.

    >>> grouped([7, 300, 7, 280], mixed=True)
    [[1, 3], [0, 2]]
    >>> grouped([7, 300, 7, 280], mixed=False)
    [[1], [3], [0, 2]]
    """
    array = np.asarray(lengths)
    order = np.argsort(-array, kind="stable")
    sizes, counts = np.unique(array, return_counts=True)
    sizes, ends = sizes[::-1].astype(np.int64), np.concatenate([[0], np.cumsum(counts[::-1])])
    # best[i]: the least cost of the sequences with the i largest lengths; chosen[i]: where their last group begins.
    best, chosen = np.zeros(sizes.size + 1, np.int64), np.zeros(sizes.size + 1, np.int64)
    for i in range(1, sizes.size + 1):
        begin = 0 if mixed else i - 1
        costs = best[begin:i] + sizes[begin:i] * (ends[i] - ends[begin:i]) + call
        chosen[i] = begin + int(costs.argmin())
        best[i] = costs.min()
    found, i = [], sizes.size
    while i:
        found.append(order[ends[chosen[i]] : ends[i]].tolist())
        i = int(chosen[i])
    return found[::-1]


def groups_of(placed: Placement, how: How) -> Groups:
    """Return how a batch is cut into groups.

    Args:
        placed: the batch's layout.
        how: "equal": groups of sequences of one length; "mixed": lengths in a group may differ (`grouped`); "one": a
            single group of all sequences, the longest first; "alone": a group for each sequence.
    """
    lengths = np.diff(placed.bounds)
    if how == "one":
        groups = [np.argsort(-lengths, kind="stable").tolist()]
    elif how == "alone":
        groups = [[one] for one in range(len(lengths))]
    else:
        groups = grouped(lengths.tolist(), how == "mixed", CALL)
    sizes = tuple((len(group), int(lengths[group].max())) for group in groups)
    starts = np.empty(len(lengths), np.int64)
    begin = 0
    for group, (n, length) in zip(groups, sizes, strict=True):
        starts[group] = begin + np.arange(n) * length
        begin += n * length
    index = np.arange(placed.bounds[-1]) + np.repeat(starts - np.asarray(placed.bounds[:-1]), lengths)
    device = placed.ids.device
    each = tuple(torch.from_numpy(lengths[group].astype(np.int64)).to(device) for group in groups)
    return Groups(sizes, each, torch.from_numpy(index).to(device))


def runs_once(module: nn.Module) -> bool:
    """Return whether a module can run only once in a call of the model, so that all sequences must be in one group.

    This is so if FSDP's `fully_shard` was applied to the module itself: its weights are gone after the first run.
    """
    return type(module) is not class_of(module)


def chunk_size(module: nn.Module, device: torch.device) -> int:
    """Return the number of tokens in a chunk of a module's state-space scan; 0: leave its chunks as they are.

    The result is 0 if the module has no chunks, and if `device` is not a CPU: kernels for other devices support certain
    sizes only. Mamba 2 computes its scan chunk by chunk and fills the last chunk with zeros (Dao and Gu, 2024, section
    6), so the result of the scan does not depend on the size of chunks.
    """
    size = getattr(module, "chunk_size", 0)
    return size if device.type == "cpu" and hasattr(module, "A_log") and isinstance(size, int) else 0


def with_even_chunks(module: nn.Module, length: int, chunk: int) -> nn.Module:
    """Return a copy of a module, with the same weights, whose chunks divide `length` tokens with little padding.

    `chunk` is the module's own size of chunks (`chunk_size`). The number of chunks stays the same: with `chunk` 128,
    203 tokens become two chunks of 102, and not two of 128. If `chunk` is 0 or divides `length`, the module itself is
    returned.
    """
    if not chunk or length % chunk == 0:
        return module
    even = copy.copy(module)  # another thread may be using the module's own size
    even.__dict__["chunk_size"] = -(-length // -(-length // chunk))
    return even
