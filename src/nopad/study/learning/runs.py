"""One run of pre-training, and its curve.

A run is a function of its `Recipe`, the material and a seed: weights, order and masks follow from the seed alone, so
two recipes with one seed differ only in what they say. Held-out pairs are evaluated through `nopad.packed`, whatever
the model was trained with; packed or alone is the same there (docs/equality.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from nopad.batch import PackedBatch
from nopad.loading import PackedLoader
from nopad.losses.means import Per
from nopad.planning import plan
from nopad.study.learning.material import Material
from nopad.study.learning.ways import Way, feeding
from nopad.tasks import Masking, OfPretraining
from nopad.training import Lamb, Schedule, decay_groups

__all__ = ["SIZES", "Curve", "Point", "Recipe", "Size", "batches", "factor_of", "held_out", "model_of", "train"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a study is.

    Attributes:
        layers, hidden, heads, vocabulary, capacity: of the model, and of its rows.
        documents: texts of the standard library that it reads; None: all.
        sequences: of a step, without packing.
        samples: sequences that a run trains on.
        rate: learning rate of LAMB.
        points: evaluations of a run.
        held_out: pairs that are held out.
        tuned, tests, seeds: texts to tune on afterwards, texts to test that on, and how often.
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    capacity: int
    documents: int | None
    sequences: int
    samples: int
    rate: float
    points: int
    held_out: int
    tuned: int
    tests: int
    seeds: int


SIZES = {
    "toy": Size(
        layers=1,
        hidden=32,
        heads=2,
        vocabulary=1500,
        capacity=128,
        documents=400,
        sequences=16,
        samples=64,
        rate=4e-3,
        points=2,
        held_out=30,
        tuned=30,
        tests=30,
        seeds=2,
    ),
    "quick": Size(
        layers=2,
        hidden=128,
        heads=4,
        vocabulary=3000,
        capacity=128,
        documents=None,
        sequences=64,
        samples=25_600,
        rate=5e-3,
        points=10,
        held_out=1000,
        tuned=1200,
        tests=1000,
        seeds=10,
    ),
    "full": Size(
        layers=6,
        hidden=256,
        heads=4,
        vocabulary=8000,
        capacity=128,
        documents=None,
        sequences=128,
        samples=400_000,
        rate=5e-3,
        points=25,
        held_out=2500,
        tuned=3000,
        tests=2000,
        seeds=10,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What one run does; by default what nopad does, with as many sequences in a step as without packing.

    Attributes:
        name: in tables and pictures.
        way: how the model is fed.
        larger: a step has as many rows as one without packing has, so p times as many sequences, p being the packing
            factor; one sequence per row: p times as many rows.
        rate: multiple of the learning rate; "factor": p.
        betas: 1, or "factor": both betas to the power p.
        per: the mean of masked tokens.
        next_sentence: whether next sentences are learned.
        greedy: sequences are packed as they come, until the next does not fit.
    """

    name: str
    way: Way = "packed"
    larger: bool = False
    rate: float | Literal["factor"] = 1.0
    betas: Literal["as they are", "factor"] = "as they are"
    per: Per = "token"
    next_sentence: bool = True
    greedy: bool = False


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where a run is; losses and accuracies are of held-out pairs.

    Attributes:
        samples, tokens, slots, steps: trained on so far; slots are tokens with padding.
        seconds: of training so far, without evaluation.
        masked_loss, accuracy: of masked tokens.
        next_accuracy: of next sentences; None where they are not learned.
    """

    samples: int
    tokens: int
    slots: int
    steps: int
    seconds: float
    masked_loss: float
    accuracy: float
    next_accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A run's points, from before the first step to after the last."""

    recipe: str
    seed: int
    points: tuple[Point, ...]

    @property
    def last(self) -> Point:
        """The last point."""
        return self.points[-1]


def factor_of(material: Material) -> float:
    """Return sequences per pack of what is trained on, without a limit of depth."""
    return plan(material.train.seq_lengths, material.capacity).packing_factor


