"""Redo PopRT's tables of packed serving: the number of batches that each policy needs for the same requests.

Graphcore's PopRT packed live requests into a fixed grid of rows. Its READMEs print the throughput without packing, and
with three policies: rows filled to their ends, where a request may continue in the next row ("unpack repack" in the
tables); first-fit; and next-fit ("AttentionMask"). The lengths of its requests are drawn at random,
``clip(int(N(capacity / 2, capacity / 2)), 1, capacity)``, as many as fill 100 batches with one request per row. The
same lengths are packed here. A batch takes a device the same time whatever it contains, so 100 / batches is the
speed-up that a policy allows. The published speed-up can be compared with it.

All requests wait from the beginning, as in PopRT's throughput test. The exception is nopad's policy `look_ahead`, which
is simulated with at most 32, 64 or 128 requests waiting at once. The simulation takes milliseconds once its loops are
compiled. It tells nothing about latency. Nor do PopRT's READMEs: the latencies that they print are 1 / throughput.

Source: READMEs of PopRT's examples packed_bert_example and packed_deberta_example (github.com/graphcore/PopRT).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nopad.serving import Batching, OnlinePacker, PackerStatistics
from nopad.serving.batching import Policy

__all__ = ["GRIDS", "Grid", "ServingRow", "pack_workload", "serving_rows", "workload"]

SEED = 2023  # PopRT's
BATCHES = 100
WAITING = (32, 64, 128)  # requests that look_ahead sees
POLICIES: tuple[Policy, ...] = ("end_to_end", "first_fit", "next_fit", "best_fit")
_UNPACKED = "one request per row"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One of PopRT's settings: a model, the shape of its batches, and the published throughput.

    Attributes:
        name: name of the model.
        rows, capacity: number of rows in a batch, and number of slots in a row.
        max_sequences: maximum number of requests in a batch (PopRT's maxValidNum).
        separator: number of empty slots between two requests in a row.
        original: published samples per second without packing; None: not published.
        published: published samples per second with packing, by policy.
    """

    name: str
    rows: int
    capacity: int
    max_sequences: int
    separator: int = 0
    original: float | None = None
    published: Mapping[str, float] = field(default_factory=dict)


GRIDS = (
    Grid(
        name="BERT-base",
        rows=16,
        capacity=256,
        max_sequences=40,
        original=1860.9792,
        published={"end_to_end": 2857.6000, "first_fit": 3248.6212, "next_fit": 2840.5553},
    ),
    Grid(
        name="DeBERTa",
        rows=8,
        capacity=128,
        max_sequences=16,
        separator=1,
        original=1952.4749,
        published={"first_fit": 3479.2993, "next_fit": 3080.6408},
    ),
)


@dataclass(frozen=True, kw_only=True)
class ServingRow:
    """The result of a policy on one of PopRT's settings.

    Attributes:
        way: the policy, or "one request per row".
        waiting: maximum number of requests that wait at once; None: all requests wait from the beginning.
        batches: number of batches that the policy needs.
        reduction: number of batches with one request per row / `batches`, which is the speed-up that the policy allows.
        efficiency: number of tokens / number of slots, from 0 to 1.
        published: published samples per second; None: not published.
        speed_up: `published` / published samples per second without packing; None: not published, or this is the row
            without packing.
        realised: `speed_up` / `reduction`, the share of the possible speed-up that was published; None if `speed_up`
            is None.
    """

    way: str
    waiting: int | None = None
    batches: int
    reduction: float
    efficiency: float
    published: float | None = None
    speed_up: float | None = None
    realised: float | None = None


def workload(grid: Grid) -> NDArray[np.int64]:
    """Return the lengths of the requests that PopRT's example draws; int64 ``[100 x rows]``.

    They are drawn by NumPy's legacy `RandomState`, as in the example; its stream never changes.

    >>> workload(GRIDS[0])[:4].tolist()
    [219, 86, 1, 158]
    """
    mean = grid.capacity / 2
    drawn = np.random.RandomState(SEED).normal(mean, mean, BATCHES * grid.rows)
    return np.clip(drawn.astype(np.int64), 1, grid.capacity)


def pack_workload(grid: Grid, policy: Policy, waiting: int | None = None) -> PackerStatistics:
    """Pack the requests of `workload`, as if the device were always idle; return the packer's totals.

    `waiting` is the maximum number of requests that wait at once; None: all wait from the beginning.
    """
    lengths = workload(grid).tolist()
    batching = Batching(
        capacity=grid.capacity,
        rows=grid.rows,
        max_sequences=grid.max_sequences,
        separator=grid.separator,
        policy=policy,
    )
    packer, at = OnlinePacker(batching), 0
    while at < len(lengths) or len(packer):
        while at < len(lengths) and (waiting is None or len(packer) < waiting):
            packer.add(lengths[at], now_ns=at)
            at += 1
        packer.poll(now_ns=at)
    return packer.statistics


def best_reduction(grid: Grid) -> float:
    """Return by what factor packs without padding would reduce the number of batches.

    This is the number of slots that the requests take with one request per row, divided by their number of tokens.
    """
    lengths = workload(grid)
    return lengths.size * grid.capacity / int(lengths.sum())


def serving_rows(grid: Grid, waiting: Sequence[int] = WAITING) -> list[ServingRow]:
    """Return the results on one of PopRT's settings: first without packing (one request per row), then by each policy.

    Each result has the number of batches that the requests need, and the published throughput, if there is one.

    Args:
        grid: one of PopRT's settings.
        waiting: `look_ahead` has one result for each of these numbers, with at most that many requests waiting at once.

    >>> rows = serving_rows(GRIDS[0], waiting=[64])
    >>> [(row.way, row.batches, round(row.reduction, 3)) for row in rows]  # doctest: +NORMALIZE_WHITESPACE
    [('one request per row', 100, 1.0), ('end_to_end', 52, 1.923), ('first_fit', 56, 1.786), ('next_fit', 65, 1.538),
     ('best_fit', 56, 1.786), ('look_ahead', 51, 1.961)]
    """
    alone = ServingRow(
        way=_UNPACKED, batches=BATCHES, reduction=1.0, efficiency=1 / best_reduction(grid), published=grid.original
    )
    ahead = [_row(grid, "look_ahead", seen) for seen in waiting]
    return [alone, *(_row(grid, policy, None) for policy in POLICIES), *ahead]


def _row(grid: Grid, policy: Policy, waiting: int | None) -> ServingRow:
    counted = pack_workload(grid, policy, waiting)
    reduction = BATCHES / counted.batches
    published = grid.published.get(policy)
    speed_up = published / grid.original if published and grid.original else None
    return ServingRow(
        way=policy,
        waiting=waiting,
        batches=counted.batches,
        reduction=reduction,
        efficiency=counted.efficiency,
        published=published,
        speed_up=speed_up,
        realised=speed_up / reduction if speed_up else None,
    )
