"""Training on packs, with transformers' and TRL's trainers. The trainers need the extra ``train``.

`PackedTrainer` is transformers' Trainer, and `PackedSFTTrainer` and `PackedRewardTrainer` are TRL's, each extended by
`PackedMixin`. All public names are imported on first use. Lightning, or a training loop of your own, needs none of
these trainers: give it ``loader.dataloader()``, or the loader, and an objective of `nopad.tasks`. Packing changes the
meaning of hyper-parameters: `Lamb`, `Schedule` and `scale_for_packing` help to adapt them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nopad.errors import MissingExtraError, check_extra, install

if TYPE_CHECKING:
    from nopad.training.counted import CountedLR
    from nopad.training.lamb import Lamb, decay_groups
    from nopad.training.mixin import PackedMixin
    from nopad.training.scaling import Scaled, factor_of, scale_for_packing
    from nopad.training.schedules import Schedule
    from nopad.training.trainer import PackedTrainer
    from nopad.training.trl import PackedRewardTrainer, PackedSFTTrainer
    from nopad.training.trouble import load_batch

__all__ = [
    "CountedLR",
    "Lamb",
    "PackedMixin",
    "PackedRewardTrainer",
    "PackedSFTTrainer",
    "PackedTrainer",
    "Scaled",
    "Schedule",
    "decay_groups",
    "factor_of",
    "load_batch",
    "scale_for_packing",
]

# Module, extra that it needs, packages that are in no extra
_LAZY: dict[str, tuple[str, ...]] = {
    "CountedLR": ("nopad.training.counted", "torch"),
    "Lamb": ("nopad.training.lamb", "torch"),
    "PackedMixin": ("nopad.training.mixin", "train"),
    "PackedRewardTrainer": ("nopad.training.trl", "train", "trl"),
    "PackedSFTTrainer": ("nopad.training.trl", "train", "trl"),
    "PackedTrainer": ("nopad.training.trainer", "train"),
    "Scaled": ("nopad.training.scaling",),
    "Schedule": ("nopad.training.schedules",),
    "decay_groups": ("nopad.training.lamb", "torch"),
    "factor_of": ("nopad.training.scaling",),
    "load_batch": ("nopad.training.trouble", "train"),
    "scale_for_packing": ("nopad.training.scaling",),
}


def __getattr__(name: str) -> Any:
    """Return the public object called `name`; its module is imported when the first of its names is used.

    Raises:
        AttributeError: there is no such name.
        MissingExtraError: a package that the module needs is not installed.
    """
    if name not in _LAZY:
        raise AttributeError(f"module 'nopad.training' has no attribute {name!r}")
    from importlib import import_module

    module, *needs = _LAZY[name]
    if needs:
        check_extra(f"nopad.training.{name}", *needs)
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not needs:
            raise
        raise MissingExtraError(f"nopad.training.{name} needs {error.name}; {install(*needs)}") from error


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
