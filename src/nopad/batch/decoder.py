"""Make the targets of an encoder-decoder model into sequences of decoder inputs and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nopad.batch.columns import from_sequences
from nopad.errors import BatchError, OptionError
from nopad.options import shown
from nopad.sequences import Sequences

__all__ = ["shifted"]


def shifted(targets: Sequence[Any], sequences: int, start_id: int) -> Sequences:
    """Return the inputs and labels of a decoder as `Sequences`, one for each target.

    The column ``labels`` holds the targets. The column ``input_ids`` holds the targets shifted right by one token, with
    `start_id` first.

    Args:
        targets: ids of each target; lists or integer arrays ``[length]``.
        sequences: number of sequences that the encoder gets.
        start_id: the id that every decoder sequence begins with.

    Raises:
        BatchError: there is not one target per sequence, or a target is not a list of ids or holds a negative id, such
            as -100.
        LengthError: a target is empty.
        OptionError: `start_id` is not an integer from 0 to 2^31 - 1.
    """
    stacked = from_sequences(targets, {}, name="targets")
    lens = stacked.seq_lengths
    if lens.size != sequences:
        raise BatchError(f"{lens.size} targets for {sequences} sequences; expected one per sequence")
    labels = stacked.tokens["input_ids"]
    if labels.min() < 0:
        at = int(labels.argmin())
        number = int(np.searchsorted(np.cumsum(lens), at, side="right"))
        raise BatchError(
            f"target {number} holds {labels[at]}, which is no token: give targets without padding, and set "
            "batch['labels'] to -100 afterwards where nothing is to be learnt"
        )
    if isinstance(start_id, bool) or not isinstance(start_id, int | np.integer) or not 0 <= start_id < 2**31:
        raise OptionError(f"start_id is {shown(start_id)}; it is a token, mostly model.config.decoder_start_token_id")
    # One roll shifts all targets; each first token, which came from the target before, is then replaced.
    ids = np.roll(labels, 1)
    ids[stacked.begins] = start_id
    return replace(stacked, tokens={"input_ids": ids, "labels": labels})
