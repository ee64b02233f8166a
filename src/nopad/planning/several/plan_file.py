"""Write and read the file of a plan for several capacities.

Reading refuses values of a wrong type, sizes in a wrong order, and keys that are repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from nopad.errors import FormatError, LengthError, OptionError
from nopad.options import MAX_LENGTH
from nopad.planning.document import opened
from nopad.planning.several.bounds import PriceBound
from nopad.planning.several.certificate import PriceCertificate
from nopad.planning.several.given import check_capacities, check_depth, check_prices

if TYPE_CHECKING:
    from nopad.planning.several.plan import SeveralPlan

__all__ = ["FORMAT", "parsed", "written"]

FORMAT = "nopad.several_plan"
FORMAT_VERSION = 1


def written(plan: SeveralPlan) -> str:
    """Return a plan as the text of a plan file (JSON)."""
    one = plan.kinds == 1
    head: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "capacities": [limits[0] if one else list(limits) for limits in plan.capacities],
        "prices": list(plan.prices),
        "depth": plan.depth,
        "notes": list(plan.notes),
        "sequences": plan.sequences,
        "packs": list(plan.packs.values()),
        "unit": [plan.unit.numerator, plan.unit.denominator],
        "price": plan.whole_price,
        "lower_bound": {"price": plan.bound.price, "proof": plan.bound.proof},
    }
    proof = plan.bound.certificate
    if proof is not None:
        head["certificate"] = {
            "rates": list(proof.rates),
            "units": list(proof.units),
            "extras": [list(extra) for extra in proof.extras],
        }
    lines = [
        f'    {{"count": {count}, "capacity": {json.dumps(limit)}, "sizes": {json.dumps(sizes)}}}'
        for count, limit, sizes in plan.strategies
    ]
    # Indented JSON, but short lists of numbers (a certificate may have thousands) on one line each
    body = re.sub(r"\[\s+(\d+),\s+(\d+)(?:,\s+(\d+))?\s+\]", _in_line, json.dumps(head, indent=2))[:-2]
    return f'{body},\n  "strategies": [' + ("\n" + ",\n".join(lines) + "\n  " if lines else "") + "]\n}\n"


def _in_line(found: re.Match[str]) -> str:
    return f"[{', '.join(group for group in found.groups() if group)}]"


def parsed(text: str, name: str) -> dict[str, Any]:
    """Return the arguments of `SeveralPlan`, by name, from the text of a plan file.

    Error messages call the file `name`.

    Raises:
        FormatError: the text is not JSON or not a plan for several capacities, has an unknown version, or its numbers
            contradict each other.
    """
    from nopad.planning.several.plan import SeveralPlan

    document = opened(text, name, FORMAT, FORMAT_VERSION)
    try:
        fields = _fields(document)
        plan = SeveralPlan(**fields)
        totals = {
            "sequences": plan.task.sequences,
            "packs": list(plan.packs.values()),
            "unit": [plan.unit.numerator, plan.unit.denominator],
            "price": plan.whole_price,
        }
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, OptionError, LengthError) as error:
        raise FormatError(f"{name} is damaged: {error!r}") from error
    for key, value in totals.items():
        if not _same(document.get(key), value):
            raise FormatError(f"{name} states {key} {document.get(key)!r}, its strategies give {value}")
    return fields


def _same(stated: Any, value: Any) -> bool:
    """Return whether two values are equal and of the same type (True is not 1); two lists are compared by elements."""
    if type(value) is list:
        return type(stated) is list and len(stated) == len(value) and all(map(_same, stated, value))
    return type(stated) is type(value) and bool(stated == value)


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `SeveralPlan`, by name, from the JSON document of a plan file.

    Raises:
        KeyError, TypeError, ValueError, OverflowError, OptionError: a part of the document is missing or malformed.
    """
    for key in ("capacities", "prices", "notes", "strategies"):
        if type(document[key]) is not list:
            raise ValueError(f"{key} is {document[key]!r}, and should be a list")
    if not all(type(note) is str for note in document["notes"]):
        raise ValueError("notes should be strings")
    capacities = check_capacities(document["capacities"])
    kinds, strategies = len(capacities[0]), document["strategies"]
    for at, strategy in enumerate(strategies):
        sizes = [size if kinds == 2 else [size] for size in strategy["sizes"]]
        numbers = [strategy["count"], *(own for size in sizes for own in size)]
        valid = sizes and all(type(size) is list and len(size) == kinds and size[0] >= 1 for size in sizes)
        if not valid or any(type(v) is not int or v < 0 for v in numbers) or strategy["count"] < 1:
            raise ValueError(f"strategy {at}: needs an integer count >= 1 and sizes from 1 (the second from 0)")
        if max(max(size) for size in sizes) > MAX_LENGTH:
            raise ValueError(f"strategy {at}: sizes are at most {MAX_LENGTH}")
        if any(a < b for a, b in pairwise(sizes)):
            raise ValueError(f"strategy {at}: sizes are listed largest first")
    bound = document["lower_bound"]
    if type(bound["price"]) is not int or type(bound["proof"]) is not str:
        raise ValueError("the lower bound needs an integer price and a proof")
    flat = [size if kinds == 2 else [size] for strategy in strategies for size in strategy["sizes"]]
    return {
        "capacities": capacities,
        "prices": check_prices(document["prices"], capacities),
        "depth": check_depth(document["depth"], kinds),
        "indptr": np.cumsum([0, *(len(strategy["sizes"]) for strategy in strategies)], dtype=np.int64),
        "sizes": np.array(flat, dtype=np.int64).reshape(-1, kinds),
        "counts": np.array([strategy["count"] for strategy in strategies], dtype=np.int64),
        "used": np.array([_number(strategy["capacity"], capacities) for strategy in strategies], dtype=np.int64),
        "bound": PriceBound(bound["price"], bound["proof"], _certificate(document.get("certificate"))),
        "notes": tuple(document["notes"]),
    }


def _number(capacity: Any, capacities: tuple[tuple[int, ...], ...]) -> int:
    """Return the index of a strategy's capacity in `capacities`.

    Raises:
        ValueError: the strategy's capacity is not one of `capacities`.
    """
    limits = capacity if type(capacity) is list else [capacity]
    if any(type(limit) is not int for limit in limits) or tuple(limits) not in capacities:
        raise ValueError(f"a strategy has the capacity {capacity!r}, which is none of the plan's")
    return capacities.index(tuple(limits))


def _certificate(given: Any) -> PriceCertificate | None:
    """Return the certificate in the document of a plan; None stays None.

    Raises:
        KeyError, TypeError, ValueError: the certificate is malformed.
    """
    if given is None:
        return None
    one, other = given["rates"]
    first, second = given["units"]
    return PriceCertificate((one, other), tuple((a, b, value) for a, b, value in given["extras"]), (first, second))
