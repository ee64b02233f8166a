"""Run the whole study, pre-training and then fine-tuning of classifiers, and resume it after a stop.

Apart from times, all results are a function of the size, the recipes and the seeds. If a folder is given, each result
is written as a JSON line to ``results.jsonl`` in it as soon as it is known. A study that is started again in the same
folder runs only the runs that have no result yet.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from nopad.errors import FormatError, OptionError
from nopad.files import locked, storage_errors, write_atomic
from nopad.notation import from_json
from nopad.study.learning.material import Material, material
from nopad.study.learning.runs import Curve, Point, Recipe, Size, factor_of, held_out, model_of, train
from nopad.study.learning.setups import BASE, RIGHT, WITHOUT_NEXT
from nopad.study.learning.tuning import sets_of, tuned

__all__ = ["Learning", "Prepared", "Spread", "prepare", "study_learning"]

RESULTS = "results.jsonl"
TUNED = (BASE.name, RIGHT.name, WITHOUT_NEXT.name)  # recipes whose weights are fine-tuned afterwards


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a study will run, and how long it will take.

    Attributes:
        size: the size of the study.
        material: the pairs that all runs read.
        factor: average number of sequences per pack.
        parameters: number of the model's parameters.
        recipes: the recipes to run.
        seeds: number of seeds; every recipe runs with seeds 0 to `seeds` - 1.
        hours: estimated hours on this machine for the runs that are not done yet, from the time of a few steps.
    """

    size: Size
    material: Material
    factor: float
    parameters: int
    recipes: tuple[Recipe, ...]
    seeds: int
    hours: float


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The mean of several values, one per seed, with the smallest (`least`) and the largest (`most`) of them."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of `values`, which must not be empty."""
        return cls(mean=statistics.fmean(values), least=min(values), most=max(values))


@dataclass(kw_only=True)
class Learning:
    """The results of a study.

    Attributes:
        factor: average number of sequences per pack.
        curves: the learning curves, one for each recipe and seed.
        tuned: for each recipe by name, the accuracies of the classifiers fine-tuned from its weights, one per seed of
            fine-tuning.
    """

    factor: float
    curves: list[Curve] = field(default_factory=list)
    tuned: dict[str, list[float]] = field(default_factory=dict)

    def of(self, recipe: str) -> list[Curve]:
        """Return the curves of the recipe with this name, in order of their seeds."""
        return sorted((one for one in self.curves if one.recipe == recipe), key=lambda one: one.seed)

    def names(self) -> list[str]:
        """Return the names of the recipes that have curves, in the order in which they were first run."""
        return list(dict.fromkeys(one.recipe for one in self.curves))

    def _some(self, recipe: str) -> list[Curve]:
        found = self.of(recipe)
        if not found:
            raise OptionError(
                f"there is no curve of {recipe!r}; there are those of {', '.join(self.names()) or 'none'}"
            )
        return found

    def spread(self, recipe: str, what: str) -> Spread | None:
        """Return the spread over seeds of `what`, an attribute of a recipe's last `Point` such as "accuracy".

        The result is None if the attribute is None, as `next_accuracy` is for a recipe without next-sentence
        prediction.

        Raises:
            OptionError: the recipe has no curve.
        """
        values = [getattr(one.last, what) for one in self._some(recipe)]
        return None if None in values else Spread.of(values)

    def reached(self, recipe: str, accuracy: float, what: str) -> float | None:
        """Return how much of `what` a recipe takes until it reaches `accuracy`; `what` is an attribute of `Point`.

        With "seconds", for example, the result is the seconds of training until then, as a mean over seeds. For each
        seed, the value is interpolated linearly between the first point that has `accuracy` and the point before it. If
        the first of all points has it already, the value there counts. The result is None if a seed never reaches
        `accuracy`.

        Raises:
            OptionError: the recipe has no curve.
        """
        found = [_crossing(one.points, accuracy, what) for one in self._some(recipe)]
        return None if None in found else statistics.fmean(one for one in found if one is not None)


def _crossing(points: Sequence[Point], accuracy: float, what: str) -> float | None:
    if points[0].accuracy >= accuracy:
        return float(getattr(points[0], what))
    for before, after in itertools.pairwise(points):
        if before.accuracy < accuracy <= after.accuracy:
            share = (accuracy - before.accuracy) / (after.accuracy - before.accuracy)
            return float(getattr(before, what) + share * (getattr(after, what) - getattr(before, what)))
    return None


