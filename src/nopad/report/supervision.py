"""Count the tokens of a dataset that the loss is computed on, if labels or a mask are stored with the tokens.

A dataset of more than about 2^26 slots is sampled: evenly spaced row groups with at most this many slots in total are
read, but at least one row group.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nopad.sequences import IGNORED
from nopad.store import Manifest, open_packed

__all__ = ["MASKS", "Supervised", "supervised"]

LABELS = "labels"
MASKS = ("assistant_masks", "completion_mask", "loss_mask")  # names in transformers and TRL
KINDS = tuple(f"list<element: {kind}" for kind in ("bool", "int", "uint"))
READ_SLOTS = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """The number of tokens that have a label.

    Attributes:
        column: name of the column that was counted: "labels", or one of `MASKS`.
        learned: number of tokens with a label (for labels, other than -100; for a mask, other than 0).
        tokens: number of tokens that were counted.
        packs: number of packs that were counted, in evenly spaced row groups of the dataset; None: all packs.
    """

    column: str
    learned: int
    tokens: int
    packs: int | None

    @property
    def share(self) -> float:
        """Share of tokens that have a label, from 0 to 1."""
        return self.learned / self.tokens

    @property
    def meaning(self) -> str:
        """A phrase that says what was counted, such as "labels other than -100, in 128 evenly spaced packs"."""
        value = IGNORED if self.column == LABELS else 0
        where = "" if self.packs is None else f", in {self.packs:,} evenly spaced packs"
        return f"{self.column} other than {value}{where}"


def supervised(path: Path, manifest: Manifest) -> Supervised | None:
    """Count the tokens with a label in the dataset at `path`; return None if it stores no label or mask for each token.

    If there are both labels and a mask, the labels are counted. The result is also None if the column that would be
    counted holds neither integers nor booleans.

    Raises:
        CorruptError: a shard is missing or damaged.
        StorageError: a shard cannot be read.
    """
    column = next((name for name in (LABELS, *MASKS) if manifest.carried.get(name) == "token"), None)
    if column is None or not manifest.columns[column].startswith(KINDS):
        return None
    dataset = open_packed(path)
    fitting = max(READ_SLOTS // (manifest.rows_per_group * manifest.capacity), 1)
    numbers = np.unique(np.linspace(0, dataset.row_groups - 1, min(fitting, dataset.row_groups)).astype(np.int64))
    learned = tokens = packs = 0
    for group in dataset.iter_row_groups(numbers.tolist()):
        values = group.sequences.tokens[column]
        learned += int(np.count_nonzero(values != (IGNORED if column == LABELS else 0)))
        tokens += values.size
        packs += len(group)
    return Supervised(column=column, learned=learned, tokens=tokens, packs=None if packs == manifest.packs else packs)
