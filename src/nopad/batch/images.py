"""Take images out of the features of sequences, and put them into the order in which the sequences lie in a batch.

A model reads images one after the other, and puts their vectors in the places of a batch's image tokens, row after row.
So a batch holds its images in stream order (the order in which sequences lie in the rows), and its layout holds the
number of images of each sequence. From these numbers, `nopad.model.images` knows which sequence an image belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch.arrays import narrow
from nopad.batch.values import told
from nopad.errors import BatchError
from nopad.sequences import Sequences

if TYPE_CHECKING:
    from nopad.batch.packed import PackedBatch

__all__ = ["GRIDS", "PIXELS", "Images", "columns_of_images", "images_of", "one_row", "take_images"]

PIXELS, GRIDS = "pixel_values", "image_grid_thw"
IDS = "input_ids"
# What processors give for videos, for images cut into tiles, and for padded images.
OTHERS = (
    "pixel_values_videos",
    "video_grid_thw",
    "image_sizes",
    "pixel_mask",
    "pixel_attention_mask",
    "aspect_ratio_ids",
    "cross_attention_mask",
)
NAMES = frozenset((PIXELS, GRIDS, *OTHERS))


@dataclass(frozen=True, eq=False)
class Images:
    """The images of n sequences, in the order in which the sequences were given.

    Attributes:
        counts: number of images of each sequence; int64 ``[n]``.
        pixels: one entry per sequence: its ``pixel_values``, which are images ``[images, C, height, width]`` or patches
            ``[patches, size]``; None for a sequence without images.
        grids: one entry per sequence: its ``image_grid_thw`` ``[images, 3]``, the number of patches of each image in
            time, height and width; None for a sequence without images. If the images have no grids, `grids` is None.
    """

    counts: NDArray[np.int64]
    pixels: Sequence[Any]
    grids: Sequence[Any] | None

    def fields(self, order: NDArray[np.int64]) -> dict[str, Any]:
        """Return ``pixel_values`` and ``image_grid_thw`` of a batch, by name; the latter only if images have grids.

        The images of all sequences are concatenated in stream order. `order` has the sequences' indices in this order
        (`Layout.order`).
        """
        found = {PIXELS: self.pixels} if self.grids is None else {PIXELS: self.pixels, GRIDS: self.grids}
        return {
            name: _joined([values[number] for number in order.tolist() if self.counts[number]])
            for name, values in found.items()
        }


def images_of(batch: PackedBatch) -> list[dict[str, Any]]:
    """Return the images of a batch: one dict per sequence, in the order in which the sequences were given.

    A dict has ``pixel_values``, and ``image_grid_thw`` if the batch has it; it is empty for a sequence without images.
    """
    found: list[dict[str, Any]] = [{} for _ in range(batch.layout.sequences)]
    if not batch.images.any():
        return found
    grids = batch.get(GRIDS)
    image = patch = 0
    for number in batch.layout.order.tolist():
        count = int(batch.images[number])
        if not count:
            continue
        mine = None if grids is None else grids[image : image + count]
        rows = count if mine is None else int(mine.prod(1).sum())
        found[number] = {PIXELS: batch[PIXELS][patch : patch + rows]} | ({} if mine is None else {GRIDS: mine})
        image, patch = image + count, patch + rows
    return found


def one_row(feature: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the feature of one sequence with columns ``[L]`` in place of ``[1, L]``.

    Processors of transformers give columns ``[1, L]``. Every such column loses its first dimension if it has the L of
    ``input_ids`` and does not hold images. If ``input_ids`` are not ``[1, L]``, the feature itself is returned.
    """
    width = _row(feature.get(IDS))
    if width is None:
        return feature
    kept = (PIXELS, GRIDS)
    return {name: value[0] if name not in kept and _row(value) == width else value for name, value in feature.items()}


