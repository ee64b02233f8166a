"""Draw masks for masked language models anew in every epoch, when batches are made.

`nopad.corpus.masks` has the rules by which tokens are chosen. The masks of a sequence depend only on its tokens, the
options, the seed, the epoch, and four columns. The column ``seq_index`` is needed; ``seq_source`` and ``seq_start``
count as 0 if the data lack them. Without ``maskable``, each token that is not special is a word by itself. So ranks,
rows, worker processes and resuming do not change masks.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch import PackedBatch
from nopad.batch.form import Form
from nopad.corpus.masks import MASKABLE, Masks
from nopad.errors import BatchError, OptionError
from nopad.loading.supply import Collate, EpochCollate
from nopad.sequences import Sequences

__all__ = ["Masking", "masks_of"]

_NAMES = ("seq_source", "seq_index", "seq_start")


class Masking(EpochCollate):
    """The `collate` for masked language modelling: draws masks anew in every epoch, for stored data or a stream.

    Args:
        tokenizer: the model's tokenizer, with a mask token.
        rate: share of the tokens that are chosen to be predicted, above 0 and at most 1.
        seed: the seed of the masks.
        max_predictions: most chosen tokens per sequence; tokens are then chosen as in BERT (`nopad.corpus.masks`).
            None: each token (or whole word) is chosen independently.
        marked: True: mask only data that have the per-token column ``maskable``, and leave other data unchanged. False:
            mask all data. Where the data have this column, it decides which tokens may be chosen. 0: the token is never
            chosen, 1: it continues the word of the token before, 2: it begins a word.

    Raises:
        OptionError: the tokenizer has no mask token, or only special tokens; or an option has an invalid value.

    >>> import nopad
    >>> from nopad.tasks import Masking
    >>> data = [tokenizer("the cat sleeps in the house . " * 4)["input_ids"]] * 3
    >>> loader = nopad.PackedLoader(data, 64, rows=2, collate=Masking(tokenizer))
    >>> [[(batch["labels"] >= 0).sum().item() for batch in loader] for epoch in range(2)]
    [[7], [15]]

    The three sequences are one batch. Of its tokens, 7 are predicted in the first epoch, and 15 in the second.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        rate: float = 0.15,
        seed: int = 0,
        max_predictions: int | None = None,
        marked: bool = False,
    ) -> None:
        self.masks = masks_of(tokenizer, rate=rate, seed=seed, max_predictions=max_predictions)
        self.mask_id, self.marked = self.masks.mask_id, marked

    def facts(self) -> dict[str, Any]:
        """Return the settings on which masks depend: ``mask_seed``, ``mask_rate``, ``mask_most`` and ``mask_ids``.

        ``mask_most`` is `max_predictions`. ``mask_ids`` is a SHA-256 in hex of three things: the id of the mask token,
        the ids of all special tokens, and the ids of all other tokens.
        """
        how = self.masks
        ids = hashlib.sha256(np.concatenate([[how.mask_id], how.special, [-1], how.ordinary]).tobytes())
        return {
            "mask_seed": how.seed,
            "mask_rate": how.rate,
            "mask_most": how.max_predictions,
            "mask_ids": ids.hexdigest(),
        }

    def at(self, epoch: int) -> Collate:
        """Return a function that masks sequences with the draws of epoch number `epoch`, from 0, and batches them."""
        return partial(self._collated, epoch)

    def _collated(self, epoch: int, sequences: Sequences, form: Form, per_row: NDArray[np.int64]) -> PackedBatch:
        if not self.marked or MASKABLE in sequences.tokens:
            sequences = self.masked(sequences, epoch)
        return PackedBatch.from_columns(sequences, form, per_row=per_row)

    def masked(self, sequences: Sequences, epoch: int) -> Sequences:
        """Return the sequences with the masks of epoch number `epoch`, and a column ``labels`` (-100: not predicted).

        The column ``maskable`` is removed.

        Raises:
            BatchError: the sequences have labels already, or no sequence numbers (``seq_index``).
        """
        if "labels" in sequences.tokens:
            raise BatchError("the sequences have labels, so their tokens are masked already; leave out the collate")
        if "seq_index" not in sequences.values:
            raise BatchError("the sequences have no seq_index, of which their masks are a function; use a PackedLoader")
        whole = sequences.gathered()
        columns = dict(whole.tokens)
        kinds = columns.pop(MASKABLE, None)
        kinds = self.maskable(columns["input_ids"]) if kinds is None else kinds.astype(np.int8)
        names = np.zeros((len(whole), len(_NAMES)), np.int64)
        for at, name in enumerate(_NAMES):
            if name in whole.values:
                names[:, at] = whole.values[name]
        lengths = whole.seq_lengths.astype(np.int32, copy=False)
        ids, labels = self.masks.drawn(columns["input_ids"], kinds, lengths, names, epoch)
        return replace(whole, tokens={**columns, "input_ids": ids, "labels": labels})

    def maskable(self, ids: NDArray[Any]) -> NDArray[np.int8]:
        """Return the column ``maskable`` of tokens that are each a word by itself: 0 for special ids, 2 for all others.

        `ids` are the token ids. The result is int8, with the shape of `ids`.
        """
        return self.masks.maskable(ids)


def masks_of(tokenizer: Any, **options: Any) -> Masks:
    """Return the rules by which masks are drawn for a transformers tokenizer.

    `options` are `rate`, `seed` and `max_predictions`, as in `Masking`.

    Raises:
        OptionError: the tokenizer has no mask token, or only special tokens; or an option has an invalid value.
    """
    mask_id, special, ordinary = _vocabulary(tokenizer)
    return Masks(mask_id=mask_id, special=special, ordinary=ordinary, **options)


def _vocabulary(tokenizer: Any) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Return the id of the mask token, the ids of all special tokens, and those of all others, ascending; int64.

    Raises:
        OptionError: there is no mask token, or every token is special.
    """
    if getattr(tokenizer, "mask_token_id", None) is None:
        raise OptionError(
            f"{type(tokenizer).__name__} has no mask token, so its model is no masked language model; for a causal one "
            "no masks are needed"
        )
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special = np.array(sorted({*tokenizer.all_special_ids, *added}), np.int64)
    ordinary = np.setdiff1d(np.array(sorted(tokenizer.get_vocab().values()), np.int64), special)
    if not ordinary.size:
        raise OptionError(f"{type(tokenizer).__name__} has no token that is not special, so there is nothing to mask")
    return int(tokenizer.mask_token_id), special, ordinary
