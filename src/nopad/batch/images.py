"""Take images and videos out of the features of sequences, and sort them into the order of the sequences in the rows.

A model reads images one after the other, and puts their vectors at the batch's image tokens, row after row. So a batch
holds its images in stream order (the order in which sequences lie in the rows), and its layout holds the number of
images of each sequence. From these numbers, `nopad.model.images` knows which sequence an image belongs to. Videos are
kept in the same way, in columns of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch.arrays import is_list, narrow, readable
from nopad.batch.values import told
from nopad.errors import BatchError
from nopad.sequences import Sequences

if TYPE_CHECKING:
    from nopad.batch.layout import Layout
    from nopad.batch.packed import PackedBatch

__all__ = [
    "COLUMNS",
    "KINDS",
    "NAMES",
    "PICTURES",
    "VIDEOS",
    "Kind",
    "Pictured",
    "columns_of_images",
    "held",
    "images_of",
    "one_row",
    "take_images",
]

IDS = "input_ids"
# What processors give for images cut into tiles, and for padded images.
OTHERS = ("image_sizes", "pixel_mask", "pixel_attention_mask", "aspect_ratio_ids", "cross_attention_mask")


@dataclass(frozen=True)
class Kind:
    """The names of the columns and attributes of images, or of videos.

    Attributes:
        name: "images" or "videos". Layouts and batches have an attribute of this name, which holds the number of images
            (or videos) of each sequence. Error messages use it as a word too.
        one: "image" or "video", for error messages.
        pixels: name of the column of pixel values, which are patches ``[patches, size]``; images may also be
            ``[images, C, height, width]``.
        grids: name of the column of grids ``[count, 3]``: the number of patches in time, height and width.
        seconds: name of the column of seconds between two steps in time, ``[count]``; "": there is no such column.
    """

    name: str
    one: str
    pixels: str
    grids: str
    seconds: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns: `pixels`, `grids` and, if there is one, `seconds`."""
        return tuple(name for name in (self.pixels, self.grids, self.seconds) if name)


PICTURES = Kind("images", "image", "pixel_values", "image_grid_thw")
VIDEOS = Kind("videos", "video", "pixel_values_videos", "video_grid_thw", "second_per_grid_ts")
KINDS = (PICTURES, VIDEOS)
COLUMNS = (*PICTURES.columns, *VIDEOS.columns)
NAMES = frozenset((*COLUMNS, *OTHERS))


@dataclass(frozen=True, eq=False)
class Pictured:
    """The images of n sequences, or their videos, in the order in which the sequences were given.

    Attributes:
        kind: whether these are images or videos.
        counts: number of images (or videos) of each sequence; int64 ``[n]``.
        columns: the columns of `kind` by name, such as ``pixel_values``. Each is a list with one entry per sequence: an
            array or tensor, or None for a sequence without images. A column that no sequence has is left out.
    """

    kind: Kind
    counts: NDArray[np.int64]
    columns: Mapping[str, Sequence[Any]]

    def fields(self, order: NDArray[np.int64]) -> dict[str, Any]:
        """Return ``{name: column}``; a column has the entries of all sequences, concatenated in the order `order`.

        `order` has the indices of all sequences in stream order (`Layout.order`), that is row after row.
        """
        return {
            name: _joined([values[number] for number in order.tolist() if self.counts[number]])
            for name, values in self.columns.items()
        }

    def sizes(self) -> NDArray[np.int64]:
        """Return the size of each sequence, counted in images; int64 ``[n]``.

        A pack may have a limit on the sum of these sizes. An image counts 1. A video counts as many images as it has
        steps in time, since a vision tower runs on each step as on one image.
        """
        if self.kind is PICTURES:
            return self.counts
        grids = self.columns[self.kind.grids]
        return np.array([0 if grid is None else int(_table(grid)[:, 0].sum()) for grid in grids], dtype=np.int64)


