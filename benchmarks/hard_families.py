"""The classical families of hard bin-packing instances, drawn again from their published recipes.

Every family is a pure function: a seed gives ``(lengths, capacity)``, the lengths as int64 in the order drawn; equal
seeds give equal instances with every NumPy that keeps the stream of `numpy.random.Generator.integers`. Nothing is
downloaded: the instances are not the published files, but further draws of what those files were drawn from.

As published:

* uniform (Falkenauer 1996, "A hybrid grouping genetic algorithm for bin packing"): sizes uniform in [20, 100],
  capacity 150, n = 120, 250, 500, 1,000.
* triplets (Falkenauer 1996): the first length of a pack uniform in [0.38 C, 0.49 C], the second from 0.25 C to half of
  what the first leaves, the third the rest. C = 1,000, n = 60, 120, 249, 501. Every pack of the optimum is full.
* Scholl 1, 2 and 3 (Scholl, Klein and Jürgens 1997, "BISON"): sets of classes; the seed chooses a class in turn.
* Schwerin 1 and 2 (Schwerin and Wäscher 1997): capacity 1,000, sizes uniform in [150, 200], n = 100 and 120.

Two families are called "-like": their published instances were selected from many draws for being hard, and no recipe
for this selection is published:

* Wäscher-like: the generator is as published (CUTGEN1, Gau and Wäscher 1995: m order lengths uniform in
  [v1 L, v2 L], uniform shares of a total demand); the 17 instances of Wäscher and Gau 1996 are the hardest of 4,000
  draws with L = 10,000 and end at n = 57 to 239. Here m is 33 to 64 with 1.5 to 4 pieces each, which gives such n, and
  instances for which best-fit reaches the bound L2 of Martello and Toth are drawn again.
* hard28-like: capacity 1,000, n = 160, 180, 200, sizes uniform in [1, 800], as the 28 instances of Schoenfield 2002
  that reductions, bounds and heuristics left open. Here a draw is kept if as many packs as its tokens ask for leave 60
  to 200 tokens free in all (with fewer, the linear program proves one more pack; with many more, rounding is easy), if
  the bound L2 is no better than that by tokens, and if best-fit needs more packs. Some may have no plan at the bound of
  the linear program.

One family is not published: tight triplets, Falkenauer's recipe at C = 10,000 and 100,000. There few lengths are equal,
and few triples other than those drawn fill a pack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

Instance = tuple[np.ndarray, int]

SCHOLL_N = (50, 100, 200, 500)


@dataclass(frozen=True)
class Family:
    """A family of instances.

    Attributes:
        draw: returns (lengths, capacity) for a seed; the lengths are int64 ``[n]``.
        quick: number of instances in a short run.
        every: number of instances in a whole run, as many as were published where that is known.
        open_bound: whether some instances may have no plan at the bound of the linear program; if so, the family is
            left out of the totals.
    """

    draw: Callable[[int], Instance]
    quick: int
    every: int
    open_bound: bool = False


def uniform(n: int, seed: int) -> Instance:
    """Falkenauer's uniform class: n lengths from 20 to 100, capacity 150."""
    return _random("uniform", n, seed).integers(20, 101, n), 150


