"""For models that take images and videos beside their tokens: find out which image belongs to which sequence.

Such a model runs its vision tower on all images of a batch, each image by itself, and then on all videos. It puts the
resulting features in place of the image tokens and video tokens of the batch, in order. Qwen3-VL also adds features of
its tower to the states of these tokens after each of its first layers (DeepStack), which moves nothing between tokens.

In a pack, the features of an image could get into the tokens of another sequence. So before the model runs, the number
of image tokens of each sequence is compared with the number that its own images give, and the same for videos.
Positions that depend on images are counted for each sequence alone (`nopad.model.axes`).

Only the text part gets nopad's attention. The tower keeps its own, which sees one image, or one step in time of a
video, and no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from nopad.batch.images import COLUMNS, KINDS, PICTURES, VIDEOS, Kind
from nopad.batch.layout import Layout
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model.axes import Shown, axes_of, check_limit
from nopad.model.families import Family
from nopad.model.hooks import Hook

__all__ = [
    "TOWER",
    "Ran",
    "check_images",
    "image_parts",
    "ordinary_arguments",
    "refuse_others",
    "size_of_patch",
    "tokens_of_image",
]

TOWER = "vision tower"
TYPES = "mm_token_type_ids"
BUILD = "nopad.PackedBatch.from_features"
# Arguments of these models that a packed call does not take, and why.
OTHERS = {
    "inputs_embeds": "image tokens are found by their ids; give input_ids",
    "image_sizes": "images of several sizes are not packed for this model; run these sequences padded",
    "mm_encoder_outputs": "features that were made before do not say whose they are; give pixel_values",
}


@dataclass(eq=False)
class Ran(Hook):
    """Counts how often its module runs in a packed call, in ``Call.ran[role]``."""

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Count the run, and leave the arguments as they are."""
        call = self.cell.call
        if call is not None:
            call.ran[self.role] += 1


def image_parts(base: Any, family: Family) -> tuple[nn.Module, nn.Module]:
    """Return the vision tower and the text part of a base model, by the names in `family.images`.

    Raises:
        UnsupportedModelError: the base model has no part of one of these names.
    """
    assert family.images is not None
    found = []
    for name in (family.images.tower, family.images.text):
        part = getattr(base, name, None)
        if not isinstance(part, nn.Module):
            raise UnsupportedModelError(f"{type(base).__name__} has no {name!r}, as transformers' own has")
        found.append(part)
    return found[0], found[1]


def ordinary_arguments(takes: tuple[str, ...], family: Family) -> tuple[str, ...]:
    """Return the argument names in `takes`, without those of images and videos.

    The arguments of images and videos have values that are neither per token nor per sequence. If the model takes no
    images (`family.images` is None), `takes` itself is returned.
    """
    return takes if family.images is None else tuple(name for name in takes if name not in COLUMNS)


def refuse_others(model: Any, family: Family, named: Mapping[str, Any]) -> None:
    """Refuse arguments that a model with images takes in ordinary calls, but not in packed calls.

    `named` has the arguments of the call by name. For a model without images, nothing is checked.

    Raises:
        BatchError: images of several sizes, features that were computed before the call, or embeddings are given; or
            videos, to a model without them.
    """
    if family.images is None:
        return
    for name, why in OTHERS.items():
        if named.get(name) is not None:
            raise BatchError(f"{name} were given to {type(model).__name__} with a packed batch: {why}")
    for name in () if family.images.axes else VIDEOS.columns:
        if named.get(name) is not None:
            raise BatchError(
                f"{name} were given to {type(model).__name__}, which takes images and no videos; give the features "
                "without videos"
            )


def check_images(model: Any, base: Any, family: Family, named: Mapping[str, Any], layout: Layout) -> Tensor | None:
    """Check that each sequence of a packed call has as many image and video tokens as its own images and videos give.

    `base` is the base model inside `model`. `named` holds the call's arguments by name. Its token ids must have been
    checked (`nopad.model.arguments`).

    Returns:
        Positions with three axes, int64 ``[3, R, L]``, on a CPU; None: the model has ordinary positions, or no sequence
            has an image or a video.

    Raises:
        BatchError: one of these, for images or for videos:

            * pixel values, or the grids that the model needs, are missing
            * pixel values, grids or seconds are not tensors, have a wrong shape, or are on another device than the
              model
            * a grid has values that the model cannot merge to tokens
            * the batch does not say which sequences the images belong to
            * a sequence has more or fewer image tokens than its images give, or padding has image tokens
            * ``mm_token_type_ids`` do not mark exactly the image and video tokens
            * with three axes: the tokens of an image are not side by side, or a position is beyond the model's last
    """
    assert family.images is not None
    kinds = KINDS if family.images.axes else (PICTURES,)
    for kind in kinds:
        _check_pixels(kind, model, named, layout)
    ids = named["input_ids"].cpu().numpy()
    shown = [_shown(kind, model, family, named, ids, layout) for kind in kinds]
    for one in shown:
        _check_tokens(model, one, layout)
    _check_types(named.get(TYPES), shown, ids.shape, layout)
    if not family.images.axes:
        return None
    axes = axes_of(base, named, ids, shown, layout) if any(one.counts.any() for one in shown) else None
    check_limit(model, axes, layout)
    return axes


