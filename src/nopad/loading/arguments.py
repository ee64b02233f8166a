"""Arguments that `PackedLoader` refuses: those of torch's `DataLoader`, and those that a stream does not allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nopad.errors import OptionError

__all__ = ["refuse_dealing", "refuse_images", "refuse_torchs"]

# Options of torch's DataLoader, and the arguments that replace them here
_TORCHS = {
    "batch_size": "rows= (packs), tokens= or sequences= say what a micro-step has",
    "shuffle": "packs are dealt anew at random in every epoch, by seed=; a stream is shuffled with shuffle_buffer=",
    "sampler": "balance= and seed= say which sequences a step gets",
    "drop_last": 'last= is "drop", "fill", "short" or "refuse"',
    "collate_fn": "collate= makes the batches",
    "num_workers": "loader.dataloader(num_workers=...) builds batches in processes, prefetch= in a thread",
}


def refuse_torchs(options: Mapping[str, Any]) -> None:
    """Refuse options of torch's `DataLoader` that `PackedLoader` replaces by other arguments or methods.

    Raises:
        OptionError: there is such an option; the message says what to use instead.
    """
    for name in _TORCHS.keys() & options.keys():
        raise OptionError(f"{name} is an option of torch's DataLoader, and not of PackedLoader: {_TORCHS[name]}")


def _is_usual(value: Any, usual: Any) -> bool:
    """Return whether `value` is the default `usual`: the same object, or an equal string or integer."""
    return value is usual or (isinstance(value, str | int | np.integer) and value == usual)


def refuse_images(images: int | None) -> None:
    """Refuse a limit of images per pack, which a stream cannot have.

    Raises:
        OptionError: `images` is not None.
    """
    if images is not None:
        raise OptionError(
            f"images is {images}, and a stream holds no images; give the records themselves, a list of dicts or a "
            "datasets.Dataset with pixel_values"
        )


def refuse_dealing(**given: Any) -> None:
    """Refuse arguments that say how an epoch of known size is dealt, such as `balance`; a stream has no such epoch.

    `given` are the values of such arguments of `PackedLoader`, by name.

    Raises:
        OptionError: one of these arguments is not at its default.
    """
    usual = {"balance": "karmarkar_karp", "cost": None, "seed": 0, "groups": None, "together": "rank", "align": 1}
    usual["host_dir"] = None
    odd = [name for name, value in given.items() if not _is_usual(value, usual[name])]
    if odd:
        raise OptionError(
            f"{', '.join(odd)} say how an epoch is dealt; a stream is dealt as it comes, record after record, and its "
            "packs are equally full: leave them out (seed= goes with shuffle_buffer=, which shuffles a stream)"
        )