def triplets(n: int, capacity: int, seed: int) -> Instance:
    """Falkenauer's triplet class at any capacity; the optimum is n / 3 full packs."""
    rng = _random("triplets", n, capacity, seed)
    lengths = []
    for _ in range(n // 3):
        first = int(rng.integers(38 * capacity // 100, 49 * capacity // 100 + 1))
        second = int(rng.integers(capacity // 4, (capacity - first) // 2))
        lengths += [first, second, capacity - first - second]
    return rng.permutation(np.array(lengths, dtype=np.int64)), capacity


def scholl_1(seed: int) -> Instance:
    """Scholl's set 1: 36 classes by n, capacity and smallest size; the seed modulo 36 is the class."""
    n, capacity, least = _class(seed, SCHOLL_N, (100, 120, 150), (1, 20, 30))
    return _random("scholl 1", seed).integers(least, 101, n), capacity


def scholl_2(seed: int) -> Instance:
    """Scholl's set 2: 48 classes by n, mean size (capacity / 3 to / 9) and largest deviation in percent of the mean.

    The seed modulo 48 is the class; the capacity is 1,000.
    """
    n, parts, percent = _class(seed, SCHOLL_N, (3, 5, 7, 9), (20, 50, 90))
    least = -(-1000 * (100 - percent) // (100 * parts))
    most = 1000 * (100 + percent) // (100 * parts)
    return _random("scholl 2", seed).integers(least, most + 1, n), 1000


def scholl_3(seed: int) -> Instance:
    """Scholl's set 3, called hard: 200 lengths from 20,000 to 35,000, few of them equal, capacity 100,000."""
    return _random("scholl 3", seed).integers(20_000, 35_001, 200), 100_000


def schwerin(n: int, seed: int) -> Instance:
    """Schwerin and Wäscher's sets: n lengths from 150 to 200, 5 or 6 to a pack of 1,000."""
    return _random("schwerin", n, seed).integers(150, 201, n), 1000


def waescher_like(seed: int) -> Instance:
    """Draw by CUTGEN1 with a capacity of 10,000, until n is from 57 to 239 and best-fit misses the bound L2."""
    rng, capacity = _random("waescher", seed), 10_000
    while True:
        kinds, least, most = int(rng.integers(33, 65)), 1, int(rng.choice([5000, 7500, 10_000]))
        sizes = rng.integers(least, most + 1, kinds)
        total = int(kinds * rng.uniform(1.5, 4))
        shares = rng.random(kinds)
        demand = np.maximum(1, (shares / shares.sum() * total + 0.5).astype(np.int64))
        demand[-1] = max(1, total - int(demand[:-1].sum()))
        lengths = np.repeat(sizes, demand)
        if 57 <= lengths.size <= 239 and best_fit(lengths, capacity) > martello_toth(lengths, capacity):
            return rng.permutation(lengths), capacity


def hard28_like(seed: int) -> Instance:
    """Draw lengths from 1 to 800 until little room is left in a pack of 1,000 and best-fit misses the bound.

    The bound is that by tokens, which bound L2 does not exceed.
    """
    rng, capacity = _random("hard28", seed), 1000
    n = (160, 180, 200)[seed % 3]
    while True:
        lengths = rng.integers(1, 801, n)
        packs, room = divmod(int(lengths.sum()), capacity)
        packs, room = packs + 1, capacity - room
        if 60 <= room <= 200 and martello_toth(lengths, capacity) == packs < best_fit(lengths, capacity):
            return lengths, capacity


def best_fit(lengths: np.ndarray, capacity: int) -> int:
    """Return the number of packs of best-fit decreasing, by code that nopad does not share."""
    room: list[int] = []
    for length in sorted(lengths.tolist(), reverse=True):
        at = min((free, pack) for pack, free in enumerate([*room, capacity]) if free >= length)[1]
        if at == len(room):
            room.append(capacity)
        room[at] -= length
    return len(room)


def martello_toth(lengths: np.ndarray, capacity: int) -> int:
    """Return the bound L2 of Martello and Toth by its definition; the threshold 0 includes the bound by tokens."""
    best = 0
    for threshold in [0, *sorted(set(lengths[lengths <= capacity // 2].tolist()))]:
        alone = int(np.count_nonzero(lengths > capacity - threshold))
        big = lengths[(lengths > capacity // 2) & (lengths <= capacity - threshold)]
        middle = lengths[(lengths <= capacity // 2) & (lengths >= threshold)]
        room = big.size * capacity - int(big.sum())
        best = max(best, alone + big.size + max(0, -((room - int(middle.sum())) // capacity)))
    return best


def _class(seed: int, *choices: tuple[int, ...]) -> list[int]:
    """Return one value of each of `choices`; seeds in turn give all combinations."""
    chosen = []
    for values in choices:
        seed, at = divmod(seed, len(values))
        chosen.append(values[at])
    return chosen


def _random(*key: str | int) -> np.random.Generator:
    """Return the random generator for a key, such as (family, n, seed); each key has its own."""
    return np.random.default_rng([int.from_bytes(part.encode()) if isinstance(part, str) else part for part in key])


def _families() -> Iterator[tuple[str, Family]]:
    for n in (120, 250, 500, 1000):
        yield f"Falkenauer u{n}", Family(lambda seed, n=n: uniform(n, seed), 10, 20)
    for n in (60, 120, 249, 501):
        yield f"Falkenauer t{n}", Family(lambda seed, n=n: triplets(n, 1000, seed), 10, 20)
    yield "Scholl 1", Family(scholl_1, 36, 720)
    yield "Scholl 2", Family(scholl_2, 48, 480)
    yield "Scholl 3", Family(scholl_3, 10, 10)
    yield "Schwerin 1", Family(lambda seed: schwerin(100, seed), 10, 100)
    yield "Schwerin 2", Family(lambda seed: schwerin(120, seed), 10, 100)
    yield "Wäscher-like", Family(waescher_like, 17, 17)
    for capacity in (10_000, 100_000):
        for n in (120, 501):
            name = f"tight triplets {capacity // 1000}k n{n}"
            yield name, Family(lambda seed, n=n, capacity=capacity: triplets(n, capacity, seed), 10, 20)
    yield "hard28-like", Family(hard28_like, 28, 28, open_bound=True)


FAMILIES = dict(_families())
