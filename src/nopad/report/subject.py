"""`Subject`: a histogram, a plan, or a packed dataset, in the form that a report shows.

For a histogram, the default plan is shown. The packs shown are an evenly spaced sample: for a dataset, real packs with
record numbers; otherwise, packs that the plan asks for. `compare` takes most of the time: it plans the histogram with
several algorithms and depths. If a dataset stores labels or a mask per token, up to about 2^26 of its slots are read.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import FormatError, OptionError
from nopad.histogram import Histogram, read_histogram
from nopad.planning import Plan, plan
from nopad.planning.comparison import DEPTHS, compare, notes_of
from nopad.properties import cached_property
from nopad.report.causes import causes_of_padding
from nopad.report.command import pack_command, plan_command, tokenizer_of
from nopad.report.composition import Composition
from nopad.report.supervision import Supervised, supervised
from nopad.report.wording import answer
from nopad.store import Manifest, PackedRow, open_packed
from nopad.store.manifest import PLAN

__all__ = ["Subject", "read_subject"]

COMPARED = ("auto", "lpfhp", "spfhp")
SHOWN_PACKS = 120
SHOWN_SEQUENCES = 4000


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A histogram, plan or packed dataset to report on.

    Attributes:
        name: name of the subject, for display.
        kind: "histogram", "plan" or "dataset".
        plan: the plan of the packs; for a histogram the default plan.
        comparison: plans for the same lengths by several algorithms at several depths, as dicts with the algorithm,
            depth, packs, efficiency, lower bound and so on (`nopad.planning.comparison.compare`).
        packs: a sample of packs. Each is a list of pairs, one per sequence: its length in tokens, and a text such as
            "record 7" that says where it comes from ("" unless the subject is a dataset).
        outcome: counts above 0 of records, sequences, tokens and files (read, packed, cut off, ignored, ...), as (name,
            count) pairs; empty unless the subject is a dataset.
        facts: fingerprints and versions, as (name, value) pairs.
        command: the command that makes this plan or dataset again, with INPUT and TOKENIZER as placeholders (for a
            histogram, with the name of its file instead of INPUT).
        notes: the notes of the plan (`Plan.notes`).
        sources: for each named source of a dataset, a dict with its name and its counts (`Manifest.sources`); empty if
            sources have no names.
        split: which part of the records the dataset holds, "train" or "validation"; None: no share was held out, or the
            subject is no dataset.
        supervised: how many tokens have a label (`Supervised`); None: the subject is no dataset, or has no labels or
            mask per token that can be counted.
    """

    name: str
    kind: str
    plan: Plan
    comparison: Sequence[Mapping[str, Any]]
    packs: Sequence[Sequence[tuple[int, str]]]
    outcome: Sequence[tuple[str, int]] = ()
    facts: Sequence[tuple[str, str]] = ()
    command: str = ""
    notes: Sequence[str] = field(default_factory=tuple)
    sources: Sequence[Mapping[str, Any]] = ()
    split: str | None = None
    supervised: Supervised | None = None

    @property
    def histogram(self) -> Histogram:
        """Histogram of the sequence lengths."""
        return self.plan.histogram

    @property
    def padding_before(self) -> float:
        """Share of padding with one sequence per row, from 0 to 1."""
        return 1 - self.plan.tokens / (self.plan.sequences * self.plan.capacity)

    @property
    def padding_after(self) -> float:
        """Share of padding in packs, from 0 to 1."""
        return 1 - self.plan.efficiency

    @property
    def comparison_notes(self) -> list[str]:
        """The notes of the plans in `comparison`, each once for each algorithm, after the algorithm's name.

        If an algorithm has a note at some depths only, these depths are named too.
        """
        return notes_of(self.comparison)

    @property
    def causes(self) -> list[str]:
        """Sentences on why padding is left, from `causes_of_padding`; empty if no cause takes 1 % of the slots."""
        return causes_of_padding(self.plan)

    @property
    def level(self) -> str:
        """How much padding is left after packing: "low" up to 5 %, "high" from 20 % on, "middle" in between."""
        return "low" if self.padding_after <= 0.05 else "middle" if self.padding_after < 0.2 else "high"

    @property
    def answer(self) -> str:
        """Two sentences that say what packing does to an epoch: the number of rows, and the padding."""
        return answer(self.plan, packed=self.kind == "dataset")

    @cached_property
    def composition(self) -> Composition:
        """How many sequences share a pack, and how alike their lengths are."""
        return Composition(self.plan)

    def fills(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each strategy's number of tokens per pack, and its number of packs; int64 ``[strategies]`` each.

        A strategy of a plan says how many sequences of each length a pack holds.
        """
        sums = np.add.reduceat(self.plan.lengths, self.plan.indptr[:-1])
        return sums, self.plan.counts


def read_subject(path: Path) -> Subject:
    """Read the subject of a report: the histogram, plan or packed dataset at a path.

    Raises:
        FormatError: the path is not a histogram, plan or packed dataset; or the plan of the dataset is missing or
            damaged.
        OptionError: the histogram states no capacity, or the histogram or plan holds no sequence.
        LengthError: a length or count in the histogram is out of range, or a length is above the capacity.
        CorruptError: the dataset is damaged, or its job has not finished.
        StorageError: a file of the dataset cannot be read.
    """
    if path.is_dir():
        return _dataset(path)
    if not path.is_file():
        raise FormatError(f"{path}: no such file or folder; give a histogram, a plan, or a packed dataset")
    if path.suffix != ".json":
        raise FormatError(
            f"{path}: a report is about a histogram or plan (.json), or a packed dataset; pack it first, or plan it: "
            "nopad plan ... --over-long truncate --output data.plan.json"
        )
    try:
        made = Plan.load(path)
    except FormatError as not_a_plan:
        try:
            histogram, capacity = read_histogram(path)
        except FormatError as error:
            raise FormatError(f"{path} is neither a plan ({not_a_plan}) nor a histogram ({error})") from error
        return _histogram(path, histogram, capacity)
    if not made.packs:
        raise OptionError(f"{path} holds no sequences")
    comparison = compare(made.histogram, made.histogram, made.capacity, COMPARED, DEPTHS)
    corpus = made.facts.get("corpus", {})
    return Subject(
        name=path.name.removesuffix(".json").removesuffix(".plan"),
        kind="plan",
        plan=made,
        comparison=comparison,
        packs=_strategies(made),
        facts=[
            ("histogram, SHA-256", made.histogram.fingerprint),
            *_tokenizer_facts(tokenizer_of(corpus.get("tokenizer"), corpus)),
            *_plan_facts(made),
        ],
        command=plan_command(made, "INPUT", path.name),
        notes=made.notes,
    )


def _histogram(path: Path, histogram: Histogram, capacity: int | None) -> Subject:
    if capacity is None:
        raise OptionError(f'{path} does not say for which capacity; add "max_sequence_length": N to it')
    if not histogram.sequences:
        raise OptionError(f"{path} holds no sequences")
    made = plan(histogram, capacity)
    return Subject(
        name=path.stem,
        kind="histogram",
        plan=made,
        comparison=compare(histogram, histogram, capacity, COMPARED, DEPTHS),
        packs=_strategies(made),
        facts=[("histogram, SHA-256", histogram.fingerprint)],
        command=plan_command(made, path.name, None),
        notes=made.notes,
    )


def _dataset(path: Path) -> Subject:
    manifest, made = Manifest.load(path), Plan.load(path / PLAN)
    counts, split = manifest.counts, manifest.options.get("split")
    place = Path(os.path.abspath(path))  # "." has no name
    name = f"{place.parent.name}/{place.name}" if split else place.name
    named = {
        "records read": counts["records"],
        "sequences packed": counts["sequences"],
        "records split": counts["split"],
        "records truncated": counts["truncated"],
        "tokens cut off": counts["truncated_tokens"],
        "records dropped as over-long": counts["dropped"],
        "records skipped as empty": counts["empty_skipped"],
        "records skipped as bad": counts["bad_skipped"],
        "records that came padded": counts["stripped"],
        f"records {'held out' if split == 'train' else 'not held out'}": counts["other_split"],
        "files of another kind": manifest.source["ignored"],
    }
    return Subject(
        name=name,
        kind="dataset",
        plan=made,
        comparison=compare(made.histogram, made.histogram, made.capacity, COMPARED, DEPTHS),
        packs=_real_packs(path, manifest),
        outcome=[(what, count) for what, count in named.items() if count],
        facts=[
            ("source, SHA-256", manifest.source["sha256"]),
            *_tokenizer_facts(tokenizer_of(manifest.tokenizer, manifest.options)),
            *_plan_facts(made),
            ("columns", ", ".join(manifest.columns) or "none: an index beside its source"),
            ("made with", ", ".join(f"{name} {version}" for name, version in manifest.tool_versions.items())),
        ],
        command=pack_command(manifest, place.parent.name if split else place.name),
        notes=made.notes,
        sources=manifest.sources,
        split=split,
        supervised=supervised(path, manifest),
    )


def _tokenizer_facts(found: str | None) -> list[tuple[str, str]]:
    return [("tokenizer, SHA-256", found)] if found else []


def _plan_facts(made: Plan) -> list[tuple[str, str]]:
    proven = f"{made.lower_bound:,} packs, by {made.bound.proof}"
    return [("plan, SHA-256", made.fingerprint), ("proven minimum", proven)]


def _strategies(made: Plan) -> list[list[tuple[int, str]]]:
    """Return an evenly spaced sample of the plan's packs; each is a list of (length, "") pairs.

    The last packs of the sample are left out if it has too many sequences (`_enough`).
    """
    ends = list(accumulate(made.counts.tolist()))  # Python integers: they may be above 64 bits
    wanted = dict.fromkeys(at * (ends[-1] - 1) // (SHOWN_PACKS - 1) for at in range(SHOWN_PACKS))
    packs: list[list[tuple[int, str]]] = []
    for s in (bisect_right(ends, pack) for pack in wanted):
        lengths = made.lengths[made.indptr[s] : made.indptr[s + 1]].tolist()
        packs.append([(length, "") for length in lengths])
    return _enough(packs)


def _real_packs(path: Path, manifest: Manifest) -> list[list[tuple[int, str]]]:
    """Return an evenly spaced sample of a dataset's packs; each is a list of (length in tokens, place) pairs.

    The place says where the sequence comes from, such as "record 7" or, if the dataset has several sources, "wiki,
    record 7". The last packs of the sample are left out if it has too many sequences (`_enough`).
    """
    dataset = open_packed(path)
    parts = manifest.sources

    def which(row: PackedRow) -> list[str]:
        if not parts:
            return [f"record {record:,}" for record in row.seq_index.tolist()]
        pairs = zip(row["seq_source"].tolist(), row.seq_index.tolist(), strict=True)
        return [f"{parts[s]['name']}, record {record - parts[s]['first_record']:,}" for s, record in pairs]

    wanted = np.unique(np.linspace(0, manifest.packs - 1, SHOWN_PACKS).astype(np.int64)).tolist()
    rows = [dataset[at] for at in wanted]
    return _enough([list(zip(row.seq_lengths.tolist(), which(row), strict=True)) for row in rows])


def _enough(packs: list[list[tuple[int, str]]]) -> list[list[tuple[int, str]]]:
    """Return the first packs of a sample, with at most 4,000 sequences in total, but at least one pack.

    More would make the page too large.
    """
    sizes = np.cumsum([len(pack) for pack in packs])
    return packs[: max(int(np.searchsorted(sizes, SHOWN_SEQUENCES, side="right")), 1)]
