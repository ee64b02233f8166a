"""MiniLM fine-tuned on local pairs, packed and padded, a step of each in turn: what packing gains of its factor.

Each way trains in a process of its own, by transformers' `Trainer` or `nopad.training.PackedTrainer`, with as many
sequences a step. The processes take turns, one optimiser step each, so that a slow minute of the machine hits all of
them. What a step costs whatever its tokens are (clipping, AdamW, and the gradient of the embedding table, which is as
large as the table) is measured in the same steps, and the speeds are given with and without it. Records are tokenised
and packed before.

    python benchmarks/finetuning.py [--seeds 5] [--sequences 32 64] [--pairs 512] [--epochs 2] [--ways packed ...]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import logging
import multiprocessing
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from inputs import machine
from train import arguments

import nopad
from nopad.corpus import stdlib_texts
from nopad.tasks import Classification
from nopad.tasks.folder import default_folder
from nopad.training import PackedTrainer

CAPACITY, HELD_OUT = 128, 512
GRAPHICAL = ("idlelib/", "tkinter/", "turtle")
PADDED = f"padded to {CAPACITY}"
WAYS = ("packed", "packed, flat", PADDED, "padded per batch")


@dataclass
class Tuned:
    """One run: seconds of wall clock and of CPU, by step, and the accuracy on held-out pairs.

    Attributes:
        steps: (wall, CPU) of each step, with its batch and all that the Trainer does; the last one: the end of training.
        fixed: (wall, CPU) of clipping, optimiser and `zero_grad` of each step.
        model: (wall, CPU) of forward and backward of each step.
        table: seconds of CPU of a gradient of the embedding table for a single token.
        accuracy: the share of held-out pairs that are classified correctly.
    """

    steps: list[tuple[float, float]] = field(default_factory=list)
    fixed: list[tuple[float, float]] = field(default_factory=list)
    model: list[tuple[float, float]] = field(default_factory=list)
    table: float = 0.0
    accuracy: float = 0.0

    def total(self, clock: int, *, fixed: bool = True) -> float:
        """Return the seconds of all steps, with or without what a step costs whatever its tokens are."""
        seconds = sum(one[clock] for one in self.steps)
        return seconds if fixed else seconds - len(self.fixed) * self.fixed_cost(clock)

    def parts(self) -> list[tuple[float, float, float]]:
        """Return seconds of CPU by step: forward and backward; clipping, optimiser and `zero_grad`; all else."""
        of_all = zip(self.steps, self.model, self.fixed, strict=False)  # the last entry of `steps` is no step
        return [(model[1], fixed[1], whole[1] - model[1] - fixed[1]) for whole, model, fixed in of_all]

    def fixed_cost(self, clock: int) -> float:
        """Return the seconds of a step that do not depend on its tokens."""
        return statistics.median(one[clock] for one in self.fixed) + self.table


def pairs(count: int) -> list[dict[str, Any]]:
    """The first two long lines of docstrings and comments: of a graphical interface (1) or of other modules (0)."""
    draw = random.Random(0)
    of_kind: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for entry in stdlib_texts():
        lines = [line.strip() for line in entry["text"].splitlines() if len(line.strip()) >= 20]
        label = int(entry["file"].startswith(GRAPHICAL))
        if len(lines) >= 2:
            of_kind[label].append({"text": lines[0], "second": lines[1], "label": label})
    for made in of_kind:
        draw.shuffle(made)
        if len(made) < count // 2:
            raise SystemExit(f"the standard library has {len(made)} pairs of a kind, and {count // 2} are asked for")
    return [one for both in zip(*of_kind, strict=False) for one in both][:count]


class Turns(transformers.TrainerCallback):
    """Waits for a turn before each step of a Trainer, and times the parts of the step."""

    def __init__(self, pipe: Any, found: Tuned) -> None:
        self.pipe, self.found = pipe, found

    def over(self, trainer: Any) -> None:
        """Time forward and backward of a trainer, whose end is where the fixed part of a step begins."""
        step: Callable[..., Any] = trainer.training_step

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = _now()
            loss = step(*args, **kwargs)
            self.computed = _now()
            self.found.model.append(_since(start, self.computed))
            return loss

        trainer.training_step = timed

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Wait for the first turn."""
        self.wait()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Write down the step, and wait for the next turn."""
        self.found.fixed.append(_since(self.computed))
        self.end()
        self.wait()

    def wait(self) -> None:
        """Say that a turn is over, and go on when the next one begins."""
        self.pipe.send(None)
        self.pipe.recv()
        self.begun = _now()

    def end(self) -> None:
        """Write down the seconds of the turn."""
        self.found.steps.append(_since(self.begun))


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(start: tuple[float, float], end: tuple[float, float] | None = None) -> tuple[float, float]:
    wall, cpu = end or _now()
    return wall - start[0], cpu - start[1]


class Material:
    """The task, its examples and their packing factor; every process makes the same."""

    def __init__(self, options: argparse.Namespace) -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(default_folder())
        made = pairs(options.pairs + HELD_OUT)
        how: dict[str, Any] = {"pair": "second", "max_length": CAPACITY, "over_long": "truncate"}
        self.task = Classification(tokenizer, 2, **how)
        self.train, self.tested = self.task.encode(made[: options.pairs]), self.task.encode(made[options.pairs :])
        lengths = self.train.sequences.seq_lengths
        self.factor = nopad.plan(nopad.Histogram.from_lengths(lengths), CAPACITY).packing_factor
        self.mean = float(lengths.mean())

    def trainer(self, how: str, folder: str, sequences: int, seed: int, options: argparse.Namespace) -> Any:
        """Return a trainer with about so many sequences a step: those of a whole number of rows, on average."""
        same = {"learning_rate": options.rate, "seed": seed, "num_train_epochs": options.epochs}
        torch.manual_seed(seed)
        model = self.task.model(default_folder())
        rows = max(round(sequences / self.factor), 1)
        if how.startswith("packed"):
            loading = {"form": nopad.Flat()} if how == "packed, flat" else {}
            given = arguments(folder, **same, per_device_train_batch_size=rows)
            data = {"task": self.task, "train_dataset": self.train, "capacity": CAPACITY, "loading": loading}
            return PackedTrainer(model, given, **data, quiet=True)
        made = self.train.sequences
        columns = [
            {name: column[b : b + n].tolist() for name, column in made.tokens.items()} | {"labels": int(label)}
            for b, n, label in zip(made.begins, made.seq_lengths, made.values["labels"], strict=True)
        ]
        width = {"padding": "max_length", "max_length": CAPACITY} if how == PADDED else {}
        collate = transformers.DataCollatorWithPadding(self.task.tokenizer, **width)
        given = arguments(folder, **same, per_device_train_batch_size=round(rows * self.factor))
        return transformers.Trainer(model, given, collate, columns)

    def tuned(self, how: str, pipe: Any, sequences: int, seed: int, options: argparse.Namespace) -> Tuned:
        """Train in turns, and return what a run took and learned."""
        found = Tuned()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            trainer, turns = self.trainer(how, folder, sequences, seed, options), Turns(pipe, found)
            trainer.add_callback(turns)
            turns.over(trainer)
            trainer.train()
            turns.end()
            found.table = _table(trainer.model)
            tested = {"task": self.task, "eval_dataset": self.tested, "capacity": CAPACITY}
            judge = PackedTrainer(trainer.model, arguments(folder), **tested, quiet=True)
            found.accuracy = judge.evaluate()["eval_accuracy"]
        return found


def _table(model: Any) -> float:
    """Return the seconds of CPU of a gradient of the embedding table: one token's, in zeros as large as the table."""
    table, taken = model.get_input_embeddings(), []
    for _ in range(5):
        model.zero_grad()
        result = table(torch.zeros(1, dtype=torch.long)).sum()
        start = time.process_time()
        result.backward()
        model.zero_grad()  # what frees it is part of it
        taken.append(time.process_time() - start)
    return min(taken)


