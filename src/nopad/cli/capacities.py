"""``nopad plan -c N -c M``: what packing gains at each of several capacities, in one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from nopad.cli.answer import facts, headline, listed_sources, of_reading, share, sources, text_unit
from nopad.cli.inputs import called
from nopad.cli.lengths import Given
from nopad.cli.monitor import Bars
from nopad.cli.render import console, fitted, headed
from nopad.errors import OptionError
from nopad.options import MAX_LENGTH
from nopad.planning.baselines import padded
from nopad.planning.comparison import compare
from nopad.planning.registry import check_algorithm, complete_options

__all__ = ["planner_of", "refuse_with_several", "show_capacities"]

_OF_ALL = (
    "batch_size",
    "capacity_chosen",
    "sources",
    "text_unit",
    "advice",
    "plans",
)  # the same for every capacity, or not given for any


def refuse_with_several(given: Mapping[str, Any], single: Mapping[str, Sequence[str] | None]) -> None:
    """Refuse options that cannot be combined with several capacities.

    Args:
        given: the values of options that must not be set, by name.
        single: the values of options that may have one value only, by name.

    Raises:
        OptionError: an option of `given` is set, or one of `single` has several values.
    """
    for name, value in given.items():
        if value:
            raise OptionError(f"several capacities are compared in one table, without {name}; give one --capacity")
    for name, values in single.items():
        if values and len(values) > 1:
            raise OptionError(f"several capacities are compared with one {name}, not {len(values)}; give one of them")


def planner_of(
    algorithm: str, depth: int | None, options: Mapping[str, Any], seed: int
) -> Callable[[Given], list[dict[str, Any]]]:
    """Return a function that takes a `Given` and plans for its capacity, with one algorithm at one depth.

    The function returns a list with one row of `nopad.planning.comparison.compare`: a dict about the plan.

    Raises:
        OptionError: there is no such algorithm, it does not have one of the `options`, or an option has an invalid
            value.
    """
    check_algorithm(algorithm)
    complete_options(algorithm, options)

    def planned(given: Given) -> list[dict[str, Any]]:
        sizes = given.histogram if given.lengths is None else given.lengths
        return compare(sizes, given.histogram, given.capacity, [algorithm], [depth], seed=seed, options=options)

    return planned


def show_capacities(
    read: Callable[..., Given],
    inputs: Sequence[str],
    capacities: Sequence[int],
    planner: Callable[[Given], list[dict[str, Any]]],
    batch_size: int,
    as_json: bool,
) -> None:
    """Read the input once, plan for every capacity, and print a table with a line for each, or one JSON object.

    Args:
        read: a function that reads the input, called as ``read(capacity, monitor, apart=True)``; it is `read_given`
            with its other arguments set.
        inputs: the inputs as given, for messages.
        capacities: two or more; the lines are in this order.
        planner: a function that plans for a `Given`, and returns a list with one dict about the plan.
        batch_size: number of sequences in a batch without packing, to compare with.
        as_json: whether to print a JSON object.

    Raises:
        SourceError: the input cannot be read, or every sequence is above all capacities.
        OptionError, RecordError, FormatError, LengthError, MissingExtraError, StorageError: `read` raised it.
    """
    with Bars() as monitor:
        whole = read(MAX_LENGTH, monitor, apart=True)
        replace(whole, capacity=max(capacities)).apart(called(inputs))
        monitor.stage("planning", len(capacities), "capacities")
        found = []
        for capacity in capacities:
            found.append(_facts(whole, capacity, planner, batch_size))
            monitor.advance(1)
    if as_json:
        print(json.dumps(_of_input(whole, batch_size) | {"capacities": found}, indent=1))
        return
    out = console()
    wrapped = not out.is_terminal
    for line in (headline(whole), *sources(whole), *text_unit(whole)):
        out.print(line, markup=False, soft_wrap=wrapped)
    out.print(f"padding without packing (batches of {batch_size}) and packed, for each capacity:", soft_wrap=wrapped)
    out.print(
        fitted(lambda left_out: _table(whole, found, left_out), ("factor", "length-sorted", "dynamic"), out.width)
    )
    for one in found:
        for note in one["notes"]:
            out.print(f"{one['capacity']:,}, {note}", style="dim", markup=False, soft_wrap=wrapped)
    if any(one["over_long"]["sequences"] for one in found):
        ways = (
            f"nopad pack needs --over-long {whole.policies} for them"
            if whole.policies
            else "cut or remove them in the file"
        )
        said = f"above: sequences longer than the capacity, which no other number of the line counts; {ways}"
        out.print(said, style="yellow", markup=False, soft_wrap=wrapped)


def _of_input(whole: Given, batch_size: int) -> dict[str, Any]:
    """Return the facts that are the same at all capacities, such as the number of tokens, as JSON values by name."""
    found = whole.histogram
    return {
        "sequences": found.sequences,
        "tokens": found.tokens,
        "shortest": int(found.lengths[0]),
        "longest": found.max_length,
        "batch_size": batch_size,
        "sources": listed_sources(whole),
        "text_unit": whole.text_unit,
    }


def _facts(
    whole: Given, capacity: int, planner: Callable[[Given], list[dict[str, Any]]], batch_size: int
) -> dict[str, Any]:
    """Return the facts that `nopad plan` states for one capacity, as JSON values by name.

    If no sequence fits into the capacity, the facts about packs, padding and lengths are None.

    Args:
        whole: the input with no sequence left out.
        capacity: most tokens per pack.
        planner: a function that plans for a `Given`, and returns a list with one dict about the plan.
        batch_size: number of sequences in a batch without packing, to compare with.
    """
    found, all_tokens = whole.histogram, whole.histogram.tokens
    if capacity < found.lengths[0]:
        above = {"sequences": found.sequences, "tokens": all_tokens, "longest": found.max_length, "share": 1.0}
        none = dict.fromkeys(("shortest", "longest", "slots", "padding", "packs", "lower_bound", "packing_factor"))
        read = of_reading(whole)
        return {"capacity": capacity, "sequences": 0, "tokens": 0, **none, "over_long": above, **read, "notes": []}
    given = replace(whole, capacity=capacity).apart("")
    stated = facts(given, padded(given.histogram, capacity, batch_size), planner(given))
    stated["over_long"]["share"] = given.over_long_tokens / all_tokens
    return {name: value for name, value in stated.items() if name not in _OF_ALL}


def _table(whole: Given, found: Sequence[Mapping[str, Any]], left_out: Sequence[str]) -> Table:
    """Return a table with a line for each capacity, whose facts (from `_facts`) are in `found`.

    Columns whose heads are in `left_out` are not shown. `whole` is the input with no sequence left out.
    """
    ways = {"fixed": "fixed", "dynamic": "dynamic", "length-sorted": "length_sorted", "packed": "packed"}
    heads = [head for head in ("packs", *ways, "factor", "above", "their tokens") if head not in left_out]
    table = headed(["capacity", *heads], left=0)
    for one in found:
        above = one["over_long"]
        shown = {"above": f"{above['sequences']:,}", "their tokens": share(above["tokens"], whole.histogram.tokens)}
        if one["packs"] is not None:
            shown |= {head: f"{one['padding'][name]:.1%}" for head, name in ways.items()}
            shown |= {"packs": f"{one['packs']:,}", "factor": f"{one['packing_factor']:.3f}"}
        table.add_row(f"{one['capacity']:,}", *(shown.get(head, "-") for head in heads))
    return table
