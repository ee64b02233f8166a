"""What contamination costs: one small BERT trained four times on the same packs, and evaluated on sequences by themselves.

Right: nopad. Without the block mask: sequences of a row see each other, positions restart. Without restarting positions:
the mask is right, positions count on through the row. Neither: rows as one long text. Everything else is equal: seed,
weights, rows, masked tokens, order. Before that, 20 steps of the right way beside batches padded sequence by sequence.

The texts are the docstrings and comments of the standard library; tokens outside the 4,000 commonest are unknown.

    python benchmarks/contamination.py [--steps 400] [--seeds 3] [--picture docs/pictures/contamination.svg]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from inputs import machine

import nopad
from nopad.batch import PackedBatch
from nopad.corpus import stdlib_texts
from nopad.losses import Accuracy, token_denominator, token_loss
from nopad.model.safety import is_packed
from nopad.random import key, shuffle
from nopad.sequences import IGNORED

CAPACITY, ROWS, VOCABULARY = 256, 16, 4_000
MASK, UNKNOWN, PAD, FIRST, LAST, SPECIAL = 1, 2, 0, 3, 4, 5
HELD_OUT = 1_500
EVERY = 50
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": CAPACITY,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
Point = tuple[int, float, float, float]  # step, training loss since the point before, loss and accuracy held out
WAYS = {
    "right: nopad": (True, True),
    "no block mask": (False, True),
    "no position reset": (True, False),
    "neither": (False, False),
}


def texts() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Sequences to train on, and held out ones, at most `CAPACITY` tokens each."""
    tokenizer = nopad.load_tokenizer()
    ids = tokenizer.encode([entry["text"] for entry in stdlib_texts()])
    counts = np.bincount(np.concatenate(ids))
    commonest = np.argsort(-counts, kind="stable")[: VOCABULARY - SPECIAL]
    number = np.full(counts.size, UNKNOWN)
    number[commonest] = np.arange(SPECIAL, SPECIAL + commonest.size)
    known = [np.concatenate([[FIRST], number[one[: CAPACITY - 2]], [LAST]]) for one in ids if one.size >= 4]
    order = list(range(len(known)))
    shuffle(order, key(0))
    mixed = [known[at] for at in order]
    return mixed[HELD_OUT:], mixed[:HELD_OUT]


def masked(ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Hide 15 % of the tokens, special ones never; (what the model sees, labels)."""
    hidden = (rng.random(ids.size) < 0.15) & (ids >= SPECIAL)
    return np.where(hidden, MASK, ids), np.where(hidden, ids, IGNORED)


def batches(sequences: list[np.ndarray], seed: int) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    """Sequences of a step, masked, for ever: as many as fill 16 rows of 256, by the packs of one plan an epoch."""
    rng = np.random.default_rng(seed)
    lengths = [len(one) for one in sequences]
    packs = nopad.assign(nopad.plan(lengths, CAPACITY), lengths, seed=seed)
    rows = [packs[at].tolist() for at in range(len(packs))]
    while True:
        for at in rng.permutation(len(rows) // ROWS):
            chosen = [number for row in rows[at * ROWS : (at + 1) * ROWS] for number in row]
            yield [masked(sequences[number], rng) for number in chosen]


def packed_batch(step: list[tuple[np.ndarray, np.ndarray]]) -> PackedBatch:
    return PackedBatch.from_sequences(
        [seen for seen, _ in step],
        columns={"labels": [labels for _, labels in step]},
        form=nopad.Rows(CAPACITY),
    )


def positions(batch: PackedBatch, reset: bool) -> torch.Tensor:
    """Positions within sequences, or within rows."""
    own: torch.Tensor = batch["position_ids"]
    return own if reset else torch.arange(own.shape[1]).expand(own.shape)


def logits_of(model: Any, batch: PackedBatch, isolated: bool, reset: bool) -> torch.Tensor:
    """A model that is not pack-safe gets a mask of real tokens only, and all tokens of a row see each other."""
    inputs = {**batch, "position_ids": positions(batch, reset)}
    del inputs["labels"]
    if not isolated:
        inputs["attention_mask"] = torch.from_numpy((batch.layout.sequence_ids > 0).astype(np.int64))
    found: torch.Tensor = model(**inputs).logits
    return found


PANELS = {"in training, as each way has it": 1, "held out, sequences alone": 2}


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)).train()


def evaluate(model: Any, held_out: list[np.ndarray]) -> tuple[float, float]:
    """Loss and accuracy of masked tokens on sequences by themselves (equal to packed, see docs/internals/equality.md)."""
    rng = np.random.default_rng(1)
    was_packed = is_packed(model)
    if not was_packed:
        nopad.packed(model, backend="mask")
    total, count, accuracy = 0.0, 0.0, Accuracy()
    with torch.no_grad():
        for at in range(0, len(held_out), 150):
            batch = packed_batch([masked(one, rng) for one in held_out[at : at + 150]])
            found = logits_of(model, batch, True, True)
            total += float(token_loss(found, batch["labels"], batch, denominator=1.0))
            count += float(token_denominator(batch["labels"], batch))
            accuracy.add(found, batch["labels"], batch)
    if not was_packed:
        nopad.unpacked(model)
    return total / count, accuracy.value


def train(way: str, seed: int, steps: int, sequences: list[np.ndarray], held_out: list[np.ndarray]) -> list[Point]:
    """Train one way; a point of its curve every 50 steps."""
    isolated, reset = WAYS[way]
    model = nopad.packed(model_of(seed), backend="mask") if isolated else model_of(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    curve: list[Point] = []
    since: list[float] = []
    for step, chosen in zip(range(1, steps + 1), batches(sequences, seed), strict=False):
        batch = packed_batch(chosen)
        loss = token_loss(logits_of(model, batch, isolated, reset), batch["labels"], batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        since.append(float(loss.detach()))
        if step % EVERY == 0 or step == steps:
            curve.append((step, statistics.fmean(since), *evaluate(model, held_out)))
            since.clear()
    return curve


def beside_padded(sequences: list[np.ndarray], steps: int = 20) -> float:
    """The largest difference of a step's loss between packs and the same sequences padded."""
    losses: dict[str, list[float]] = {"packed": [], "padded": []}
    for name, seen in losses.items():
        model = nopad.packed(model_of(0), backend="mask") if name == "packed" else model_of(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for _, step in zip(range(steps), batches(sequences[:3_000], 0), strict=False):
            chosen = step[:24]  # padded, all of them would take eleven times as long
            batch = packed_batch(chosen)
            whole = token_denominator(batch["labels"], batch)
            optimizer.zero_grad(set_to_none=True)
            if name == "packed":
                loss = token_loss(logits_of(model, batch, True, True), batch["labels"], batch)
            else:
                width = max(len(ids) for ids, _ in chosen)
                ids, labels = (
                    torch.tensor(
                        np.stack(
                            [np.pad(one[side], (0, width - len(one[side])), constant_values=fill) for one in chosen]
                        )
                    )
                    for side, fill in ((0, PAD), (1, IGNORED))
                )
                out = model(input_ids=ids, attention_mask=(ids != PAD).long()).logits
                loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), labels.flatten(), reduction="sum") / whole
            loss.backward()
            optimizer.step()
            seen.append(float(loss.detach()))
    return max(abs(a - b) for a, b in zip(*losses.values(), strict=True))


