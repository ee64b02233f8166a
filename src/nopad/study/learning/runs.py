"""Run one pre-training of the study, and measure its learning curve.

A run is a function of its size, its `Recipe`, the material and a seed. The seed draws initial weights, order and masks.
So two runs with the same seed differ only by the settings of their recipes. Held-out pairs are always evaluated through
`nopad.packed`, however the model was trained: the results are the same as for each pair alone
(docs/internals/equality.md).
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
    """The size of a study: the numbers that define its model, its data and its runs.

    Attributes:
        layers: number of layers of the model.
        hidden: hidden size of the model.
        heads: number of attention heads per layer.
        vocabulary: number of tokens in the vocabulary.
        capacity: number of tokens in a row, and most tokens in a pair.
        documents: number of texts of the standard library to use; None: all.
        sequences: number of sequences per step without packing.
        samples: number of sequences to train on; a run ends after the step that reaches this number.
        rate: peak learning rate of LAMB.
        points: most evaluations during a run, not counting the one before its first step.
        held_out: most held-out pairs to evaluate on.
        tuned: most texts that classifiers are fine-tuned on afterwards.
        tests: most texts that these classifiers are tested on.
        seeds: number of classifiers, each with a different seed, for each recipe whose weights are fine-tuned.
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
        hidden=64,
        heads=4,
        vocabulary=1500,
        capacity=128,
        documents=None,
        sequences=32,
        samples=20_000,
        rate=1e-2,
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
    """The settings of one run. The defaults are nopad's, with as many sequences in a step as without packing.

    Below, p is the packing factor.

    Attributes:
        name: name of the recipe in tables and charts.
        way: how the model is fed: "packed" (as in nopad) or "one per row" (a row has one sequence). With the other
            ways, rows are packed, but attention or positions differ: "no mask" (sequences of a row see each other), "no
            reset" (positions go on from one sequence to the next), "neither" (both), or "segments" (each side of a pair
            sees only itself).
        larger: whether a step has p times as many sequences. Packs then take as many rows as a step without packing;
            with one sequence per row, a step takes p times as many rows.
        rate: the learning rate as a multiple of `Size.rate`; "factor": p times `Size.rate`.
        betas: "as they are": betas are not changed; "factor": both betas are raised to the power p.
        per: whether the loss of masked tokens is averaged over all tokens ("token"), or within each sequence first
            ("sequence").
        next_sentence: whether next-sentence prediction is learned too.
        greedy: whether sequences are packed in order of arrival, starting a new pack when the next does not fit.
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
    """One evaluation during a run; losses and accuracies are measured on held-out pairs.

    Attributes:
        samples: number of sequences trained on so far.
        tokens: number of tokens trained on so far, without padding.
        slots: number of slots trained on so far: tokens and padding.
        steps: number of optimiser steps so far.
        seconds: training time so far, without evaluation.
        masked_loss: mean loss per masked token; NaN, as after training has diverged, is stored as infinity.
        accuracy: share of the masked tokens that are predicted correctly, from 0 to 1.
        next_accuracy: share of the next-sentence labels that are predicted correctly, from 0 to 1; None if the recipe
            does not learn them.
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
    """A run's evaluations, from before the first step to after the last.

    Attributes:
        recipe: name of the run's recipe.
        seed: the run's seed.
        points: the evaluations, in order.
    """

    recipe: str
    seed: int
    points: tuple[Point, ...]

    @property
    def last(self) -> Point:
        """The evaluation after the last step."""
        return self.points[-1]


def factor_of(material: Material) -> float:
    """Return how many training sequences a pack holds on average, without a depth limit."""
    return plan(material.train.seq_lengths, material.capacity).packing_factor


def model_of(material: Material, size: Size, seed: int, **options: Any) -> Any:
    """Return a new BERT model with weights drawn by `seed`, in training mode, without dropout.

    `options` are further arguments of `transformers.BertConfig`. PyTorch's global random generator is set to `seed`.
    """
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
    """Return the loader of a run's training data.

    The recipe decides whether a row holds several sequences or one, and how many rows a step has.
    """
    p = factor_of(material)
    sequences = size.sequences * (p if recipe.larger else 1.0)
    how: dict[str, Any] = {"rows": max(round(sequences / p), 1)}
    if recipe.way == "one per row":
        how = {"rows": round(sequences), "depth": 1}
    elif recipe.greedy:  # greedy packs hold fewer sequences, so a step with equally many needs more rows
        packed = plan(material.train.seq_lengths, material.capacity, algorithm="greedy").packing_factor
        how = {"rows": max(round(sequences / packed), 1), "algorithm": "greedy"}
    masking = _masking(material, seed)
    return PackedLoader(material.train, material.capacity, seed=seed, collate=masking, prefetch=1, **how)


def held_out(material: Material, size: Size) -> list[PackedBatch]:
    """Return packed batches of at most `size.held_out` held-out pairs; all recipes and seeds get the same masks."""
    most = min(size.held_out, len(material.held_out))
    loader = PackedLoader(
        material.held_out.part(0, most), material.capacity, rows=32, last="fill", collate=_masking(material, 2**31)
    )
    return list(loader)


def train(
    recipe: Recipe, material: Material, size: Size, seed: int, judged: list[PackedBatch]
) -> tuple[Curve, dict[str, torch.Tensor]]:
    """Train a new model; return its curve, and its final weights as a state dict.

    Args:
        recipe: the settings of the run.
        material: the pairs to train on.
        size: the size of the model and of the run.
        seed: random seed for initial weights, order and masks.
        judged: the batches to evaluate on, from `held_out`.
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
