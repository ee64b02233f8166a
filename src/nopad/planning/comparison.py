"""`compare`: plan with several algorithms at several depths, and measure the time, for the table of `nopad plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from nopad.histogram import Histogram
from nopad.planning.front import plan as make_plan
from nopad.planning.plan import Plan
from nopad.planning.registry import ARRIVAL_ALGORITHMS
from nopad.planning.stopwatch import Stopwatch

__all__ = ["DEPTHS", "compare", "notes_of"]

DEPTHS: tuple[int | None, ...] = (1, 2, 3, 4, 8, 16, None)
# A tiny input on which `auto` needs its linear program, with a depth limit and without one, and no search for covers,
# which takes seconds to compile and is rarely needed.
_TINY, _TINY_CAPACITY, _TINY_DEPTHS = {6: 57, 9: 46, 10: 39}, 13, (3, None)


def compare(
    given: Histogram | ArrayLike,
    histogram: Histogram,
    capacity: int,
    algorithms: Sequence[str],
    depths: Sequence[int | None],
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    on_start: Callable[[str], None] = lambda name: None,
    on_plan: Callable[[Plan], None] = lambda plan: None,
) -> list[dict[str, Any]]:
    """Plan with each of `algorithms` at each of `depths`; return a row for each plan, algorithm after algorithm.

    A row is a dict with the keys of `Plan.summary`, the ``seconds`` that planning took, and the plan's ``notes``. In
    each row, ``lower_bound`` is the highest that any of the algorithms proved at that depth.

    The seconds measure planning alone. Every algorithm first plans a tiny input, so that its modules are imported. The
    time in which loops are compiled or loaded does not count (`nopad.planning.stopwatch`).

    Args:
        given: what arrival-order algorithms plan: lengths in order of arrival, or `histogram` if the order is not
            known.
        histogram: what histogram algorithms plan.
        capacity: most tokens per pack.
        algorithms: names of the algorithms.
        depths: limits on the sequences per pack, each an integer from 1 on, or None (unlimited).
        seed: seed of the order in which an arrival-order algorithm plans a histogram.
        options: options that are given to every algorithm, so every algorithm must have them.
        on_start: called with the name of each algorithm before it runs.
        on_plan: called with each plan, as soon as it is made.

    Raises:
        OptionError: an argument or option has an invalid value, an algorithm lacks one of `options`, or it cannot plan
            these lengths.
        LengthError: a length is not an integer, is below 1, or is too long for `capacity` and `options`; or there are
            too many sequences.

    >>> rows = compare([5, 3, 4], Histogram.from_lengths([5, 3, 4]), 8, ["lpfhp"], [1, None])
    >>> [(row["depth"], row["packs"]) for row in rows]
    [(1, 3), (None, 2)]
    """
    rows = []
    for name in algorithms:
        on_start(name)
        _warm_up(name)
        for depth in depths:
            with Stopwatch() as watch:
                made = make_plan(
                    given if name in ARRIVAL_ALGORITHMS else histogram,
                    capacity,
                    depth=depth,
                    algorithm=name,
                    seed=seed,
                    **(options or {}),
                )
            rows.append({**made.summary(), "seconds": watch.seconds, "notes": list(made.notes)})
            on_plan(made)
    for row in rows:  # a bound that one algorithm proved holds for the plans of all
        row["lower_bound"] = max(other["lower_bound"] for other in rows if other["depth"] == row["depth"])
    return rows


def notes_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each note in the rows of `compare` once for each algorithm that has it, after the algorithm's name.

    If an algorithm has the note at some of its depths only, these depths are named too (depth None as "max").

    >>> rows = [{"algorithm": "auto", "depth": depth, "notes": ["stopped"]} for depth in (2, None)]
    >>> notes_of(rows), notes_of([*rows, {"algorithm": "auto", "depth": 8, "notes": []}])
    (['auto: stopped'], ['auto, depth 2, max: stopped'])
    """
    depths: dict[str, list[str]] = {}
    noted: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        depth = "max" if row["depth"] is None else str(row["depth"])
        depths.setdefault(row["algorithm"], []).append(depth)
        for note in row["notes"]:
            noted.setdefault((row["algorithm"], note), []).append(depth)
    return [
        f"{name}: {note}" if at == depths[name] else f"{name}, depth {', '.join(at)}: {note}"
        for (name, note), at in noted.items()
    ]


def _warm_up(algorithm: str) -> None:
    """Plan a tiny input with this algorithm, so that its modules are imported before its time is measured."""
    for depth in _TINY_DEPTHS:
        make_plan(Histogram.from_counts(_TINY), _TINY_CAPACITY, depth=depth, algorithm=algorithm)
