"""Conditions on packs: aligned lengths, limited attention cost, packs of even cost, a number of packs divisible by k.

* ``align=m``: a pack still fits into the capacity if each of its sequences is padded to a multiple of m (for FP8
  kernels, tensor or context parallelism). Plans are made for lengths rounded up; the real lengths are put in
  afterwards.
* ``max_squares=s``: the sum of squared lengths of a pack, its attention cost, is at most s. `auto` and `optimal` plan
  with this limit from the start (`nopad.planning.costs`). With another histogram algorithm a pack above the limit keeps
  its sequences, longest first, as far as the limit allows; the others are packed again. Packs of arrival-order
  algorithms are cut into smaller ones instead.
* ``even=True``: a search lowers the highest attention cost of a pack, and the largest number of sequences in a pack, as
  far as its budget allows; this may add up to one pack for every 1,000 (`nopad.planning.costs.even`). `auto` and
  `optimal` only.
* ``pack_multiple=k``: the number of packs is a multiple of k (such as world size x accumulation steps). The packs with
  most sequences are cut in two until this holds.

Each condition may increase the number of packs. The lower bound of the plan takes `align`, `max_squares` and
`pack_multiple` into account.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import LengthError, OptionError
from nopad.histogram import Histogram, exact_sum
from nopad.options import BOOLEAN, Option
from nopad.packs import Packs
from nopad.planning.algorithm import Strategies
from nopad.planning.bounds import Bound, lower_bound
from nopad.planning.certificate import Certificate
from nopad.planning.cost_certificate import CostCertificate
from nopad.planning.costs import Packed, bound_of, load_of
from nopad.planning.granularity import rounded_histogram

__all__ = [
    "CONDITIONS",
    "bound_under",
    "broken_conditions",
    "check_conditions",
    "cut_packs",
    "cut_strategies",
    "even_limits",
    "unchecked",
    "within_squares",
]

_MOST_NAMED = 3  # most sentences about broken conditions
_MOST_LOOKS = 10**8  # classes that `_packed_again` looks at, about a nanosecond each; then it only opens new packs
CONDITIONS = {
    "align": Option(default=1, help="sequences padded to multiples of this still fit their pack"),
    "even": Option(
        default=False,
        choices=BOOLEAN,
        help="packs of similar cost and depth, for at most one pack in 1,000 more; auto and optimal",
    ),
    "max_squares": Option(default=None, none=True, high=2**62, help="largest sum of squared lengths of a pack"),
    "pack_multiple": Option(default=1, help="the number of packs is a multiple of this"),
}


def check_conditions(options: Mapping[str, Any], histogram: Histogram, capacity: int) -> None:
    """Refuse values of `align`, `max_squares` and `pack_multiple` that this capacity or these lengths rule out.

    The conditions are taken from `options`; other options are not looked at. A `pack_multiple` that is accepted here
    may still turn out to be impossible when packs are cut (`cut_strategies`, `cut_packs`).

    Raises:
        OptionError: the capacity is not a multiple of `align`; or there are sequences, but fewer than `pack_multiple`.
            The message says what is possible.
        LengthError: the squared length of a single sequence is above `max_squares`.
    """
    align, squares, multiple = _values(options)
    if capacity % align:
        below, above = capacity // align * align, -(-capacity // align) * align
        raise OptionError(
            f"align={align} needs a capacity that is a multiple of it; {capacity} is not: "
            f"take {f'{below} or ' if below else ''}{above}"
        )
    if squares is not None and histogram.max_length**2 > squares:
        raise LengthError(
            f"a sequence of {histogram.max_length} tokens has a squared length of {histogram.max_length**2:,}, above "
            f"max_squares={squares:,}; raise it, or truncate or split the sequence"
        )
    if 0 < histogram.sequences < multiple:
        raise OptionError(
            f"{histogram.sequences:,} sequences cannot make a multiple of {multiple} packs without empty ones; "
            f"take a pack_multiple of at most {histogram.sequences:,}"
        )


def bound_under(
    options: Mapping[str, Any],
    histogram: Histogram,
    capacity: int,
    depth: int | None,
    certificate: Certificate | CostCertificate | None = None,
) -> Bound:
    """Return the highest lower bound on the number of packs under the conditions in `options`.

    If `certificate` is not None, the bound that it proves is one of those compared. But a `CostCertificate` counts only
    if `options` has `max_squares`. A `depth` of None is unlimited.

    Raises:
        FormatError: the certificate cannot be checked under these limits.

    In the first example, the lengths count as 8, 8 and 4, which are 20 tokens. In the second, the bound 2 is rounded up
    to a multiple of 4:

    >>> bound_under({"align": 4}, Histogram.from_lengths([5, 5, 1]), 8, None)
    Bound(packs=3, proof='tokens')
    >>> bound_under({"pack_multiple": 4}, Histogram.from_lengths([5, 5, 1]), 8, None)
    Bound(packs=4, proof='pack_multiple')
    """
    align, squares, multiple = _values(options)
    seen = rounded_histogram(histogram, align, capacity) if align > 1 else histogram
    bound = lower_bound(seen, capacity, depth, certificate if isinstance(certificate, Certificate) else None)
    if squares is not None:
        needed = bound_of(load_of(histogram, capacity, depth, squares, align))
        if needed > bound.packs:
            bound = Bound(needed, "max_squares", bound.certificate)
        if isinstance(certificate, CostCertificate):
            proven = certificate.bound(histogram, capacity, squares, align, depth)
            if proven > bound.packs:
                bound = Bound(proven, "cost certificate", certificate)
    if bound.packs % multiple:
        bound = Bound(-(-bound.packs // multiple) * multiple, "pack_multiple", bound.certificate)
    return bound


def unchecked(
    options: Mapping[str, Any], certificate: Certificate | CostCertificate | None, capacity: int, depth: int | None
) -> str | None:
    """Return why a certificate cannot be checked under these limits and the conditions in `options`, as text.

    Returns None if it can be checked, or if `certificate` is None. A `CostCertificate` cannot be checked without the
    condition `max_squares`. A `depth` of None is unlimited.
    """
    align, squares, _ = _values(options)
    if isinstance(certificate, CostCertificate):
        if squares is None:
            return "the plan has a cost certificate, and no max_squares to check it with"
        return certificate.problem(capacity, squares, align, depth)
    return None if certificate is None else certificate.problem(capacity, depth)


def even_limits(options: Mapping[str, Any], capacity: int) -> tuple[int, int]:
    """Return ``(squares, align)``, the limits with which the search for the condition `even` begins.

    `squares` is the limit on a pack's sum of squared lengths, which this search then lowers. It is ``capacity ** 2``,
    which no pack exceeds, or the `max_squares` in `options` if that is lower. `align` is the one in `options`, or 1.
    """
    align, squares, _ = _values(options)
    return capacity**2 if squares is None else min(squares, capacity**2), align


def _values(options: Mapping[str, Any]) -> tuple[int, int | None, int]:
    """Return the conditions `align`, `max_squares` and `pack_multiple`; those not in `options` have their defaults."""
    given = {name: options.get(name, option.default) for name, option in CONDITIONS.items()}
    return given["align"], given["max_squares"], given["pack_multiple"]


def broken_conditions(
    options: Mapping[str, Any],
    indptr: NDArray[np.int64],
    lengths: NDArray[np.int64],
    counts: NDArray[np.int64],
    capacity: int,
) -> list[str]:
    """Return up to three sentences on what breaks the conditions in `options`; an empty list if nothing does.

    Each sentence is on one strategy, or on the number of packs. The condition `even` is not checked.

    Strategy s holds ``lengths[indptr[s]:indptr[s + 1]]``, at least one length, and ``counts[s]`` packs use it. The
    arrays are int64 ``[strategies + 1]``, ``[n]`` and ``[strategies]``.
    """
    align, squares, multiple = _values(options)
    found = []
    packs = exact_sum(counts)
    if packs % multiple:
        found.append(f"{packs:,} packs are not a multiple of pack_multiple={multiple}")
    if align > 1 and lengths.size:
        aligned = np.add.reduceat(-(-lengths // align) * align, indptr[:-1])
        found += [
            f"strategy {s} sums to {aligned[s]:,} tokens with align={align}, above the capacity of {capacity:,}"
            for s in np.flatnonzero(aligned > capacity)[:_MOST_NAMED]
        ]
    if squares is not None and lengths.size:
        exact: Any = np.int64 if int(lengths.max()) ** 2 * int(np.diff(indptr).max()) < 2**63 else object
        cost = np.add.reduceat(lengths.astype(exact) ** 2, indptr[:-1])
        found += [
            f"strategy {s} has squared lengths that sum to {int(cost[s]):,}, above max_squares={squares:,}"
            for s in np.flatnonzero(cost > squares)[:_MOST_NAMED]
        ]
    return found[:_MOST_NAMED]


def within_squares(strategies: Strategies, capacity: int, depth: int | None, most: int, align: int = 1) -> Strategies:
    """Return strategies for the same sequences in which every pack's sum of squared lengths is at most `most`.

    Each pack keeps its sequences, longest first, as far as `most` allows. The others go into new packs, which hold at
    most `depth` sequences (None: unlimited), and fit into `capacity` even if every sequence is padded to a multiple of
    `align`. No single squared length may be above `most`.

    >>> within_squares([(2, (5, 3))], 8, None, 30)
    [(2, (5,)), (1, (3, 3))]
    """
    kept: Strategies = []
    out: Counter[int] = Counter()
    for count, lengths in strategies:
        stays: list[int] = []
        squares = 0
        for length in lengths:
            if squares + length * length <= most:
                stays.append(length)
                squares += length * length
            else:
                out[length] += count
        kept.append((count, tuple(stays)))
    return kept + _packed_again(out, capacity, depth, most, align)


def _packed_again(out: Mapping[int, int], capacity: int, depth: int | None, most: int, align: int) -> Strategies:
    """Pack sequences by best-fit decreasing; return strategies. `out` maps each length to its number of sequences.

    A pack holds at most `depth` sequences (None: unlimited), and at most `capacity` tokens, where each length is
    rounded up to a multiple of `align`. Its squared lengths add up to at most `most`. Of the packs that a sequence fits
    into, the one with the highest sum of squared lengths takes it. To find it, classes (groups of equal packs) are
    looked at one after another. After about `_MOST_LOOKS` looks in all, no room is searched for any more, and the
    sequences left go to new packs.
    """
    if not out:
        return []
    from nopad.planning.costs import _kernels

    load = load_of(Histogram.from_counts(out), capacity, depth, most, align)
    classes, links = np.empty((len(out) + 16, 5), np.int64), np.empty((len(out) + 16, 3), np.int64)
    limits = load.limits[[1, 0, 2]]  # squares first: `best_fit` takes the pack that has least of the first limit left
    made: Any = _kernels.best_fit(load.costs, load.sizes, load.counts.copy(), classes, 0, links, 0, limits, _MOST_LOOKS)
    return Packed(made[0][: made[1]], made[2][: made[3]]).strategies(load.lengths)


def cut_strategies(strategies: Strategies, multiple: int) -> Strategies:
    """Return strategies in which packs are cut in two, until the number of packs is a multiple of `multiple`.

    The packs with most sequences are cut first; each half gets every second length. If nothing must be cut,
    `strategies` itself is returned.

    Raises:
        OptionError: the next multiple of `multiple` is above the number of sequences.

    >>> cut_strategies([(2, (4, 2, 2)), (1, (8,))], 4)
    [(1, (4, 2, 2)), (1, (4, 2)), (1, (2,)), (1, (8,))]
    """
    packs = sum(count for count, _ in strategies)
    missing = _missing(packs, sum(count * len(lengths) for count, lengths in strategies), multiple)
    if not missing:
        return strategies
    waiting = [(-len(lengths), lengths, count) for count, lengths in strategies]
    heapify(waiting)
    done: Strategies = []
    while missing:
        _, lengths, count = heappop(waiting)
        cut = min(count, missing)
        if count > cut:
            done.append((count - cut, lengths))
        for part in (lengths[0::2], lengths[1::2]):
            heappush(waiting, (-len(part), part, cut))
        missing -= cut
    return [*done, *((count, lengths) for _, lengths, count in sorted(waiting))]


def _missing(packs: int, sequences: int, multiple: int) -> int:
    """Return how many packs must be added to `packs`, a number of packs, to reach a multiple of `multiple`.

    Raises:
        OptionError: this multiple is above `sequences`, the number of sequences.
    """
    missing = -packs % multiple
    if packs + missing > sequences:
        raise OptionError(
            f"{packs:,} packs of {sequences:,} sequences cannot become {packs + missing:,}, the next multiple of "
            f"{multiple}, without empty ones; take a smaller pack_multiple or another algorithm"
        )
    return missing


def cut_packs(packs: Packs, lengths: NDArray[np.int32], squares: int | None, multiple: int) -> Packs:
    """Return the packs of an arrival-order algorithm, cut until they meet two conditions; the order of sequences stays.

    First, packs whose squared lengths add up to more than `squares` are cut (None: no limit). Then the packs with most
    sequences are cut in two until the number of packs is a multiple of `multiple`. `lengths` is the length of every
    sequence; int32 ``[n]``.

    Raises:
        OptionError: the next multiple of `multiple` is above the number of sequences.
    """
    starts = packs.indptr.tolist()
    if squares is not None:
        cost = lengths[packs.sequence].astype(object) ** 2 if lengths.size else lengths
        cuts = []
        for begin, end in pairwise(starts):
            held = 0
            for at in range(begin, end):
                held += int(cost[at])
                if held > squares:
                    cuts.append(at)
                    held = int(cost[at])
        starts = sorted({*starts, *cuts})
    missing = _missing(len(starts) - 1, packs.sequences, multiple)
    while missing:
        sizes = np.diff(starts)
        longest = np.argsort(-sizes, kind="stable")[:missing]
        longest = longest[sizes[longest] > 1]
        starts = sorted([*starts, *(starts[p] + int(sizes[p]) // 2 for p in longest.tolist())])
        missing -= longest.size
    return Packs(packs.capacity, packs.depth, np.array(starts, dtype=packs.indptr.dtype), packs.sequence)
