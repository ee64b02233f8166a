"""The speed-up of packed pre-training beside the packing factor, by depth: the paper's Table 1 with measured columns.

Lengths are those of Wikipedia-512 (the published histogram where it is at hand), and for capacities of 128 and 384 the
same shape below the capacity with as many sequences of full length as give the paper's factors, 1.17 and 1.70. A step is
forward, backward and optimiser of ``BertForPreTraining``, both losses. "mask" is rows with a block mask, as in the paper;
its overhead (OH) is what a row with packs costs more than a padded one, which holds one sequence. "segments" is nopad's
stream without padding. All are timed in turns, in one process. Measured are the median seconds per row (of "segments": per
token); rates follow from the sequences per row (the packing factor) and tokens per sequence of all the data, since the few
batches of a turn hold more or fewer sequences by chance. "padded" is transformers alone, with its own loss; `mask` at
depth 1 is the same rows with nopad's loss and backward pass, so the last lines tell what packs gain, and what the loss.

    python benchmarks/realised.py [--model mini|base] [--capacity 128 384 512] [--depth 1 2 3 4 8 max] [--turns 3]
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import transformers
from inputs import machine, wikipedia

import nopad
from nopad.sequences import Sequences
from nopad.tasks import OfPretraining

SLOTS = {"mini": 2048, "base": 1024}  # of a step
STEPS = {"mini": 3, "base": 2}  # of one turn
SIZES = {
    "mini": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536, "num_attention_heads": 12},
    "base": {},
}
FACTORS = {128: 1.17, 384: 1.70}  # published
PREDICTED = 0.15
VOCABULARY = 30_522


def lengths_of(capacity: int, tokens: int) -> np.ndarray:
    """Return lengths of about so many tokens, shaped like Wikipedia's at this capacity."""
    histogram, _ = wikipedia()
    below = histogram.lengths < 512
    lengths, counts = histogram.lengths[below], histogram.counts[below]
    if capacity == 512:
        full = 1 - counts.sum() / histogram.sequences
    else:  # 1 / factor = full + (1 - full) * mean of the rest
        rest = float((lengths * counts).sum() / counts.sum() / 512)
        full = (1 / FACTORS[capacity] - rest) / (1 - rest)
    draw = np.random.default_rng(0)
    n = 4 * tokens // capacity
    drawn = np.maximum(draw.choice(lengths, n, p=counts / counts.sum()) * capacity // 512, 5)
    drawn = np.where(draw.random(n) < full, capacity, drawn)
    return drawn[: max(int(np.searchsorted(np.cumsum(drawn), tokens)), 64)].astype(np.int32)


def data_of(lengths: np.ndarray) -> Sequences:
    """Return pairs of random tokens of these lengths, 15 % of them masked."""
    draw = np.random.default_rng(1)
    total = int(lengths.sum())
    ids = draw.integers(1000, VOCABULARY - 1, total).astype(np.int32)
    labels = np.where(draw.random(total) < PREDICTED, ids, -100).astype(np.int32)
    return Sequences(
        seq_lengths=lengths,
        tokens={"input_ids": ids, "labels": labels, "token_type_ids": np.zeros(total, np.int32)},
        values={"next_sentence_label": np.arange(lengths.size) % 2},
    )


class Timed:
    """Steps of one way of feeding one model; sequences per second of each turn, at `per_unit` per row or token."""

    def __init__(
        self, model: Any, batches: Callable[[], Iterator[Any]], backend: str | None, steps: int, per_unit: float
    ) -> None:
        self.model, self.backend, self.steps, self.per_unit = model, backend, steps, per_unit
        self._batches, self._left = batches, batches()
        self.found: list[float] = []
        self.objective = OfPretraining()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def _next(self) -> Any:
        batch = next(self._left, None)
        if batch is None:
            self._left = self._batches()
            batch = next(self._left)
        return batch

    def turn(self) -> None:
        """Time some steps; batches are made beforehand, as a loader's prefetching makes them."""
        if self.backend is not None:
            nopad.packed(self.model, backend=self.backend)
        taken = [self._next() for _ in range(self.steps)]
        begin = time.perf_counter()
        for batch in taken:
            self._step(batch)
        spent = time.perf_counter() - begin
        units = sum(batch.layout.tokens if self.backend == "segments" else batch.layout.shape[0] for batch in taken)
        self.found.append(units * self.per_unit / spent)
        if self.backend is not None:
            nopad.unpacked(self.model)

    def _step(self, batch: Any) -> None:
        if self.backend is None:
            mask = torch.from_numpy((batch.layout.sequence_ids > 0).astype(np.int64))
            names = ("input_ids", "token_type_ids", "labels", "next_sentence_label")
            loss = self.model(**{name: batch[name] for name in names}, attention_mask=mask).loss
        else:
            loss, _ = self.objective.step(self.model, batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def median(self) -> float:
        """Sequences per second."""
        return statistics.median(self.found)


def table(kind: str, capacity: int, depths: list[int | None], turns: int) -> None:
    """Print one capacity's table."""
    torch.manual_seed(0)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformers.BertForPreTraining(transformers.BertConfig(**SIZES[kind], **still)).train()
    rows, steps = SLOTS[kind] // capacity, STEPS[kind]
    data = data_of(lengths_of(capacity, 2 * SLOTS[kind] * steps * max(turns, 4)))

    def loader(**how: Any) -> Callable[[], Iterator[Any]]:
        made = nopad.PackedLoader(data, last="drop", **how)
        return lambda: iter(made)

    ways = {"padded": Timed(model, loader(capacity=capacity, rows=rows, depth=1), None, steps, 1.0)}
    factors = {}
    for depth in depths:
        factors[depth] = nopad.plan(data.seq_lengths, capacity, depth=depth).packing_factor
        batches = loader(capacity=capacity, rows=rows, depth=depth)
        ways[f"mask {depth}"] = Timed(model, batches, "mask", steps, factors[depth])
    per_token = data.seq_lengths.size / int(data.seq_lengths.sum())
    ways["segments"] = Timed(model, loader(tokens=SLOTS[kind]), "segments", steps, per_token)
    for each in ways.values():
        each.turn()
        each.found.clear()
    for _ in range(turns):
        for each in ways.values():
            each.turn()
    _show(kind, capacity, data, ways, factors)


def _show(kind: str, capacity: int, data: Sequences, ways: dict[str, Timed], factors: dict[int | None, float]) -> None:
    padded, lengths = ways["padded"].median, data.seq_lengths
    limit = capacity * lengths.size / int(lengths.sum())
    print(
        f"\n{kind}, capacity {capacity}: {lengths.size:,} sequences, limit {limit:.3f}, padded {padded:.2f} sequences/s"
    )
    print("  depth  EFF %       p   OH %  realised  of p")
    for depth, p in factors.items():
        realised = ways[f"mask {depth}"].median / padded
        shown = f"  {depth or 'max':>5}{100 * p / limit:7.1f}{p:8.3f}{100 * (1 - realised / p):7.2f}{realised:10.3f}"
        print(f"{shown}{realised / p:6.2f}")
    best, realised = max(factors.values()), ways["segments"].median / padded
    deepest = list(factors)[-1]
    print(f"  segments, no padding: {realised:.3f} x padded = {realised / best:.2f} of p (target > 1)")
    if 1 in factors:  # one sequence per row, so all that packs do not do is the same
        same = ways["segments"].median / ways["mask 1"].median
        print(f"  segments beside padded rows with nopad's loss: {same:.3f} x = {same / best:.2f} of p")
    of = ways[f"mask {deepest}"].median / padded / factors[deepest]
    print(f"  mask at depth {deepest or 'max'}: {of:.2f} of p (target 0.95)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SIZES), default="mini")
    parser.add_argument("--capacity", type=int, nargs="+", default=[128, 384, 512], choices=[128, 384, 512])
    parser.add_argument("--depth", nargs="+", default=["1", "2", "3", "4", "8", "max"])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    print(f"realised speed-up: {machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"lengths: {wikipedia()[1]}", flush=True)
    depths = [None if one == "max" else int(one) for one in options.depth]
    for capacity in options.capacity:
        table(options.model, capacity, depths, options.turns)


if __name__ == "__main__":
    main()
