"""Search for a cheap plan, and for a proof of a lower bound on the price.

1. A task with one kind of size and only one capacity worth using is planned by `auto`; the other steps are for all
   other tasks.
2. Quick divisions are tried: every sequence goes to the cheapest capacity that holds it; and with one kind of size, all
   sequences go to one capacity. With two kinds of size, this step is put off to the end if it takes much of the budget.
   It is then taken only if there is no plan yet, or if the plan's price is more than 5 % above the bound.
3. With few distinct sizes: column generation with every size as a class, then a dive, then an integer program.
4. With more distinct sizes, these are grouped into classes (`nopad.planning.several.classes`). The linear program over
   the corners of classes proves a bound. A second program, over the mean sizes of classes, says which sequences go to
   which capacity. Each capacity is then packed by itself. With two kinds of size, packs are also made from the patterns
   of the second program. If there are few possible packs, an integer program chooses among all of them.
5. The packs that waste most are packed again, by step 3, up to six times, as long as this lowers the price.

The budget is counted in operations, so the result is the same on every machine.

A `Packing` maps each pack, a tuple of indices of sizes in the task, to its number of copies.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import Histogram
from nopad.planning.optimal import auto
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.solver import SolverError
from nopad.planning.several.both import MOST_DEALT, dealing, follow
from nopad.planning.several.bounds import price_bound
from nopad.planning.several.certificate import PriceCertificate
from nopad.planning.several.classes import Classes
from nopad.planning.several.dive import choose, dive
from nopad.planning.several.lift import lifted, lifting
from nopad.planning.several.relax import Master, Relaxed
from nopad.planning.several.split import ease, pack_each, shares, split_alone
from nopad.planning.several.task import Packing, Task

__all__ = ["Found", "search"]

_MOST_EXACT = 400  # most distinct sizes in step 3
_EXACT_CELLS = 3 * 10**7  # most classes x cells of the pricing table in step 3
_PROGRAM = 0.2  # share of the budget for a program over classes; the number of classes is chosen so that it suffices
_CLASS_STEPS = (0.37, 0.06)  # operations of that program per cell and (classes)^2: table one cell wide; wider
_MOST_CLASSES, _MOST_GUIDING = 500, 300  # most classes to prove a bound; most to guide plans, where more do not pay
_CELLS = 2**17  # most cells of the pricing table in step 4
_PROVING, _SHARING = 0.4, 0.5  # shares of the budget left: for the program that proves a bound; for one over means
_EASING, _PACKING = 0.2, 0.8  # shares of the budget left: for `ease`; for `pack_each`
_BEGINNING = 0.2  # with two kinds of size, step 2 comes first if it takes less than this share of the budget
_QUICKLY = 0.33  # share of the budget for step 2
_FAR = 1.05  # if step 2 did not come first, it is done in the end if the price is above this many times the bound
_NEAR = 1e-5  # a linear program ends when its bound is within this share of its optimum
_SLACK = 1e-3  # a kind of size is tight if a full pack of it is worth at least this share of the highest price
_EASES = (0.5, 0.1, 0.0)  # a kind that is not tight keeps this share of its unused room free, as means are not exact
_HARDER = 1.003  # a program with room kept free is followed only below this many times the bound
_GOOD = 20_000  # a price is good if it is above the bound by at most one part in this many
_CLOSING = 40  # packs that are packed again at a time, twice as many in every second turn
_MOST_CLOSED = 2**17  # most different packs of a plan for step 5
_TURNS = 6  # most turns of step 5
_LOOSE = 1e-6  # see `_loose`: extras up to this share of a sequence's value count as 0


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        packing: packs that hold all sequences; each pack, a tuple of indices of sizes, is mapped to its number of
            copies.
        certificate: the certificate that proves the best lower bound; None if a proof without one is as good.
        notes: sentences for the user.
    """

    packing: Packing
    certificate: PriceCertificate | None
    notes: tuple[str, ...] = ()


