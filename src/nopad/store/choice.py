"""Which records a dataset holds, if not all: a held-out share, and weights of several sources.

Both choices depend only on the seed, the name of a source, and a record's number in the source (`nopad.random`):

* A record is held out if its random key is below share x 2^64. Records that are added at the end of a source, and
  sources that are added, do not change the choice of earlier records. At least one record is held out.
* Of the remaining records, weights set each source's share of the tokens. No record is used twice: the source with the
  fewest tokens per unit of weight is taken whole, and of each other source as many records as fit its share, in the
  order of their keys, at least one. A smaller weight takes a subset of what a larger one takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from nopad.corpus import Counts
from nopad.errors import OptionError, RecordError
from nopad.random import STREAM_HELD_OUT, STREAM_MIXTURE, keys

__all__ = ["Choice", "check_shares", "choose", "held_out_keys"]

TRAIN, VALIDATION, LEFT = 0, 1, 2


def check_shares(weights: Mapping[str, float] | None, validation: float, names: Sequence[str]) -> None:
    """Refuse invalid weights and shares before any work begins.

    Raises:
        OptionError: a weight names no source, is missing or is not above 0, or the share is not from 0 to below 1.
    """
    if not (isinstance(validation, float | int) and 0 <= validation < 1):
        raise OptionError(f"the share to hold out is {validation!r}; it must be at least 0 and below 1, such as 0.01")
    if weights is None:
        return
    if names == ("",):
        raise OptionError("weights need named sources: NAME=INPUT for each, or a mapping of names to inputs")
    for name in [*weights, *names]:
        if name not in names:
            raise OptionError(f"there is a weight for {name!r}, and no such source; there are {', '.join(names)}")
        if name not in weights:
            raise OptionError(f"there is no weight for {name!r}; give each source one, or none any")
    for name, weight in weights.items():
        if not (isinstance(weight, float | int) and 0 < weight < float("inf")):
            raise OptionError(
                f"the weight of {name!r} is {weight!r}; it must be above 0 (leave a source out otherwise)"
            )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Whether each sequence goes to training, to validation, or is left out.

    Attributes:
        fate: TRAIN, VALIDATION or LEFT; int8 ``[n]``, the same for all pieces of a record.
        source: number of the source that each sequence comes from; int32 ``[n]``.
    """

    fate: NDArray[np.int8]
    source: NDArray[np.int32]

    def of(self, split: str | None) -> NDArray[np.int64]:
        """Return the numbers of the sequences in a split, ascending; int64 ``[chosen]``. None stands for "train"."""
        return np.flatnonzero(self.fate == _fate(split))

    def counts(
        self, by_source: Mapping[str, Counts], record: NDArray[np.int64], lengths: NDArray[np.int32], split: str | None
    ) -> dict[str, Counts]:
        """Return the counts of each source for the manifest of one split (None: "train").

        `by_source` are the counts of reading each source as a whole; `record` and `lengths` are those of `choose`.
        """
        mine = _fate(split)
        begins = np.diff(record, prepend=-1) != 0

        def there(place: int, fates: Sequence[int]) -> tuple[int, int, int]:
            chosen = (self.source == place) & np.isin(self.fate, fates)
            tokens = int(lengths[chosen].sum(dtype=np.int64))
            return int(np.count_nonzero(chosen)), int(np.count_nonzero(chosen & begins)), tokens

        out = {}
        for place, (name, counts) in enumerate(by_source.items()):
            sequences, _, tokens = there(place, [mine])
            _, others, other_tokens = there(place, [TRAIN + VALIDATION - mine])
            _, left, left_tokens = there(place, [LEFT])
            out[name] = replace(
                counts,
                sequences=sequences,
                tokens=tokens,
                other_split=others,
                other_split_tokens=other_tokens,
                left_by_weight=left,
                left_by_weight_tokens=left_tokens,
            )
        return out


def _fate(split: str | None) -> int:
    return VALIDATION if split == "validation" else TRAIN