def prepare(size: Size, recipes: Sequence[Recipe], seeds: int, folder: Path | None = None) -> Prepared:
    """Read texts of Python's standard library, time a few steps, and return the study to run with its estimated time.

    Args:
        size: a value of the dict `SIZES`, or a `Size` of your own.
        recipes: the recipes to run, such as those that the function `nopad.study.learning.recipes` returns.
        seeds: number of seeds that each recipe runs with.
        folder: where results are kept, created if it does not exist; runs with a result there count as done. Nothing in
            it is changed, since another process may run a study there. None: results are not kept.

    Raises:
        FormatError: the results in `folder` are of a different study or of a recipe of the same name with other
            settings, or are damaged.
        LengthError: `size.documents` is below 100, or this machine's standard library has fewer than 100 texts of at
            least two sentences.
        StorageError: `folder` cannot be made, or the results in it cannot be read.
    """
    if folder is not None:
        _make(folder)
    given = material(size.capacity, size.vocabulary, size.documents)
    p = factor_of(given)
    done = {(one.recipe, one.seed) for one in _kept(folder, size, p, seeds, recipes).curves}
    few = replace(size, samples=4 * size.sequences, points=1, held_out=8)
    judged = held_out(given, few)
    per_slot: dict[str, float] = {}
    for recipe in (BASE, RIGHT):
        train(
            recipe, given, replace(few, samples=size.sequences), 0, judged
        )  # not timed, since the first steps also compile and allocate
        last = train(recipe, given, few, 0, judged)[0].last
        per_slot[recipe.way] = last.seconds / last.slots
    seconds = 0.0
    for recipe in recipes:
        slots = size.samples * size.capacity / (1 if recipe.way == "one per row" else p)
        left = sum((recipe.name, seed) not in done for seed in range(seeds))
        seconds += left * slots * per_slot.get(recipe.way, per_slot["packed"])
    parameters = sum(one.numel() for one in model_of(given, size, 0).parameters())
    return Prepared(
        size=size,
        material=given,
        factor=p,
        parameters=parameters,
        recipes=tuple(recipes),
        seeds=seeds,
        hours=1.1 * seconds / 3600,  # evaluation and fine-tuning take a tenth more
    )


