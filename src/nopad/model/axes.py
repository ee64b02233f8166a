"""Position ids with three axes, time, height and width (M-RoPE), for texts with images and videos in packs.

The model's own `get_rope_index` counts them, and is called for each sequence alone, since it counts along a row. It
treats each run of image tokens as one image, so each image must be one run of tokens, and no two may touch. A video is
one run too, or, in models that write the time before each of its steps (Qwen3-VL), one run per step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.batch.images import PICTURES, VIDEOS, Kind
from nopad.batch.layout import Layout
from nopad.errors import BatchError

__all__ = ["Shown", "axes_of", "check_limit"]


@dataclass(frozen=True, eq=False)
class Shown:
    """The images of a packed call, or its videos, and their tokens.

    Attributes:
        kind: whether these are images or videos.
        token: the id of their tokens.
        tokens: which slots hold this id; bool ``[R, L]``.
        counts: number of images (or videos) of each sequence, in the order in which the sequences were given; int64
            ``[S]``.
        sizes: one array per sequence, in stream order (row after row): the number of tokens of each of its images.
        runs: one array per sequence, in stream order: the lengths of the runs of consecutive tokens that its images
            must form. They differ from `sizes` if each step of a video is one run.
    """

    kind: Kind
    token: int
    tokens: NDArray[np.bool_]
    counts: NDArray[np.int64]
    sizes: list[NDArray[np.int64]]
    runs: list[NDArray[np.int64]]

    @property
    def type(self) -> int:
        """The value of these tokens in ``mm_token_type_ids``: 1 for images, 2 for videos."""
        return 1 if self.kind is PICTURES else 2


def axes_of(
    base: Any, named: Mapping[str, Any], ids: NDArray[np.int64], shown: Sequence[Shown], layout: Layout
) -> Tensor:
    """Return positions with three axes, int64 ``[3, R, L]``: what `get_rope_index` gives for each sequence alone.

    In sequences without images or videos, positions count from 0 on all three axes. Positions in padding are 0.

    Args:
        base: the base model, which has `get_rope_index`.
        named: the arguments of the call by name, with the columns of images and videos.
        ids: the token ids ``[R, L]``.
        shown: the images and videos of the batch.
        layout: the batch's layout.

    Raises:
        BatchError: the tokens of an image or of a video do not follow each other, or two images touch (`_check_runs`).
    """
    columns = {name: named[name].cpu() for one in shown for name in one.kind.columns if named.get(name) is not None}
    flat, types = ids.reshape(-1), np.zeros(ids.size, dtype=np.int64)
    for one in shown:
        types[one.tokens.reshape(-1)] = one.type
    found: list[Any] = [None] * layout.sequences
    begun = dict.fromkeys((one.kind.name for one in shown), 0)
    for place, number in enumerate(layout.order.tolist()):
        length, start = int(layout.seq_lengths[number]), int(layout.starts[number])
        mine = types[start : start + length]
        given: dict[str, Tensor] = {}
        for one in shown:
            count = int(one.counts[number])
            if count:
                _check_runs(mine == one.type, one.runs[place], one.kind, number)
                part = slice(begun[one.kind.name], begun[one.kind.name] + count)
                given |= {name: columns[name][part] for name in _of_positions(one.kind) if name in columns}
                begun[one.kind.name] += count
        if not given:
            found[number] = np.broadcast_to(np.arange(length), (3, length))
            continue
        one_alone, _ = base.get_rope_index(
            input_ids=torch.from_numpy(flat[start : start + length])[None],
            mm_token_type_ids=torch.from_numpy(mine)[None],
            **given,
        )
        found[number] = one_alone[:, 0].numpy()
    joined = np.concatenate(found, axis=1).astype(np.int64)
    return torch.from_numpy(np.stack([layout.scatter(axis, 0) for axis in joined]))


def _of_positions(kind: Kind) -> tuple[str, ...]:
    """Return the names of the columns of images (or videos) on which positions depend: all but the pixel values."""
    return tuple(name for name in kind.columns if name != kind.pixels)


def _check_runs(tokens: NDArray[np.bool_], runs: NDArray[np.int64], kind: Kind, number: int) -> None:
    """Check that in a sequence, each image is one run of image tokens, and no two images touch.

    `tokens` says of each token of sequence `number` whether it is an image token (or a video token, by `kind`); bool
    ``[length]``. `runs` are the lengths that the runs must have, in order. A video may be several runs, one per step.

    Raises:
        BatchError: the runs have other lengths.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], tokens, [False]]).astype(np.int8)))
    found = edges[1::2] - edges[::2]
    if not np.array_equal(found, runs):
        each = f"each {kind.one}" if kind is not VIDEOS else "each video, or in Qwen3-VL each of its steps in time,"
        raise BatchError(
            f"{kind.one} tokens of sequence {number} come in runs of {found.tolist()}, and its {kind.name} give "
            f"{runs.tolist()}; {each} is one run, with another token (<|vision_end|>) behind it"
        )


def check_limit(model: Any, axes: Tensor | None, layout: Layout) -> None:
    """Check that no token has a position beyond the model's last one.

    `axes` are positions with three axes, ``[3, R, L]``; None: the positions are those of the layout.

    Raises:
        BatchError: a sequence has a position beyond the model's.
    """
    limit = model.config.get_text_config().max_position_embeddings
    last = layout.position_ids if axes is None else axes.amax(0).numpy()
    if int(last.max()) >= limit:
        row, slot = np.unravel_index(int(last.argmax()), last.shape)
        raise BatchError(
            f"sequence {layout.sequence_ids[row, slot] - 1} has a token at position {int(last.max())}, and "
            f"{type(model).__name__} has {limit} positions; truncate it or split it"
        )
