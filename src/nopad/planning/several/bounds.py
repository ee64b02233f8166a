"""Lower bounds on the total price of all packs, in exact integers.

* sizes: a unit of the first size has a value, and so has a unit of the second size; these values are the rates. If
  ``rates . capacity <= price`` for every capacity, a plan costs at least ``rates . (sum of sizes)``. The best rates are
  at a corner of the region that these inequalities allow, and every corner is tried
* big sequences: sequences that are above half of every capacity, in the same kind of size, never share a pack. So each
  costs at least the price of the cheapest capacity that holds it
* one capacity and one kind of size: the bounds of `nopad.planning.bounds`, times the price of a pack

`price_bound` also compares the bound that a certificate proves (`nopad.planning.several.certificate`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

import numpy as np

from nopad.histogram import Histogram, exact_sum
from nopad.planning.bounds import lower_bound
from nopad.planning.several.certificate import PriceCertificate
from nopad.planning.several.task import Task

__all__ = ["PriceBound", "best_rates", "price_bound"]


@dataclass(frozen=True)
class PriceBound:
    """A proven lower bound on the total price of all packs.

    Attributes:
        price: the bound as a multiple of `SeveralPlan.unit`; an integer.
        proof: what proves it: "sizes", "big sequences", "certificate", or the name of a bound on the number of packs
            (see `nopad.planning.lower_bound`).
        certificate: the certificate that proves the bound; None if another proof does.
    """

    price: int
    proof: str
    certificate: PriceCertificate | None = field(default=None, repr=False)


def price_bound(task: Task, certificate: PriceCertificate | None = None) -> PriceBound:
    """Return the highest lower bound on the price of any plan for `task`.

    Without sequences, the bound is 0. Otherwise, the bounds of the module are compared, and the bound that
    `certificate` proves, if it is given. If several bounds are equally high, the first of them in the order of the
    module is returned; the bound of `certificate` comes last.

    Raises:
        FormatError: the certificate cannot be checked.
    """
    if not task.counts.size:
        return PriceBound(0, "sizes")
    first, second = best_rates(task)
    one, other = task.loads
    bounds = [PriceBound(-(-(first * one + second * other) // 1), "sizes"), PriceBound(_big(task), "big sequences")]
    if len(task.prices) == 1 and (task.kinds == 1):
        histogram = Histogram(task.sizes[:, 0], task.counts)
        packs = lower_bound(histogram, int(task.capacities[0, 0]), task.depth)
        bounds.append(PriceBound(packs.packs * task.prices[0], packs.proof))
    if certificate is not None:
        proven = certificate.bound(task.sizes, task.counts.tolist(), _limits(task), task.prices)
        bounds.append(PriceBound(proven, "certificate", certificate))
    return max(bounds, key=lambda bound: bound.price)


def _limits(task: Task) -> list[tuple[int, int]]:
    return [(a, b) for a, b in task.capacities.tolist()]


def best_rates(task: Task) -> tuple[Fraction, Fraction]:
    """Return the two rates that prove the highest bound of the kind "sizes" (see the module), as exact fractions.

    They are the values of a unit of the first size and of a unit of the second. No pack is worth more than its price.
    """
    one, other = task.loads
    return max(_corners(task), key=lambda rates: rates[0] * one + rates[1] * other)


def _corners(task: Task) -> Iterator[tuple[Fraction, Fraction]]:
    """Yield those corners of the region of rates (see the module) that can give the highest bound, as two fractions.

    These are all corners but (0, 0). If all second sizes are 0, only the corner with a second rate of 0 is needed.
    """
    rows = [(*task.capacities[j].tolist(), task.prices[j]) for j in task.by_price]
    zero = Fraction(0)
    yield min(Fraction(price, a) for a, _, price in rows), zero
    if not task.loads[1]:
        return
    yield zero, min((Fraction(price, b) for _, b, price in rows if b), default=zero)
    for (a, b, price), (c, d, dearer) in combinations(rows, 2):
        across = a * d - b * c
        if not across:
            continue
        first, second = Fraction(price * d - dearer * b, across), Fraction(a * dearer - c * price, across)
        if min(first, second) > 0 and all(first * x + second * y <= cost for x, y, cost in rows):
            yield first, second


def _big(task: Task) -> int:
    """Return the bound "big sequences": the price of one pack for each sequence above half of every capacity.

    The pack is of the cheapest capacity that holds the sequence. Each of the two kinds of size gives a total price, for
    the sequences above half in this kind; the higher one is returned.
    """
    most = task.capacities.max(axis=0)
    prices: list[int] = []
    for kind in (0, 1):
        big = np.flatnonzero(2 * task.sizes[:, kind] > most[kind])
        used = task.cheapest(task.sizes[big])
        prices.append(sum(task.prices[j] * exact_sum(task.counts[big[used == j]]) for j in np.unique(used).tolist()))
    return max(prices)