def search(task: Task, effort: float) -> Found:
    """Return the cheapest plan found, with the certificate of its lower bound, if any (`Found`).

    The search has a budget of about `effort` seconds of an ordinary core.
    """
    if not task.counts.size:
        return Found(Counter(), None)
    if task.kinds == 1 and len(task.by_price) == 1:
        return _one(task, effort)
    return _Search(task, effort).run()


def _one(task: Task, effort: float) -> Found:
    """Return a plan for one kind of size and the only capacity worth using, made by `auto`.

    A certificate of `auto` becomes a `PriceCertificate`; it is left out if it cannot be checked.
    """
    capacity = int(task.capacities[task.by_price[0], 0])
    made = auto(Histogram(task.sizes[:, 0], task.counts), capacity, task.depth, effort=effort)
    number = dict(zip(task.sizes[:, 0].tolist(), range(task.counts.size), strict=True))
    packing: Packing = Counter()
    for count, held in made.strategies:
        packing[tuple(sorted(number[length] for length in held))] += count
    steps = made.certificate.steps if made.certificate is not None else ()
    places = int(task.capacities[task.by_price[0], 1] > 0)  # second size of each sequence: 1 if a depth limits packs
    extras = tuple((length, places, value) for length, value in steps if value)
    proof = PriceCertificate((0, 0), extras) if extras else None
    if proof is not None and proof.problem([(a, b) for a, b in task.capacities.tolist()]) is not None:
        proof = None
    return Found(packing, proof, made.notes)


