"""Draw the token ids of an audit: ordinary tokens and, if `Tokens` names some, special tokens; never the mask token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import OptionError
from nopad.properties import cached_property

__all__ = ["Tokens", "draw"]

NAMES = ("pad", "bos", "eos", "cls", "sep")
TRIES = 100  # most draws of one sequence, which must differ from those before it


@dataclass(frozen=True)
class Tokens:
    """The token ids to draw from.

    Attributes:
        vocabulary: number of ids in the vocabulary.
        special: those ids of pad, bos, eos, cls and sep that the configuration has, by name; a second eos is "eos 1".
            In a model that takes images, also the ids that stand for images or mark their borders.
        mask: id of the mask token, which is never drawn; -1: there is none.
        inside: special ids that are drawn among the ordinary ids.
        begins: first id of every sequence of 3 tokens or more; None: any id.
        ends: last id of every sequence; None: any id.
    """

    vocabulary: int
    special: dict[str, int]
    mask: int = -1
    inside: tuple[int, ...] = ()
    begins: int | None = None
    ends: int | None = None

    @classmethod
    def of(cls, config: Any, marks: Mapping[str, Any] | None = None) -> Tokens:
        """Return the tokens of a configuration's vocabulary, set to draw no special tokens.

        `marks` are further ids that are special, by name, such as those that stand for images.

        Raises:
            OptionError: the vocabulary is missing, or too small to draw from.
        """
        size = getattr(config, "vocab_size", None)
        if not isinstance(size, int):
            raise OptionError(f"{type(config).__name__} has no vocab_size, so there are no tokens to draw")
        found: dict[str, int] = {}
        for name in NAMES:
            ids = getattr(config, f"{name}_token_id", None)
            for at, token in enumerate(ids if isinstance(ids, list) else [ids]):
                if isinstance(token, int) and 0 <= token < size:
                    found[f"{name} {at}" if at else name] = token
        found |= {name: one for name, one in (marks or {}).items() if isinstance(one, int) and 0 <= one < size}
        mask = getattr(config, "mask_token_id", None)
        tokens = cls(size, found, mask if isinstance(mask, int) else -1)
        if tokens.plain.size < 2:
            raise OptionError(f"a vocabulary of {size} leaves no tokens to draw")
        return tokens

    @cached_property
    def plain(self) -> NDArray[np.int64]:
        """All ids of the vocabulary except the special tokens and the mask token, ascending; int64 ``[n]``."""
        return np.setdiff1d(np.arange(self.vocabulary), [*self.special.values(), self.mask])

    def including(self, names: Sequence[str]) -> Tokens:
        """Return a copy that draws the special tokens with these names, in place of those in `inside`.

        They are drawn at any place of a sequence, beside the ordinary ids.
        """
        return replace(self, inside=tuple(dict.fromkeys(self.special[name] for name in names)))

    def for_collators(self) -> Tokens:
        """Return the tokens for an audit with a collator that is not nopad's.

        If there is an eos whose id is not that of pad, the result is that of `bordered`: sequences end with eos, and
        may begin with bos. Otherwise these tokens are returned as they are.
        """
        eos, pad = (self.special.get(name) for name in ("eos", "pad"))
        return self if eos is None or eos == pad else self.bordered()

    def bordered(self) -> Tokens:
        """Return a copy whose sequences end with eos, and begin with bos if its id is not that of pad or eos."""
        pad, bos, eos = (self.special.get(name) for name in ("pad", "bos", "eos"))
        return replace(self, begins=None if bos in (pad, eos) else bos, ends=eos)


def draw(lengths: Sequence[int], tokens: Tokens, seed: int) -> list[list[int]]:
    """Draw the token ids of one sequence for each length, and return them.

    Up to a third of a sequence's ids are from `tokens.inside`. Then the last id is replaced by `tokens.ends`, and, in a
    sequence of at least 3 tokens, the first by `tokens.begins`, if these are set. Sequences are found in a batch by
    their ids, so one that equals an earlier one is drawn anew, in up to 100 draws.
    """
    rng = np.random.default_rng(seed)
    drawn: list[list[int]] = []
    for number, length in enumerate(lengths):
        for _ in range(TRIES):
            ids = _one(rng, number, length, tokens)
            if ids not in drawn:
                break
        drawn.append(ids)
    return drawn


def _one(rng: np.random.Generator, number: int, length: int, tokens: Tokens) -> list[int]:
    """Draw the token ids of one sequence of `length` tokens, and return them.

    Up to a third of them are from `tokens.inside`, in turn; the sequence's `number` decides which of these ids comes
    first. The first and last id may be replaced by ``tokens.begins`` and ``tokens.ends``.
    """
    ids = rng.choice(tokens.plain, length)
    places = rng.permutation(length)[: min(length // 3, len(tokens.inside))]
    for at, place in enumerate(places):
        ids[place] = tokens.inside[(number + at) % len(tokens.inside)]
    if tokens.begins is not None and length > 2:
        ids[0] = tokens.begins
    if tokens.ends is not None:
        ids[-1] = tokens.ends
    found: list[int] = ids.tolist()
    return found
