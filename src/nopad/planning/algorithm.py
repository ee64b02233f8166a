"""What a planning algorithm is: a function, the options it takes, and what it hands back.

The seam of planning. A histogram algorithm is ``run(histogram, capacity, depth, **options)`` and returns strategies, or
a `Planned` when there is more to say; an arrival-order algorithm is ``run(lengths, capacity, depth, **options) ->
Packs``. Both are pure: same input, same result, on every machine.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nopad.errors import OptionError
from nopad.options import Option
from nopad.planning.certificate import Certificate

__all__ = ["Algorithm", "Planned", "Strategies"]

Strategies: TypeAlias = "list[tuple[int, tuple[int, ...]]]"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What an algorithm found, when strategies alone do not tell it all.

    Attributes:
        strategies: ``(count, lengths longest first)`` pairs that cover the histogram exactly.
        certificate: proof of a lower bound, to be stored with the plan.
        facts: numbers to report with the plan (JSON-ready), such as how many sequences were covered too often.
        notes: sentences a reader must see, such as a fallback.
    """

    strategies: Strategies
    certificate: Certificate | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A named way to plan.

    Attributes:
        run: the function; see the module.
        help: one line: what it does.
        options: what it takes beyond histogram or lengths, capacity and depth.
    """

    run: Callable[..., Any]
    help: str
    options: Mapping[str, Option] = field(default_factory=dict)

    def complete(self, name: str, given: Mapping[str, Any], common: Iterable[str] = ()) -> dict[str, Any]:
        """Check the options given and return them all, defaults filled in; `common` names are known elsewhere.

        Raises:
            OptionError: an option this algorithm does not know, or a value it does not allow.
        """
        for key in given:
            if key not in self.options:
                near = difflib.get_close_matches(key, [*self.options, *common], n=1)
                has = f"it has: {', '.join(sorted(self.options))}" if self.options else "it has none of its own"
                meant = f"; did you mean {near[0]}?" if near else ""
                every = f"; every algorithm has: {', '.join(sorted(common))}" if common else ""
                raise OptionError(f"algorithm {name!r} has no option {key!r}{meant} ({has}{every})")
        return {
            key: option.check(key, given[key]) if key in given else option.default
            for key, option in self.options.items()
        }
