"""The sequences of an audit of a model that takes images, drawn at random from the model's configuration.

A model that takes images beside its tokens (Qwen2-VL, LLaVA) gets sequences of text, images and videos (`Pictures`).
One that makes its tokens from images alone (ViT) gets images of several sizes (`Patches`). No processor and no file is
read: the configuration says which shapes pixel values have, and how many tokens an image gives.

A sequence is a list of ids, as in an audit of texts, so that single tokens can be replaced. In `Pictures`, the ids from
`Pictures.first` on stand for tokens of images; each image has an id of its own, which all its tokens share. In
`Patches`, an id is the index of a token's vector in `Patches.states`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.auditing.tokens import Tokens
from nopad.batch import PackedBatch
from nopad.batch.images import COLUMNS, KINDS, PICTURES, VIDEOS, Kind
from nopad.model.families import FRONTS, IMAGES, Images
from nopad.model.fronts import front_of
from nopad.model.images import size_of_patch, tokens_of_image
from nopad.model.safety import bare, state_of

__all__ = ["Patches", "Picture", "Pictures", "parts_of_images", "shown_to", "takes_pictures", "tokens_of"]

# Of each sequence: its parts, a number of text tokens; height and width of an image in tokens; or steps in time, height
# and width of a video, which is left out for models that take none.
Part = int | tuple[int, int] | tuple[int, int, int]
PARTS: tuple[tuple[Part, ...], ...] = (
    (3, (2, 3), 5),
    (1,),
    (2, (1, 1), 1, (2, 1, 3), (4, 2), 4),  # the middle sequence, which is replaced
    (7,),
    ((2, 2), (3, 2, 1), 6),
)
SECONDS = {2: 2.0, 3: 0.5}  # between two steps of a video, by its number of steps; a model without them takes 1
SIZES = ((2, 3), (1, 1), (4, 2), (1, 5), (3, 3))  # height and width of images in patches, without text

Numbers = list[list[int]]


def takes_pictures(model: Any) -> bool:
    """Return whether a model takes images, with or without tokens beside them."""
    kind = getattr(getattr(bare(model), "config", None), "model_type", "")
    return kind in FRONTS or kind in IMAGES


def parts_of_images(model: Any) -> tuple[str, ...]:
    """Return the names of the modules of a model that work on images and not on tokens; () if there are none.

    In a model that takes images beside its tokens, these are all children of its base model except the text part, such
    as ``model.visual``. In a model that makes its tokens from images, the only one is the module that does this, such
    as ``vit.embeddings``.
    """
    if not takes_pictures(model):
        return ()
    inner = bare(model)
    base = inner.base_model
    family = IMAGES.get(inner.config.model_type)
    kept = {name for name, _ in base.named_children()} - {family.images.text if family and family.images else ""}
    if family is None:
        front = FRONTS[inner.config.model_type].front
        kept = {front[0]} if front is not None else set()
    before = next(name for name, module in inner.named_modules() if module is base)
    return tuple(f"{before}.{name}" if before else name for name in sorted(kept))


def tokens_of(model: Any) -> Tokens:
    """Return the tokens to draw from: those of the text model, without ids that stand for images or their borders.

    For a model that makes its tokens from images, a placeholder is returned, from which nothing is drawn.

    Raises:
        OptionError: the vocabulary is missing, or too small to draw from.
    """
    config = bare(model).config
    kind = getattr(config, "model_type", "")
    if kind in FRONTS:
        return Tokens(2, {})  # nothing is drawn from it
    marks = {}
    if kind in IMAGES:
        marks = {name: value for name, value in vars(config).items() if name.endswith(("token_id", "token_index"))}
    return Tokens.of(config.get_text_config(), marks)


def shown_to(model: Any, seed: int, tokens: Tokens) -> Pictures | Patches | None:
    """Return random sequences for a model that takes images; None if the model takes none.

    `seed` is the random seed, and `tokens` says which ids of text are drawn. A model that makes its tokens from images
    must be pack-safe.
    """
    inner = bare(model)
    kind = getattr(inner.config, "model_type", "")
    if kind in FRONTS:
        return Patches.drawn(inner, seed)
    return Pictures.drawn(inner.config, seed, tokens) if kind in IMAGES else None


@dataclass(frozen=True, eq=False)
class Picture:
    """A drawn image or video.

    Attributes:
        kind: whether it is an image or a video.
        columns: the tensors that a processor would give for it, by name: pixel values, and a grid ``[1, 3]`` if the
            model takes one. A video also has the seconds between its steps, ``[1]``, if the model counts positions by
            them.
        tokens: number of its tokens.
        patches: number of rows of its pixel values: one row per patch, or a single row for an image of a fixed size.
    """

    kind: Kind
    columns: Mapping[str, Tensor]
    tokens: int
    patches: int


@dataclass(frozen=True, eq=False)
class Pictures:
    """Sequences of text with images and videos, for a model that takes these beside its tokens.

    Attributes:
        config: the model's configuration.
        first: the first id that stands for a token of an image or video; smaller ids are tokens of text.
        pictures: the images and videos, those of `sequences` first, then as many others of the same shapes. A token of
            ``pictures[k]`` has the id ``first + k``.
        sequences: ids of each sequence.
        others: sequences of the same shapes with other tokens and other images.
    """

    config: Any
    first: int
    pictures: tuple[Picture, ...]
    sequences: Numbers
    others: Numbers

    @classmethod
    def drawn(cls, config: Any, seed: int, tokens: Tokens) -> Pictures:
        """Draw the `Pictures` of a model with this configuration, with random tokens and pixel values from `seed`.

        There are five sequences of fixed sizes, made of text, images and videos (only text and images if the model
        takes no videos). `tokens` says which ids the text has, and with which special tokens sequences begin and end.
        """
        images = IMAGES[config.model_type].images
        assert images is not None
        parts = [[part for part in one if images.axes or isinstance(part, int) or len(part) == 2] for one in PARTS]
        generator = torch.Generator().manual_seed(seed)
        first = int(config.get_text_config().vocab_size)
        pictures: list[Picture] = []
        found: list[Numbers] = []
        for _ in range(2):
            rng = np.random.default_rng(int(torch.randint(2**31, (), generator=generator)))
            sequences = []
            for one in parts:
                ids: list[int] = []
                for part in one:
                    ids += _ids(config, images, part, first + len(pictures), tokens, rng)
                    if isinstance(part, tuple):
                        pictures.append(_picture(config, images, part, generator))
                sequences.append(_bordered(ids, tokens))
            found.append(sequences)
        return cls(config, first, tuple(pictures), found[0], found[1])

    def ids(self, sequence: Sequence[int]) -> list[int]:
        """Return the token ids of a sequence, as the model gets them."""
        return [one if one < self.first else self._token(self.pictures[one - self.first].kind) for one in sequence]

    def places(self, sequence: Sequence[int]) -> list[tuple[Picture, NDArray[np.int64]]]:
        """Return the images and videos of a sequence, in order, each with the indices of its tokens, int64.

        An image has a counterpart of the same shape in `others`. If any token of the image was replaced by a token of
        the counterpart, the counterpart is returned.
        """
        half = len(self.pictures) // 2
        numbers = np.asarray(sequence) - self.first
        own = np.where(numbers < 0, -1, numbers % half)
        found = []
        for number in dict.fromkeys(own[own >= 0].tolist()):
            at = np.flatnonzero(own == number)
            found.append((self.pictures[int(numbers[at].max())], at))
        return found

    def sample(self, sequence: Sequence[int]) -> dict[str, Tensor]:
        """Return the tensors that the model's processor would give for a sequence, by name.

        They are ``input_ids`` ``[1, length]``, and the columns of its images and videos, such as pixel values. If the
        model's positions have three axes, there is also ``mm_token_type_ids`` ``[1, length]``: 0 for text, 1 for
        images, 2 for videos.
        """
        row = torch.tensor([self.ids(sequence)])
        made = {"input_ids": row}
        images = IMAGES[self.config.model_type].images
        if images is not None and images.axes:
            made["mm_token_type_ids"] = (row == self._token(PICTURES)).int() + 2 * (row == self._token(VIDEOS)).int()
        shown = [picture for picture, _ in self.places(sequence)]
        for kind in KINDS:
            mine = [picture.columns for picture in shown if picture.kind is kind]
            made |= {name: torch.cat([columns[name] for columns in mine]) for name in (mine[0] if mine else {})}
        return made

    def alone(self, sequence: Sequence[int]) -> dict[str, Any]:
        """Return the model's arguments for running a sequence alone."""
        return dict(self.sample(sequence))

    def feature(self, sequence: Sequence[int]) -> dict[str, Any]:
        """Return a sequence as a dict for a collator: lists with a value per token, and tensors of images."""
        made = self.sample(sequence)
        return {name: value if name in COLUMNS else value[0].tolist() for name, value in made.items()}

    def batch(self, sequences: Sequence[Sequence[int]], parameter: Tensor, **how: Any) -> PackedBatch:
        """Return a batch of these sequences; `how` are further arguments of `PackedBatch.from_features`.

        Floats get the dtype of `parameter`, a parameter of the model.
        """
        samples = [self.sample(sequence) for sequence in sequences]
        fitted = [
            {name: value.to(parameter.dtype) if value.is_floating_point() else value for name, value in one.items()}
            for one in samples
        ]
        return PackedBatch.from_features(fitted, **how)

    def _token(self, kind: Kind) -> int:
        return int(getattr(self.config, f"{kind.one}_token_id"))


