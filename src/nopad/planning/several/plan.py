"""`SeveralPlan`: strategies for several capacities that cover all sequences, their price, and a lower bound on it.

A plan does not say which sequence goes into which pack: `SeveralPlan.assign` does this. A plan file (``*.plan.json``)
is small and readable, with one strategy per line. It holds all data that `SeveralPlan.verify` needs; this check runs
without a solver.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.errors import FormatError
from nopad.files import local_path, write_atomic
from nopad.histogram import exact_dot, exact_sum
from nopad.planning.document import text_of
from nopad.planning.several.bounds import PriceBound, price_bound
from nopad.planning.several.certificate import PriceCertificate
from nopad.planning.several.given import Capacity, Price, distinct, shown, task_of
from nopad.planning.several.task import Task, number, whole_prices
from nopad.properties import cached_property

if TYPE_CHECKING:
    from nopad.packs import Packs

__all__ = ["SeveralPlan"]

Sizes = tuple[Any, ...]
_MOST_NAMED = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class SeveralPlan:
    """Which sizes share packs, in which capacity, and how many such packs there are.

    The plan covers each sequence exactly once.

    A strategy is the multiset of sequence sizes in one pack; ``counts[s]`` equal packs have strategy s. `plan_several`
    makes plans, and `load` reads them. Two plans are equal if their plan files would be equal.

    Attributes:
        capacities: K tuples, in the order given to `plan_several`; each has one limit, or two limits for two kinds of
            size.
        prices: price of one pack of each capacity; K numbers.
        depth: most sequences a pack may hold; None: unlimited.
        indptr: strategy s holds ``sizes[indptr[s]:indptr[s + 1]]``; int64 ``[strategies + 1]``.
        sizes: size of each sequence of all strategies, largest first within a strategy; int64 ``[indptr[-1], kinds]``.
        counts: number of packs of each strategy, >= 1; int64 ``[strategies]``.
        used: index in `capacities` of the capacity that each strategy uses; int64 ``[strategies]``.
        bound: the proven lower bound on the price, as a multiple of `unit`, and what proves it.
        notes: sentences for the user, such as what ended the search, or which capacities are never worth using.

    >>> import nopad
    >>> plan = nopad.plan_several([7, 5, 2, 2], capacities=[8, 16], prices=[1, 1.8])
    >>> plan.price, plan.lower_bound, plan.packs
    (1.8, 1.8, {8: 0, 16: 1})
    """

    capacities: tuple[Capacity, ...]
    prices: tuple[Price, ...]
    depth: int | None
    indptr: NDArray[np.int64]
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    used: NDArray[np.int64]
    bound: PriceBound
    notes: tuple[str, ...] = ()

    @property
    def kinds(self) -> int:
        """Number of sizes that each sequence has: 1 (its length), or 2 (such as tokens and images)."""
        return len(self.capacities[0])

    @property
    def strategies(self) -> list[tuple[int, Any, Sizes]]:
        """All strategies as ``(number of packs, capacity, sizes of the sequences in a pack)``.

        With one kind of size, a capacity and a size are integers; with two, they are pairs of integers.
        """
        limits, flat = [self._named(j) for j in range(len(self.capacities))], self.sizes.tolist()
        rows = [one[0] for one in flat] if self.kinds == 1 else [tuple(one) for one in flat]
        ends, used = self.indptr.tolist(), self.used.tolist()
        return [
            (count, limits[used[s]], tuple(rows[ends[s] : ends[s + 1]])) for s, count in enumerate(self.counts.tolist())
        ]

    def _named(self, j: int) -> Any:
        """Return capacity j as an integer, or as a pair of integers if there are two kinds of size."""
        return self.capacities[j] if self.kinds == 2 else self.capacities[j][0]

    @cached_property
    def _whole(self) -> tuple[tuple[int, ...], Fraction]:
        return whole_prices(self.prices)

    @property
    def unit(self) -> Fraction:
        """The largest number of which every price is a whole multiple, as an exact fraction.

        For prices of 1 and 4.3, it is 1/10.
        """
        return self._whole[1]

    @cached_property
    def task(self) -> Task:
        """The sequences, capacities and prices of this plan as a `Task`; the sequences are those of its strategies.

        Raises:
            ValueError: the number of sequences of one size does not fit into 64 bits.
            LengthError: a sequence fits into no capacity, or there are too many sequences or distinct sizes. A plan
                that `plan_several` made never raises this.
        """
        own = np.zeros((len(self.sizes), 2), dtype=np.int64)
        own[:, : self.kinds] = self.sizes
        found, at = distinct(own)
        totals = [0] * len(found)
        repeats = np.repeat(self.counts, np.diff(self.indptr)).tolist()
        for place, count in zip(at.tolist(), repeats, strict=True):
            totals[place] += count  # Python integers do not overflow
        if max(totals, default=0) >= 2**63:
            raise ValueError("its counts add up to more than 64 bits")
        return task_of(found, np.array(totals, dtype=np.int64), self.capacities, self.prices, self.depth)

    @cached_property
    def _packs(self) -> tuple[int, ...]:
        """Number of packs of each capacity, in the order of `capacities`."""
        return tuple(exact_sum(self.counts[self.used == j]) for j in range(len(self.capacities)))

    @property
    def packs(self) -> dict[Any, int]:
        """Number of packs of each capacity: ``{capacity: packs}``.

        A capacity is an integer, or a pair of integers for two kinds of size.
        """
        return {self._named(j): count for j, count in enumerate(self._packs)}

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return exact_dot(self.counts, np.diff(self.indptr))

    @property
    def whole_price(self) -> int:
        """The price of all packs together as a multiple of `unit`: an exact integer."""
        return sum(price * count for price, count in zip(self._whole[0], self._packs, strict=True))

    @property
    def price(self) -> Price:
        """The price of all packs together: an int if it is a whole number, otherwise the nearest float."""
        return number(self.whole_price * self.unit)

    @property
    def lower_bound(self) -> Price:
        """The proven lower bound on the price of any plan of these sequences.

        It is an int if it is a whole number, otherwise the nearest float.
        """
        return number(self.bound.price * self.unit)

    @property
    def gap(self) -> Price:
        """``price - lower_bound``, computed exactly and then rounded as `price` is; if it is 0, no plan is cheaper."""
        return number((self.whole_price - self.bound.price) * self.unit)

    @property
    def gap_share(self) -> float:
        """``gap / lower_bound``, such as 0.001 if the price is 0.1 % above the lower bound; 0.0 if the bound is 0."""
        return (self.whole_price - self.bound.price) / self.bound.price if self.bound.price else 0.0

    @cached_property
    def loads(self) -> list[tuple[int, ...]]:
        """For each capacity, the total size of the sequences in its packs: a tuple with one sum per kind of size."""
        repeats = np.repeat(self.counts, np.diff(self.indptr))
        where = np.repeat(self.used, np.diff(self.indptr))
        return [
            tuple(exact_dot(repeats[where == j], self.sizes[where == j, kind]) for kind in range(self.kinds))
            for j in range(len(self.capacities))
        ]

    @property
    def efficiency(self) -> tuple[float, ...]:
        """For each kind of size, the share of the room in all packs that sequences fill, from 0 to 1.

        The share is 1.0 if there is no room at all, as in an empty plan.
        """
        room = [
            sum(c[kind] * n for c, n in zip(self.capacities, self._packs, strict=True)) for kind in range(self.kinds)
        ]
        return tuple(
            sum(load[kind] for load in self.loads) / room[kind] if room[kind] else 1.0 for kind in range(self.kinds)
        )

    def summary(self) -> dict[str, Any]:
        """Return the plan's main figures by name, as JSON values.

        The keys ``depth``, ``sequences``, ``price``, ``lower_bound``, ``gap`` and ``efficiency`` are names of
        attributes. There are two more: ``proof`` names what proves the lower bound, and ``capacities`` is a list with a
        dict for each capacity. The keys of each such dict are ``capacity``, ``price``, ``packs`` and ``efficiency``.
        """
        rows = zip(self.capacities, self.prices, self._packs, self.loads, strict=True)
        return {
            "depth": self.depth,
            "sequences": self.sequences,
            "price": self.price,
            "lower_bound": self.lower_bound,
            "gap": self.gap,
            "proof": self.bound.proof,
            "efficiency": list(self.efficiency),
            "capacities": [
                {
                    "capacity": list(limits) if self.kinds == 2 else limits[0],
                    "price": price,
                    "packs": packs,
                    "efficiency": [
                        load / (limit * packs) if limit * packs else 1.0
                        for load, limit in zip(held, limits, strict=True)
                    ],
                }
                for limits, price, packs, held in rows
            ],
        }

    def __repr__(self) -> str:
        """Return one line with the capacities, the number of packs of each, the price and the gap."""
        limits = ", ".join(shown(one) for one in self.capacities)
        packs = " + ".join(f"{count:,}" for count in self._packs)
        above = f"{self.gap_share:.4%} above the bound"
        return f"SeveralPlan(capacities {limits}: {packs} packs, price {self.price:,}, {above})"

    def __str__(self) -> str:
        """Return a small table: one line for each capacity, then the sequences, price, lower bound and notes."""
        state = f"{self.gap_share:.4%} above" if self.gap else "proven optimal"
        return "\n".join(
            [
                *self._table(),
                f"{'sequences':<15}{self.sequences:,}",
                f"{'price':<15}{self.price:,}",
                f"{'lower bound':<15}{self.lower_bound:,}, by {self.bound.proof} (this plan: {state})",
                *(f"{'note':<15}{note}" for note in self.notes),
            ]
        )

    def _table(self) -> list[str]:
        """Return the lines of a table of the capacities, the first with the names of its columns."""
        rows = [("capacity", "price", "packs", "efficiency")]
        for one in zip(self.capacities, self.prices, self._packs, self.summary()["capacities"], strict=True):
            limits, price, packs, row = one
            rows.append(
                (shown(limits), f"{price:,}", f"{packs:,}", ", ".join(f"{share:.3%}" for share in row["efficiency"]))
            )
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]

    def __eq__(self, other: object) -> bool:
        """Whether the plan files of both plans would be equal."""
        return self.to_json() == other.to_json() if isinstance(other, SeveralPlan) else NotImplemented

    def __hash__(self) -> int:
        """Hash of the content."""
        return hash(self.to_json())

    def verify(self) -> list[str]:
        """Check every pack against its capacity and the depth, and prove the lower bound again, without a solver.

        Returns:
            One sentence for each problem (at most three on capacities and three on the depth); an empty list if there
            is none. If the certificate cannot be checked, a sentence says so, and the lower bound is not checked.
        """
        found = []
        held = np.diff(self.indptr)
        sums = np.add.reduceat(self.sizes, self.indptr[:-1], axis=0) if held.size else self.sizes
        limits = np.array(self.capacities, dtype=np.int64)[self.used]
        for s in np.flatnonzero((sums > limits).any(axis=1))[:_MOST_NAMED].tolist():
            taken = shown(tuple(sums[s].tolist()))
            found.append(f"strategy {s} takes {taken}, above its capacity of {shown(tuple(limits[s].tolist()))}")
        for s in np.flatnonzero(held > (self.depth or np.inf))[:_MOST_NAMED].tolist():
            found.append(f"strategy {s} holds {held[s]} sequences, above the depth of {self.depth}")
        proof = self.bound.certificate
        task = self.task
        problem = proof.problem([(a, b) for a, b in task.capacities.tolist()]) if proof is not None else None
        if problem is not None:
            return [*found, problem]
        try:
            proven = price_bound(task, proof)
        except FormatError as error:  # too many extras for this many sizes
            return [*found, str(error)]
        if proven.price != self.bound.price:
            found.append(
                f"lower bound is stated as {self.lower_bound}, {number(proven.price * self.unit)} can be proven"
            )
        elif proven.proof != self.bound.proof:
            found.append(f"the proof of the lower bound is stated as {self.bound.proof!r}, it is {proven.proof!r}")
        return found

    @property
    def certificate(self) -> PriceCertificate | None:
        """The values of sequences that prove the lower bound; None if a proof without them is as good."""
        return self.bound.certificate

    def assign(self, sizes: ArrayLike, *, seed: int = 0) -> dict[Any, Packs]:
        """Assign each sequence to a pack; return ``{capacity: Packs}``, where packs hold indices into `sizes`.

        `sizes` are the sizes that were planned, integers ``[n]`` or ``[n, 2]``, in any order. Every sequence is in
        exactly one of all packs. A capacity is an integer, or a pair of integers for two kinds of size. Two things are
        drawn at random with `seed`: which of several sequences of equal size goes to which pack, and the order of the
        packs of each capacity.

        Raises:
            PlanMismatchError: the plan does not cover exactly these sizes.
            LengthError: a size is not an integer or is out of range; `sizes` have another shape; or sequences do not
                have as many sizes each as those of the plan.
            OptionError: `seed` is not an integer from 0 to 2^64 - 1.

        >>> import nopad
        >>> plan = nopad.plan_several([7, 5, 3, 1], capacities=[8, 16], prices=[1, 2.1])
        >>> {capacity: [pack.tolist() for pack in packs] for capacity, packs in plan.assign([7, 5, 3, 1]).items()}
        {8: [[0, 3], [1, 2]], 16: []}
        """
        from nopad.planning.several.dealing import deal

        dealt = deal(self, sizes, seed)
        return {self._named(j): packs for j, packs in enumerate(dealt)}

    def to_json(self) -> str:
        """Return the content of a plan file; the same plan always gives the same bytes."""
        from nopad.planning.several.plan_file import written

        return written(self)

    def save(self, path: str | Path) -> None:
        """Write a plan file (``*.plan.json``); a file that exists at `path` is replaced.

        Raises:
            OptionError: the path is a URL, or cannot be written in UTF-8.
            StorageError: the disk is full, or the write failed.
        """
        write_atomic(local_path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | Path) -> SeveralPlan:
        """Read a plan file; return its plan.

        Raises:
            FormatError: the file cannot be read, is not JSON or not a plan for several capacities, has an unknown
                version, or its numbers contradict each other.
        """
        from nopad.planning.several.plan_file import parsed

        return cls(**parsed(text_of(path), str(path)))
