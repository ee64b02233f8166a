"""`Shape`: how many units (sequences or packs) a step takes, and on how many ranks."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nopad.errors import OptionError
from nopad.options import check_integer

__all__ = ["Shape"]


@dataclass(frozen=True)
class Shape:
    """The ranks that share a step, and the units that each of them takes.

    Attributes:
        world_size: number of ranks that share the data (ranks that get identical batches count once).
        node_size: number of ranks of a node; divides `world_size`.
        accumulation: number of micro-steps per optimiser step.
        per_rank: number of units per rank and micro-step.

    Raises:
        OptionError: a value is not an integer from 1 to 2^31 - 1, or the node size does not divide the world size.

    In the example, each of 16 ranks takes 4 units in each of 2 micro-steps:

    >>> Shape(world_size=16, node_size=8, accumulation=2, per_rank=4).per_step
    128
    """

    world_size: int
    node_size: int
    accumulation: int
    per_rank: int

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, check_integer(field.name, getattr(self, field.name)))
        if self.world_size % self.node_size:
            raise OptionError(
                f"world_size {self.world_size} is not divisible by node_size {self.node_size}; give the number of "
                "ranks on each node, or 1 if nodes differ"
            )

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.node_size

    @property
    def per_rank_step(self) -> int:
        """Number of units per rank and optimiser step."""
        return self.accumulation * self.per_rank

    @property
    def per_step(self) -> int:
        """Number of units per optimiser step, on all ranks together."""
        return self.world_size * self.per_rank_step
