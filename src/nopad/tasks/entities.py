"""Find entities in BIO tags, and compute their F1.

An entity is a run of words with tags of one type: ``B-PER`` begins one, ``I-PER`` continues it, and ``O`` is outside of
any. The rules are those of CoNLL's script and seqeval: ``I-`` begins an entity if the word before is not in an entity
of the same type. In BIOES tags, ``E-`` ends an entity, and ``S-`` is an entity of one word. An entity counts as found
only if its type, beginning and end are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nopad.batch import PackedBatch
from nopad.losses import over_ranks
from nopad.sequences import IGNORED
from nopad.tasks.meters import TokenMeter
from nopad.tasks.objective import Meter
from nopad.tasks.objectives import OfTokens

__all__ = ["OfTags", "entities", "f1_of", "has_entities"]

_BEGIN, _INSIDE = ("B", "S"), ("I", "E")


def has_entities(names: Sequence[str]) -> bool:
    """Return whether any of these tag names begins with ``B-`` or ``I-``, so that the tags mark entities."""
    return any(name[:2] in ("B-", "I-") for name in names)


def entities(tags: Sequence[str | None]) -> list[tuple[str, int, int]]:
    """Return (type, begin, end) of each entity; a tag of None counts as ``O``.

    `begin` is the index of the entity's first word, and `end` the index after its last word.

    >>> entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-PER"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5), ('PER', 5, 6)]

    The two ``I-`` tags that follow no entity of their own type begin an entity.
    """
    found: list[tuple[str, int, int]] = []
    open_kind, begin = None, 0
    for at, tag in enumerate([*tags, "O"]):
        sign, _, kind = (tag or "O").partition("-")
        goes_on = sign in _INSIDE and open_kind == kind
        if open_kind is not None and not goes_on:
            found.append((open_kind, begin, at))
            open_kind = None
        if sign in (*_BEGIN, *_INSIDE) and not goes_on:
            open_kind, begin = kind, at
        if open_kind is not None and sign in ("E", "S"):
            found.append((open_kind, begin, at + 1))
            open_kind = None
    return found


def f1_of(right: float, guessed: float, wanted: float) -> dict[str, float]:
    """Return ``precision``, ``recall`` and ``f1``, from 0 to 1; each is 0 if its denominator is 0.

    Args:
        right: number of entities predicted correctly.
        guessed: number of entities predicted.
        wanted: number of labelled entities.
    """
    precision, recall = right / guessed if guessed else 0.0, right / wanted if wanted else 0.0
    return {"precision": precision, "recall": recall, "f1": 2 * right / (guessed + wanted) if right else 0.0}


class OfTags(OfTokens):
    """Objective of tags: cross-entropy per labelled token.

    If the tags mark entities, as ``B-PER`` and ``I-PER`` do, the objective's meter also has the F1 of entities.

    Args:
        names: the name of each tag, in the order of their numbers.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names, self.classes = list(names), len(names)

    def meter(self) -> Meter:
        """Return an `EntityMeter` if the tags mark entities, else a meter of the accuracy per labelled token."""
        return EntityMeter(self.names) if has_entities(self.names) else super().meter()


class EntityMeter(TokenMeter):
    """Accuracy per labelled token; precision, recall and F1 of entities in the labelled tokens of each sequence."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = list(names)
        self.found = torch.zeros(3, dtype=torch.double)

    def add(self, outputs: Any, batch: PackedBatch) -> None:
        """Add the outputs for a batch: ``logits`` ``[R, L, C]``. The targets are the batch's ``labels``."""
        super().add(outputs, batch)
        guesses, labels = outputs["logits"].argmax(-1).cpu(), batch["labels"].cpu()
        counts = [0, 0, 0]
        for guess, label in zip(batch.unpack_tokens(guesses), batch.unpack_tokens(labels), strict=True):
            known = label != IGNORED
            one, other = (set(entities([self.names[tag] for tag in side[known].tolist()])) for side in (guess, label))
            for at, many in enumerate((len(one & other), len(one), len(other))):
                counts[at] += many
        self.found += torch.tensor(counts, dtype=torch.double)

    def reduce(self) -> None:
        """Sum the counts over all ranks; every rank must call this."""
        super().reduce()
        self.found = over_ranks(self.found.to(self.counts.counts.device)).cpu()

    def values(self) -> dict[str, float]:
        """Return ``accuracy``, ``precision``, ``recall`` and ``f1``, from 0 to 1.

        Without labelled tokens, ``accuracy`` is NaN, and the others are 0.
        """
        return {**super().values(), **f1_of(*self.found.tolist())}