class _Search:
    """The state of one search: the best packing and the best lower bound so far, and the budget left."""

    def __init__(self, task: Task, effort: float) -> None:
        self.task, self.effort = task, effort
        self.budget = Budget(effort)
        self.bound = price_bound(task).price
        self.certificate: PriceCertificate | None = None
        self.best: Packing = Counter()
        self.price: int | None = None
        self.worth: NDArray[np.float64] | None = None
        self.extra = np.zeros(task.counts.size)
        self.notes: list[str] = []

    def run(self) -> Found:
        """Take the steps of the module until a plan is near its lower bound or the budget is spent; return the best."""
        first = self.task.kinds == 1 or dealing(self.task) < self.budget.left * _BEGINNING
        if first:
            self._quick()
        try:
            if not self._good():
                self._exact() if self._few(self.task) else self._classes()
            if not self._good() and not self._few(self.task):
                self._listed()
            self._close()
        except SolverError as error:
            self.notes.append(f"the solver gave up ({error}): the plan is the best of the ways that were left")
        if not first and (self.price is None or self.price > self.bound * _FAR):
            self._quick()
        if self._good():
            pass
        elif self.budget.spent():
            self.notes.append(
                f"stopped by its budget after {self.budget.programs} linear programs: a larger one (effort) may find a "
                "better plan, or a better bound"
            )
        elif not self._few(self.task):
            self.notes.append(
                "sizes were grouped for the linear program: a larger effort groups them finer, and may get nearer"
            )
        return Found(self.best, self.certificate, tuple(self.notes))

    def _good(self) -> bool:
        return self.price is not None and self.price <= self.bound + self.bound // _GOOD

    def _offer(self, packing: Packing) -> None:
        price = self.task.price(packing)
        if self.price is None or price < self.price:
            self.best, self.price = packing, price

    def _prove(self, master: Master, relaxed: Relaxed) -> None:
        """Keep the values of sequences that a solved program gives, and its certificate if it proves a higher bound.

        If sizes were grouped into classes, the certificate is also improved (`lifted`), and the improved one is kept if
        it proves a still higher bound.
        """
        rates, classes = relaxed.rates * master.dearest, master.classes
        inside = classes.of_size >= 0
        self.extra = np.zeros(self.task.counts.size)
        self.extra[inside] = relaxed.extras[classes.of_size[inside]] * master.dearest
        self.worth = self.task.sizes @ rates + self.extra
        proof = master.certificate(relaxed)
        if self._take(proof) and not classes.exact:
            self.budget.charge(lifting(*master.cells))
            self._take(lifted(self.task, proof))

    def _take(self, proof: PriceCertificate) -> bool:
        """Keep a certificate if it proves a higher bound than the best so far; return whether it can be checked."""
        if proof.problem([(a, b) for a, b in self.task.capacities.tolist()]) is not None:
            return False
        proven = price_bound(self.task, proof)
        if proven.price > self.bound:
            self.bound, self.certificate = proven.price, proof
        return True

    def _loose(self) -> NDArray[np.bool_]:
        """Return which sizes have no extra; bool ``[k]``. Any capacity may hold these sizes at no loss.

        The extra of a size is its value in the linear program, minus ``rates . size`` (`PriceCertificate`). Tiny extras
        count as 0. Before a linear program is solved, no size has an extra.
        """
        if self.worth is None:
            return np.ones(self.task.counts.size, dtype=bool)
        found: NDArray[np.bool_] = self.extra <= _LOOSE * self.worth
        return found

    def _quick(self) -> None:
        """Try the quick divisions of sequences among capacities (step 2 of the module), and keep the cheapest plan."""
        task = self.task
        one = len(task.by_price) == 1
        with self.budget.part(_QUICKLY):
            self._offer(pack_each(task, split_alone(task), self.budget, quick=True))
        for j in task.by_price if not one and task.kinds == 1 else []:
            if not self._good() and (task.sizes <= task.capacities[j]).all():
                counts = np.zeros((task.counts.size, len(task.prices)), dtype=np.int64)
                counts[:, j] = task.counts
                self._offer(pack_each(task, counts, self.budget, quick=True))

    @staticmethod
    def _few(task: Task) -> bool:
        cells = np.prod(task.capacities.max(axis=0) + 1.0)
        return bool(task.counts.size <= _MOST_EXACT and cells * task.counts.size <= _EXACT_CELLS)

    def _exact(self) -> None:
        """Solve the linear program in which every size is a class of its own, and round it to packs.

        The packs are kept if they are the best so far. If the budget allows no round of the program, nothing is done.
        """
        master = Master(self.task, Classes.every(self.task))
        relaxed = master.relax(self.budget, near=1e-9)
        if relaxed is None:
            return
        self._prove(master, relaxed)
        self._offer(_whole_packs(self.task, master, relaxed, self.bound, self.budget, self.best))

    def _listed(self) -> None:
        """If there are few possible packs, choose a plan from all of them (`choose`).

        It is kept if it is the cheapest so far. Unlike column generation, this also works where the pricing table would
        be too large.
        """
        made = choose(self.task, [], self.budget)
        if made is not None:
            self._offer(made)

    def _most_classes(self) -> int:
        """Return how many classes a linear program may have, at most 500.

        The number is chosen so that solving the program takes about its share of the effort.
        """
        rooms, places = (self.task.capacities.max(axis=0) + 1.0).tolist()
        cells = min(rooms * places, _CELLS) * _CLASS_STEPS[places > 1]
        steps = max(self.effort, 0.1) * 1e9 * _PROGRAM
        return min(_MOST_CLASSES, int((steps / cells) ** 0.5))

    def _classes(self) -> None:
        """Group sizes into classes, prove a bound, and make plans (step 4 of the module).

        Linear programs over the corners of classes prove the bound, up to three for two kinds of size. A program over
        the mean sizes of classes says which sequences each capacity gets.
        """
        task, most = self.task, self._most_classes()
        proven = 0.0
        best: tuple[int, ...] = (0, 1)
        used = np.ones(2)
        for kinds in [(0, 1)] if task.kinds == 1 else [(0,), (1,), (0, 1)]:
            with self.budget.part(_PROVING):
                master = Master(task, Classes.of(task, most, _CELLS, kinds=kinds))
                relaxed = master.relax(self.budget, near=_NEAR)
            if relaxed is not None:
                self._prove(master, relaxed)
                if relaxed.proven > proven * (1 - _NEAR if len(kinds) > 1 else 1 + _NEAR):
                    proven, best, used = relaxed.proven, kinds, _used(task, master, relaxed)
            if self._good():
                return
        for ease_ in _EASES if task.kinds > 1 else (0.0,):
            limits = np.floor(task.capacities * (1 - ease_ * (1 - used))).astype(np.int64)
            with self.budget.part(_SHARING):
                eased = replace(task, capacities=limits)
                if task.kinds == 1 and self.certificate is not None:
                    classes = Classes.along(task, min(most, _MOST_GUIDING), _CELLS, self.certificate)
                else:
                    classes = Classes.of(task, most, _CELLS, kinds=best, middle=True)
                classes = classes.within(eased)
                master = Master(eased, classes)
                relaxed = master.relax(self.budget, near=_NEAR)
            if relaxed is not None and (relaxed.price < proven * _HARDER or not ease_):
                self._follow(classes, master, relaxed)
                break

    def _follow(self, classes: Classes, master: Master, relaxed: Relaxed) -> None:
        """Make plans that follow `relaxed`, and keep the cheapest.

        `relaxed` is the solution of a program in which each class has the mean of its sizes. If there is a plan
        already, nothing is done in two cases: the plan's price is not above the price of the solution, or the budget is
        spent.
        """
        task = self.task
        if self.price is not None and (relaxed.price >= self.price or self.budget.spent()):
            return
        if task.kinds > 1 and task.sequences <= MOST_DEALT:
            self._offer(follow(task, classes, master.columns, relaxed, self.budget))
        if len(task.by_price) > 1 and not self._good() and (self.price is None or not self.budget.spent()):
            counts = shares(task, classes, master.columns, relaxed.times)
            if task.kinds == 1:
                with self.budget.part(_EASING):
                    counts = ease(task, counts, self._loose(), self.budget)
            with self.budget.part(_PACKING):
                self._offer(pack_each(task, counts, self.budget))

    def _close(self) -> None:
        """Pack the most wasteful packs of the best plan again, 40 or 80 at a time (step 5 of the module)."""
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