def model_of(material: Material, size: Size, seed: int, **options: Any) -> Any:
    """Return a new model, in training mode; without dropout, so that runs differ in nothing but their recipes."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(material.task.tokenizer),
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.hidden,
        max_position_embeddings=material.capacity,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **options,
    )
    return transformers.BertForPreTraining(config).train()


def _masking(material: Material, seed: int) -> Masking:
    most = material.task.masking.masks.max_predictions
    return Masking(material.task.tokenizer, seed=seed, max_predictions=most, marked=True)


def batches(recipe: Recipe, material: Material, size: Size, seed: int) -> PackedLoader:
    """Return the loader of a run: rows, of several sequences or of one."""
    p = factor_of(material)
    sequences = size.sequences * (p if recipe.larger else 1.0)
    how: dict[str, Any] = {"rows": max(round(sequences / p), 1)}
    if recipe.way == "one per row":
        how = {"rows": round(sequences), "depth": 1}
    elif recipe.greedy:
        how["algorithm"] = "greedy"
    masking = _masking(material, seed)
    return PackedLoader(material.train, material.capacity, seed=seed, collate=masking, prefetch=1, **how)


def held_out(material: Material, size: Size) -> list[PackedBatch]:
    """Return the pairs that are held out, packed, with masks that are always the same."""
    most = min(size.held_out, len(material.held_out))
    loader = PackedLoader(
        material.held_out.part(0, most), material.capacity, rows=32, last="fill", collate=_masking(material, 2**31)
    )
    return list(loader)


def train(
    recipe: Recipe, material: Material, size: Size, seed: int, judged: list[PackedBatch]
) -> tuple[Curve, dict[str, torch.Tensor]]:
    """Train a new model and return its curve, and its weights afterwards.

    Args:
        recipe: what the run does.
        material: what it reads.
        size: of model and run.
        seed: of weights, order and masks.
        judged: of `held_out`.
    """
    p = factor_of(material)
    model = model_of(material, size, seed)
    power = p if recipe.betas == "factor" else 1.0
    rate = size.rate * (p if recipe.rate == "factor" else recipe.rate)
    optimizer = Lamb(decay_groups(model), lr=rate, betas=(0.9**power, 0.999**power))
    schedule = Schedule(warmup=0.1, total=size.samples)
    objective = OfPretraining(recipe.per, next_sentence=recipe.next_sentence)
    points = [_point(model, judged, recipe, (0, 0, 0, 0), 0.0)]
    done, slots, seconds, tokens, steps = 0, 0, 0.0, 0, 0
    feed, begin = feeding(model, recipe.way), time.perf_counter()
    for batch in _endless(batches(recipe, material, size, seed)):
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule.ratio(done)
        objective.loss(feed(batch), batch, objective.denominator(batch)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        done, tokens, steps = done + batch.layout.sequences, tokens + batch.layout.tokens, steps + 1
        slots += batch.layout.slots
        if done >= size.samples * len(points) / size.points:
            seconds += time.perf_counter() - begin
            points.append(_point(model, judged, recipe, (done, tokens, slots, steps), seconds))
            if done >= size.samples:
                break
            feed, begin = feeding(model, recipe.way), time.perf_counter()
    return Curve(recipe=recipe.name, seed=seed, points=tuple(points)), model.state_dict()


def _endless(loader: PackedLoader) -> Iterator[PackedBatch]:
    while True:
        yield from loader


def _point(
    model: Any, judged: list[PackedBatch], recipe: Recipe, seen: tuple[int, int, int, int], seconds: float
) -> Point:
    feed, meter = feeding(model, "packed"), OfPretraining().meter()
    with torch.no_grad():
        for batch in judged:
            meter.add(feed(batch), batch)
    found = meter.values()
    samples, tokens, slots, steps = seen
    return Point(
        samples=samples,
        tokens=tokens,
        slots=slots,
        steps=steps,
        seconds=seconds,
        masked_loss=found["masked_loss"] if math.isfinite(found["masked_loss"]) else math.inf,
        accuracy=found["accuracy"],
        next_accuracy=found["next_sentence_accuracy"] if recipe.next_sentence else None,
    )
