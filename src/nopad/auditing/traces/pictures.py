"""The values of modules that work on images: one row for each image of a batch, which all of its tokens share.

A vision tower runs on all images of a batch, and then on all its videos. Its output for an image is one contiguous
piece, but the order within the piece may differ from that of the tokens (Qwen2.5-VL sorts patches by windows). So a
trace shows which images change there, and not which of their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.auditing.shown import Picture, Pictures
from nopad.auditing.traces.columns import Columns, Values
from nopad.auditing.trial import Trial
from nopad.batch.images import KINDS

__all__ = ["of_pictures", "shown_in"]

Shown = list[tuple[Picture, NDArray[np.int64]]]


def shown_in(trial: Trial, columns: Columns, sequences: Sequence[Sequence[int]]) -> list[Shown]:
    """Return the images and the videos of a batch, each with the columns of its tokens.

    The result is a list of up to two lists: the images, then the videos, in the order in which they lie in the batch. A
    list that would be empty is left out. If a collator builds the batches, the result is empty, since the order of the
    images is not known. `sequences` are the ids of the batch's sequences.
    """
    if trial.collator is not None or not isinstance(trial.shown, Pictures):
        return []
    found: dict[str, Shown] = {kind.name: [] for kind in KINDS}
    for number in dict.fromkeys(columns.sequences.tolist()):
        here = np.flatnonzero(columns.sequences == number)
        for picture, at in trial.shown.places(sequences[number]):
            found[picture.kind.name].append((picture, here[at]))
    return [shown for shown in found.values() if shown]


def of_pictures(value: Tensor, shown: Shown) -> Values | None:
    """Return a module's output as `Values` with one row per image; None if it cannot be divided among images.

    `shown` are the images (or the videos) that the module ran on, each with the columns of its tokens.
    """
    pictures = [picture for picture, _ in shown]
    choices = ([one.patches for one in pictures], [one.tokens for one in pictures], [1] * len(pictures))
    sizes = next((sizes for sizes in choices if sum(sizes) == value.shape[0]), None)
    if sizes is None:
        return None
    parts = [part.reshape(-1) for part in torch.split(value, sizes)]
    rows = value.new_zeros(len(parts), max(map(len, parts)))
    for row, part in zip(rows, parts, strict=True):
        row[: len(part)] = part
    owner = np.repeat(np.arange(len(shown)), [len(at) for _, at in shown])
    return Values(np.concatenate([at for _, at in shown]), rows, owner)
