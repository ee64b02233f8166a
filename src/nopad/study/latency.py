"""The paper's Figures 7 and 11, as a simulation: what a step takes, by batch size and number of GPUs.

The figures are images of measurements on 1,024 A100 GPUs, which cannot be repeated here. This is a cost model with the
constants below. A step takes

* the compute of the rank with the most tokens, as `balance_rows` simulates it, or of whole rows under padding;
* launching kernels, which a CUDA graph saves; only shapes that never change (padding, packing) can use one, and as in
  the paper only while the batch is small enough for its memory;
* the part of the gradients' all-reduce that does not hide behind the backward pass;
* exchanging and sorting samples, for those methods that do so in training.

Two constants are set so that the model meets two figures of the text: exchanging takes 18.2 % of a step for global
presorting, and 1.9 % within nodes, on 1,024 GPUs with 16 sequences each. Everything else follows; it shows how methods
compare and why, not what a cluster would measure.

Source: "Breaking MLPerf Training" (Samsung), 5.2, C.1, Figures 7 and 11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nopad.balance import Tokens
from nopad.histogram import Histogram
from nopad.planning import plan
from nopad.study.balance import Studied, balance_rows, studied

__all__ = ["BATCHES", "METHODS", "Constants", "LatencyRow", "latency_rows"]

BATCHES = (6, 12, 16, 24, 48)
GPUS = (8, 64, 256, 1024)
STEPS = 60

_SIMULATED = {  # by their names in `studied`: of Figure 7, then ours
    "global_presort_raster": "global presorting",
    "packs_depth_3": "packing, depth 3",
    "local_presort": "Samsung",
    "karmarkar_karp": "Karmarkar-Karp on indices",
    "packs": "packing, any depth",
}
METHODS = ("padding", *_SIMULATED.values())


@dataclass(frozen=True)
class Constants:
    """What the model is made of; the defaults are BERT-large on A100 GPUs.

    Attributes:
        token_s: compute of a token, forward and backward: 1.8 GFLOP at 120 TFLOP/s.
        launch_s: launching a step's kernels one by one.
        graph_s: launching them as a CUDA graph.
        graph_batch: largest batch for which a graph fits into memory.
        gradient_bytes: what is reduced: 336 million values of 2 bytes.
        network_bytes_per_s: of a node.
        hidden_share: share of the compute behind which the all-reduce can hide: most of the backward pass.
        sample_bytes: what is exchanged of a sample, padded: 4 columns of 512 values of 8 bytes.
        hop_s: what each further rank adds to a global exchange; set by the 18.2 %.
        node_s: exchanging and sorting within a node; set by the 1.9 %.
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
    """What a step takes by one method, in seconds; the parts add up to `seconds`.

    Attributes:
        gpus: number of GPUs.
        batch: sequences per GPU.
        method: name of the method.
        compute: computing, on a rank with the mean number of tokens.
        waiting: how much longer the rank with the most tokens computes; 0 where batches are padded.
        launch: launching kernels.
        reduce: the part of the all-reduce that nothing hides.
        exchange: exchanging and sorting samples.
        seconds: all of it.
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

    def summary(self) -> dict[str, Any]:
        """Return the row as a dict of plain values, ready for JSON."""
        return asdict(self)


def latency_rows(
    histogram: Histogram,
    *,
    gpus: Sequence[int] = GPUS,
    batches: Sequence[int] = BATCHES,
    constants: Constants | None = None,
) -> Iterator[LatencyRow]:
    """Yield how long a step takes with padded batches, with each method of Figure 7, and with nopad's.

    Numbers of GPUs for which the histogram holds fewer than two steps of sequences, or one step of packs, are left out.
    """
    constants = constants or Constants()
    packs = plan(histogram, histogram.max_length, algorithm="lpfhp").packs
    methods = [method for method in studied() if method.name in _SIMULATED]
    by_name = {method.name: method for method in methods}
    for batch in batches:
        enough = [n for n in gpus if 2 * n * batch <= histogram.sequences and n * (batch // 2) <= packs]
        for n in enough:
            whole = float(batch * histogram.max_length)
            yield _row(constants, n, batch, "padding", whole, whole, static=True, communication="none")
        for row in balance_rows(
            histogram, enough, batch=batch, cost=Tokens(), steps=STEPS, methods=_without_quotas(methods, batch)
        ):
            # A pack holds about two sequences; a step is as many sequences for every method
            sequences = row.mean_tokens / (histogram.tokens / histogram.sequences)
            scale = batch / sequences if row.unit == "packs" else 1.0
            yield _row(
                constants,
                row.gpus,
                batch,
                _SIMULATED[row.method],
                row.mean_tokens * scale,
                row.max_tokens * scale,
                static=row.unit == "packs",
                communication=by_name[row.method].communication,
            )


def _without_quotas(methods: Sequence[Studied], batch: int) -> list[Studied]:
    """Return the methods that the paper has for this batch: it has no stratified one for small batches."""
    return [method for method in methods if method.balance.draw != "stratified" or batch > Constants.graph_batch]


def _row(
    constants: Constants,
    gpus: int,
    batch: int,
    method: str,
    mean: float,
    most: float,
    *,
    static: bool,
    communication: str,
) -> LatencyRow:
    compute, waiting = mean * constants.token_s, (most - mean) * constants.token_s
    launch = constants.graph_s if static and batch <= constants.graph_batch else constants.launch_s
    reduced = 2 * constants.gradient_bytes * (gpus - 1) / gpus / constants.network_bytes_per_s
    exposed = max(0.0, reduced - constants.hidden_share * (compute + waiting))
    exchange = 0.0
    if communication == "global":
        exchange = gpus * (constants.hop_s + batch * constants.sample_bytes / constants.network_bytes_per_s)
    elif communication == "node":
        exchange = constants.node_s * batch / 16
    parts = {"compute": compute, "waiting": waiting, "launch": launch, "reduce": exposed, "exchange": exchange}
    return LatencyRow(gpus=gpus, batch=batch, method=method, seconds=sum(parts.values()), **parts)
