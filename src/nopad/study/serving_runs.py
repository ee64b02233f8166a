"""Measure PopRT's packed serving by real runs: PopRT's requests, in its own ways and in nopad's.

The requests have the lengths of PopRT's examples (`nopad.study.serving`); only the first requests are used, as many as
fill a few batches with one request per row. Their tokens are random. In a first run, all requests wait from the
beginning, as in PopRT's throughput test. The ways take turns, twice. This run gives the requests per second, in the
faster turn, and how much hidden states differ from those of the original way. In a second run, the requests arrive at
random times, the same for all ways: 0.6 times as many per second as the original way answers. This run gives the
latency: the time from when a request arrives until its answer is there.

The original way is the model as it is, on batches padded to a grid (a fixed number of rows and of tokens per row), one
request per row. PopRT's ways fill static grids of the same shape, so that their batches take about equally long;
nopad's way is flat batches without padding.

BERT is all-MiniLM-L6-v2; DeBERTa is a DeBERTa-v2 of the same size with random weights. `Grid.separator` is not used: a
`PackRunner` needs no empty slots between requests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nopad.batch import PackedBatch
from nopad.model.safety import packed
from nopad.options import check_integer
from nopad.random import draw, key
from nopad.serving.batching import Batching
from nopad.serving.forward import Tensors
from nopad.serving.runner import PackRunner
from nopad.study.serving import Grid, workload
from nopad.tasks.lanes import Lanes

__all__ = ["WAYS", "RealRow", "model_for", "real_rows"]

BATCHES = {"BERT-base": 6, "DeBERTa": 10}  # batches with one request per row; together they take about two minutes
LOAD = 0.6
TURNS = 2
WAYS = ("one request per row", "end_to_end", "first_fit", "next_fit", "flat, look_ahead")
_ORIGINAL, *_POLICIES, _OURS = WAYS
_IDS = "input_ids"


@dataclass(frozen=True, kw_only=True)
class RealRow:
    """The measurements of one way to serve the requests.

    Attributes:
        way: one of `WAYS`.
        requests: number of requests.
        batches: number of batches in which the requests ran while all of them waited.
        per_s: requests per second while all waited, in the faster turn.
        speed_up: `per_s` / `per_s` of the original way.
        difference: largest absolute difference of a hidden state from the one that the original way gives.
        offered_per_s: requests that arrive per second, in the run that measures latency.
        p50_ms, p99_ms: median and 99th percentile of the latency in that run, in milliseconds.
    """

    way: str
    requests: int
    batches: int
    per_s: float
    speed_up: float
    difference: float
    offered_per_s: float
    p50_ms: float
    p99_ms: float


class _Original(Tensors):
    """The model as it is, on batches padded to a grid (fixed rows and tokens per row), one request per row."""

    def __init__(self, model: Any, grid: Grid) -> None:
        super().__init__(model)
        self.lanes = Lanes(self.model, most=1)  # each part would be a whole grid
        self._grid = grid

    def results_of(self, batch: PackedBatch, model: Any) -> list[Any]:
        """Run `model`; return ``{"last_hidden_state": ...}``, ``[L, H]``, for each request of L tokens, in order."""
        ids = torch.zeros(self._grid.rows, self._grid.capacity, dtype=torch.long)
        mask = torch.zeros_like(ids)
        mask[:, 0] = 1  # rows without a request
        parts = batch.unpack_tokens(batch[_IDS])
        for row, part in enumerate(parts):
            ids[row, : len(part)], mask[row, : len(part)] = part, 1
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        return [{"last_hidden_state": one[: len(part)].clone()} for one, part in zip(states, parts, strict=False)]


def model_for(grid: Grid) -> Any:
    """Return the model for one of PopRT's settings, pack-safe and in evaluation mode.

    Raises:
        MissingExtraError: the package with all-MiniLM-L6-v2 is not installed.
    """
    from transformers import AutoModel, DebertaV2Config, DebertaV2Model

    from nopad.tasks.folder import default_folder, quiet

    if grid.name == "DeBERTa":
        sizes: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
        sizes |= {"intermediate_size": 1536, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made: Any = DebertaV2Model(DebertaV2Config(**sizes, position_biased_input=False, vocab_size=30_522))
            return packed(made.eval())
    with quiet():
        return packed(AutoModel.from_pretrained(default_folder(), add_pooling_layer=False).eval())


def real_rows(
    grid: Grid, model: Any, *, batches: int | None = None, say: Callable[[str], None] = lambda way: None
) -> list[RealRow]:
    """Run a setting's requests in each way, and return the measurements, in the order of `WAYS`.

    Args:
        grid: one of PopRT's settings.
        model: a pack-safe base model with at least `grid.capacity` positions.
        batches: how many batches the requests fill with one request per row, at most 100; None: 10 for DeBERTa, and 6
            for any other setting.
        say: called with a line of text, which begins with the name of a way, before each run of that way.

    Raises:
        OptionError: `batches` is not from 1 to 100, or the model is not pack-safe.
    """
    count = BATCHES.get(grid.name, 6) if batches is None else batches
    count = check_integer("batches", count, high=100)
    lengths = workload(grid)[: count * grid.rows].tolist()
    tokens = np.random.default_rng(0)
    most = model.get_input_embeddings().num_embeddings
    requests = [{_IDS: tokens.integers(min(1000, most // 2), most, length)} for length in lengths]
    with ExitStack() as open_runners:
        runners = {way: open_runners.enter_context(PackRunner(*_served(way, grid, model))) for way in WAYS}
        fastest, states, batches_of = _all_waiting(runners, requests, say)
        offered_per_s = LOAD * len(requests) / fastest[_ORIGINAL]
        rows = []
        for way, runner in runners.items():
            say(f"{way}, as requests arrive")
            half, last = np.percentile(_latencies(runner, requests, offered_per_s), (50, 99)) * 1e3
            apart = [float((a - b).abs().max()) for a, b in zip(states[way], states[_ORIGINAL], strict=True)]
            rows.append(
                RealRow(
                    way=way,
                    requests=len(requests),
                    batches=batches_of[way],
                    per_s=len(requests) / fastest[way],
                    speed_up=fastest[_ORIGINAL] / fastest[way],
                    difference=max(apart),
                    offered_per_s=offered_per_s,
                    p50_ms=float(half),
                    p99_ms=float(last),
                )
            )
    return rows


def _all_waiting(
    runners: dict[str, PackRunner], requests: Sequence[Any], say: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, list[Any]], dict[str, int]]:
    """Run all requests at once in each way, in turns.

    The result is three dicts by way: the seconds of the fastest turn, the hidden states of each request in the last
    turn, and the number of batches in the last turn.
    """
    fastest, states, batches = dict.fromkeys(runners, math.inf), {}, {}
    for _ in range(TURNS):
        for way, runner in runners.items():
            say(way)
            before, begin = runner.statistics.packer.batches, time.perf_counter()
            states[way] = [one["last_hidden_state"] for one in runner(requests)]
            fastest[way] = min(fastest[way], time.perf_counter() - begin)
            batches[way] = runner.statistics.packer.batches - before
    return fastest, states, batches


def _served(way: str, grid: Grid, model: Any) -> tuple[Any, Batching]:
    """Return the arguments of `PackRunner` for one of `WAYS`: the model or an `_Original` of it; and the `Batching`."""
    slots = grid.rows * grid.capacity
    if way == _ORIGINAL:
        return _Original(model, grid), Batching(capacity=slots, max_sequences=grid.rows, policy="first_fit")
    if way == _OURS:
        return model, Batching(capacity=slots)
    limits: dict[str, Any] = {"rows": grid.rows, "max_sequences": grid.max_sequences, "policy": way}
    return model, Batching(capacity=grid.capacity, **limits)


def _latencies(runner: PackRunner, requests: Sequence[Any], per_s: float) -> list[float]:
    """Submit requests at random times, `per_s` per second on average.

    The result is the seconds from the planned time of each request to its answer, in the order of the answers.
    """
    taken: list[float] = []
    due = time.perf_counter()
    for number, request in enumerate(requests):
        due += -math.log1p(-draw(key(0), number) / 2**64) / per_s
        time.sleep(max(due - time.perf_counter(), 0))
        future = runner.submit(request)
        future.add_done_callback(lambda _, due=due: taken.append(time.perf_counter() - due))  # type: ignore[misc]
    runner.drain()
    return taken
