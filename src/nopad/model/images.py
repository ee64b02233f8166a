"""Models that take images beside their tokens: which image belongs to which sequence, and positions with three axes.

Such a model runs its vision tower on all images of a batch, each image by itself. It puts the resulting features in
place of the image tokens of the batch, in order. Some of these models count positions along three axes: time, height
and width (M-RoPE).

Two things could go wrong in a pack: the features of an image could get into the tokens of another sequence, and
positions that depend on images could be counted along a row. So two things are done before the model runs. The number
of image tokens of each sequence is compared with the number that its own images give. And positions are counted by the
model's own `get_rope_index`, for each sequence alone.

Only the text part gets nopad's attention. The tower keeps its own, which sees one image at a time and no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nopad.batch.images import GRIDS, PIXELS
from nopad.batch.layout import Layout
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model.families import Family
from nopad.model.hooks import Hook

__all__ = ["TOWER", "Ran", "check_images", "image_parts", "ordinary_arguments", "refuse_others", "tokens_of_image"]

TOWER = "vision tower"
TYPES = "mm_token_type_ids"
IMAGE, TEXT = 1, 0  # in `TYPES`
BUILD = "nopad.PackedBatch.from_features"
# Arguments of these models that a packed call does not take, and why.
OTHERS = {
    "inputs_embeds": "image tokens are found by their ids; give input_ids",
    "pixel_values_videos": "videos are not packed; run these sequences padded",
    "video_grid_thw": "videos are not packed; run these sequences padded",
    "second_per_grid_ts": "videos are not packed; run these sequences padded",
    "image_sizes": "images of several sizes are not packed for this model; run these sequences padded",
    "mm_encoder_outputs": "features that were made before do not say whose they are; give pixel_values",
}


@dataclass(eq=False)
class Ran(Hook):
    """Counts in `Call.ran` how often its module runs in a packed call."""

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
    """Return the names in `takes` without those of images, whose values are neither per token nor per sequence."""
    return takes if family.images is None else tuple(name for name in takes if name not in (PIXELS, GRIDS))


def refuse_others(model: Any, family: Family, named: Mapping[str, Any]) -> None:
    """Refuse arguments of a model with images that a packed call does not take.

    Raises:
        BatchError: videos, images of several sizes, features that were made before, or embeddings are given.
    """
    for name, why in OTHERS.items() if family.images is not None else ():
        if named.get(name) is not None:
            raise BatchError(f"{name} were given to {type(model).__name__} with a packed batch: {why}")


def check_images(model: Any, base: Any, family: Family, named: Mapping[str, Any], layout: Layout) -> Tensor | None:
    """Check that each sequence of a packed call has as many image tokens as its own images give.

    `named` holds the call's arguments by name; the tokens were checked before (`nopad.model.arguments`).

    Returns:
        Positions with three axes, int64 ``[3, R, L]``, on a CPU; None: the model has ordinary positions, or no sequence
            has an image.

    Raises:
        BatchError: pixel values or grids are missing, have a wrong shape or are on another device than the model, or
            the batch does not say which sequences their images belong to; a sequence has more or fewer image tokens
            than its images give; padding is an image token; ``mm_token_type_ids`` do not mark exactly the image tokens;
            or, with three axes, a position is beyond the model's, or image tokens of one image do not follow each
            other.
    """
    assert family.images is not None
    _check_pixels(model, named, layout)
    counts = np.zeros(layout.sequences, dtype=np.int64) if layout.images is None else layout.images
    sizes = np.zeros(0, dtype=np.int64)
    if counts.any():
        sizes = (_sizes_of_grids if family.images.axes else _sizes_of_pixels)(model, named, int(counts.sum()))
    ids = named["input_ids"].cpu().numpy()
    pictured = ids == model.config.image_token_id
    of_images = np.split(sizes, counts[layout.order].cumsum()[:-1])  # by sequence, in stream order
    _check_tokens(model, pictured, counts, of_images, layout)
    _check_types(named.get(TYPES), pictured, layout)
    if not family.images.axes:
        return None
    axes = _axes(base, named, ids, pictured, of_images, layout) if counts.any() else None
    _check_limit(model, axes, layout)
    return axes


def _check_pixels(model: Any, named: Mapping[str, Any], layout: Layout) -> None:
    """Check that a batch has both pixel values and the number of images of each sequence, or neither of them.

    It is also checked that pixel values and grids are tensors on the model's device.

    Raises:
        BatchError: one of these checks fails.
    """
    pixels, images = named.get(PIXELS), 0 if layout.images is None else int(layout.images.sum())
    if pixels is None and images:
        raise BatchError(f"the batch has {images} images, and no {PIXELS} were given; call model(**batch)")
    if not images and (pixels is not None or named.get(GRIDS) is not None):
        raise BatchError(
            f"{PIXELS} were given, and the batch does not say which sequences they are of; build it with {BUILD}, of "
            f"dicts with {PIXELS}"
        )
    device = next(model.parameters()).device
    for name in (PIXELS, GRIDS):
        value = named.get(name)
        if value is not None and not isinstance(value, Tensor):
            raise BatchError(f"{name} are of type {type(value).__name__}; expected a tensor")
        if value is not None and value.device != device:
            raise BatchError(f"{name} are on {value.device} and the model on {device}; use batch.to({str(device)!r})")


def _sizes_of_grids(model: Any, named: Mapping[str, Any], images: int) -> NDArray[np.int64]:
    """Return how many tokens each image of a batch gives, by its grid of patches; int64 ``[images]``, in stream order.

    Raises:
        BatchError: grids are missing, do not fit the images or the model, or the pixel values have another shape.
    """
    config, pixels, given = model.config.vision_config, named[PIXELS], named.get(GRIDS)
    if given is None:
        raise BatchError(f"{GRIDS} are missing; {type(model).__name__} takes them with {PIXELS}")
    grids = given.cpu().numpy()
    if grids.shape != (images, 3):
        raise BatchError(f"{GRIDS} are {list(grids.shape)}, and the batch has {images} images; expected [{images}, 3]")
    merged, patches = int(config.spatial_merge_size), grids.prod(axis=1)
    odd = np.flatnonzero((grids[:, 1:] % merged).any(axis=1) | (grids < 1).any(axis=1))
    if odd.size:
        raise BatchError(
            f"image {odd[0]} of the batch has the grid {grids[odd[0]].tolist()}; height and width are multiples of "
            f"{merged} patches, which {type(model).__name__} merges to a token"
        )
    size = int(config.in_channels) * int(config.temporal_patch_size) * int(config.patch_size) ** 2
    if tuple(pixels.shape) != (patches.sum(), size):
        raise BatchError(
            f"{PIXELS} are {list(pixels.shape)}, and the {images} images of {GRIDS} have {patches.sum()} patches of "
            f"{size} values; expected [{patches.sum()}, {size}]"
        )
    found: NDArray[np.int64] = patches // merged**2
    return found


def _sizes_of_pixels(model: Any, named: Mapping[str, Any], images: int) -> NDArray[np.int64]:
    """Return how many tokens each image of a batch gives, if all have one size; int64 ``[images]``.

    Raises:
        BatchError: the pixel values have another shape than ``[images, channels, height, width]`` of the model.
    """
    config, pixels = model.config.vision_config, named[PIXELS]
    side = int(config.image_size)
    if tuple(pixels.shape) != (images, config.num_channels, side, side):
        raise BatchError(
            f"{PIXELS} are {list(pixels.shape)}, and the batch has {images} images; {type(model).__name__} takes "
            f"{[images, config.num_channels, side, side]}"
        )
    return np.full(images, tokens_of_image(model.config, named.get("vision_feature_select_strategy")), dtype=np.int64)


def tokens_of_image(config: Any, strategy: str | None = None) -> int:
    """Return how many tokens an image gives to a model whose images have one size.

    `config` is the model's configuration, and `strategy` the value of ``vision_feature_select_strategy`` in a call;
    None: that of the configuration.
    """
    tower, strategy = config.vision_config, strategy or config.vision_feature_select_strategy
    first = int(tower.model_type == "clip_vision_model") - int(strategy == "default")  # [CLS]; the first left out
    return int((int(tower.image_size) // int(tower.patch_size)) ** 2 + first)


def _check_tokens(
    model: Any, pictured: NDArray[np.bool_], counts: NDArray[np.int64], of_images: list[Any], layout: Layout
) -> None:
    """Check that each sequence has as many image tokens as its images give, and that padding has none.

    `pictured` says which slots hold image tokens, bool ``[R, L]``. `of_images` has one array per sequence, in stream
    order: the numbers of tokens of its images. `counts` is the number of images of each sequence, in the order given.

    Raises:
        BatchError: a sequence has more or fewer image tokens than its images give, or padding has image tokens.
    """
    found = np.bincount(layout.sequence_ids[pictured], minlength=layout.sequences + 1)
    token = model.config.image_token_id
    if found[0]:
        raise BatchError(f"padding holds the image token {token}; build the batch with another pad_id")
    wanted = np.zeros(layout.sequences, dtype=np.int64)
    wanted[layout.order] = [sizes.sum() for sizes in of_images]
    wrong = np.flatnonzero(found[1:] != wanted)
    if wrong.size:
        at = int(wrong[0])
        raise BatchError(
            f"sequence {at} has {found[at + 1]} image tokens ({token}), and its {_several(int(counts[at]))} "
            f"{wanted[at]} in {type(model).__name__}; give each sequence the images of its own text, in order"
        )


def _several(images: int) -> str:
    return {0: "images (it has none) give", 1: "1 image gives"}.get(images, f"{images} images give")


def _check_types(given: Any, pictured: NDArray[np.bool_], layout: Layout) -> None:
    """Check that ``mm_token_type_ids``, if given, are 1 at image tokens and 0 elsewhere.

    Raises:
        BatchError: an entry has another value, or they are not a tensor ``[R, L]``.
    """
    if given is None:
        return
    if not isinstance(given, Tensor) or tuple(given.shape) != pictured.shape:
        raise BatchError(f"{TYPES} are no tensor {list(pictured.shape)}; give one value per token, as processors do")
    wrong = np.argwhere(given.cpu().numpy() != np.where(pictured, IMAGE, TEXT))
    if wrong.size:
        row, slot = (int(one) for one in wrong[0])
        raise BatchError(
            f"{TYPES} hold {int(given[row, slot])} at place {layout.position_ids[row, slot]} of sequence "
            f"{layout.sequence_ids[row, slot] - 1}; they are {IMAGE} at image tokens and {TEXT} at others, and videos "
            "are not packed"
        )


def _axes(
    base: Any,
    named: Mapping[str, Any],
    ids: NDArray[np.int64],
    pictured: NDArray[np.bool_],
    of_images: list[Any],
    layout: Layout,
) -> Tensor:
    """Return positions with three axes, int64 ``[3, R, L]``: what `get_rope_index` gives for each sequence alone.

    `ids` and `pictured` are ``[R, L]``: the token ids, and whether a token is an image token. `of_images` has one array
    per sequence, in stream order: the numbers of tokens of its images.

    Raises:
        BatchError: the image tokens of an image do not follow each other (`_check_runs`).
    """
    grids, flat, types = named[GRIDS].cpu(), ids.reshape(-1), pictured.reshape(-1)
    found: list[Any] = [None] * layout.sequences
    begun = 0
    for number, sizes in zip(layout.order.tolist(), of_images, strict=True):
        length, start = int(layout.seq_lengths[number]), int(layout.starts[number])
        if not len(sizes):
            found[number] = np.broadcast_to(np.arange(length), (3, length))
            continue
        mine = types[start : start + length]
        _check_runs(mine, sizes, number)
        one, _ = base.get_rope_index(
            input_ids=torch.from_numpy(flat[start : start + length])[None],
            mm_token_type_ids=torch.from_numpy(np.where(mine, IMAGE, TEXT))[None],
            image_grid_thw=grids[begun : begun + len(sizes)],
        )
        found[number] = one[:, 0].numpy()
        begun += len(sizes)
    joined = np.concatenate(found, axis=1).astype(np.int64)
    return torch.from_numpy(np.stack([layout.scatter(axis, 0) for axis in joined]))


def _check_runs(pictured: NDArray[np.bool_], sizes: NDArray[np.int64], number: int) -> None:
    """Check that in a sequence, each image is one run of image tokens, and no two images touch.

    `pictured` says of each token of sequence `number` whether it is an image token.

    Raises:
        BatchError: the lengths of the runs are not `sizes`, the numbers of tokens of the images.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], pictured, [False]]).astype(np.int8)))
    runs = edges[1::2] - edges[::2]
    if not np.array_equal(runs, sizes):
        raise BatchError(
            f"image tokens of sequence {number} come in runs of {runs.tolist()}, and its images give {sizes.tolist()}; "
            "each image is one run, with another token (<|vision_end|>) behind it"
        )


def _check_limit(model: Any, axes: Tensor | None, layout: Layout) -> None:
    """Check that no position of a token is beyond those that the model has.

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
