"""`PackOptions`: the options by which a job packs the sequences that it has read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nopad.assignment import Order
from nopad.errors import OptionError
from nopad.options import check_choice, check_sizes, shown
from nopad.planning.registry import check_algorithm, complete_options
from nopad.store.choice import check_share
from nopad.store.shards import SHARD_TOKENS

__all__ = ["PackOptions"]


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """The options by which a job packs the sequences that it has read.

    Attributes:
        depth: most sequences a pack may hold; None: unlimited.
        algorithm: one of `nopad.ALGORITHMS`.
        seed: random seed for choosing the held-out records. If `order` is "random", it also decides the order of the
            packs and, unless `algorithm` packs in order of arrival, which sequence is in which pack.
        order: order of the packs: "random" (by `seed`) or "source" (close to the order of the source).
        options: options of the algorithm, and conditions on the packs, by name.
        shard_tokens: about how many tokens a shard holds (`nopad.store.shards`), at least 1.
        validation: share of the records to hold out in a separate dataset, at least 0 and below 1; 0 holds none out.
            `seed` decides which records (`nopad.store.choice`).

    Raises:
        OptionError: `order`, `shard_tokens` or `validation` has an invalid value, or `options` is not a mapping. The
            other values are checked by the method `checked`.
    """

    depth: int | None = None
    algorithm: str = "auto"
    seed: int = 0
    order: Order = "random"
    options: Mapping[str, Any] = field(default_factory=dict)
    shard_tokens: int = SHARD_TOKENS
    validation: float = 0.0

    def __post_init__(self) -> None:
        check_choice("order", self.order, Order)
        if type(self.shard_tokens) is not int or self.shard_tokens < 1:
            raise OptionError(f"shard_tokens must be an integer of at least 1, got {shown(self.shard_tokens)}")
        if not isinstance(self.options, Mapping):
            raise OptionError(f"options is {shown(self.options)}; it must be a mapping of names to values")
        check_share(self.validation)

    def checked(self, capacity: int) -> PackOptions:
        """Return these options with plain Python values, ready for JSON, after checking them for this capacity.

        Raises:
            OptionError: the algorithm, one of its options, capacity, depth or seed has an invalid value.
        """
        _, depth = check_sizes(capacity, self.depth, self.seed)
        check_algorithm(self.algorithm)
        own, conditions = complete_options(self.algorithm, self.options)
        options = {name: {**own, **conditions}[name] for name in self.options}
        return replace(self, depth=depth, seed=int(self.seed), options=options)
