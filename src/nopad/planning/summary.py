"""Plans of arrival-order algorithms. Such an algorithm makes packs of sequences; its plan is a summary of these packs.

The check of a plan before it is returned (`checked`) is here too; it is for all algorithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.errors import OptionError
from nopad.histogram import Histogram
from nopad.packs import Packs, take_lists
from nopad.planning.conditions import bound_under, cut_packs
from nopad.planning.plan import Plan
from nopad.planning.registry import ARRIVAL_ALGORITHMS, HISTOGRAM_ALGORITHMS

__all__ = ["checked", "drawn_order", "pack_arrivals", "summarise"]

MAX_DRAWN = 2**28  # sequences whose order may be drawn: 1 GiB of lengths


def pack_arrivals(
    lengths: NDArray[np.int32],
    capacity: int,
    depth: int | None,
    algorithm: str,
    own: Mapping[str, Any],
    conditions: Mapping[str, Any],
) -> Packs:
    """Run an arrival-order algorithm, then make its packs meet the conditions; return the packs of `lengths`.

    `lengths` are int32 ``[n]``. `own` are all options of the algorithm itself, and `conditions` all conditions of
    `nopad.planning.conditions`, by name.

    Raises:
        OptionError: the number of packs cannot be made a multiple of `pack_multiple` without empty packs.
    """
    align = conditions["align"]
    seen = -(-lengths // align) * align if align > 1 else lengths
    packs: Packs = ARRIVAL_ALGORITHMS[algorithm].run(seen, capacity, depth, **own)
    return cut_packs(packs, lengths, conditions["max_squares"], conditions["pack_multiple"])


def summarise(
    packs: Packs,
    lengths: NDArray[np.int32],
    *,
    algorithm: str,
    options: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan that describes existing packs: their distinct multisets of lengths, and how often each occurs.

    Sequence i has ``lengths[i]`` tokens (int32 ``[n]``), and must be in exactly one of `packs`. `algorithm`, `options`
    and `notes` are stored in the plan; `options` include the conditions on packs.

    Raises:
        RuntimeError: the packs break a limit or a condition, or do not hold every sequence exactly once.
    """
    from nopad import _kernels
    from nopad.planning import _fit_kernels

    keys = np.empty(len(packs), dtype=np.uint64)
    _fit_kernels.multiset_keys(packs.indptr, packs.sequence, lengths, keys)
    keys, first, counts = np.unique(keys, return_index=True, return_counts=True)
    distinct = packs.take(first)
    indptr = distinct.indptr.astype(np.int64)
    flat = -lengths[distinct.sequence]
    _kernels.sort_within_packs(indptr, flat)  # ascending order of the negated lengths is longest first
    columns = [np.where(np.diff(indptr) > i, flat[np.minimum(indptr[:-1] + i, flat.size - 1)], 0) for i in range(3)]
    # Sorted by the three longest lengths, for the reader; ties are sorted by key, which is deterministic too.
    order = np.lexsort((keys, *reversed(columns))) if flat.size else np.arange(0)
    ordered, held = take_lists(indptr, -flat, order)
    histogram = Histogram.from_lengths(lengths)
    made = Plan(
        capacity=packs.capacity,
        depth=packs.depth,
        algorithm=algorithm,
        indptr=ordered,
        lengths=held.astype(np.int64),
        counts=counts[order].astype(np.int64),
        bound=bound_under(options or {}, histogram, packs.capacity, packs.depth),
        options=dict(options or {}),
        notes=notes,
    )
    return checked(made, histogram)


def checked(plan: Plan, histogram: Histogram) -> Plan:
    """Check the plan of any algorithm, and return the plan itself.

    A valid plan holds every sequence of `histogram` exactly once, keeps to the capacity, the depth and the conditions,
    and has at least as many packs as its lower bound. The condition `even` is not checked.

    Raises:
        RuntimeError: the plan is not valid, which is a bug in the algorithm.
    """
    broken = plan.broken_limits()
    if not broken and plan.histogram != histogram:
        broken = ["it does not hold every sequence once"]
    if broken or plan.packs < plan.lower_bound:
        wrong = "; ".join(broken) or "its lower bound is above its packs"
        raise RuntimeError(
            f"{plan.algorithm} made a plan that does not pack this histogram ({wrong}); please report it"
        )
    return plan


def drawn_order(histogram: Histogram, algorithm: str, seed: int) -> NDArray[np.int32]:
    """Return the length of every sequence of `histogram`, int32 ``[n]``, in a random order drawn with `seed`.

    The same histogram and seed always give the same order. `algorithm` is the name of the algorithm that needs an
    order, for the error message.

    Raises:
        OptionError: there are more than `MAX_DRAWN` (2^28) sequences.
    """
    from nopad import _kernels

    if histogram.sequences > MAX_DRAWN:
        raise OptionError(
            f"{algorithm} places sequences one by one; {histogram.sequences:,} in a histogram are too many to draw "
            f"(limit {MAX_DRAWN:,}): take a histogram algorithm ({', '.join(HISTOGRAM_ALGORITHMS)})"
        )
    lengths = np.repeat(histogram.lengths.astype(np.int32), histogram.counts)
    _kernels.shuffle(lengths, np.uint64(random.key(seed, random.STREAM_ARRIVAL)))
    return lengths