def _work(pipe: Any, how: str, options: argparse.Namespace) -> None:
    """Train one way, once for each (sequences a step, seed) that comes from the pipe, until None comes."""
    _still()
    material = Material(options)
    pipe.send((material.factor, material.mean))
    for sequences, seed in iter(pipe.recv, None):
        pipe.send(material.tuned(how, pipe, sequences, seed, options))


def _still() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def in_turns(pipes: dict[str, Any], sequences: int, seed: int) -> dict[str, Tuned]:
    """Run all ways with one seed, one step of each in turn, in alternating order."""
    for pipe in pipes.values():
        pipe.send((sequences, seed))
        pipe.recv()  # it waits for its first turn
    found: dict[str, Tuned] = {}
    for turn in itertools.count():
        left = [how for how in pipes if how not in found]
        if not left:
            return found
        for how in left[:: -1 if turn % 2 else 1]:
            pipes[how].send(None)
            answer = pipes[how].recv()
            if answer is not None:
                found[how] = answer
    raise AssertionError


def said(found: dict[str, list[Tuned]], sequences: int, factor: float, count: int) -> None:
    """Print what the runs with so many sequences a step took and learned."""
    for how, runs in found.items():
        parts = zip(*[one for run in runs for one in run.parts()], strict=True)
        model, fixed, rest = (statistics.median(each) * 1e3 for each in parts)
        table = statistics.median(run.table for run in runs) * 1e3
        accuracies = [run.accuracy for run in runs]
        each = count / len(runs[0].fixed)
        print(
            f"  {how}, {each:.1f} sequences a step, ms of CPU: forward and backward {model:.0f} (of it the table's gradient "
            f"{table:.0f}), clipping and AdamW {fixed:.0f}, loader and Trainer {rest:.1f}\n"
            f"    accuracy {statistics.mean(accuracies):.4f} +- {statistics.pstdev(accuracies):.4f}: "
            f"{', '.join(f'{one:.3f}' for one in accuracies)}"
        )
    if PADDED not in found:
        return
    for how in [name for name in found if name.startswith("packed")]:
        print(
            f"  {how} beside {PADDED}, {sequences} sequences a step, median of the seeds, of the factor {factor:.3f}:"
        )
        both = list(zip(found[PADDED], found[how], strict=True))
        for what, clock in (("wall clock", 0), ("CPU", 1)):
            times = statistics.median(f.total(clock) / p.total(clock) for f, p in both)
            rest = statistics.median(f.total(clock, fixed=False) / p.total(clock, fixed=False) for f, p in both)
            most = statistics.median(_most(f, clock, factor) for f, _ in both)
            print(
                f"    {what:<10} {times:.2f} x = {times / factor:.3f} of the factor (target 0.95); without the fixed "
                f"cost {rest:.2f} x = {rest / factor:.3f}; {most / factor:.3f} if only the fixed cost were in the way"
            )
        apart = abs(statistics.mean(f.accuracy - p.accuracy for f, p in both))
        spread = max(statistics.pstdev(run.accuracy for run in found[name]) for name in (how, PADDED))
        print(f"    mean accuracies are {apart:.4f} apart, the spread of the seeds is {spread:.4f}", flush=True)


