"""The search for a cheap plan and a proof: bounds, quick ways, the linear program, its split, and the last packs.

1. One capacity and one kind is what `auto` plans.
2. Quick ways: every sequence to the cheapest capacity that holds it; all to one capacity.
3. Few distinct sizes: column generation with every size as a class, a dive, an integer program.
4. Otherwise classes of sizes: the program over corners proves a bound; the one over means says which sequences go to
   which capacity, where they are packed by themselves.
5. The packs that waste most are packed again, by step 3, as long as that pays.

The budget is counted in operations, so the result is the same on every machine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.optimal import auto
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.master import SolverError
from nopad.planning.several.bounds import price_bound
from nopad.planning.several.certificate import PriceCertificate
from nopad.planning.several.classes import Classes
from nopad.planning.several.dive import choose, dive
from nopad.planning.several.relax import Master, Relaxed
from nopad.planning.several.split import pack_each, shares, split_alone
from nopad.planning.several.task import Packing, Task

__all__ = ["Found", "search"]

_MOST_EXACT = 400  # distinct sizes
_EXACT_CELLS = 3 * 10**7  # classes x cells of the table, with every size as a class
_STAGES = ((100, 2**17, 0.3), (300, 2**18, 0.6))  # classes, cells of the table, share of the budget
_GOOD = 20_000  # one part of the price in so many above the bound is near enough
_CLOSING = 40  # packs that are packed again at a time
_MOST_CLOSED = 2**17  # different packs that are looked at
_TURNS = 8


@dataclass(frozen=True)
class Found:
    """A packing of all sequences, and what proves the bound best; `notes` for the user."""

    packing: Packing
    certificate: PriceCertificate | None
    notes: tuple[str, ...] = ()


def search(task: Task, effort: float) -> Found:
    """Return the cheapest plan found with a budget of about `effort` seconds of an ordinary core."""
    if not task.counts.size:
        return Found(Counter(), None)
    if task.kinds == 1 and len(task.by_price) == 1:
        return _one(task, effort)
    return _Search(task, effort).run()


def _one(task: Task, effort: float) -> Found:
    """Plan one kind for the only capacity that is worth using."""
    capacity = int(task.capacities[task.by_price[0], 0])
    made = auto(Histogram(task.sizes[:, 0], task.counts), capacity, task.depth, effort=effort)
    number = dict(zip(task.sizes[:, 0].tolist(), range(task.counts.size), strict=True))
    packing: Packing = Counter()
    for count, held in made.strategies:
        packing[tuple(sorted(number[length] for length in held))] += count
    steps = made.certificate.steps if made.certificate is not None else ()
    extras = tuple((length, 0, value) for length, value in steps)
    proof = PriceCertificate((0, 0), extras) if extras else None
    if proof is not None and proof.problem([(a, b) for a, b in task.capacities.tolist()]) is not None:
        proof = None
    return Found(packing, proof, made.notes)


class _Search:
    """The state of one search."""

    def __init__(self, task: Task, effort: float) -> None:
        self.task, self.effort = task, effort
        self.budget = Budget(effort)
        self.bound = price_bound(task).price
        self.certificate: PriceCertificate | None = None
        self.best: Packing = Counter()
        self.price: int | None = None
        self.worth: NDArray[np.float64] | None = None
        self.notes: list[str] = []

    def run(self) -> Found:
        """Take every step, until a plan is good or the budget is spent."""
        self._quick()
        try:
            if not self._good():
                self._exact() if self._few(self.task) else self._classes()
            self._close()
        except SolverError as error:
            self.notes.append(f"the solver gave up ({error}): the plan is the best of the ways that were left")
        if self.budget.spent() and not self._good():
            self.notes.append(
                f"stopped by its budget after {self.budget.programs} linear programs: a larger one (effort) may find a "
                "better plan, or a better bound"
            )
        return Found(self.best, self.certificate, tuple(self.notes))

    def _good(self) -> bool:
        return self.price is not None and self.price <= self.bound + self.bound // _GOOD

    def _offer(self, packing: Packing) -> None:
        price = self.task.price(packing)
        if self.price is None or price < self.price:
            self.best, self.price = packing, price

    def _prove(self, master: Master, relaxed: Relaxed) -> None:
        """Keep the duals of a linear program, if they prove more than what is known."""
        rates, classes = relaxed.rates * master.dearest, master.classes
        worth = self.task.sizes @ rates
        inside = classes.of_size >= 0
        worth[inside] += relaxed.extras[classes.of_size[inside]] * master.dearest
        self.worth = worth
        proof = master.certificate(relaxed)
        if proof.problem([(a, b) for a, b in self.task.capacities.tolist()]) is None:
            proven = price_bound(self.task, proof)
            if proven.price > self.bound:
                self.bound, self.certificate = proven.price, proof

    def _quick(self) -> None:
        """Try simple splits by best-fit."""
        task = self.task
        one = len(task.by_price) == 1
        self._offer(pack_each(task, split_alone(task), self.effort / 3, quick=True))
        for j in task.by_price if not one and task.kinds == 1 else []:
            if not self._good() and (task.sizes <= task.capacities[j]).all():
                counts = np.zeros((task.counts.size, len(task.prices)), dtype=np.int64)
                counts[:, j] = task.counts
                self._offer(pack_each(task, counts, 0, quick=True))

    @staticmethod
    def _few(task: Task) -> bool:
        cells = np.prod(task.capacities.max(axis=0) + 1.0)
        return bool(task.counts.size <= _MOST_EXACT and cells * task.counts.size <= _EXACT_CELLS)

    def _exact(self) -> None:
        """Solve with every size as a class."""
        master = Master(self.task, Classes.every(self.task))
        relaxed = master.relax(self.budget, near=1e-9)
        if relaxed is None:
            return
        self._prove(master, relaxed)
        self._offer(_whole_packs(self.task, master, relaxed, self.bound, self.budget, self.best))

    def _classes(self) -> None:
        """Solve with classes of sizes, coarse and fine, and pack what the programs give to each capacity."""
        task = self.task
        for most, cells, share in _STAGES:
            if self._good() or self.budget.spent():
                break
            with self.budget.part(share):
                master = Master(task, Classes.of(task, most, cells))
                relaxed = master.relax(self.budget, near=1e-5)
                if relaxed is not None:
                    self._prove(master, relaxed)
                if len(task.by_price) == 1 or self._good():
                    continue
                classes = Classes.of(task, most, cells, middle=True)
                master = Master(task, classes)
                relaxed = master.relax(self.budget, near=1e-5)
            if relaxed is not None:
                counts = shares(task, classes, master.columns, relaxed.times)
                self._offer(pack_each(task, counts, self.effort / 3))

    def _close(self) -> None:
        """Pack the packs that waste most again, a few at a time."""
        task = self.task
        for turn in range(_TURNS):
            if self._good() or self.budget.spent() or len(self.best) > _MOST_CLOSED:
                break
            inside = _wasteful(task, self.best, self.worth, _CLOSING * (1 + turn % 2))
            counts = np.zeros(task.counts.size, dtype=np.int64)
            for pack, count in inside.items():
                np.add.at(counts, list(pack), count)
            chosen = np.flatnonzero(counts)
            part = task.part(chosen, counts[chosen])
            if not self._few(part):
                break
            master = Master(part, Classes.every(part))
            with self.budget.part(0.3):
                relaxed = master.relax(self.budget)
                if relaxed is None:
                    break
                made = _whole_packs(part, master, relaxed, int(relaxed.proven), self.budget, None)
            if part.price(made) >= task.price(inside):
                break
            names = chosen.tolist()
            outside = self.best - inside
            self._offer(outside + Counter({tuple(names[i] for i in pack): n for pack, n in made.items()}))


def _whole_packs(
    task: Task, master: Master, relaxed: Relaxed, goal: int, budget: Budget, best: Packing | None
) -> Packing:
    """Return the cheapest of a dive, an integer program, and `best`."""
    found = [dive(task, master, relaxed, goal, budget)] + ([best] if best else [])
    cheapest = min(found, key=task.price)
    if task.price(cheapest) > goal:
        chosen = choose(task, master.columns, budget)
        if chosen is not None and task.price(chosen) < task.price(cheapest):
            cheapest = chosen
    return cheapest


def _wasteful(task: Task, packing: Packing, worth: NDArray[np.float64] | None, most: int) -> Packing:
    """Return about `most` packs that cost most beyond what their sequences are worth."""
    packs = list(packing)
    prices = np.array(task.prices, dtype=np.float64)[task.capacity_of(packs)]
    own = worth if worth is not None else (task.sizes / task.capacities.max(axis=0).clip(1)).max(axis=1) * prices.max()
    held = np.array([own[list(pack)].sum() for pack in packs])
    chosen: Packing = Counter()
    for at in np.argsort(held - prices, kind="stable").tolist():
        take = min(packing[packs[at]], most - chosen.total())
        if take <= 0:
            break
        chosen[packs[at]] = take
    return chosen
