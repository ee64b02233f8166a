"""Look up planning algorithms by name, and check their options.

There are two kinds of algorithm (see `nopad.planning.algorithm`):

* histogram algorithms return strategies (lengths that share a pack, and how many packs hold them); sequences are
  assigned to packs later
* arrival-order algorithms return packs of sequences; their plan is a summary of these packs

To add an algorithm, write one file, and add one entry to a table in this module.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from nopad.errors import OptionError
from nopad.options import BOOLEAN, Option, shown
from nopad.planning.algorithm import Algorithm
from nopad.planning.best_fit import best_fit
from nopad.planning.conditions import CONDITIONS
from nopad.planning.ennlshp import ENNLSHP_OPTIONS, ennlshp
from nopad.planning.ffd import ffd
from nopad.planning.first_fit import first_fit
from nopad.planning.greedy import greedy
from nopad.planning.harmonic import harmonic
from nopad.planning.lpfhp import lpfhp
from nopad.planning.mffd import mffd
from nopad.planning.nnlshp import NNLSHP_OPTIONS, nnlshp
from nopad.planning.none import none
from nopad.planning.optimal import auto, optimal
from nopad.planning.sort import sort
from nopad.planning.spfhp import spfhp

__all__ = [
    "ALGORITHMS",
    "ARRIVAL_ALGORITHMS",
    "BY_COST",
    "HISTOGRAM_ALGORITHMS",
    "QUICK_ALGORITHMS",
    "check_algorithm",
    "complete_options",
    "quick_algorithms",
]

_EFFORT = "budget, in seconds of an ordinary core; counted in operations, so every machine makes the same plan"
_SEARCH = {
    "seconds": Option(default=None, none=True, help="stop after so many seconds; the plan then depends on the machine"),
}
HISTOGRAM_ALGORITHMS: dict[str, Algorithm] = {
    "auto": Algorithm(
        run=auto,
        help="the best within about three seconds: best-fit where it meets the bound, else column generation",
        options={"effort": Option(default=3, low=0, help=_EFFORT), **_SEARCH},
    ),
    "bfd": Algorithm(run=lpfhp, help="best-fit decreasing: lpfhp by its textbook name"),
    "ennlshp": Algorithm(
        run=ennlshp,
        help="nnlshp extended: least padding, no sequence left out before rounding",
        options=ENNLSHP_OPTIONS,
    ),
    "ffd": Algorithm(run=ffd, help="first-fit decreasing"),
    "lpfhp": Algorithm(
        run=lpfhp,
        help="best-fit decreasing on the histogram (longest-pack-first)",
        options={
            "distribute": Option(default=True, choices=BOOLEAN, help="copies of a length share a pack where they can")
        },
    ),
    "mffd": Algorithm(run=mffd, help="modified first-fit decreasing: first finds partners for long lengths"),
    "nnlshp": Algorithm(
        run=nnlshp, help="non-negative least squares over all strategies without padding", options=NNLSHP_OPTIONS
    ),
    "none": Algorithm(run=none, help="one sequence per pack"),
    "optimal": Algorithm(
        run=optimal,
        help="column generation down to the last pack, with a proof of the bound",
        options={"effort": Option(default=30, low=0, help=_EFFORT), **_SEARCH},
    ),
    "sort": Algorithm(run=sort, help="next-fit, longest length first"),
    "spfhp": Algorithm(run=spfhp, help="worst-fit decreasing on the histogram (shortest-pack-first)"),
}
ARRIVAL_ALGORITHMS: dict[str, Algorithm] = {
    "best_fit": Algorithm(
        run=best_fit,
        help="best-fit in arrival order, or with a bounded look-ahead",
        options={
            "window": Option(
                default=None,
                none=True,
                help="fill one pack after the other from a buffer of so many sequences; None: every pack stays open",
            )
        },
    ),
    "first_fit": Algorithm(run=first_fit, help="first-fit in arrival order"),
    "greedy": Algorithm(run=greedy, help="next-fit in arrival order"),
    "harmonic": Algorithm(
        run=harmonic,
        help="harmonic-k in arrival order: next-fit within classes of similar lengths",
        options={"k": Option(default=12, high=2**20, help="number of size classes")},
    ),
}
ALGORITHMS = tuple(sorted([*HISTOGRAM_ALGORITHMS, *ARRIVAL_ALGORITHMS]))
"""Names of all algorithms that `plan` takes, sorted.

>>> import nopad
>>> "auto" in nopad.ALGORITHMS, len(nopad.ALGORITHMS)
(True, 15)
"""
QUICK_ALGORITHMS = ("auto", "ffd", "greedy", "lpfhp", "spfhp")  # what `nopad plan --all` compares by default
# The algorithms that plan by tokens and cost at once; for each, the attempts of `even_out` that may use linear programs
BY_COST = {"auto": 4, "optimal": 20}


def check_algorithm(algorithm: str) -> None:
    """Check that `algorithm` is the name of an algorithm.

    Raises:
        OptionError: there is no such algorithm; the message gives similar names, and all names.
    """
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        near = difflib.get_close_matches(shown(algorithm).strip("'").lower(), ALGORITHMS, n=2)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise OptionError(f"unknown algorithm {shown(algorithm)}{meant} (there are: {', '.join(ALGORITHMS)})")


def complete_options(algorithm: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check the options of an algorithm; return ``(own, conditions)``, both with defaults for options not given.

    `own` are the algorithm's own options. Conditions are the options that all algorithms share, such as `align`
    (`nopad.planning.conditions`). `algorithm` must be in `ALGORITHMS`.

    Raises:
        OptionError: an option is neither the algorithm's own nor a condition, or its value is invalid; or `even` is
            True, and the algorithm cannot plan by cost.
    """
    chosen = {**HISTOGRAM_ALGORITHMS, **ARRIVAL_ALGORITHMS}[algorithm]
    if options.get("even") is True and algorithm not in BY_COST:
        raise OptionError(f"even=True needs an algorithm that plans by cost: take {' or '.join(BY_COST)}")
    conditions = {name: option.check(name, options.get(name, option.default)) for name, option in CONDITIONS.items()}
    own = {name: value for name, value in options.items() if name not in CONDITIONS}
    return chosen.complete(algorithm, own, CONDITIONS), conditions


def quick_algorithms(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the algorithms that ``nopad plan --all`` compares if the user names none.

    These are the names in `QUICK_ALGORITHMS` of algorithms that have all of `options`. Conditions
    (`nopad.planning.conditions`) count as options of every algorithm. There are two exceptions:

    * if none of `QUICK_ALGORITHMS` has all of `options`, all of `QUICK_ALGORITHMS` are returned
    * if `even` is set, those of `QUICK_ALGORITHMS` that can plan by cost are returned, whatever the other options are

    In the example, `auto` is the only algorithm in `QUICK_ALGORITHMS` that has the option `effort`:

    >>> quick_algorithms({"effort": 9, "align": 8}), quick_algorithms({}) == list(QUICK_ALGORITHMS)
    (['auto'], True)
    """
    own = {name for name in options if name not in CONDITIONS}
    if options.get("even"):
        return [name for name in QUICK_ALGORITHMS if name in BY_COST]
    known = {**HISTOGRAM_ALGORITHMS, **ARRIVAL_ALGORITHMS}
    return [name for name in QUICK_ALGORITHMS if own <= known[name].options.keys()] or list(QUICK_ALGORITHMS)
