"""Check that the two datasets of a job with a held-out share belong together, and hold the right records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nopad.store.choice import held_out_keys
from nopad.store.manifest import SPLITS, Manifest
from nopad.store.verification.content import LOST, Content

__all__ = ["Half", "half_of", "pair_problems"]

# Fields that must be equal in both manifests; in "options", all but the name of the split.
_COMMON = (
    "kind",
    "capacity",
    "depth",
    "algorithm",
    "seed",
    "order",
    "source",
    "tokenizer",
    "options",
    "columns",
    "carried",
    "rows_per_group",
    "tool_versions",
)
_OWN_COUNTS = {"sequences", "tokens", "other_split", "other_split_tokens"}


@dataclass(frozen=True)
class Half:
    """One of the two datasets of a job with a held-out share.

    Attributes:
        manifest: the manifest of the dataset.
        least: the smallest random key of its records, 2^64 without records; a record is held out if its key is small
            enough.
    """

    manifest: Manifest
    least: int


def half_of(content: Content, m: Manifest) -> tuple[Half, list[str]]:
    """Find records that are in the wrong one of the two datasets of a job; return ``(half, problems)``.

    `half` has the manifest `m` of the dataset, and the smallest random key of its records. The random key of each
    record in `content` is computed again; it says whether the record is held out. `problems` has one sentence for each
    record in the wrong dataset, at most three, and one if the manifest names an unknown split.

    However small the share is, the record with the smallest key is held out. So it is no problem if ``validation``
    holds only one record, and the record's key is too large for the share.
    """
    problems: list[str] = []
    validation, split = m.options.get("validation") or 0, m.options["split"]
    least, strays, last = 2**64, 0, -1
    parts = [(part["name"], part["first_record"], part["records"]) for part in m.sources]
    for name, first, records in parts or [("", 0, m.source["records"])]:
        for here in content.chunks(content.between(first, first + records)):
            record = content.record(here)
            drawn, held = held_out_keys(record - first, name, m.seed, validation)
            least = min(least, int(drawn.min()))
            wrong = np.unique(record[held if split == "train" else ~held])
            wrong = wrong[wrong != last]  # whose pieces began in the chunk before
            strays += wrong.size
            last = int(wrong[-1]) if wrong.size else last
            for number in wrong[: 3 - len(problems)]:
                where = "held out, not trained on" if split == "train" else "trained on, not held out"
                problems.append(f"record {number} is in {split}; by seed {m.seed} it is {where}")
    if split == "validation" and len(content) and content.distinct(slice(None)) == 1 == strays:
        problems = []  # however small the share is, the record with the smallest key is held out
    if split not in SPLITS:
        problems.append(f"there is no split {split!r}")
    return Half(m, least), problems


def pair_problems(halves: Sequence[Half]) -> list[str]:
    """Return a list with the first reason found why two datasets do not come from one job; an empty list if they do.

    `halves` are the two datasets, ``train`` first. Each of them alone must be sound.
    """
    named = [half.manifest.options.get("split") for half in halves]
    if named != list(SPLITS):
        return [f"these are not the two datasets of one job: they are {named}, and should be {list(SPLITS)}"]
    trained, held_out = (half.manifest for half in halves)
    for name in _COMMON:
        pair = [_without_split(getattr(m, name)) for m in (trained, held_out)]
        if pair[0] != pair[1]:
            return [f"train and validation are not of one job: {_differ(name, *pair)}"]
    for where, one, other in _counts(trained, held_out):
        for name in one.keys() - _OWN_COUNTS:
            if one[name] != other[name]:
                return [f"train and validation are not of one job: {name}{where} is {one[name]!r}, and {other[name]!r}"]
        for mine, theirs, what in ((one, other, "validation"), (other, one, "train")):
            records = theirs["records"] - sum(theirs[why] for why in LOST)
            if (mine["other_split"], mine["other_split_tokens"]) != (records, theirs["tokens"]):
                return [
                    f"train and validation are not of one job: {what} has {records:,} records{where} of "
                    f"{theirs['tokens']:,} tokens, the other states {mine['other_split']:,} of "
                    f"{mine['other_split_tokens']:,}"
                ]
    if halves[1].least > halves[0].least:
        return ["a record that is trained on has a lesser key than all that are held out"]
    return []


def _counts(trained: Manifest, held_out: Manifest) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield ``(of, counts in trained, counts in held_out)``: once for all records together, then for each named source.

    `trained` and `held_out` are the manifests of the two datasets. `of` is a text for messages that says what is
    counted: "" or, for a source named "a", " of 'a'".
    """
    yield "", dict(trained.counts), dict(held_out.counts)
    for one, other in zip(trained.sources, held_out.sources, strict=False):
        yield f" of {one['name']!r}", dict(one), dict(other)


def _without_split(value: Any) -> Any:
    return {**value, "split": None} if isinstance(value, dict) and "split" in value else value


def _differ(name: str, one: Any, other: Any) -> str:
    """Return a text that says how two values `one` and `other` differ, such as "seed is 4, and 5".

    `name` is what the text calls the values. If both are dicts, the text is about the first key whose values differ.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        name = next(key for key in {**one, **other} if (key in one, one.get(key)) != (key in other, other.get(key)))
        one, other = one.get(name), other.get(name)
    return f"{name} is {one!r}, and {other!r}"
