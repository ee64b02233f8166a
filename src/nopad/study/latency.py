"""Simulate the paper's Figures 7 and 11: how long a step takes, by batch size and number of GPUs.

The figures are images of measurements on 1,024 A100 GPUs, which cannot be repeated here. This is a cost model with the
constants below. The time of a step is the sum of

* the compute time of the rank with the most tokens, which `balance_rows` simulates; with padding, the compute time of
  full rows;
* launching kernels; a CUDA graph saves most of this time. Only methods whose shapes never change (padding, packing) can
  use a graph, and as in the paper only while the batch is small enough for the graph's memory;
* the part of the gradients' all-reduce that is not hidden behind the backward pass;
* exchanging and sorting samples, for those methods that do so in training.

Two constants are set so that the model matches two figures in the paper's text: on 1,024 GPUs with 16 sequences each,
exchanging takes 18.2 % of a step for global presorting, and 1.9 % within nodes. All other results follow from the
model. They show how methods compare and why, not what a cluster would measure.

Source: "Breaking MLPerf Training" (Samsung), sections 5.2 and C.1, Figures 7 and 11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nopad.balance import Tokens
from nopad.histogram import Histogram
from nopad.options import check_integer
from nopad.planning import plan
from nopad.study.balance import Studied, balance_rows, studied
from nopad.study.draws import check_any

__all__ = ["BATCHES", "METHODS", "Constants", "LatencyRow", "latency_rows"]

BATCHES = (6, 12, 16, 24, 48)
GPUS = (8, 64, 256, 1024)
STEPS = 60

_SIMULATED = {  # first the methods of Figure 7, then ours; the keys are their names in `studied`
    "global_presort_raster": "global presorting",
    "packs_depth_3": "packing, depth 3",
    "local_presort": "Samsung",
    "karmarkar_karp": "Karmarkar-Karp on indices",
    "packs": "packing, any depth",
}
METHODS = ("padding", *_SIMULATED.values())


@dataclass(frozen=True)
class Constants:
    """Constants of the cost model; the defaults are for BERT-large on A100 GPUs.

    Attributes:
        token_s: seconds to compute one token, forward and backward: 1.8 GFLOP at 120 TFLOP/s.
        launch_s: seconds to launch a step's kernels one by one.
        graph_s: seconds to launch them as a CUDA graph.
        graph_batch: largest batch, in sequences per GPU, for which a graph fits into memory.
        gradient_bytes: bytes of gradients that are reduced: 336 million values of 2 bytes.
        network_bytes_per_s: network bandwidth of a node, in bytes per second.
        hidden_share: share of the compute time that can hide the all-reduce: most of the backward pass.
        sample_bytes: bytes exchanged per sample, padded: 4 columns of 512 values, 8 bytes each.
        hop_s: seconds that each rank adds to a global exchange. It is set so that on 1,024 GPUs this exchange takes the
            share of a step that the paper gives, 18.2 %.
        node_s: seconds to exchange and sort 16 sequences per GPU within a node. It is set in the same way, for a share
            of 1.9 %.
    """

    token_s: float = 15e-6
    launch_s: float = 8e-3
    graph_s: float = 1e-3
    graph_batch: int = 12
    gradient_bytes: float = 336e6 * 2
    network_bytes_per_s: float = 100e9
    hidden_share: float = 0.5
    sample_bytes: float = 4 * 512 * 8
    hop_s: float = 13.2e-6
    node_s: float = 1.4e-3


@dataclass(frozen=True, kw_only=True)
class LatencyRow:
    """How long a step takes with one method, in seconds; the parts add up to `seconds`.

    Attributes:
        gpus: number of GPUs.
        batch: sequences per GPU.
        method: name of the method.
        compute: compute time of a rank with the mean number of tokens; if batches are padded, of full rows.
        waiting: compute time of the rank with the most tokens, minus `compute`; 0 if batches are padded.
        launch: time to launch kernels.
        reduce: time of the part of the all-reduce that is not hidden behind compute.
        exchange: time to exchange and sort samples.
        seconds: total time of the step.
    """

    gpus: int
    batch: int
    method: str
    compute: float
    waiting: float
    launch: float
    reduce: float
    exchange: float
    seconds: float


def latency_rows(
    histogram: Histogram, *, gpus: Sequence[int] = GPUS, batches: Sequence[int] = BATCHES
) -> Iterator[LatencyRow]:
    """Yield a `LatencyRow` for each batch size, number of GPUs and method.

    The methods are padded batches, those of Figure 7, and nopad's. For a batch size, a number of GPUs is left out if
    the histogram holds too few sequences for two steps, or too few packs for one. A stratified method is left out for
    batches of at most 12 sequences, as in the paper, and where the histogram is too small for its quotas, or the
    longest length is below 3.

    Args:
        histogram: lengths to draw from.
        gpus: the numbers of GPUs to simulate.
        batches: the batch sizes to simulate, in sequences per GPU.

    Raises:
        OptionError: the histogram holds no sequence, a batch size is below 2, or a number of GPUs is below 1; or a
            number of GPUs that is not left out is above 8 and no multiple of 8, the GPUs of a node.
    """
    for number in gpus:
        check_integer("gpus", number)
    check_any(histogram)
    packs = plan(histogram, histogram.max_length, algorithm="lpfhp").packs
    methods = [method for method in studied() if method.name in _SIMULATED]
    by_name = {method.name: method for method in methods}
    for batch in batches:
        enough = [n for n in gpus if 2 * n * batch <= histogram.sequences and n * (batch // 2) <= packs]
        for n in enough:
            whole = float(batch * histogram.max_length)
            yield _row(n, batch, "padding", whole, whole, static=True, communication="none")
        for row in balance_rows(
            histogram, enough, batch=batch, cost=Tokens(), steps=STEPS, methods=_without_quotas(methods, batch)
        ):
            # A pack holds about two sequences; scaled so that a step has equally many sequences for every method
            sequences = row.mean_tokens / (histogram.tokens / histogram.sequences)
            scale = batch / sequences if row.unit == "packs" else 1.0
            yield _row(
                row.gpus,
                batch,
                _SIMULATED[row.method],
                row.mean_tokens * scale,
                row.max_tokens * scale,
                static=row.unit == "packs",
                communication=by_name[row.method].communication,
            )


def _without_quotas(methods: Sequence[Studied], batch: int) -> list[Studied]:
    """Return `methods`; if `batch` is at most 12, without the stratified ones, as in the paper."""
    return [method for method in methods if method.balance.draw != "stratified" or batch > Constants.graph_batch]


def _row(
    gpus: int, batch: int, method: str, mean: float, most: float, *, static: bool, communication: str
) -> LatencyRow:
    compute, waiting = mean * Constants.token_s, (most - mean) * Constants.token_s
    launch = Constants.graph_s if static and batch <= Constants.graph_batch else Constants.launch_s
    reduced = 2 * Constants.gradient_bytes * (gpus - 1) / gpus / Constants.network_bytes_per_s
    exposed = max(0.0, reduced - Constants.hidden_share * (compute + waiting))
    exchange = 0.0
    if communication == "global":
        exchange = gpus * (Constants.hop_s + batch * Constants.sample_bytes / Constants.network_bytes_per_s)
    elif communication == "node":
        exchange = Constants.node_s * batch / 16
    parts = {"compute": compute, "waiting": waiting, "launch": launch, "reduce": exposed, "exchange": exchange}
    return LatencyRow(gpus=gpus, batch=batch, method=method, seconds=sum(parts.values()), **parts)
