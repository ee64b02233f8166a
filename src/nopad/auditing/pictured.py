"""Audit models that take images: draw images, videos and texts by the configuration, and compare packed with alone.

A model that takes images beside its tokens (Qwen2-VL, LLaVA) gets sequences of text, images and videos; one that makes
its tokens from images alone (ViT) gets images of several sizes. No processor and no file is read: the configuration
says which shapes pixel values have, and how many tokens an image gives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nopad.auditing.forms import MAY_REFUSE
from nopad.auditing.samples import compared
from nopad.auditing.subject import eager_experts
from nopad.auditing.tokens import Tokens
from nopad.auditing.verdict import Verdict
from nopad.batch import Flat, PackedBatch, Rows
from nopad.batch.images import PICTURES, VIDEOS, Kind
from nopad.errors import OptionError
from nopad.model.families import FRONTS, IMAGES, Images
from nopad.model.fronts import front_of
from nopad.model.images import size_of_patch, tokens_of_image
from nopad.model.safety import bare, is_packed, packed, state_of

__all__ = ["audit_pictured", "takes_pictures"]

# Of each sequence: its parts, a number of text tokens; height and width of an image in tokens; or steps in time, height
# and width of a video, which is left out for models that take none.
Part = int | tuple[int, int] | tuple[int, int, int]
PARTS: tuple[tuple[Part, ...], ...] = (
    (3, (2, 3), 5),
    (1,),
    (2, (1, 1), 1, (2, 1, 3), (4, 2), 4),  # in the middle: this one is replaced
    (7,),
    ((2, 2), (3, 2, 1), 6),
)
SIZES = ((2, 3), (1, 1), (4, 2), (1, 5), (3, 3))  # height and width of images in patches, without text
RESULTS = ("logits", "last_hidden_state", "pooler_output")
NO_ROWS_OF = "mask"  # the backend that refuses rows filled end to end
Sample = dict[str, Tensor]


def takes_pictures(model: Any) -> bool:
    """Return whether a model takes images, with or without tokens beside them."""
    kind = getattr(bare(model).config, "model_type", "")
    return kind in FRONTS or kind in IMAGES


def audit_pictured(model: Any, backend: Callable[[torch.dtype], str], gradients: bool, seed: int, how: str) -> Verdict:
    """Audit a model that takes images, on five samples that are drawn.

    The samples run alone and in packs: in one flat row, in rows, and in rows filled end to end, unless the backend
    refuses those. The middle sample is replaced by another one of the same shape, and its pixel values by others, by
    very large ones and by NaN. The model itself is copied.

    Args:
        model: a transformers model that takes images (`takes_pictures`), pack-safe or not.
        backend: function that returns the attention backend for a dtype.
        gradients: also compare the gradients of the parameters.
        seed: random seed of the samples.
        how: what keeps sequences apart, in words, for the verdict.

    Raises:
        UnsupportedModelError: nopad refuses this model.
        OptionError: the model's vocabulary is too small to draw from, or it is random in evaluation mode.
    """
    made = copy.deepcopy(bare(model))
    eager_experts(made)
    if not is_packed(made):
        packed(made, backend=backend(next(made.parameters()).dtype))
    state_of(made).most = None  # the audit may use more sequences than the user's limit
    kind = made.config.model_type
    draw = _fronts if kind in FRONTS else _texts
    samples, others = draw(made, seed), draw(made, seed + 1)
    way = (_Front if kind in FRONTS else _Texts)(backend, _longest(made, samples))
    verdict = compared(made, samples, way.alone, way.packed, gradients, seed, how, other=others[len(samples) // 2])
    notes = ("its images were drawn by its configuration; no processor ran", *verdict.notes)
    return replace(verdict, model=type(made).__name__, notes=notes)


@dataclass(frozen=True)
class _Texts:
    """How sequences of text and images run alone and packed.

    Attributes:
        backend: gives the attention backend for a dtype.
        longest: number of tokens of the longest sample.
    """

    backend: Callable[[torch.dtype], str]
    longest: int

    def alone(self, model: Any, sample: Sample) -> dict[str, Tensor]:
        """Return the results of one sample in an ordinary call, once for each form of a batch."""
        found = _results(model(**sample))
        return {f"{form} {name}": value[0] for form in self._forms(model) for name, value in found.items()}

    def packed(self, model: Any, samples: Sequence[Sample]) -> list[dict[str, Tensor]]:
        """Return the results of samples in packs, one dict for each sample."""
        forms = self._forms(model)
        batches = {name: self._batch(model, samples, form) for name, form in forms.items()}
        return _split({name: (batch, _results(model(**batch))) for name, batch in batches.items()}, len(samples))

    def _batch(self, model: Any, samples: Sequence[Sample], form: Any) -> PackedBatch:
        pad = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
        return PackedBatch.from_features(samples, form, pad_id=pad)

    def _forms(self, model: Any) -> dict[str, Any]:
        """Return the forms of batches that are tried, by name, and set the backend for the model's dtype."""
        backend = state_of(model).backend = self.backend(next(model.parameters()).dtype)
        forms = {"flat": Flat(), "rows": Rows(self.longest + 3), "end to end": Rows(self.longest + 1, end_to_end=True)}
        return {name: form for name, form in forms.items() if name not in MAY_REFUSE or backend != NO_ROWS_OF}