def choose(
    record: NDArray[np.int64],
    lengths: NDArray[np.int32],
    records: Mapping[str, int],
    *,
    weights: Mapping[str, float] | None,
    validation: float,
    seed: int,
) -> Choice:
    """Choose which of n sequences, in source order, are trained on, held out, or left out.

    Args:
        record: record number of each sequence, ascending; int64 ``[n]``.
        lengths: tokens of each sequence; ``[n]``.
        records: number of records of each source, skipped ones included, in reading order.
        weights: weight of each source; any positive numbers. None: all records are taken.
        validation: share of records to hold out, from 0 to below 1.
        seed: random seed of both choices.

    Raises:
        RecordError: no record is left to train on, or a source with a weight has none.

    >>> record, lengths = np.arange(100), np.full(100, 10, dtype=np.int32)
    >>> made = choose(record, lengths, {"a": 20, "b": 80}, weights={"a": 1, "b": 1}, validation=0, seed=0)
    >>> np.bincount(made.source[made.of("train")]).tolist()
    [20, 20]
    """
    names = list(records)
    bounds = np.concatenate([[0], np.cumsum(list(records.values()))]).astype(np.int64)
    first = np.flatnonzero(np.diff(record, prepend=-1))  # the first piece of each record
    here = record[first]
    source = (np.searchsorted(bounds, here, side="right") - 1).astype(np.int32)
    tokens = np.add.reduceat(lengths, first, dtype=np.int64) if first.size else first
    fate = np.zeros(here.size, dtype=np.int8)

    def drawn(stream: int) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint64]]]:
        """Yield, for each source, (its number, the indices of its records in `here`, these records' random keys).

        `stream` says which of the two random choices the keys are for: holding out, or weights.
        """
        for place, name in enumerate(names):
            mine = np.flatnonzero(source == place)
            yield place, mine, _keys(here[mine] - bounds[place], name, seed, stream)

    if validation:
        threshold = _threshold(validation)
        least: list[tuple[int, int]] = []
        for _, mine, drawn_keys in drawn(STREAM_HELD_OUT):
            fate[mine[drawn_keys < threshold]] = VALIDATION
            if mine.size:
                at = int(drawn_keys.argmin())
                least.append((int(drawn_keys[at]), int(mine[at])))
        fate[min(least)[1]] = VALIDATION
        if (fate == VALIDATION).all():
            raise RecordError(
                f"holding out {validation:.3%} of {here.size:,} records leaves none to train on; give more records"
            )
    if weights is not None:
        _weigh(fate, source, tokens, [weights[name] for name in names], names, list(drawn(STREAM_MIXTURE)))
    pieces = np.diff(first, append=record.size)
    return Choice(fate=np.repeat(fate, pieces), source=np.repeat(source, pieces))


def held_out_keys(
    record: NDArray[np.int64], name: str, seed: int, validation: float
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return each record's random key, uint64 ``[n]``, and whether it is held out, bool ``[n]``.

    `record` are n record numbers of the source `name`, counted from 0 in this source; int64. A record is held out if
    its key is below ``validation * 2**64``. Callers must also hold out the record with the smallest key of all sources,
    which this function cannot know.
    """
    drawn = _keys(record, name, seed, STREAM_HELD_OUT)
    return drawn, drawn < _threshold(validation)


def _keys(record: NDArray[np.int64], name: str, seed: int, stream: int) -> NDArray[np.uint64]:
    named = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return keys(record, seed, stream, named)


def _threshold(validation: float) -> np.uint64:
    return np.uint64(int(Fraction(validation) * 2**64))


def _weigh(
    fate: NDArray[np.int8],
    source: NDArray[np.int32],
    tokens: NDArray[np.int64],
    weights: Sequence[float],
    names: Sequence[str],
    drawn: Sequence[tuple[int, NDArray[np.int64], NDArray[np.uint64]]],
) -> None:
    """Change `fate` to LEFT for the training records beyond their source's share of the tokens.

    `fate`, `source` and `tokens` have one entry per record, `weights` and `names` one per source. `drawn` holds for
    each source (its number, its records, their random keys); its records are taken in the order of these keys.

    Raises:
        RecordError: a source has no token to train on.
    """
    totals = [int(tokens[(source == place) & (fate == TRAIN)].sum()) for place in range(len(names))]
    for name, total in zip(names, totals, strict=True):
        if not total:
            raise RecordError(f"{name!r} has a weight, and no token to train on; leave it out, or see why it is empty")
    exact = [Fraction(weight) for weight in weights]
    # Tokens per unit of weight; the source with the fewest is taken whole. Fractions keep this exact.
    scale = min(Fraction(total) / weight for total, weight in zip(totals, exact, strict=True))
    for place, mine, drawn_keys in drawn:
        candidates = fate[mine] == TRAIN
        order = mine[candidates][np.argsort(drawn_keys[candidates], kind="stable")]
        taken = int(np.searchsorted(np.cumsum(tokens[order]), int(scale * exact[place]), side="right"))
        fate[order[max(taken, 1) :]] = LEFT
