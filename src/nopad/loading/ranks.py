"""`Ranks`: this process's data-parallel rank, the number of ranks, and how many of them share a node.

Tensor- and pipeline-parallel peers compute on the same batches, so they have the same data-parallel rank. If there are
such peers, pass as `group` the process group (or the one-dimensional `DeviceMesh`) of the ranks that take different
data. This module does not import torch; it asks torch.distributed only if the program has imported torch already.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from nopad.errors import OptionError
from nopad.options import MAX_LENGTH, Option, parse_integer

__all__ = ["Ranks", "torch_distributed"]

_RANK = Option(default=0, low=0, help="number of this process among those that take different data")
_SIZE = Option(default=1, high=MAX_LENGTH, help="how many processes take different data")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's number among the processes that take different data, and how many there are.

    Attributes:
        rank: number of this process among them, from 0.
        world_size: number of processes that take different data.
        node_size: number of consecutive ranks that share a node; divides `world_size`.
        group: process group of these ranks; None: the default process group of torch.distributed.

    Raises:
        OptionError: a number is out of range, or `node_size` does not divide `world_size`.

    >>> Ranks(rank=3, world_size=8, node_size=4).node  # ranks 0 to 3 share node 0
    0
    """

    rank: int = 0
    world_size: int = 1
    node_size: int = 1
    group: Any = None

    def __post_init__(self) -> None:
        for name, option in (("rank", _RANK), ("world_size", _SIZE), ("node_size", _SIZE)):
            object.__setattr__(self, name, option.check(name, getattr(self, name)))
        if self.rank >= self.world_size:
            raise OptionError(
                f"rank is {self.rank}, and there are {self.world_size} ranks; the last is number {self.world_size - 1}"
            )
        if self.world_size % self.node_size:
            raise OptionError(
                f"{self.world_size} ranks do not make whole nodes of {self.node_size}; give a node_size "
                "that divides the number of ranks"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that a worker process gets: all but `group`, which is valid in this process only."""
        return {**vars(self), "group": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        """Return this object itself, since it never changes."""
        return self

    @property
    def node(self) -> int:
        """Number of this process's node, from 0."""
        return self.rank // self.node_size

    @classmethod
    def found(
        cls,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        node_size: int | None = None,
        group: Any = None,
    ) -> Ranks:
        """Return this process's `Ranks`, from the arguments, torch.distributed or the environment.

        The first of these that is available decides: `group`; `rank` and `world_size`; the default process group of
        torch.distributed, if it is initialised; ``RANK`` and ``WORLD_SIZE`` in the environment; else a single rank. If
        `node_size` is None, a node has ``LOCAL_WORLD_SIZE`` ranks, provided that this variable is set and divides the
        number of ranks, and that no `group` is given; otherwise all ranks count as one node.

        Args:
            rank: number of this process; needs `world_size`.
            world_size: number of processes; needs `rank`.
            node_size: number of consecutive ranks that share a node.
            group: a torch process group or a `DeviceMesh` of one dimension.

        Raises:
            OptionError: there is only one of `rank` and `world_size`, or of ``RANK`` and ``WORLD_SIZE``; a number is
                invalid; `group` is not a group or does not contain this process; or `rank` and `world_size` differ from
                those in `group`.
        """
        if (rank is None) != (world_size is None):
            raise OptionError("rank and world_size go together; give both, or neither")
        if group is not None:
            here, size = _of_group(group)
            if rank is not None and (rank, world_size) != (here, size):
                raise OptionError(f"rank {rank} of {world_size} is given, and in the group it is {here} of {size}")
        elif rank is not None and world_size is not None:
            here, size = rank, world_size
        else:
            here, size = _of_program()
        if node_size is None:
            local = _number("LOCAL_WORLD_SIZE")
            node_size = local if local and group is None and size % local == 0 else size
        return cls(rank=here, world_size=size, node_size=node_size, group=group)


def _of_group(group: Any) -> tuple[int, int]:
    """Return (rank of this process, number of processes) in a torch process group or a one-dimensional device mesh.

    Raises:
        OptionError: `group` is neither of these, or does not contain this process.
    """
    size = getattr(group, "size", None)
    if not callable(size) or not hasattr(group, "rank" if not hasattr(group, "get_local_rank") else "get_local_rank"):
        raise OptionError(
            f"group is of type {type(group).__name__}; expected a torch process group, or one dimension "
            "of a DeviceMesh, such as mesh['dp']"
        )
    if getattr(group, "ndim", 1) != 1:
        raise OptionError(
            f"group is a DeviceMesh of {group.ndim} dimensions; give the one in which data differs, such as mesh['dp']"
        )
    here = group.get_local_rank() if hasattr(group, "get_local_rank") else group.rank()
    if here < 0:
        raise OptionError(
            "this process is not in the group that is given; give the group of its own data-parallel peers"
        )
    return int(here), int(size())


def _of_program() -> tuple[int, int]:
    """Return (rank, world size) of this process.

    They are those of torch.distributed's default process group; without one, those in ``RANK`` and ``WORLD_SIZE``;
    without these, (0, 1).

    Raises:
        OptionError: only one of ``RANK`` and ``WORLD_SIZE`` is set, or one of them is not an integer of at least 0.
    """
    distributed = torch_distributed()
    if distributed is not None:
        return distributed.get_rank(), distributed.get_world_size()
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if (rank is None) != (size is None):
        raise OptionError("of RANK and WORLD_SIZE the environment has only one; set both, or give rank and world_size")
    return (0, 1) if rank is None or size is None else (rank, size)


def torch_distributed() -> Any:
    """Return the module torch.distributed if the program has imported torch and has a process group, else None."""
    found = getattr(sys.modules.get("torch"), "distributed", None)
    return found if found is not None and found.is_available() and found.is_initialized() else None


def _number(name: str) -> int | None:
    """Return the environment variable `name` as an integer; None if it is not set, or empty.

    Raises:
        OptionError: its value is not an integer from 0 to 2^31 - 1.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    number = parse_integer(text, 0)
    if number is None:
        raise OptionError(
            f"{name} is {text!r} in the environment; expected a number from 0 to {MAX_LENGTH}, or give rank and "
            "world_size"
        )
    return number
