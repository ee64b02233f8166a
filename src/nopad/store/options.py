"""How a job packs what it has read (`PackOptions`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from nopad.assignment import WINDOW, Order
from nopad.errors import OptionError
from nopad.options import check_sizes
from nopad.planning.front import check_algorithm, complete_options
from nopad.store.shards import SHARD_TOKENS

__all__ = ["PackOptions"]


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """How sequences are packed; see `nopad.pack` for the meaning of each, `nopad.store.shards` for the file sizes.

    `options` are those of the algorithm, and the conditions.

    `weights`: shares of the tokens to train on, by name of source: any positive numbers. No record comes twice, so the
    source that is shortest for its weight is taken whole, and a part of the others (`nopad.store.choice`).
    `validation`: share of the records to hold out, by `seed`; they become a dataset of their own.
    """

    depth: int | None = None
    algorithm: str = "auto"
    seed: int = 0
    order: Order = "random"
    arrival_window: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    shard_tokens: int = SHARD_TOKENS
    weights: Mapping[str, float] | None = None
    validation: float = 0.0

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            raise OptionError(f"unknown order {self.order!r}; it is 'random' or 'source'")
        if type(self.shard_tokens) is not int or self.shard_tokens < 1:
            raise OptionError(f"shard_tokens must be an integer of at least 1, got {self.shard_tokens!r}")
        if not isinstance(self.options, Mapping):
            raise OptionError(f"options is {self.options!r}; it must be a mapping of names to values")

    def checked(self, capacity: int) -> PackOptions:
        """Return the same as plain Python values, which JSON takes; `capacity` is that of the packs.

        Raises:
            OptionError: the algorithm, one of its options, the window, capacity, depth or seed has no such value.
        """
        _, depth = check_sizes(capacity, self.depth, self.seed)
        check_algorithm(self.algorithm)
        own, conditions = complete_options(self.algorithm, self.options)
        window = None if self.arrival_window is None else WINDOW.check("arrival_window", self.arrival_window)
        options = {name: {**own, **conditions}[name] for name in self.options}
        return replace(self, depth=depth, seed=int(self.seed), arrival_window=window, options=options)