def _most(run: Tuned, clock: int, factor: float) -> float:
    """Return the speed-up of a padded run if its steps took 1 / `factor` of the time, and their fixed cost as before."""
    return run.total(clock) / (run.total(clock, fixed=False) / factor + len(run.fixed) * run.fixed_cost(clock))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each way")
    parser.add_argument("--sequences", type=int, nargs="+", default=[32], help="a step; several are measured in turn")
    parser.add_argument("--pairs", type=int, default=512, help="to learn from")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--rate", type=float, default=1e-4, help="the learning rate")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["packed", PADDED])
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(
        f"fine-tuning in turns: {machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}", flush=True
    )
    context, pipes, processes = multiprocessing.get_context("spawn"), {}, []
    for how in options.ways:
        pipes[how], theirs = context.Pipe()
        processes.append(context.Process(target=_work, args=(theirs, how, options), daemon=True))
        processes[-1].start()
        theirs.close()
    (factor, mean), *_ = [pipe.recv() for pipe in pipes.values()]
    print(f"MiniLM on {options.pairs} pairs of lines, mean {mean:.1f} tokens; factor at {CAPACITY}: {factor:.3f}")
    for sequences in options.sequences:
        found: dict[str, list[Tuned]] = {how: [] for how in options.ways}
        for seed in range(options.seeds):
            for how, run in in_turns(pipes, sequences, seed).items():
                found[how].append(run)
            walls = ", ".join(
                f"{how} {runs[-1].total(0):.1f} s, {runs[-1].accuracy:.4f}" for how, runs in found.items()
            )
            print(f"  {sequences} a step, seed {seed}: {walls}", flush=True)
        said(found, sequences, factor, round(options.pairs * options.epochs))
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(None)
        process.join()


if __name__ == "__main__":
    main()