def images_of(batch: PackedBatch) -> list[dict[str, Any]]:
    """Return the images and videos of a batch: one dict per sequence, in the order in which the sequences were given.

    A dict has the sequence's part of each of the batch's columns of images and videos (`COLUMNS`), such as
    ``pixel_values``. It lacks the columns of images if the sequence has no image, and those of videos if it has no
    video.
    """
    found: list[dict[str, Any]] = [{} for _ in range(batch.layout.sequences)]
    for kind in KINDS:
        counts, grids = getattr(batch, kind.name), batch.get(kind.grids)
        first = patch = 0
        for number in batch.layout.order[counts[batch.layout.order] > 0].tolist():
            end = first + int(counts[number])
            rows = end - first if grids is None else int(grids[first:end].prod(1).sum())
            for name in kind.columns:
                if name in batch:
                    mine = slice(patch, patch + rows) if name == kind.pixels else slice(first, end)
                    found[number][name] = batch[name][mine]
            first, patch = end, patch + rows
    return found


def held(layout: Layout) -> str:
    """Return how many images and videos a batch of this layout has, such as "3 images and 1 videos"; "": none."""
    counts = {kind.name: getattr(layout, kind.name) for kind in KINDS}
    return " and ".join(f"{int(found.sum())} {name}" for name, found in counts.items() if found is not None)