@dataclass(frozen=True, eq=False)
class Patches:
    """Images for a model that makes its tokens from them, one sequence each.

    Attributes:
        images: pixel values ``[1, C, height, width]`` of each image: those of `sequences`, then those of `others`.
        states: the vectors of all tokens of all images, image after image, ``[n, H]``, as the part of the model that
            turns images into tokens computes them.
        sequences: for each image, the indices of its tokens in `states`.
        others: for each of the other images, the indices of its tokens in `states`. There are as many other images as
            `sequences`, and they have the same shapes.
    """

    images: list[Tensor]
    states: Tensor
    sequences: Numbers
    others: Numbers

    @classmethod
    def drawn(cls, model: Any, seed: int) -> Patches:
        """Draw images of several sizes, and compute the vectors of their tokens with a pack-safe model.

        Only the part of the model that turns an image into tokens is run. `seed` is the random seed of the pixel
        values.
        """
        config, generator = model.config, torch.Generator().manual_seed(seed)
        side, front = int(config.patch_size), front_of(model.base_model, state_of(model).family)
        parameter = next(model.parameters())
        images = [
            torch.randn(1, config.num_channels, h * side, w * side, generator=generator, dtype=torch.float64)
            for _ in range(2)
            for h, w in SIZES
        ]
        with torch.no_grad():
            states = [front(one.to(parameter), interpolate_pos_encoding=True)[0] for one in images]
        ends = np.cumsum([0, *map(len, states)])
        numbers = [list(range(begin, end)) for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
        return cls(images, torch.cat(states), numbers[: len(SIZES)], numbers[len(SIZES) :])

    def alone(self, sequence: Sequence[int]) -> dict[str, Any]:
        """Return the model's arguments for running one image alone.

        `sequence` holds the image's ids, and is an entry of `sequences` or `others`.
        """
        number = [*self.sequences, *self.others].index(list(sequence))
        return {PICTURES.pixels: self.images[number], "interpolate_pos_encoding": True}

    def batch(self, sequences: Sequence[Sequence[int]], parameter: Tensor, **how: Any) -> PackedBatch:
        """Return a batch of the token vectors of these sequences.

        Of `how`, only the argument ``form`` is used, and `parameter` is not used.
        """
        form = {"form": how["form"]} if "form" in how else {}
        return PackedBatch.from_embeddings([self.states[torch.tensor(one)] for one in sequences], **form)


def _ids(config: Any, images: Images, part: Part, shown: int, tokens: Tokens, rng: np.random.Generator) -> list[int]:
    """Return the ids of one part of a sequence: text, an image or a video.

    Text is drawn from `tokens`. The tokens of an image or a video all have the id `shown`, and lie between two tokens
    that mark its borders (ordinary tokens if the configuration has no marks). If the model separates the steps of a
    video (`images.steps`), each of several steps lies between such borders, after two tokens of text.

    Args:
        config: the model's configuration.
        images: how the model takes images.
        part: number of tokens of a text; or size in tokens of an image, (height, width), or video, (steps, height,
            width).
        shown: id that stands for a token of this image or video.
        tokens: the ids that text may have.
        rng: generator of the random numbers.
    """
    if isinstance(part, int):
        return _words(tokens, part, rng)
    marks = [getattr(config, f"vision_{name}_token_id", None) for name in ("start", "end")]
    begin, end = (int(tokens.plain[0]) if one is None else one for one in marks)
    area = part[-2] * part[-1] if images.axes else tokens_of_image(config)
    steps = part[0] if len(part) == 3 else 1
    if steps == 1 or not images.steps:
        return [begin, *[shown] * (steps * area), end]
    return [one for _ in range(steps) for one in (*_words(tokens, 2, rng), begin, *[shown] * area, end)]


def _words(tokens: Tokens, count: int, rng: np.random.Generator) -> list[int]:
    words: list[int] = rng.choice(tokens.plain, count).tolist()
    return words


def _bordered(ids: list[int], tokens: Tokens) -> list[int]:
    """Return `ids` between the special tokens `tokens.begins` and `tokens.ends`; a single id gets no `begins`."""
    begins = [] if tokens.begins is None or len(ids) == 1 else [tokens.begins]
    return [*begins, *ids, *([] if tokens.ends is None else [tokens.ends])]


def _picture(config: Any, images: Images, part: tuple[int, ...], generator: torch.Generator) -> Picture:
    """Draw the pixel values of an image or a video; return it as a `Picture`.

    `part` is its size in tokens: ``(height, width)`` of an image, ``(steps, height, width)`` of a video. If all images
    of the model have one fixed size, `part` is not used.
    """

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    eye = config.vision_config
    if not images.axes:
        pixels = drawn(1, eye.num_channels, eye.image_size, eye.image_size)
        return Picture(PICTURES, {PICTURES.pixels: pixels}, tokens_of_image(config), 1)
    kind, merged = PICTURES if len(part) == 2 else VIDEOS, int(eye.spatial_merge_size)
    steps, height, width = (1, *part)[-3:]
    patches, tokens = steps * height * width * merged**2, steps * height * width
    columns = {
        kind.pixels: drawn(patches, size_of_patch(eye)),
        kind.grids: torch.tensor([(steps, height * merged, width * merged)]),
    }
    if kind is VIDEOS and hasattr(eye, "tokens_per_second"):
        columns[VIDEOS.seconds] = torch.tensor([SECONDS[steps]])
    return Picture(kind, columns, tokens, patches)
