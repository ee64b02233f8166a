"""``nopad plan --ladder``: make, show and save one plan with packs of several capacities."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.cli.render import console
from nopad.errors import OptionError
from nopad.histogram import Histogram
from nopad.planning.several import plan_several
from nopad.planning.several.given import check_capacities, check_prices

__all__ = ["Ladder", "parse_ladder", "refuse_beside", "show_ladder"]

Ladder = tuple[tuple[tuple[int, ...], ...], tuple[int | float, ...] | None]


def parse_ladder(text: str) -> Ladder:
    """Parse the value of ``--ladder``; return the limits of each capacity, and the prices.

    With one kind of size, the text is like ``2048:1,8192:4.3`` or, without prices, ``2048,8192``; the prices are then
    None. With two kinds of size, it is like ``2048x16:1,8192x32:4.3``. Only a single capacity may then be without a
    price, and it costs 1.

    Raises:
        OptionError: the text has another form, or a capacity or a price is not allowed.

    >>> parse_ladder("2048:1,8192:4.3"), parse_ladder("2048,8192"), parse_ladder("2048x16:1")
    ((((2048,), (8192,)), (1, 4.3)), (((2048,), (8192,)), None), (((2048, 16),), (1,)))
    """
    parts = [part.partition(":") for part in text.split(",")]
    priced = [bool(colon) for _, colon, _ in parts]
    if any(priced) != all(priced):
        raise OptionError(f"--ladder needs a price for every capacity, or for none, got {text!r}")
    try:
        capacities = [tuple(int(limit) for limit in capacity.split("x")) for capacity, _, _ in parts]
        prices = [_number(price) for _, _, price in parts] if all(priced) else None
    except ValueError:
        raise OptionError(
            f"--ladder must be like 2048:1,8192:4.3, 2048,8192 or 2048x16:1,8192x32:4.3, got {text!r}"
        ) from None
    limits = check_capacities(capacities)
    return limits, check_prices(prices, limits) if prices or len(limits[0]) == 2 else None


def _number(text: str) -> int | float:
    return int(text) if text.strip().isdecimal() else float(text)


def refuse_beside(given: Mapping[str, Any], depths: Sequence[str] | None, options: Mapping[str, Any]) -> None:
    """Refuse options that cannot be combined with ``--ladder``.

    Args:
        given: the values of options that must not be set, by name.
        depths: the values of ``--depth``; None: not given.
        options: the values of ``--option``, by name.

    Raises:
        OptionError: an option in `given` is set, there are several `depths`, or `options` has a name other than
            "effort".
    """
    for name, value in given.items():
        if value:
            raise OptionError(f"--ladder plans for its own capacities in its own way: leave out {name}")
    if depths is not None and len(depths) > 1:
        raise OptionError(f"--ladder makes one plan; give one --depth, not {len(depths)}")
    for name in options:
        if name != "effort":
            raise OptionError(f"--ladder has no option {name!r} (it has: effort)")


def show_ladder(
    given: Histogram | NDArray[np.generic],
    ladder: Ladder,
    depth: int | None,
    options: Mapping[str, Any],
    as_json: bool,
    output: Path | None,
) -> None:
    """Make the plan (`plan_several`), print it as text or JSON, and save it to `output`; None: it is not saved.

    Args:
        given: the lengths or their histogram; with two kinds of size, the sizes, ``[n, 2]``.
        ladder: what `parse_ladder` returned.
        depth: most sequences per pack; None: no limit.
        options: further arguments of `plan_several`, by name, such as "effort".
        as_json: whether to print a JSON object.
        output: the file for the plan.

    Raises:
        LengthError: a size is not an integer or is out of range, a sequence fits into no capacity, or there are too
            many sequences or distinct sizes.
        OptionError: capacities, prices, depth or options have an invalid value, or do not match each other or the
            sizes.
        StorageError: the plan cannot be saved.
    """
    capacities, prices = ladder
    plan = plan_several(given, capacities, prices, depth=depth, **options)
    if output is not None:
        plan.save(output)
    if as_json:
        print(json.dumps(plan.summary() | {"notes": list(plan.notes)}, indent=1))
        return
    out = console()
    out.print(str(plan), markup=False, soft_wrap=True)
    if output is not None:
        out.print(f"saved {output}", markup=False, soft_wrap=True)
