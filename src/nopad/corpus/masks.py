"""Which tokens are to be predicted, and what stands in their place: arrays in, arrays out, without torch.

As in BERT: 15 % of the tokens are chosen; of these, 80 % become ``[MASK]``, 10 % another token, and 10 % stay. Special
tokens are never chosen, and no other token becomes one. Each token is chosen by itself, or so many of each sequence as
BERT chooses: `rate` times its tokens (special ones count), rounded, at least 1 and at most `max_predictions`, in an
order drawn at random; of whole words those that still fit. Masks are a function of a key and of the integers that name
a sequence.

Source: Devlin et al., BERT, 2019, section 3.1, and ``create_pretraining_data.py`` of its repository.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.errors import OptionError
from nopad.options import Option

__all__ = ["BEGINS", "GOES_ON", "MASKABLE", "NEVER", "Masks", "default_predictions"]

NEVER, GOES_ON, BEGINS = 0, 1, 2  # what a token is for masking, as in `_mask_kernels`

MASKABLE = "maskable"  # column: 0 never; 1 goes on with the word of the token before; 2 begins a word
_PREDICTIONS = {128: 20, 384: 56, 512: 76}  # of the packing papers and MLPerf, by the length of sequences
_SEED = Option(default=0, low=0, high=2**64 - 1, help="of the masks")
_MOST = Option(default=None, none=True, help="most predictions of a sequence")


def default_predictions(max_length: int) -> int:
    """Return how many tokens of a sequence are predicted at most where nobody says: 20, 56, 76 at 128, 384, 512.

    At other lengths, 15 % of the length.

    >>> default_predictions(128), default_predictions(200)
    (20, 30)
    """
    return _PREDICTIONS.get(max_length, max(round(0.15 * max_length), 1))


@dataclass(frozen=True, kw_only=True)
class Masks:
    """How masks are drawn.

    Attributes:
        mask_id: the id of ``[MASK]``.
        special: ids that are never chosen; int64.
        ordinary: ids that may stand in the place of another; int64, not empty.
        rate: the share of the tokens that is chosen, above 0, at most 1.
        seed: the seed of the masks.
        max_predictions: most chosen tokens of a sequence, chosen as BERT does; None: each token by itself.

    Raises:
        OptionError: an option has an invalid value.
    """

    mask_id: int
    special: NDArray[np.int64] = field(repr=False)
    ordinary: NDArray[np.int64] = field(repr=False)
    rate: float = 0.15
    seed: int = 0
    max_predictions: int | None = None

    def __post_init__(self) -> None:
        rate = self.rate
        if isinstance(rate, bool) or not isinstance(rate, int | float | np.number) or not 0 < rate <= 1:
            raise OptionError(f"rate is {rate!r}; it is the share of tokens to be predicted, above 0, and at most 1")
        _SEED.check("seed", self.seed)
        _MOST.check("max_predictions", self.max_predictions)

    def maskable(self, ids: NDArray[Any]) -> NDArray[np.int8]:
        """Return for each id whether it may be chosen, as a word of its own; int8."""
        return np.where(np.isin(ids, self.special), NEVER, BEGINS).astype(np.int8)

    def words(self, ids: NDArray[Any], begins: NDArray[np.int64], goes_on: NDArray[np.bool_]) -> NDArray[np.int8]:
        """Return for each id of sequences that begin at `begins` whether it may be chosen, by whole words; int8.

        ``goes_on[id]``: whether a token goes on with the word of the one before it, as WordPiece's ``##s`` does. Behind
        a special token, and at the beginning of a sequence, it is a word of its own.
        """
        kinds = self.maskable(ids)
        before = np.empty_like(kinds)
        before[1:], before[:1] = kinds[:-1], NEVER
        before[begins[begins < ids.size]] = NEVER
        kinds[(kinds != NEVER) & (before != NEVER) & goes_on[ids]] = GOES_ON
        return kinds

    def drawn(
        self,
        ids: NDArray[Any],
        kinds: NDArray[np.int8],
        lengths: NDArray[np.int32],
        names: NDArray[np.int64],
        epoch: int = 0,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return masked ids, and labels, -100 where nothing is to be predicted; int64 ``[T]`` each.

        Args:
            ids: of n sequences, one after the other; ``[T]``.
            kinds: what may be chosen, of `maskable` or `words`; ``[T]``.
            lengths: of the sequences; ``[n]``.
            names: the integers that name each sequence; int64 ``[n, k]``.
            epoch: each has masks of its own.
        """
        from nopad.corpus import _mask_kernels

        ids = ids.astype(np.int64)
        labels = np.empty_like(ids)
        key = np.uint64(random.key(self.seed, random.STREAM_MASK, epoch))
        below = np.uint64(min(int(float(self.rate) * 2**64), 2**64 - 1))
        _mask_kernels.mask(
            ids, labels, kinds, lengths, names, key, below, self._counts(lengths), self.mask_id, self.ordinary
        )
        return ids, labels

    def _counts(self, lengths: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return how many tokens of each sequence are chosen; -1: each by itself."""
        if self.max_predictions is None:
            return np.full(lengths.size, -1, np.int64)
        wanted = np.floor(self.rate * lengths.astype(np.float64) + 0.5).astype(np.int64)
        return np.clip(wanted, 1, self.max_predictions)
