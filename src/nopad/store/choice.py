"""Choose which records a job holds out, and which it trains on.

A record's random key depends only on the seed, the name of the source, and the record's number in the source
(`nopad.random`). A record is held out if its key is below s x 2^64, where s is the share to hold out. So the choice for
earlier records does not change if records are added at the end of a source, or further sources are added. There is one
exception: if no record has a key below s x 2^64, the record with the smallest key is held out. Records that gave no
sequence are not looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from nopad.corpus import Counts, Source
from nopad.errors import OptionError, RecordError
from nopad.options import is_number, shown
from nopad.random import STREAM_HELD_OUT, keys

__all__ = ["Choice", "check_divisible", "check_share", "choose", "held_out_keys"]


def check_share(validation: float) -> None:
    """Refuse a share of held-out records that is not a number of at least 0 and below 1.

    Raises:
        OptionError: `validation` is not such a number.
    """
    if not is_number(validation) or not 0 <= validation < 1:
        raise OptionError(
            f"the share to hold out is {shown(validation)}; it must be at least 0 and below 1, such as 0.01"
        )


def check_divisible(source: Source, validation: float) -> None:
    """Refuse to hold out records of a source in which several records may contain the same text (`Source.divisible`).

    `validation` is the share of records to hold out.

    Raises:
        OptionError: `validation` is above 0, and the source is not divisible.
    """
    if validation and not source.divisible:
        raise OptionError(
            "pairs of one document share sentences, and take others from other documents, so none of them can be held "
            "out; hold documents out before: give them as a job of their own"
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which of n sequences are held out, and which are trained on.

    Attributes:
        held_out: whether each sequence is held out; all pieces of a record have the same value; bool ``[n]``.
        source: number of the source that each sequence comes from, from 0; int32 ``[n]``.
    """

    held_out: NDArray[np.bool_]
    source: NDArray[np.int32]

    def of(self, split: str | None) -> NDArray[np.int64]:
        """Return the indices of the sequences in a split ("train" or "validation"), ascending; int64 ``[chosen]``.

        None means "train".
        """
        return np.flatnonzero(self.held_out == (split == "validation"))

    def counts(
        self, by_source: Mapping[str, Counts], record: NDArray[np.int64], lengths: NDArray[np.int32], split: str | None
    ) -> dict[str, Counts]:
        """Return the counts of each source, by name, for the manifest of one split.

        Four counts are of the split: its sequences and tokens, and the records and tokens that went to the other split.
        The other counts are those of the whole source.

        Args:
            by_source: the counts of reading each whole source, by name, in reading order.
            record: number of each sequence's record, counted from 0 through all sources, ascending; int64 ``[n]``.
            lengths: length of each sequence in tokens; int32 ``[n]``.
            split: "train" or "validation"; None means "train".
        """
        begins = np.diff(record, prepend=-1) != 0
        out = {}
        for place, (name, counts) in enumerate(by_source.items()):
            here = self.source == place
            mine = here & (self.held_out == (split == "validation"))
            other = here & ~mine
            out[name] = replace(
                counts,
                sequences=int(np.count_nonzero(mine)),
                tokens=int(lengths[mine].sum(dtype=np.int64)),
                other_split=int(np.count_nonzero(other & begins)),
                other_split_tokens=int(lengths[other].sum(dtype=np.int64)),
            )
        return out


def choose(record: NDArray[np.int64], records: Mapping[str, int], *, validation: float, seed: int) -> Choice:
    """Choose which of n sequences are held out, and return the choice.

    All sequences of a record are held out, or none of them. If `validation` is above 0 and there is any sequence, at
    least one record is held out.

    Args:
        record: number of each sequence's record, counted from 0 through all sources, ascending; int64 ``[n]``.
        records: number of records of each source by name, skipped ones included, in reading order.
        validation: share of records to hold out, at least 0 and below 1.
        seed: random seed of the choice.

    Raises:
        RecordError: no record is left to train on.

    In the example, 13 of the 200 records of source "a" are held out, and 73 of the 800 of source "b".

    >>> made = choose(np.arange(1000), {"a": 200, "b": 800}, validation=0.1, seed=0)
    >>> np.bincount(made.source[made.of("validation")]).tolist()
    [13, 73]
    """
    bounds = np.concatenate([[0], np.cumsum(list(records.values()))]).astype(np.int64)
    first = np.flatnonzero(np.diff(record, prepend=-1))  # the first piece of each record
    here = record[first]
    source = (np.searchsorted(bounds, here, side="right") - 1).astype(np.int32)
    held = np.zeros(here.size, dtype=bool)
    if validation and here.size:
        drawn = np.empty(here.size, dtype=np.uint64)
        for place, name in enumerate(records):
            mine = source == place
            drawn[mine], held[mine] = held_out_keys(here[mine] - bounds[place], name, seed, validation)
        held[drawn.argmin()] = True
        if held.all():
            raise RecordError(
                f"holding out {validation:.3%} of {here.size:,} records leaves none to train on; give more records"
            )
    pieces = np.diff(first, append=record.size)
    return Choice(held_out=np.repeat(held, pieces), source=np.repeat(source, pieces))


def held_out_keys(
    record: NDArray[np.int64], name: str, seed: int, validation: float
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return each record's random key, uint64 ``[n]``, and whether it is held out, bool ``[n]``.

    `record` are n record numbers of the source `name`, counted from 0 in this source; int64. `seed` is the random seed
    of the choice. A record is held out if its key is below ``validation * 2**64``. The caller must also hold out the
    record with the smallest key of all sources, because this function sees only one source.
    """
    named = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    drawn = keys(record, seed, STREAM_HELD_OUT, named)
    return drawn, drawn < np.uint64(int(Fraction(validation) * 2**64))
