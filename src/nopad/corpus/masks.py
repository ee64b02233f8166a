"""Draw masks for masked language models: which tokens to predict, and what replaces them, in NumPy without torch.

`rate`, `ordinary` and `max_predictions` are attributes of `Masks`. As in BERT, 15 % of the tokens are chosen by default
(`rate`). Of these, 80 % become ``[MASK]``, 10 % become a random token from `ordinary`, and 10 % stay unchanged. Special
tokens are never chosen. Without `max_predictions`, each token (or whole word) is chosen independently, with probability
`rate`. With `max_predictions`, the number of tokens to choose in a sequence has a limit, as in BERT. It is `rate` times
the number of tokens in the sequence (special ones included), rounded, but at least 1 and at most `max_predictions`.
Tokens (or whole words) are chosen in random order until the limit is reached; a word with which it would be exceeded is
skipped. The random draws depend only on the seed, the epoch, the integers that name a sequence, and the index of a
token in its sequence.

Source: Devlin et al., BERT, 2019, section 3.1, and ``create_pretraining_data.py`` of its repository.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.errors import OptionError
from nopad.options import Option, is_number, shown

__all__ = ["BEGINS", "GOES_ON", "MASKABLE", "NEVER", "Masks", "default_predictions"]

NEVER, GOES_ON, BEGINS = 0, 1, 2  # a token is never chosen, continues a word, or begins a word

MASKABLE = "maskable"  # name of the column with `NEVER`, `GOES_ON` or `BEGINS` for each token
_PREDICTIONS = {128: 20, 384: 56, 512: 76}  # by `max_length`, as in the packing papers and MLPerf
_SEED = Option(default=0, low=0, high=2**64 - 1, help="random seed of the masks")
_MOST = Option(default=None, none=True, help="most predictions of a sequence")


def default_predictions(max_length: int) -> int:
    """Return the default of `max_predictions` for sequences of at most `max_length` tokens.

    It is 20 for 128 tokens, 56 for 384 and 76 for 512. For any other `max_length` it is 15 % of this, rounded, but at
    least 1.

    >>> default_predictions(128), default_predictions(200)
    (20, 30)
    """
    return _PREDICTIONS.get(max_length, max(round(0.15 * max_length), 1))


@dataclass(frozen=True, kw_only=True)
class Masks:
    """The rules by which masks are drawn.

    Attributes:
        mask_id: the id of ``[MASK]``.
        special: ids of special tokens, which the model never has to predict; int64.
        ordinary: ids from which a random replacement of a token is drawn; int64, not empty.
        rate: the share of the tokens that the model has to predict, above 0 and at most 1.
        seed: random seed of the masks.
        max_predictions: maximum number of tokens to predict in a sequence. Tokens (or whole words) are then chosen up
            to a limit: `rate` times the sequence's tokens, rounded, but from 1 to `max_predictions`. None: each token
            (or whole word) is chosen independently, with probability `rate`.

    Raises:
        OptionError: `rate`, `seed` or `max_predictions` has an invalid value.
    """

    mask_id: int
    special: NDArray[np.int64] = field(repr=False)
    ordinary: NDArray[np.int64] = field(repr=False)
    rate: float = 0.15
    seed: int = 0
    max_predictions: int | None = None

    def __post_init__(self) -> None:
        rate = self.rate
        if not is_number(rate) or not 0 < rate <= 1:
            raise OptionError(
                f"rate is {shown(rate)}; it is the share of tokens to be predicted, above 0, and at most 1"
            )
        _SEED.check("seed", self.seed)
        _MOST.check("max_predictions", self.max_predictions)

    def maskable(self, ids: NDArray[Any]) -> NDArray[np.int8]:
        """Return the kind of each of T tokens, int8 ``[T]``: `NEVER` for a special token, `BEGINS` for any other.

        `BEGINS` means that the token begins a word, so each token that is not special counts as a word.
        """
        return np.where(np.isin(ids, self.special), NEVER, BEGINS).astype(np.int8)

    def words(self, ids: NDArray[Any], begins: NDArray[np.int64], goes_on: NDArray[np.bool_]) -> NDArray[np.int8]:
        """Return the kind of each of T tokens, int8 ``[T]``, so that whole words are masked.

        The kind is `NEVER` for a special token, which is never masked. It is `BEGINS` for a token that begins a word,
        and `GOES_ON` for one that continues a word. `begins` are the indices in `ids` at which sequences begin.
        ``goes_on[id]`` says whether a token continues the word of the token before it, as WordPiece's ``##s`` does.
        After a special token, and at the beginning of a sequence, such a token begins a word.
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
        """Return the masked ids, and the labels; int64 ``[T]`` each.

        The label of a token that is to be predicted is its id in `ids`; the label of any other token is -100.

        Args:
            ids: token ids of n sequences, one after the other; ``[T]``. They are not changed.
            kinds: which tokens may be masked, as returned by `maskable` or `words`; int8 ``[T]``.
            lengths: number of tokens in each sequence; int32 ``[n]``.
            names: k integers that identify each sequence, such as its number and source; int64 ``[n, k]``.
            epoch: number of the epoch, from 0; each epoch has other random draws.
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
        """Return the maximum number of tokens to predict in each of n sequences of these `lengths`; int64 ``[n]``.

        All values are -1 if `max_predictions` is None: each token or word is then chosen independently.
        """
        if self.max_predictions is None:
            return np.full(lengths.size, -1, np.int64)
        wanted = np.floor(self.rate * lengths.astype(np.float64) + 0.5).astype(np.int64)
        return np.clip(wanted, 1, self.max_predictions)