def study_learning(
    prepared: Prepared,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Learning:
    """Train every recipe with every seed, fine-tune classifiers for some of the recipes, and return all results.

    Args:
        prepared: the study to run, from `prepare`.
        folder: where results are kept, created if it does not exist; runs with a result there are not run again. If
            another process runs a study in the folder, this waits until it ends. None: results are not kept.
        say: called with a line of text whenever a run or a recipe's fine-tuning is done.

    Raises:
        FormatError: the results in `folder` are of a different study or of a recipe of the same name with other
            settings, or are damaged; or weights that are to be fine-tuned are missing.
        StorageError: `folder` cannot be made or locked, or a result cannot be read or written.
    """
    if folder is not None:
        _make(folder)
    with nullcontext() if folder is None else locked(folder / ".lock"):  # another process waits, then finds all done
        return _studied(prepared, folder, say)


def _studied(prepared: Prepared, folder: Path | None, say: Callable[[str], None]) -> Learning:
    size, given = prepared.size, prepared.material
    found = _kept(folder, size, prepared.factor, prepared.seeds, prepared.recipes)
    if folder is not None:
        _begin(folder / RESULTS, size, prepared.factor)
    judged = held_out(given, size)
    weights: dict[tuple[str, int], Any] = {}
    for seed in range(prepared.seeds):  # all recipes with one seed first: a stopped study can still compare them
        for recipe in prepared.recipes:
            if any((one.recipe, one.seed) == (recipe.name, seed) for one in found.curves):
                continue
            begin = time.perf_counter()
            curve, weights[recipe.name, seed] = train(recipe, given, size, seed, judged)
            if recipe.name in TUNED:
                _keep_weights(folder, recipe.name, seed, weights[recipe.name, seed])
            found.curves.append(curve)
            _keep(folder, {"recipe": asdict(recipe), "curve": asdict(curve)})
            last = curve.last
            say(
                f"seed {seed}  {recipe.name:<32}{last.samples:>9,} samples {last.steps:>6,} steps "
                f"{time.perf_counter() - begin:7.1f} s  loss {last.masked_loss:.3f}  accuracy {last.accuracy:.1%}"
            )
    _tune(prepared, found, weights, folder, say)
    return found


def _tune(
    prepared: Prepared, found: Learning, weights: dict[tuple[str, int], Any], folder: Path | None, say: Any
) -> None:
    size, given = prepared.size, prepared.material
    sets = sets_of(given, size)
    for name in [one.name for one in prepared.recipes if one.name in TUNED]:
        done = found.tuned.setdefault(name, [])
        for seed in range(len(done), size.seeds):
            of = (name, seed % prepared.seeds)
            if of not in weights:
                weights[of] = _weights(folder, *of)
            done.append(tuned(weights[of], sets, given, size, seed))
            _keep(folder, {"tuned": name, "seed": seed, "weights": of[1], "accuracy": done[-1]})
        say(f"tuned   {name:<32}median accuracy {statistics.median(done):.1%} of {len(done)} seeds")


def _header(size: Size, factor: float) -> dict[str, Any]:
    return {"study": "learning", "size": asdict(size), "factor": factor}


def _begin(path: Path, size: Size, factor: float) -> None:
    """Prepare the results file at `path` for appending; the caller holds the lock.

    If there is no file, it is created with a header line. Otherwise a last line that was not written to its end, since
    the study was stopped, is removed. The caller has checked that the file is of this study (`_kept`).

    Raises:
        StorageError: the file cannot be read or written.
    """
    if not path.exists():
        write_atomic(path, (json.dumps(_header(size, factor)) + "\n").encode())
        return
    with storage_errors("reading", path):
        content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        write_atomic(path, content[: content.rfind(b"\n") + 1])


def _kept(folder: Path | None, size: Size, factor: float, seeds: int, recipes: Sequence[Recipe]) -> Learning:
    """Return the results in a folder that are of use to a study with this number of seeds, each result once.

    `size` and the packing `factor` say which study this is. Without a `folder`, there are no results. The folder is
    only read; a last line that is not written to its end is left out.

    Raises:
        FormatError: the folder is of another study, one of `recipes` ran there with other settings, or a line is no
            result.
        StorageError: the results file cannot be read.
    """
    found = Learning(factor=factor)
    if folder is None or not (folder / RESULTS).exists():
        return found
    path = folder / RESULTS
    with storage_errors("reading", path):
        content = path.read_bytes()
    try:
        lines = [from_json(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    except ValueError as error:
        raise FormatError(f"{path} is not of this study: {error}; choose another folder") from error
    if not lines or lines[0] != _header(size, factor):
        raise FormatError(f"{path} is of a study of another size, or of other texts; choose another folder")
    known = {one.name: asdict(one) for one in recipes}
    for number, line in enumerate(lines[1:], 2):
        try:
            ran = line.get("recipe")
            if "curve" in line and ran != known.get(line["curve"]["recipe"], ran):
                raise FormatError(
                    f"{path} has a run of the recipe {line['curve']['recipe']!r} with other settings; give the recipe "
                    "another name, or choose another folder"
                )
            _take(line, found, seeds)
        except (AttributeError, KeyError, TypeError) as error:
            raise FormatError(f"{path}: line {number} is no result of a study; choose another folder") from error
    return found


def _make(folder: Path) -> None:
    with storage_errors("creating", folder):
        folder.mkdir(parents=True, exist_ok=True)


def _take(line: dict[str, Any], found: Learning, seeds: int) -> None:
    """Add the result in `line`, one line of the results file, to `found`, if a study of `seeds` seeds needs it.

    A curve is left out if `found` has it already, or if its seed is not below `seeds`. An accuracy after fine-tuning is
    added only if its seed is the next one of its recipe, and if its weights are those that such a study would use.
    """
    if "curve" in line:
        made = Curve(**{**line["curve"], "points": tuple(Point(**point) for point in line["curve"]["points"])})
        if made.seed < seeds and all((one.recipe, one.seed) != (made.recipe, made.seed) for one in found.curves):
            found.curves.append(made)
        return
    done = found.tuned.setdefault(line["tuned"], [])
    if line["seed"] == len(done) and line["weights"] == line["seed"] % seeds:  # else from other weights
        done.append(line["accuracy"])


def _keep(folder: Path | None, line: dict[str, Any]) -> None:
    if folder is not None:
        with storage_errors("writing", folder / RESULTS), open(folder / RESULTS, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _place(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name.replace(' ', '_')}-{seed}.safetensors"


def _keep_weights(folder: Path | None, name: str, seed: int, weights: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save

    if folder is not None:
        write_atomic(_place(folder, name, seed), save({key: value.clone() for key, value in weights.items()}))


def _weights(folder: Path | None, name: str, seed: int) -> Any:
    from safetensors.torch import load_file

    assert folder is not None
    path = _place(folder, name, seed)
    if not path.is_file():
        raise FormatError(f"{path} is gone, whose curve {RESULTS} has; begin anew in another folder")
    return load_file(path)