def _used(task: Task, master: Master, relaxed: Relaxed) -> NDArray[np.float64]:
    """Return, for each kind of size, how much of the room in the packs of a solved program is filled; float64 ``[2]``.

    This is a share from 0 to 1. For a tight kind of size, it is set to 1. A kind is tight if its rate (the value of one
    unit, `Relaxed.rates`), times the largest limit of any capacity, is at least `_SLACK`.
    """
    room = np.zeros(2)
    for (j, _), time in zip(master.columns, relaxed.times.tolist(), strict=False):
        room += time * task.capacities[j]
    used = np.array([float(load) for load in task.loads]) / room.clip(1)
    return np.where(relaxed.rates * task.capacities.max(axis=0) < _SLACK, used.clip(0, 1), 1.0)


def _whole_packs(
    task: Task, master: Master, relaxed: Relaxed, goal: int, budget: Budget, best: Packing | None
) -> Packing:
    """Return the cheapest of up to three packings: that of a dive, `best` (if given), and that of an integer program.

    The integer program is tried only if the other two cost more than `goal`.
    """
    found = [dive(task, master, relaxed, goal, budget)] + ([best] if best else [])
    cheapest = min(found, key=task.price)
    if task.price(cheapest) > goal:
        chosen = choose(task, master.columns, budget)
        if chosen is not None and task.price(chosen) < task.price(cheapest):
            cheapest = chosen
    return cheapest


def _wasteful(task: Task, packing: Packing, worth: NDArray[np.float64] | None, most: int) -> Packing:
    """Return up to `most` packs of `packing`: those whose prices are furthest above the values of their sequences.

    `worth` is the value of a sequence of each size; float64 ``[k]``. If it is None, values are estimated from the share
    that each size has of the largest limits.
    """
    packs = list(packing)
    if not packs:
        return Counter()
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
