"""``nopad study learning``: compare packed pre-training with training without packing, and with faulty packing."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from nopad.cli.options import Overwrite
from nopad.cli.render import console
from nopad.cli.study_output import AsJson, Plot
from nopad.errors import MissingExtraError, OptionError, install
from nopad.options import Option
from nopad.report.drawing import check_chart, save_chart
from nopad.wording import finite

if TYPE_CHECKING:
    from nopad.study.learning import Learning, Prepared, Spread

__all__ = ["learning"]

_SIZE = Option(default="quick", choices=("toy", "quick", "full"), help="how large the study is")
_SEEDS = Option(default=3, low=1, help="runs per recipe")
_NEAR = 0.98  # of the accuracy that is reached without packing


def learning(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Keep results; the same command goes on where it stopped."
        ),
    ] = None,
    size: Annotated[
        str, typer.Option(help="How large the study is: toy (a minute), quick (at most 90 minutes), full (days).")
    ] = "quick",
    seeds: Annotated[int, typer.Option(help="Runs per recipe.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="GROUP",
            help="Recipes of this group only: 'equal batch', 'larger batch', tuned, faults or choices. Repeatable.",
        ),
    ] = None,
    plot: Plot = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and how long, and stop.")] = False,
    as_json: AsJson = False,
    force: Overwrite = False,
) -> None:
    """Pre-train a small BERT many times: packed, not packed, and with the faults that packing can have.

    The runs are the paper's three comparisons and its ablations; all train on the same number of sequences. Then
    classifiers are fine-tuned from their weights. Texts are the docstrings and comments of Python's standard library.

    Examples:
      nopad study learning --size toy

      nopad study learning -o runs/learning --plot learning.svg
    """
    size, seeds = _SIZE.check("--size", size), _SEEDS.check("--seeds", seeds)
    if plot is not None:
        check_chart(plot)
    try:
        from nopad.study import learning as room
    except ImportError as error:
        raise MissingExtraError(f"nopad study learning needs {error.name}; {install('torch')}") from error

    groups = [name for name, _ in room.GROUPS]
    for name in only or []:
        if name not in groups:
            raise OptionError(f"--only is {name!r}; it is one of {', '.join(groups)}")
    recipes = room.recipes(None if only is None else tuple(only))
    prepared = room.prepare(room.SIZES[size], recipes, seeds, folder)
    say = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    for line in described(prepared):
        say(line)
    if dry_run:
        return
    found = room.study_learning(prepared, folder, say)
    if plot is not None:
        save_chart(room.learning_chart(found), plot)
    if as_json:
        print(json.dumps(as_document(prepared, found), indent=1, allow_nan=False))
        return
    for table in tables(prepared, found):
        console().print(table)


def described(prepared: Prepared) -> list[str]:
    """Return lines of text about a study that has not run yet: model, data, runs, and how long they will take."""
    size = prepared.size
    return [
        f"BERT of {size.layers} x {size.hidden}: {prepared.parameters:,} parameters, vocabulary {size.vocabulary:,}",
        f"{len(prepared.material.train):,} pairs of at most {size.capacity} tokens; a pack holds p = "
        f"{prepared.factor:.3f} of them",
        f"{len(prepared.recipes)} recipes x {prepared.seeds} seeds of {size.samples:,} sequences, "
        f"{size.sequences} a step: about {_duration(prepared.hours)}",
    ]


def _duration(hours: float) -> str:
    minutes = max(round(60 * hours), 1)
    return f"{hours:.1f} hours" if hours >= 2 else "1 minute" if minutes == 1 else f"{minutes} minutes"


def tables(prepared: Prepared, found: Learning) -> list[Table]:
    """Return a table of the results of all recipes, and one of the fine-tuned classifiers if there are any.

    A recipe is a way to train: packed, not packed, or with a fault.
    """
    from nopad.study.learning import BASE

    base = found.spread(BASE.name, "accuracy")
    goal = _NEAR * (base.mean if base else 0.0)
    samples = prepared.size.samples
    title = f"held-out pairs after {samples:,} sequences, ± over seeds; goal: {goal:.1%}, {_NEAR:.0%} of not packed"
    heads = ["recipe", "steps", "slots", "seconds", "loss", "accuracy", "next", "goal at sequences", "goal at seconds"]
    made = _grid(title, heads)
    for name in found.names():
        last = [one.last for one in found.of(name)]
        made.add_row(
            name,
            f"{statistics.fmean(one.steps for one in last):,.0f}",
            f"{statistics.fmean(one.slots for one in last):,.0f}",
            f"{statistics.fmean(one.seconds for one in last):.0f}",
            _shown(found.spread(name, "masked_loss"), ".3f"),
            _shown(found.spread(name, "accuracy"), ".1%"),
            _shown(found.spread(name, "next_accuracy"), ".1%"),
            *(_reached(found, name, goal, what) for what in ("samples", "seconds")),
        )
    if not found.tuned:
        return [made]
    after = _grid("classifiers tuned afterwards: accuracy", ["weights", "median", "least", "most", "seeds"])
    for name, values in found.tuned.items():
        shown = (f"{one:.1%}" for one in (statistics.median(values), min(values), max(values)))
        after.add_row(name, *shown, str(len(values)))
    return [made, after]


def _shown(spread: Spread | None, how: str) -> str:
    if spread is None:
        return ""
    return f"{spread.mean:{how}} ± {max(spread.most - spread.mean, spread.mean - spread.least):{how}}"


def _reached(found: Learning, name: str, goal: float, what: str) -> str:
    at = found.reached(name, goal, what)
    return "not reached" if at is None else f"{at:,.0f}"


def _grid(title: str, heads: list[str]) -> Table:
    made = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for head in heads:
        made.add_column(head, justify="left" if head in ("recipe", "weights") else "right")
    return made


def as_document(prepared: Prepared, found: Learning) -> dict[str, Any]:
    """Return the results of the study as JSON values by name: size, packing factor, parameters, curves and fine-tuning.

    Numbers that are NaN or infinite, as the masked loss of a run that diverged, are None: JSON has no such numbers.
    """
    document = {
        "size": asdict(prepared.size),
        "factor": prepared.factor,
        "parameters": prepared.parameters,
        "curves": [asdict(one) for one in found.curves],
        "tuned": found.tuned,
    }
    return dict(finite(document))
