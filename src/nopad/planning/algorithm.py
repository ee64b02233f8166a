"""`Algorithm`: a planning function with its help text and options; and `Planned`, which such a function may return.

There are two kinds of planning function:

* A histogram algorithm is a function ``run(histogram, capacity, depth, **options)``. It returns strategies, or a
  `Planned` with further results.
* An arrival-order algorithm is a function ``run(lengths, capacity, depth, **options)``. It returns `Packs`.

The results depend on the arguments alone and are the same on every machine, with two exceptions: `nnlshp` and `ennlshp`
use SciPy's solver, and the option `seconds` limits the time.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nopad.errors import OptionError
from nopad.options import Option
from nopad.planning.certificate import Certificate
from nopad.planning.cost_certificate import CostCertificate

__all__ = ["Algorithm", "Planned", "Strategies"]

# ``(count, lengths longest first)`` pairs: `count` packs hold these lengths each.
Strategies: TypeAlias = "list[tuple[int, tuple[int, ...]]]"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The result of an algorithm that returns more than strategies.

    Attributes:
        strategies: ``(count, lengths longest first)`` pairs that cover the histogram exactly.
        certificate: proof of a lower bound on the number of packs; None: there is none. The plan stores the certificate
            only if it proves more than the bounds of `nopad.planning.bounds` that need no certificate.
        facts: figures for `Plan.facts`, by name, such as the number of linear programs solved; JSON values.
        notes: sentences that the user should see, for example about a fallback.
    """

    strategies: Strategies
    certificate: Certificate | CostCertificate | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A planning algorithm.

    Attributes:
        run: the planning function: ``run(histogram, capacity, depth, **options)``, which returns strategies or a
            `Planned`; or for an arrival-order algorithm ``run(lengths, capacity, depth, **options)``, which returns
            `Packs`.
        help: what the algorithm does, in one line.
        options: the algorithm's own options, by name; conditions, which all algorithms share, are not among them.
    """

    run: Callable[..., Any]
    help: str
    options: Mapping[str, Option] = field(default_factory=dict)

    def complete(self, name: str, given: Mapping[str, Any], common: Iterable[str] = ()) -> dict[str, Any]:
        """Check the options `given`, and return all options of the algorithm, with defaults for those not given.

        `name` is the algorithm's name. `common` are the names of the options that every algorithm has; the caller
        handles these, and `given` must not have them. Both `name` and `common` are used only in error messages.

        Raises:
            OptionError: `given` has an option that the algorithm does not have, or a value that it does not allow.
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