@dataclass(frozen=True)
class _Front(_Texts):
    """How images run alone and packed in a model that makes its tokens from them."""

    def alone(self, model: Any, sample: Sample) -> dict[str, Tensor]:
        """Return the results of one image in an ordinary call, at its own height and width."""
        found = _results(model(**sample, interpolate_pos_encoding=True))
        return {f"{form} {name}": value[0] for form in self._forms(model) for name, value in found.items()}

    def _batch(self, model: Any, samples: Sequence[Sample], form: Any) -> PackedBatch:
        base = model.base_model
        front = front_of(base, state_of(model).family)
        states = [front(one[PICTURES.pixels], interpolate_pos_encoding=True)[0] for one in samples]
        return PackedBatch.from_embeddings(states, form)


def _split(ran: dict[str, tuple[PackedBatch, dict[str, Tensor]]], count: int) -> list[dict[str, Tensor]]:
    """Return the results of `count` samples, of batches in several forms: by name, a batch and its results."""
    found: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for form, (batch, results) in ran.items():
        for name, value in results.items():
            per_token = tuple(value.shape[:2]) == batch.layout.shape
            parts = (batch.unpack_tokens if per_token else batch.unpack_sequences)(value)
            for one, part in zip(found, parts, strict=True):
                one[f"{form} {name}"] = part
    return found


def _results(output: Any) -> dict[str, Tensor]:
    return {name: output[name] for name in RESULTS if isinstance(output.get(name), Tensor)}


def _longest(model: Any, samples: Sequence[Sample]) -> int:
    """Return the number of tokens of the longest sample."""
    if model.config.model_type in FRONTS:
        return max(height * width for height, width in SIZES) + 2  # [CLS], and the token of distillation
    return max(one["input_ids"].shape[1] for one in samples)


def _texts(model: Any, seed: int) -> list[Sample]:
    """Draw sequences of text, images and videos, as a processor gives them; see `PARTS`."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    images = IMAGES[config.model_type].images
    assert images is not None
    plain = _plain(config)
    found = []
    for parts in PARTS:
        kept = [part for part in parts if images.axes or isinstance(part, int) or len(part) == 2]
        row = torch.cat([_part(config, images, part, plain, generator) for part in kept])[None]
        sample = {"input_ids": row}
        if images.axes:
            sample["mm_token_type_ids"] = (row == config.image_token_id).int() + 2 * (row == config.video_token_id)
        shown = [part for part in kept if isinstance(part, tuple)]
        if not images.axes:
            found.append(sample | (_pixels(config.vision_config, len(shown), generator) if shown else {}))
            continue
        for kind, length in ((PICTURES, 2), (VIDEOS, 3)):
            mine = [part for part in shown if len(part) == length]
            sample |= _patches(config.vision_config, kind, mine, generator) if mine else {}
        found.append(sample)
    return found


def _plain(config: Any) -> Tensor:
    """Return the ids of ordinary tokens; those that stand for images and their borders are left out."""
    ids = torch.from_numpy(Tokens.of(config.get_text_config()).plain)
    marks = [value for name, value in vars(config).items() if name.endswith(("token_id", "token_index"))]
    kept = ids[~torch.isin(ids, torch.tensor([one for one in marks if isinstance(one, int)], dtype=ids.dtype))]
    if len(kept) < 2:
        raise OptionError(f"the vocabulary of {type(config).__name__} leaves no tokens to draw beside those of images")
    return kept


def _part(config: Any, images: Images, part: Part, plain: Tensor, generator: torch.Generator) -> Tensor:
    """Return the token ids of one part: text, or images and steps of videos between tokens that mark their borders."""
    if isinstance(part, int):
        return _words(plain, part, generator)
    borders = [getattr(config, f"vision_{name}_token_id", None) for name in ("start", "end")]
    begin, end = (int(plain[0]) if one is None else one for one in borders)
    area = part[-2] * part[-1] if images.axes else tokens_of_image(config)
    if len(part) == 2:
        return torch.tensor([begin, *[config.image_token_id] * area, end])
    if not images.steps:
        return torch.tensor([begin, *[config.video_token_id] * part[0] * area, end])
    step = torch.tensor([begin, *[config.video_token_id] * area, end])
    return torch.cat([one for _ in range(part[0]) for one in (_words(plain, 2, generator), step)])


def _words(plain: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return plain[torch.randint(len(plain), (count,), generator=generator)]


def _pixels(config: Any, images: int, generator: torch.Generator) -> Sample:
    """Draw images of one size; `config` is the vision tower's."""
    shape = (images, config.num_channels, config.image_size, config.image_size)
    return {PICTURES.pixels: torch.randn(shape, generator=generator, dtype=torch.float64)}


def _patches(config: Any, kind: Kind, sizes: Sequence[tuple[int, ...]], generator: torch.Generator) -> Sample:
    """Draw images or videos as patches with their grids; `sizes` are ``(height, width)`` in tokens, or with steps."""
    merged = int(config.spatial_merge_size)
    grids = torch.tensor([((1, *size)[-3], size[-2] * merged, size[-1] * merged) for size in sizes])
    shape = (int(grids.prod(1).sum()), size_of_patch(config))
    return {kind.pixels: torch.randn(shape, generator=generator, dtype=torch.float64), kind.grids: grids}


def _fronts(model: Any, seed: int) -> list[Sample]:
    """Draw images for a model that makes its tokens from them; see `SIZES`."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    side = int(config.patch_size)
    return [
        {
            PICTURES.pixels: torch.randn(
                1, config.num_channels, h * side, w * side, generator=generator, dtype=torch.float64
            )
        }
        for h, w in SIZES
    ]