def _shown(
    kind: Kind, model: Any, family: Family, named: Mapping[str, Any], ids: NDArray[np.int64], layout: Layout
) -> Shown:
    """Return the images of a packed call (or its videos, as `kind` says), with the number of tokens that each gives.

    `named` holds the call's arguments by name, and `ids` are the token ids ``[R, L]``.

    Raises:
        BatchError: grids are missing, have a wrong shape, or have values that the model cannot merge to tokens; or
            pixel values have a wrong shape.
    """
    assert family.images is not None
    given = getattr(layout, kind.name)
    counts = np.zeros(layout.sequences, dtype=np.int64) if given is None else given
    sizes = runs = np.zeros(0, dtype=np.int64)
    per_run = counts
    if counts.any() and family.images.axes:
        grids = _grids(kind, model, named, int(counts.sum()))
        sizes = runs = grids.prod(axis=1) // int(model.config.vision_config.spatial_merge_size) ** 2
        if kind is VIDEOS and family.images.steps:
            steps = grids[:, 0]
            runs = (sizes // steps).repeat(steps)
            per_run = np.zeros_like(counts)
            per_run[layout.order] = [part.sum() for part in np.split(steps, counts[layout.order].cumsum()[:-1])]
    elif counts.any():
        sizes = runs = _sizes_of_pixels(model, named, int(counts.sum()))
    token = getattr(model.config, f"{kind.one}_token_id")
    split = (np.split(all_of, of[layout.order].cumsum()[:-1]) for all_of, of in ((sizes, counts), (runs, per_run)))
    return Shown(kind, token, ids == token, counts, *split)


def _check_pixels(kind: Kind, model: Any, named: Mapping[str, Any], layout: Layout) -> None:
    """Check that pixel values are given if the layout has images (or videos, as `kind` says).

    If it has none, no column of images may be given. The columns of images must be tensors on the model's device. The
    column of seconds between steps in time, if given, must have one entry per video. `named` holds the call's arguments
    by name.

    Raises:
        BatchError: one of these checks fails.
    """
    counts = getattr(layout, kind.name)
    held = 0 if counts is None else int(counts.sum())
    if named.get(kind.pixels) is None and held:
        raise BatchError(f"the batch has {held} {kind.name}, and no {kind.pixels} were given; call model(**batch)")
    if not held and any(named.get(name) is not None for name in kind.columns):
        raise BatchError(
            f"{next(name for name in kind.columns if named.get(name) is not None)} were given, and the batch does not "
            f"say which sequences they are of; build it with {BUILD}, of dicts with {kind.pixels}"
        )
    device = next(model.parameters()).device
    for name in kind.columns:
        value = named.get(name)
        if value is not None and not isinstance(value, Tensor):
            raise BatchError(f"{name} are of type {type(value).__name__}; expected a tensor")
        if value is not None and value.device != device:
            raise BatchError(f"{name} are on {value.device} and the model on {device}; use batch.to({str(device)!r})")
    seconds = named.get(kind.seconds)
    if seconds is not None and tuple(seconds.shape) != (held,):
        raise BatchError(
            f"{kind.seconds} are {list(seconds.shape)}, and the batch has {held} {kind.name}; expected [{held}]"
        )


def _grids(kind: Kind, model: Any, named: Mapping[str, Any], count: int) -> NDArray[np.int64]:
    """Return the grids of the images (or videos) of a batch, int64 ``[count, 3]``.

    They are in the order in which the rows hold the images. A grid is the number of patches in time, height and width.
    `named` holds the call's arguments by name, and `count` is the number of images (or videos).

    Raises:
        BatchError: grids are missing; there is not one grid per image; a height or width is not a multiple of the
            configuration's `spatial_merge_size`; a number is below 1; or the pixel values do not have as many patches
            as the grids say, each of the size that the model takes.
    """
    config, pixels, given = model.config.vision_config, named[kind.pixels], named.get(kind.grids)
    if given is None:
        raise BatchError(f"{kind.grids} are missing; {type(model).__name__} takes them with {kind.pixels}")
    grids: NDArray[np.int64] = given.cpu().numpy()
    if grids.shape != (count, 3):
        raise BatchError(
            f"{kind.grids} are {list(grids.shape)}, and the batch has {count} {kind.name}; expected [{count}, 3]"
        )
    merged, patches = int(config.spatial_merge_size), grids.prod(axis=1)
    odd = np.flatnonzero((grids[:, 1:] % merged).any(axis=1) | (grids < 1).any(axis=1))
    if odd.size:
        raise BatchError(
            f"{kind.one} {odd[0]} of the batch has the grid {grids[odd[0]].tolist()}; height and width are multiples "
            f"of {merged} patches, which {type(model).__name__} merges to a token"
        )
    size = size_of_patch(config)
    if tuple(pixels.shape) != (patches.sum(), size):
        raise BatchError(
            f"{kind.pixels} are {list(pixels.shape)}, and the {count} {kind.name} of {kind.grids} have "
            f"{patches.sum()} patches of {size} values; expected [{patches.sum()}, {size}]"
        )
    return grids


def size_of_patch(config: Any) -> int:
    """Return the number of values of a patch, from the configuration of a vision tower that takes patches."""
    side, frames = config.patch_size, config.temporal_patch_size
    area = int(side) ** 2 if isinstance(side, int) else int(np.prod(side))
    return int(config.in_channels) * area * (frames if isinstance(frames, int) else int(frames[0]))


def _sizes_of_pixels(model: Any, named: Mapping[str, Any], images: int) -> NDArray[np.int64]:
    """Return the number of tokens of each image of a batch, for a model whose images have one size; int64 ``[images]``.

    Raises:
        BatchError: the pixel values have another shape than ``[images, channels, height, width]`` of the model.
    """
    config, pixels = model.config.vision_config, named[PICTURES.pixels]
    side = int(config.image_size)
    if tuple(pixels.shape) != (images, config.num_channels, side, side):
        raise BatchError(
            f"{PICTURES.pixels} are {list(pixels.shape)}, and the batch has {images} images; {type(model).__name__} "
            f"takes {[images, config.num_channels, side, side]}"
        )
    return np.full(images, tokens_of_image(model.config, named.get("vision_feature_select_strategy")), dtype=np.int64)


def tokens_of_image(config: Any, strategy: str | None = None) -> int:
    """Return the number of tokens of an image, for a model whose images have one size.

    `config` is the model's configuration, and `strategy` the value of ``vision_feature_select_strategy`` in a call;
    None: that of the configuration.
    """
    tower, strategy = config.vision_config, strategy or config.vision_feature_select_strategy
    first = int(tower.model_type == "clip_vision_model") - int(strategy == "default")  # [CLS]; the first left out
    return int((int(tower.image_size) // int(tower.patch_size)) ** 2 + first)


def _check_tokens(model: Any, shown: Shown, layout: Layout) -> None:
    """Check that each sequence has as many image (or video) tokens as its images give, and that padding has none.

    Raises:
        BatchError: a sequence has more or fewer image tokens than its images give, or padding has image tokens.
    """
    kind, token = shown.kind, shown.token
    found = np.bincount(layout.sequence_ids[shown.tokens], minlength=layout.sequences + 1)
    if found[0]:
        raise BatchError(f"padding holds the {kind.one} token {token}; build the batch with another pad_id")
    wanted = np.zeros(layout.sequences, dtype=np.int64)
    wanted[layout.order] = [sizes.sum() for sizes in shown.sizes]
    wrong = np.flatnonzero(found[1:] != wanted)
    if wrong.size:
        at = int(wrong[0])
        raise BatchError(
            f"sequence {at} has {found[at + 1]} {kind.one} tokens ({token}), and its "
            f"{_several(int(shown.counts[at]), kind)} {wanted[at]} in {type(model).__name__}; give each sequence the "
            f"{kind.name} of its own text, in order"
        )


def _several(count: int, kind: Kind) -> str:
    return {0: f"{kind.name} (it has none) give", 1: f"1 {kind.one} gives"}.get(count, f"{count} {kind.name} give")


def _check_types(given: Any, shown: list[Shown], shape: tuple[int, ...], layout: Layout) -> None:
    """Check that ``mm_token_type_ids``, if given, are 1 at image tokens, 2 at video tokens and 0 elsewhere.

    Raises:
        BatchError: ``mm_token_type_ids`` have another value somewhere, or are not a tensor ``[R, L]``.
    """
    if given is None:
        return
    if not isinstance(given, Tensor) or tuple(given.shape) != shape:
        raise BatchError(f"{TYPES} are no tensor {list(shape)}; give one value per token, as processors do")
    wanted = np.zeros(shape, dtype=np.int64)
    for one in shown:
        wanted[one.tokens] = one.type
    wrong = np.argwhere(given.cpu().numpy() != wanted)
    if wrong.size:
        row, slot = (int(one) for one in wrong[0])
        marks = ", ".join(f"{one.type} at {one.kind.one} tokens" for one in shown)
        raise BatchError(
            f"{TYPES} hold {given[row, slot].item()} at place {layout.position_ids[row, slot]} of sequence "
            f"{layout.sequence_ids[row, slot] - 1}; they are {marks} and 0 at others"
        )