def picture(curves: dict[str, list[list[Point]]], path: Path) -> None:
    """Training loss, and loss of what is held out: one line a way, the mean over seeds."""
    import altair as alt

    points = [
        {"step": step, "loss": statistics.fmean(run[at][which] for run in runs), "way": way, "panel": panel}
        for way, runs in curves.items()
        for at, (step, *_) in enumerate(runs[0])
        for panel, which in PANELS.items()
    ]
    room = {"left": 5, "top": 5, "bottom": 5, "right": 25}
    lines = (
        alt.Chart(alt.Data(values=points))
        .mark_line(point=True)
        .encode(
            x=alt.X("step:Q", title="step"),
            y=alt.Y("loss:Q", title="masked-LM loss", scale=alt.Scale(zero=False)),
            color=alt.Color("way:N", title=None, sort=list(WAYS), scale=alt.Scale(scheme="tableau10")),
        )
        .properties(width=300, height=260)
        .facet(column=alt.Column("panel:N", title=None, sort=list(PANELS)))
        .properties(padding=room)
    )
    lines.save(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    sequences, held_out = texts()
    print(f"contamination: {machine()}; {len(sequences):,} sequences, {sum(map(len, sequences)):,} tokens", flush=True)
    print(f"largest difference to padded in 20 steps' losses: {beside_padded(sequences):.1e}", flush=True)
    curves: dict[str, list[list[Point]]] = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        for way in WAYS:
            start = time.perf_counter()
            curves[way].append(train(way, seed, options.steps, sequences, held_out))
            held_out_losses = " ".join(f"{point[2]:.2f}" for point in curves[way][-1])
            _, training, loss, accuracy = curves[way][-1][-1]
            print(
                f"  seed {seed}, {way:<18} training {training:.3f}, held out {loss:.3f}, accuracy {accuracy:.1%}"
                f"   ({time.perf_counter() - start:.0f} s; held out every {EVERY} steps: {held_out_losses})",
                flush=True,
            )
    print(f"\nmeans of {options.seeds} seeds (least to most): held-out sequences alone, after the last step")
    print(f"  {'':<20}{'training':>9}{'loss':>24}{'perplexity':>12}{'accuracy':>24}")
    for way, runs in curves.items():
        training, losses, accuracies = ([run[-1][which] for run in runs] for which in (1, 2, 3))
        loss, accuracy = statistics.fmean(losses), statistics.fmean(accuracies)
        spread = f"({min(losses):.3f} to {max(losses):.3f})"
        shares = f"({min(accuracies):.1%} to {max(accuracies):.1%})"
        print(
            f"  {way:<20}{statistics.fmean(training):9.3f}{loss:8.3f} {spread}{np.exp(loss):11.1f}{accuracy:8.1%} {shares}"
        )
    if options.picture:
        picture(curves, options.picture)


if __name__ == "__main__":
    main()
