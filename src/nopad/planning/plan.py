"""`Plan`: strategies with counts that cover a histogram exactly, and a lower bound on the number of packs.

A strategy is a multiset of lengths that share one pack. A plan does not say which sequence goes into which pack:
`nopad.assign` does this. A plan file (``*.plan.json``) is small and readable, with one strategy per line. It holds all
data that `Plan.problems` checks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import FormatError, LengthError, OptionError
from nopad.files import local_path, write_atomic
from nopad.histogram import Histogram, exact_dot, exact_sum
from nopad.planning.bounds import Bound
from nopad.planning.certificate import Certificate
from nopad.planning.conditions import bound_under, broken_conditions, even_limits, unchecked
from nopad.planning.cost_certificate import CostCertificate
from nopad.planning.costs import broken_evenness, load_of
from nopad.planning.document import opened, parsed, text_of
from nopad.properties import cached_property
from nopad.wording import counted

__all__ = ["Plan"]

FORMAT = "nopad.plan"
FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """Which lengths share packs, and how many such packs there are.

    A plan covers each sequence of a histogram exactly once.

    A strategy is the multiset of sequence lengths in one pack; ``counts[s]`` equal packs have strategy s.

    Attributes:
        capacity: most tokens a pack may hold.
        depth: most sequences a pack may hold; None: unlimited.
        algorithm: name of the algorithm that made the plan.
        options: options of the algorithm, and conditions on packs (`nopad.planning.conditions`), by name; JSON values.
        facts: further figures that the algorithm reports, by name; JSON values. If the command ``nopad plan`` made the
            plan from a corpus and saved it, the fact ``corpus`` holds the options with which the corpus was read.
        indptr: strategy s holds ``lengths[indptr[s]:indptr[s + 1]]``; int64 ``[strategies + 1]``.
        lengths: lengths in tokens, strategy after strategy, longest first within each; int64 ``[indptr[-1]]``.
        counts: number of packs of each strategy, >= 1; int64 ``[strategies]``.
        bound: the proven lower bound on the number of packs, and its proof.
        notes: sentences for the user, such as "arrival order drawn from the histogram with seed 0".

    >>> import nopad
    >>> plan = nopad.plan([5, 3, 4, 2, 8], capacity=8)
    >>> plan.packs, plan.efficiency, plan.lower_bound, plan.strategies
    (3, 0.9166666666666666, 3, [(1, (8,)), (1, (5, 3)), (1, (4, 2))])
    """

    capacity: int
    depth: int | None
    algorithm: str
    indptr: NDArray[np.int64]
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]
    bound: Bound
    options: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def from_strategies(
        cls,
        strategies: Iterable[tuple[int, tuple[int, ...]]],
        histogram: Histogram,
        *,
        capacity: int,
        depth: int | None,
        algorithm: str,
        options: Mapping[str, Any] | None = None,
        certificate: Certificate | CostCertificate | None = None,
        facts: Mapping[str, Any] | None = None,
        notes: tuple[str, ...] = (),
    ) -> Plan:
        """Return a plan made from ``(count, lengths longest first)`` pairs in any order; equal strategies are merged.

        `histogram` must hold exactly the sequences of these pairs; this is not checked. The lower bound is computed
        from `histogram`, `capacity`, `depth`, `options` and `certificate`. The other arguments are as in the class.

        Raises:
            FormatError: `certificate` cannot be checked under these limits.
        """
        merged: Counter[tuple[int, ...]] = Counter()
        for count, lengths in strategies:
            merged[lengths] += count
        ordered = sorted(merged.items(), reverse=True)
        sizes = np.fromiter((len(lengths) for lengths, _ in ordered), dtype=np.int64, count=len(ordered))
        indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        flat = (length for lengths, _ in ordered for length in lengths)
        return cls(
            capacity=capacity,
            depth=depth,
            algorithm=algorithm,
            indptr=indptr,
            lengths=np.fromiter(flat, dtype=np.int64, count=int(indptr[-1])),
            counts=np.fromiter((count for _, count in ordered), dtype=np.int64, count=len(ordered)),
            bound=bound_under(options or {}, histogram, capacity, depth, certificate),
            options=dict(options or {}),
            facts=dict(facts or {}),
            notes=notes,
        )

    @property
    def strategies(self) -> list[tuple[int, tuple[int, ...]]]:
        """The strategies as ``(count, lengths longest first)`` pairs, where `count` packs hold these lengths each."""
        lengths, bounds = self.lengths.tolist(), self.indptr.tolist()
        return [(count, tuple(lengths[bounds[s] : bounds[s + 1]])) for s, count in enumerate(self.counts.tolist())]

    @cached_property
    def histogram(self) -> Histogram:
        """The histogram that this plan covers, computed from its strategies."""
        sizes = np.diff(self.indptr)
        repeats = np.repeat(self.counts, sizes)
        if exact_dot(self.counts, sizes) < 2**63:
            distinct, place = np.unique(self.lengths, return_inverse=True)
            counts = np.zeros(distinct.size, dtype=np.int64)
            np.add.at(counts, place, repeats)
            return Histogram(distinct, counts)
        total: Counter[int] = Counter()  # Python integers do not overflow
        for length, count in zip(self.lengths.tolist(), repeats.tolist(), strict=True):
            total[length] += count
        return Histogram.from_counts(total)

    @cached_property
    def packs(self) -> int:
        """Number of packs."""
        return exact_sum(self.counts)

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return self.histogram.sequences

    @property
    def tokens(self) -> int:
        """Number of real tokens."""
        return self.histogram.tokens

    @property
    def slots(self) -> int:
        """Number of slots: packs x capacity."""
        return self.packs * self.capacity

    @property
    def padding_tokens(self) -> int:
        """Number of padding tokens: slots - tokens."""
        return self.slots - self.tokens

    @property
    def efficiency(self) -> float:
        """Tokens / slots, from 0 to 1; 1.0 for an empty plan."""
        return self.tokens / self.slots if self.slots else 1.0

    @property
    def packing_factor(self) -> float:
        """Sequences / packs; 1.0 for an empty plan."""
        return self.sequences / self.packs if self.packs else 1.0

    @property
    def limit(self) -> float:
        """The packing factor that a plan without any padding would have; 1.0 for an empty plan.

        It is capacity x sequences / tokens.
        """
        return self.capacity * self.sequences / self.tokens if self.tokens else 1.0

    @property
    def lower_bound(self) -> int:
        """The proven lower bound on the number of packs."""
        return self.bound.packs

    @property
    def gap(self) -> int:
        """Number of packs minus the lower bound; if it is 0, no plan has fewer packs."""
        return self.packs - self.lower_bound

    @property
    def max_depth_used(self) -> int:
        """Largest number of sequences in any pack; 0 for an empty plan."""
        return int(np.diff(self.indptr).max()) if self.counts.size else 0

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the plan file's bytes, in hex."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        """Whether the plan files of both plans would be equal."""
        return self.to_json() == other.to_json() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        """Hash of the content."""
        return hash(self.fingerprint)

    def summary(self) -> dict[str, Any]:
        """Return the plan's main figures by name, as JSON values.

        The keys are ``strategies``, the number of strategies, and names of attributes: ``algorithm``, ``depth``,
        ``max_depth_used``, ``sequences``, ``packs``, ``tokens``, ``slots``, ``padding_tokens``, ``efficiency``,
        ``packing_factor``, ``limit`` and ``lower_bound``.
        """
        return {
            "algorithm": self.algorithm,
            "depth": self.depth,
            "max_depth_used": self.max_depth_used,
            "strategies": int(self.counts.size),
            "sequences": self.sequences,
            "packs": self.packs,
            "tokens": self.tokens,
            "slots": self.slots,
            "padding_tokens": self.padding_tokens,
            "efficiency": self.efficiency,
            "packing_factor": self.packing_factor,
            "limit": self.limit,
            "lower_bound": self.lower_bound,
        }

    def __repr__(self) -> str:
        """Return one line with the algorithm, capacity, depth, number of packs and efficiency."""
        depth = "unlimited" if self.depth is None else self.depth
        what = f"{self.algorithm}, capacity {self.capacity}, depth {depth}"
        return f"Plan({what}: {counted(self.packs, 'pack')}, {self.efficiency:.3%})"

    def __str__(self) -> str:
        """Return a small table for reading, one figure per line: limits, packs, lower bound, efficiency and notes."""
        state = "proven optimal"
        if self.gap:  # not without packs: then the bound is 0, and no share of it
            state = f"{self.gap:,} above, {_percent(self.gap, self.lower_bound)}"
        rows = [
            ("algorithm", self.algorithm),
            ("capacity", counted(self.capacity, "token")),
            ("depth", f"{'unlimited' if self.depth is None else self.depth} (reached: {self.max_depth_used})"),
            ("sequences", f"{self.sequences:,}"),
            ("packs", f"{self.packs:,} ({self.counts.size:,} strategies)"),
            ("lower bound", f"{counted(self.lower_bound, 'pack')}, by {self.bound.proof} (this plan: {state})"),
            ("efficiency", f"{self.efficiency:.3%} ({self.padding_tokens:,} padding tokens)"),
            ("packing factor", f"{self.packing_factor:.3f} (limit {self.limit:.3f})"),
            *(("note", note) for note in self.notes),
        ]
        return "\n".join(f"{name:<15}{value}" for name, value in rows)

    def problems(self) -> list[str]:
        """Check the plan against its own capacity, depth, conditions and lower bound.

        Returns:
            One sentence for each problem found; an empty list if there is none. If many strategies break a limit, only
            some of them are named (`broken_limits`). If the certificate cannot be checked, a sentence says so, and the
            lower bound is not checked.
        """
        found = self.broken_limits()
        load = load_of(self.histogram, self.capacity, self.depth, *even_limits(self.options, self.capacity))
        found += broken_evenness(self.options, self.facts, self.notes, load, self.strategies)
        proof = self.bound.certificate
        problem = unchecked(self.options, proof, self.capacity, self.depth)
        if problem is not None:
            return [*found, problem]
        proven = bound_under(self.options, self.histogram, self.capacity, self.depth, self.bound.certificate)
        if self.bound.packs != proven.packs:
            found.append(f"lower bound is stated as {self.bound.packs}, {proven.packs} can be proven")
        elif self.bound.proof != proven.proof:
            found.append(f"the proof of the lower bound is stated as {self.bound.proof!r}, it is {proven.proof!r}")
        return found

    def broken_limits(self) -> list[str]:
        """Return sentences that say which limits are broken, and by which strategies; an empty list if none is broken.

        Limits are the capacity, the depth and the conditions other than `even`; a count below 1 is reported too. There
        are at most three sentences on counts, three on the capacity, three on the depth, and three on all conditions
        together. If a strategy holds no sequence, a sentence says so; then only the counts are checked besides.
        """
        found = [f"strategy {s} is used {self.counts[s]} times" for s in np.flatnonzero(self.counts < 1)[:3]]
        sizes = np.diff(self.indptr)
        if not sizes.all():
            return [*found, f"strategy {int(np.argmin(sizes))} holds no sequence"]
        sums = np.add.reduceat(self.lengths, self.indptr[:-1]) if sizes.size else sizes
        for s in np.flatnonzero(sums > self.capacity)[:3]:
            found.append(f"strategy {s} sums to {sums[s]:,} tokens, above the capacity of {self.capacity:,}")
        if self.depth is not None:
            for s in np.flatnonzero(sizes > self.depth)[:3]:
                found.append(f"strategy {s} holds {sizes[s]} sequences, above the depth of {self.depth}")
        return found + broken_conditions(self.options, self.indptr, self.lengths, self.counts, self.capacity)

    def to_json(self) -> str:
        """Return the content of a plan file; the same plan always gives the same bytes."""
        head = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "capacity": self.capacity,
            "depth": self.depth,
            "algorithm": self.algorithm,
            "options": dict(self.options),
            "facts": dict(self.facts),
            "notes": list(self.notes),
            "sequences": self.sequences,
            "tokens": self.tokens,
            "packs": self.packs,
            "lower_bound": {"packs": self.bound.packs, "proof": self.bound.proof},
            "histogram_sha256": self.histogram.fingerprint,
        }
        proof = self.bound.certificate
        if isinstance(proof, CostCertificate):
            head["cost_certificate"] = {
                "units": proof.units and list(proof.units),
                "by_depth": proof.by_depth,
                "steps": [list(step) for step in proof.steps],
            }
        elif proof is not None:
            head["certificate"] = [list(step) for step in proof.steps]
        lines = [f'    {{"count": {count}, "lengths": {list(lengths)}}}' for count, lengths in self.strategies]
        # Indented JSON, but pairs of integers (a certificate may have thousands) on one line each.
        body = re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", json.dumps(head, indent=2))[:-2]
        return f'{body},\n  "strategies": [' + ("\n" + ",\n".join(lines) + "\n  " if lines else "") + "]\n}\n"

    def save(self, path: str | Path) -> None:
        """Write a plan file (``*.plan.json``); a file that exists at `path` is replaced.

        Raises:
            OptionError: the path is a URL, or cannot be written in UTF-8.
            StorageError: the disk is full, or the write failed.
        """
        write_atomic(local_path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan file; return its plan.

        Raises:
            FormatError: the file cannot be read, is not JSON or not a plan, has an unknown version, or its numbers
                contradict each other.
        """
        return cls.from_json(text_of(path), name=str(path))

    @classmethod
    def from_json(cls, text: str, *, name: str = "plan") -> Plan:
        """Return the plan whose `to_json` gave this text; error messages call the text `name`.

        Raises:
            FormatError: the text is not JSON or not a plan, has an unknown version, or its numbers contradict each
                other.
        """
        document = opened(text, name, FORMAT, FORMAT_VERSION)
        try:
            plan = cls(**parsed(document))
            covered = plan.histogram.fingerprint
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, OptionError, LengthError) as error:
            raise FormatError(f"{name} is damaged: {error!r}") from error
        for key in ("sequences", "tokens", "packs"):
            if type(document.get(key)) is not int or document[key] != getattr(plan, key):
                raise FormatError(f"{name} states {document.get(key)} {key}, its strategies give {getattr(plan, key)}")
        if document.get("histogram_sha256") != covered:
            raise FormatError(
                f"{name} is damaged: its strategies do not cover the histogram whose fingerprint it states"
            )
        return plan


def _percent(part: int, whole: int) -> str:
    """Return ``part / whole`` in percent as text, with four decimals, rounded to the nearest.

    A share above 0 but under 0.0001 % is given as "below 0.0001%".

    >>> _percent(1, 3), _percent(1, 2**60), _percent(2**62 + 1, 2**63)
    ('33.3333%', 'below 0.0001%', '50.0000%')
    """
    if 0 < part * 10**6 < whole:
        return "below 0.0001%"
    steps = (2 * 10**6 * part + whole) // (2 * whole)
    return f"{steps // 10**4:,}.{steps % 10**4:04}%"
