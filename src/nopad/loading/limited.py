"""Packs of sequences with images, for a loader: a pack has a limit on its tokens and one on its images.

The packs are planned once, and get other sequences in each epoch.

A video counts as many images as it has steps in time (the first number of its ``video_grid_thw``).
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad import random
from nopad.errors import LengthError, OptionError
from nopad.loading.feeds import SourceFeed, check_fits
from nopad.loading.sources import TokenSource
from nopad.loading.units import Units, narrow
from nopad.options import Option
from nopad.packs import index_dtype
from nopad.planning.several import plan_several

__all__ = ["IMAGES", "PackedImages"]

STEPS = "a video counts as one per step in time"
IMAGES = Option(default=None, none=True, help="most images per pack")


class PackedImages(SourceFeed):
    """Feed of packs of stored sequences with images; a pack has a limit on its tokens and one on its images.

    The plan is the same in all epochs. Sequences with equal numbers of tokens and of images can take each other's
    places: each epoch chooses anew which of them go into which pack.
    """

    unit = "pack"

    def __init__(self, source: TokenSource, capacity: int, images: int, *, seed: int = 0, **options: Any) -> None:
        """Plan the packs.

        Args:
            source: the tokens, with images.
            capacity: maximum number of tokens per pack.
            images: maximum number of images per pack.
            seed: the seed of all random choices.
            options: ``effort``, as in `nopad.plan_several`.

        Raises:
            LengthError: a sequence has more tokens or images than a pack may hold.
            OptionError: the sequences have no images, ``effort`` is invalid, or another option is given.
        """
        if source.images is None:
            raise OptionError(
                f"images is {images}, and {source.name} holds no images: they are pixel_values of each record (of "
                "videos, pixel_values_videos), in a list of dicts or a datasets.Dataset; leave images out"
            )
        odd = sorted(options.keys() - {"effort"})
        if odd:
            raise OptionError(f"{', '.join(odd)}: not for a plan with two limits, tokens and images; leave that out")
        check_fits(source.seq_lengths, capacity, "sequence")
        over = np.flatnonzero(source.images > images)
        if over.size:
            said = f" ({STEPS})" if source.videos else ""
            raise LengthError(
                f"{over.size:,} of {len(source):,} sequences have more than {images:,} images, the first is sequence "
                f"{over[0]:,} with {source.images[over[0]]:,}{said}; give a limit of at least {source.images.max():,}"
            )
        self._source, self._images, self.seed = source, images, seed
        self._plan = plan_several(self._sizes(), [(capacity, images)], **options)
        self.capacity, self.sequences = capacity, len(source)
        self.packs = sum(self._plan.packs.values())
        self.tokens = int(source.seq_lengths.sum(dtype=np.int64))

    def _sizes(self) -> NDArray[np.int64]:
        """Return the numbers of tokens and of images of each sequence; int64 ``[n, 2]``."""
        assert self._source.images is not None
        return np.stack([self._source.seq_lengths.astype(np.int64), self._source.images], axis=1)

    def facts(self) -> dict[str, Any]:
        """Return, by name, what a saved run and the run that resumes it must share.

        These are the kind of the units ("pack"), the seed, the fingerprint of the data, both limits and a fingerprint
        of the plan.
        """
        plan = hashlib.sha256(self._plan.to_json().encode()).hexdigest()
        limits = {"capacity": self.capacity, "images": self._images}
        return {"unit": self.unit, "seed": self.seed, "data": self._source.fingerprint, **limits, "plan": plan}

    def notes(self, epoch: int) -> tuple[str, ...]:
        """Return a tuple of one line, which says how many images the packs hold; it is the same in every epoch."""
        assert self._source.images is not None
        held = int(self._source.images.sum())
        said = f" ({STEPS})" if self._source.videos else ""
        return (f"{held:,} images{said}, {held / (self.packs or 1):.1f} per pack, at most {self._images:,}",)

    def units(self, epoch: int) -> Units:
        """Return the packs of an epoch.

        Sequences with equal numbers of tokens and of images can take each other's places: each epoch chooses anew which
        of them go into which pack.
        """
        key = random.key(self.seed, random.STREAM_EPOCH, epoch)
        packs = self._plan.assign(self._sizes(), seed=key)[self.capacity, self._images]
        dtype = index_dtype(len(self._source))
        lengths = narrow(self._source.seq_lengths)
        return Units(seq_lengths=lengths, indptr=packs.indptr.astype(dtype), sequence=packs.sequence.astype(dtype))