def one_row(feature: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a feature (the columns of one sequence, by name) with columns ``[L]`` in place of ``[1, L]``.

    Processors of transformers give columns ``[1, L]``. A column loses its first dimension if it has the same shape
    ``[1, L]`` as ``input_ids``, and does not hold images or videos. If ``input_ids`` have another shape, the feature
    itself is returned.
    """
    width = _row(feature.get(IDS))
    if width is None:
        return feature
    return {
        name: value[0] if name not in COLUMNS and _row(value) == width else value for name, value in feature.items()
    }


def _row(value: Any) -> int | None:
    """Return L for an array or tensor ``[1, L]``, or for a list whose only entry is a list or array of length L.

    The result is None for any other value.
    """
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[1]) if len(shape) == 2 and shape[0] == 1 else None
    if type(value) is list and len(value) == 1 and is_list(value[0]):
        return len(value[0])
    return None


def columns_of_images(sequences: Sequences) -> tuple[Sequences, tuple[Pictured, ...]]:
    """Take the images and videos out of sequences that hold them as per-sequence columns, with names in `COLUMNS`.

    Each of these columns is an object array. Its entry for a sequence is an array, or None.

    Returns:
        The sequences without these columns; and a tuple with the images, then the videos, each only if a sequence has
        some.

    Raises:
        BatchError: images or videos are not arrays of numbers, have a wrong shape, or do not fit their grids; there are
            grids or seconds without pixel values, or videos without grids; or the images or videos of two sequences
            cannot be concatenated.
    """
    names = [name for name in COLUMNS if name in sequences.values]
    if not names:
        return sequences, ()
    rows = zip(*(sequences.values[name] for name in names), strict=True)
    _, found = take_images([dict(zip(names, row, strict=True)) for row in rows])
    kept = {name: column for name, column in sequences.values.items() if name not in names}
    return replace(sequences, values=kept), found


def take_images(features: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], tuple[Pictured, ...]]:
    """Take the images and videos (the keys in `COLUMNS`) out of features: dicts of columns, one per sequence.

    A feature without these keys, or with None for them, has no image or video. The given features do not change.

    Returns:
        The features without these keys, and without those of `OTHERS`, whose values are all None; and a tuple with the
        images, then the videos, each only if a feature has some.

    Raises:
        BatchError: one of these:

            * a feature has images in tiles or with a mask, or is a row of a packed dataset with images
            * images or videos are not arrays of numbers, have a wrong shape, or have other patches than their grid says
            * there are grids or seconds without pixel values, or videos without grids
            * images or videos of two features cannot be concatenated, such as images of different sizes
    """
    if all(NAMES.isdisjoint(feature) for feature in features):
        return features, ()
    for n, feature in enumerate(features):
        odd = [name for name in OTHERS if readable(feature.get(name), f"{name} of feature {n}") is not None]
        if odd:
            raise BatchError(
                f"feature {n} has {', '.join(odd)}, and nopad lays out no images in tiles or with a mask; a batch "
                f"takes {PICTURES.pixels}, with {PICTURES.grids} where the model reads one, and {VIDEOS.pixels} with "
                f"{VIDEOS.grids}"
            )
    rest = [{name: value for name, value in feature.items() if name not in NAMES} for feature in features]
    found = (_gathered([_of(kind, feature, n) for n, feature in enumerate(features)], kind) for kind in KINDS)
    return rest, tuple(one for one in found if one is not None)


def _gathered(found: list[tuple[int, dict[str, Any]]], kind: Kind) -> Pictured | None:
    """Return the images (or videos) of all features as one `Pictured`, or None if there are none.

    `found` has, for each feature, the number of its images and their columns by name (`_of`).

    Raises:
        BatchError: the images of two features cannot be concatenated.
    """
    counts = np.array([count for count, _ in found], dtype=np.int64)
    if not counts.any():
        return None
    first = int(counts.argmax())
    for n in np.flatnonzero(counts).tolist():
        _check_like(kind, found[n][1], found[first][1], n, first)
    return Pictured(kind, counts, {name: [columns.get(name) for _, columns in found] for name in found[first][1]})


def _of(kind: Kind, feature: Mapping[str, Any], n: int) -> tuple[int, dict[str, Any]]:
    """Return ``(count, columns)``: how many images (or videos) feature `n` has, and its columns of them by name.

    The result is ``(0, {})`` for a feature without images. `kind` says whether images or videos are meant.

    Raises:
        BatchError: pixel values, grids or seconds are no arrays of numbers, have a wrong shape or do not fit each
            other; there are grids or seconds without pixel values, or videos without grids; or the feature is a row of
            a packed dataset.
    """
    found = {name: _array(feature.get(name), name, n) for name in kind.columns}
    found = {name: value for name, value in found.items() if value is not None}
    if not found:
        return 0, {}
    pixels, grids = found.get(kind.pixels), found.get(kind.grids)
    if "seq_lengths" in feature:
        raise BatchError(
            f"feature {n} is a row of a packed dataset and has {next(iter(found))}, which would be of its sequences; "
            "give one feature for each sequence"
        )
    if pixels is None:
        raise BatchError(f"feature {n} has {' and '.join(found)} and no {kind.pixels}; give both, or leave both out")
    if grids is None:
        images = kind is PICTURES
        if images and len(pixels.shape) == 4:
            return int(pixels.shape[0]), found
        whole = "[images, channels, height, width], or " if images else ""
        raise BatchError(
            f"{kind.pixels} of feature {n} are {list(pixels.shape)}{'' if images else f', without {kind.grids}'}; "
            f"expected {whole}patches [patches, size] with {kind.grids}"
        )
    count = _check_grids(kind, pixels, grids, n)
    found[kind.grids] = grids.long() if hasattr(grids, "detach") else grids.astype(np.int64)  # as of processors
    seconds = found.get(kind.seconds)
    if seconds is not None:
        _check_seconds(seconds, count, n)
    return count, found


def _check_grids(kind: Kind, pixels: Any, grids: Any, n: int) -> int:
    """Check the grids of feature `n`, and return how many there are: one for each of its images (or videos).

    A grid is the number of patches in time, height and width. `pixels` are the feature's pixel values.

    Raises:
        BatchError: the grids are not integers ``[count, 3]`` of at least 1, or the pixel values do not have as many
            patches as the grids say.
    """
    try:
        table = _table(grids)
    except (RuntimeError, TypeError) as error:  # such as a tensor on device "meta"
        raise BatchError(f"{kind.grids} of feature {n} cannot be read ({error}); give integers") from error
    if table.ndim != 2 or table.shape[1:] != (3,) or table.dtype.kind not in "iu" or (table < 1).any():
        raise BatchError(
            f"{kind.grids} of feature {n} are {table.tolist()}; expected integers [{kind.name}, 3], from 1"
        )
    patches = int(table.prod(axis=1).sum())
    if len(pixels.shape) != 2 or pixels.shape[0] != patches:
        raise BatchError(
            f"{kind.pixels} of feature {n} are {list(pixels.shape)}, and the {len(table)} {kind.name} of its "
            f"{kind.grids} {table.tolist()} have {patches} patches; expected [{patches}, size]"
        )
    return len(table)


def _check_seconds(seconds: Any, count: int, n: int) -> None:
    """Check the seconds between two steps in time, one number for each of the `count` videos of feature `n`.

    Raises:
        BatchError: they are not one number per video, or one is below 0 or not finite.
    """
    name = VIDEOS.seconds
    if tuple(seconds.shape) != (count,):
        raise BatchError(f"{name} of feature {n} are {list(seconds.shape)}; expected one number per video, [{count}]")
    try:
        values = np.asarray(seconds.tolist(), dtype=np.float64)
    except (RuntimeError, TypeError) as error:  # such as a tensor on device "meta"
        raise BatchError(f"{name} of feature {n} cannot be read ({error}); give numbers") from error
    if not (np.isfinite(values) & (values >= 0)).all():
        raise BatchError(f"{name} of feature {n} are {values.tolist()}; expected seconds, from 0")


def _table(grids: Any) -> NDArray[Any]:
    """Return grids, given as a NumPy array or torch tensor, as a NumPy array."""
    return np.asarray(grids.cpu() if hasattr(grids, "cpu") else grids)


def _array(value: Any, name: str, n: int) -> Any:
    """Return a torch tensor as it is, and any other value as a NumPy array.

    The result is None if the value is None, or a list or NumPy array without elements. Python floats become float32.
    Error messages name the column `name` and the index `n` of the feature.

    Raises:
        BatchError: the value is not an array of numbers, some are masked or null, or it holds a Python float beyond
            float32.
    """
    if hasattr(value, "detach") and not getattr(value, "is_nested", False):
        return value
    value = readable(value, f"{name} of feature {n}")  # which refuses nested tensors
    if value is None:
        return None
    try:
        found = np.asarray(value)
    except Exception as error:  # lists of different lengths, or an object's own code
        raise BatchError(f"{name} of feature {n} are no array of numbers ({error}); images are of one size") from error
    if found.dtype.kind not in "biuf":
        raise BatchError(f"{name} of feature {n} are of {found.dtype}; expected numbers")
    if found.dtype == np.float64 and not hasattr(value, "dtype"):
        found = narrow(found, name)
    return found if found.size else None


def _check_like(kind: Kind, given: Mapping[str, Any], first: Mapping[str, Any], n: int, other: int) -> None:
    """Check that the images (or videos) of feature `n` can be concatenated with those of feature `other`.

    `given` has the columns of feature `n` by name, and `first` those of feature `other`.

    Raises:
        BatchError: only one of the two features has a column; or a column differs in dtype, device, library (NumPy or
            torch) or in a dimension after the first.
    """
    for name in kind.columns:
        one, two = given.get(name), first.get(name)
        if (one is None) != (two is None):
            has, lacks = (n, other) if two is None else (other, n)
            raise BatchError(
                f"feature {has} has {name} and feature {lacks} has not; give them to all that have {kind.name}"
            )
    for name, one in given.items():
        two = first[name]
        if type(one) is not type(two) or one.shape[1:] != two.shape[1:] or one.dtype != two.dtype:
            raise BatchError(
                f"{name} of feature {n} are {told(one)}, and those of feature {other} {told(two)}; {kind.name} of a "
                "batch have one size, dtype and kind of array"
            )
        if getattr(one, "device", None) != getattr(two, "device", None):
            raise BatchError(
                f"{name} of feature {n} are on {one.device}, and those of feature {other} on {two.device}; move all "
                f"{kind.name} of a batch to one device"
            )


def _joined(values: Sequence[Any]) -> Any:
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    import torch

    return torch.cat(list(values))