def _row(value: Any) -> int | None:
    """Return L for an array ``[1, L]``, or for a list that holds only one list or array of length L; otherwise None."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[1]) if len(shape) == 2 and shape[0] == 1 else None
    if type(value) is list and len(value) == 1 and isinstance(value[0], list | np.ndarray):
        return len(value[0])
    return None


def columns_of_images(sequences: Sequences) -> tuple[Sequences, Images | None]:
    """Take the images out of sequences in columns; return the sequences without them, and the images.

    The images are in the per-sequence columns ``pixel_values`` and ``image_grid_thw``, arrays of objects: for each
    sequence an array, or None. If there are no such columns, or no sequence has an image, the second result is None.

    Raises:
        BatchError: as for `take_images`.
    """
    names = [name for name in (PIXELS, GRIDS) if name in sequences.values]
    if not names:
        return sequences, None
    rows = zip(*(sequences.values[name] for name in names), strict=True)
    _, images = take_images([dict(zip(names, row, strict=True)) for row in rows])
    kept = {name: column for name, column in sequences.values.items() if name not in names}
    return replace(sequences, values=kept), images


def take_images(features: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], Images | None]:
    """Take the images (``pixel_values``, ``image_grid_thw``) out of features.

    A feature without these keys, or with None for them, has no image. The given features do not change.

    Returns:
        The features without these keys; and their images, None if no feature has an image.

    Raises:
        BatchError: a feature has videos, or images in tiles or with a mask; a row of a packed dataset has images; the
            images of a feature are no arrays of numbers, have a wrong shape, or do not have as many patches as their
            grid says; there is a grid without pixel values; or the images of two features cannot be concatenated.
    """
    if all(NAMES.isdisjoint(feature) for feature in features):
        return features, None
    for n, feature in enumerate(features):
        odd = [name for name in OTHERS if feature.get(name) is not None]
        if odd:
            raise BatchError(
                f"feature {n} has {', '.join(odd)}, and nopad lays out neither videos nor images in tiles; a batch "
                f"takes {PIXELS}, with {GRIDS} where the model reads one"
            )
    found = [_of(feature, n) for n, feature in enumerate(features)]
    rest = [{name: value for name, value in feature.items() if name not in NAMES} for feature in features]
    counts = np.array([count for count, _, _ in found], dtype=np.int64)
    if not counts.any():
        return rest, None
    first = int(counts.argmax())
    for n in np.flatnonzero(counts).tolist():
        _check_like(found[n][1:], found[first][1:], n, first)
    grids = None if found[first][2] is None else [grid for _, _, grid in found]
    return rest, Images(counts, [pixels for _, pixels, _ in found], grids)


def _of(feature: Mapping[str, Any], n: int) -> tuple[int, Any, Any]:
    """Return ``(number of images, pixel values, grids)`` of feature `n`; `grids` is None if its images have no grids.

    If the feature has no image, the result is ``(0, None, None)``.

    Raises:
        BatchError: pixel values or grids are no arrays of numbers, have a wrong shape or do not fit each other; there
            are grids without pixel values; or the feature is a row of a packed dataset.
    """
    pixels, grids = _array(feature.get(PIXELS), PIXELS, n), _array(feature.get(GRIDS), GRIDS, n)
    if pixels is None and grids is None:
        return 0, None, None
    if "seq_lengths" in feature:
        raise BatchError(
            f"feature {n} is a row of a packed dataset and has {PIXELS}, which would be of its sequences; give one "
            "feature for each sequence"
        )
    if pixels is None:
        raise BatchError(f"feature {n} has {GRIDS} and no {PIXELS}; give both, or leave both out")
    if grids is None:
        if len(pixels.shape) != 4:
            raise BatchError(
                f"{PIXELS} of feature {n} are {list(pixels.shape)}; expected [images, channels, height, width], or "
                f"patches [patches, size] with {GRIDS}"
            )
        return int(pixels.shape[0]), pixels, None
    try:
        table = np.asarray(grids.cpu() if hasattr(grids, "cpu") else grids)
    except (RuntimeError, TypeError) as error:  # such as a tensor on device "meta"
        raise BatchError(f"{GRIDS} of feature {n} cannot be read ({error}); give integers") from error
    if table.ndim != 2 or table.shape[1:] != (3,) or table.dtype.kind not in "iu" or (table < 1).any():
        raise BatchError(f"{GRIDS} of feature {n} are {table.tolist()}; expected integers [images, 3], from 1")
    patches = int(table.prod(axis=1).sum())
    if len(pixels.shape) != 2 or pixels.shape[0] != patches:
        raise BatchError(
            f"{PIXELS} of feature {n} are {list(pixels.shape)}, and the {len(table)} images of its {GRIDS} "
            f"{table.tolist()} have {patches} patches; expected [{patches}, size]"
        )
    return len(table), pixels, grids


def _array(value: Any, name: str, n: int) -> Any:
    """Return a torch tensor as it is, and any other value as a NumPy array.

    The result is None if the value is None, or a list or array without elements. Python floats become float32. `name`
    and `n`, the index of the feature, are for error messages.

    Raises:
        BatchError: the value is not an array of numbers, or holds a Python float beyond float32.
    """
    if value is None or hasattr(value, "detach"):
        return value
    try:
        found = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise BatchError(f"{name} of feature {n} are no array of numbers ({error}); images are of one size") from error
    if found.dtype.kind not in "biuf":
        raise BatchError(f"{name} of feature {n} are of {found.dtype}; expected numbers")
    if found.dtype == np.float64 and not hasattr(value, "dtype"):
        found = narrow(found, name)
    return found if found.size else None


def _check_like(given: tuple[Any, Any], first: tuple[Any, Any], n: int, other: int) -> None:
    """Check that the images of feature `n` can be concatenated with those of feature `other`.

    `given` and `first` are the pixel values and grids of these two features.

    Raises:
        BatchError: only one of the two has grids, or they differ in size, dtype or kind of array.
    """
    if (given[1] is None) != (first[1] is None):
        has, lacks = (n, other) if first[1] is None else (other, n)
        raise BatchError(f"feature {has} has {GRIDS} and feature {lacks} has not; give them to all that have images")
    for name, one, two in zip((PIXELS, GRIDS), given, first, strict=True):
        if one is None:
            continue
        if type(one) is not type(two) or one.shape[1:] != two.shape[1:] or one.dtype != two.dtype:
            raise BatchError(
                f"{name} of feature {n} are {told(one)}, and those of feature {other} {told(two)}; images of a batch "
                "have one size, dtype and kind of array"
            )


def _joined(values: Sequence[Any]) -> Any:
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    import torch

    return torch.cat(list(values))
