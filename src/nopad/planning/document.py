"""Read a plan file: parse its JSON document (`opened`), then take the arguments of `Plan` from it (`parsed`).

Values must have exactly the right types. This module does not check whether the plan and its lower bound are right:
`nopad.planning.Plan.problems` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from nopad.errors import FormatError
from nopad.files import once_each
from nopad.notation import from_json
from nopad.options import MAX_LENGTH
from nopad.planning.bounds import Bound
from nopad.planning.certificate import Certificate
from nopad.planning.conditions import CONDITIONS
from nopad.planning.cost_certificate import CostCertificate

__all__ = ["opened", "parsed", "read_json", "text_of"]

_KINDS = {"options": dict, "facts": dict, "notes": list, "strategies": list, "algorithm": str, "lower_bound": dict}


def read_json(text: str) -> Any:
    """Return the value that a JSON text holds.

    Raises:
        ValueError: the text is not JSON or is nested too deeply, an object has a key twice, a number is NaN or
            infinite, or an integer has thousands of digits.
    """
    return from_json(text, object_pairs_hook=once_each, parse_constant=_no_number, parse_float=_finite)


def text_of(path: str | Path) -> str:
    """Return the text of a plan file; the plan may be for one capacity or for several.

    Raises:
        FormatError: the file is missing, cannot be read, or is not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"cannot read the plan {path}: {error}") from error


def opened(text: str, name: str, kind: str, version: int) -> dict[str, Any]:
    """Return the JSON document in `text`, the text of a plan file, as a dict.

    The document's "format" must be `kind`, and its "format_version" must be `version`. Error messages call the file
    `name`.

    Raises:
        FormatError: the text is not JSON (`read_json`), or has another format or version.
    """
    try:
        document = read_json(text)
    except ValueError as error:
        raise FormatError(f"{name} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != kind:
        raise FormatError(f'{name} is no plan file: it lacks "format": "{kind}"')
    found = document.get("format_version")
    if type(found) is not int or found != version:
        raise FormatError(f"{name} has format version {found!r}; this nopad reads {version}")
    return document


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _no_number(number)


def parsed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Plan`, by name, from the JSON document of a plan file.

    Raises:
        KeyError, TypeError, ValueError, OverflowError, OptionError: a part of the document is missing or malformed.
    """
    for key, kind in _KINDS.items():
        if type(document.get(key, {} if key == "facts" else None)) is not kind:
            raise ValueError(f"{key} is {document[key]!r}, and should be a {kind.__name__}")
    if not all(type(note) is str for note in document["notes"]):
        raise ValueError("notes should be strings")
    for name, option in CONDITIONS.items():
        if name in document["options"]:
            option.check(name, document["options"][name])
    capacity, depth, bound = document["capacity"], document["depth"], document["lower_bound"]
    limits = [capacity] if depth is None else [capacity, depth]
    if any(type(v) is not int or not 1 <= v <= MAX_LENGTH for v in limits) or type(bound["packs"]) is not int:
        raise ValueError(
            f"capacity and depth must be integers from 1 to {MAX_LENGTH} (depth may be null), the bound an integer"
        )
    if type(bound["proof"]) is not str:
        raise ValueError(f"the proof of the lower bound is {bound['proof']!r}, and should be a str")
    strategies = [_strategy(at, strategy, capacity) for at, strategy in enumerate(document["strategies"])]
    return {
        "capacity": capacity,
        "depth": depth,
        "algorithm": document["algorithm"],
        "indptr": np.cumsum([0, *(len(lengths) for _, lengths in strategies)], dtype=np.int64),
        "lengths": np.array([length for _, lengths in strategies for length in lengths], dtype=np.int64),
        "counts": np.array([count for count, _ in strategies], dtype=np.int64),
        "bound": Bound(bound["packs"], bound["proof"], _certificate(document)),
        "options": document["options"],
        "facts": document.get("facts", {}),
        "notes": tuple(document["notes"]),
    }


def _strategy(at: int, strategy: Mapping[str, Any], capacity: int) -> tuple[int, list[int]]:
    """Return ``(count, lengths)`` of strategy number `at`, after a check.

    Raises:
        KeyError, TypeError, ValueError: the strategy is malformed, or names another capacity than `capacity`.
    """
    count, lengths = strategy["count"], strategy["lengths"]
    own = strategy.get("capacity", capacity)
    if type(own) is not int or own != capacity:
        raise ValueError(f"strategy {at} names a capacity of {own}; this nopad reads plans of one capacity")
    fine = type(lengths) is list and lengths and all(type(v) is int and v >= 1 for v in [count, *lengths])
    if not fine or max(lengths) > MAX_LENGTH:
        raise ValueError(f"strategy {at}: needs an integer count >= 1 and lengths from 1 to {MAX_LENGTH}")
    if any(a < b for a, b in pairwise(lengths)):
        raise ValueError(f"strategy {at}: lengths are listed longest first")
    return count, lengths


def _certificate(document: Mapping[str, Any]) -> Certificate | CostCertificate | None:
    """Return the certificate in the JSON document of a plan; None if there is none.

    Raises:
        KeyError, TypeError, ValueError: the certificate is malformed, or there are two.
    """
    steps, both = document.get("certificate"), document.get("cost_certificate")
    if both is None:
        return None if steps is None else Certificate(_pairs("certificate", steps))
    if steps is not None:
        raise ValueError("a plan has at most one certificate, and this one has two")
    units = None if both["units"] is None else _pairs("cost_certificate units", [both["units"]])[0]
    return CostCertificate(_pairs("cost_certificate", both["steps"]), units, both["by_depth"])


def _pairs(name: str, steps: Any) -> tuple[tuple[int, int], ...]:
    """Return `steps`, a list of lists of two integers each, as a tuple of tuples.

    Raises:
        ValueError: `steps` is anything else; the message begins with `name`.
    """
    if type(steps) is not list or not all(
        type(step) is list and len(step) == 2 and all(type(v) is int for v in step) for step in steps
    ):
        raise ValueError(f"{name}: needs pairs of integers")
    return tuple((first, second) for first, second in steps)
