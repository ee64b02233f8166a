"""Training: nopad's loader in the trainers that people have. Needs the extra ``nopad[train]``.

`Trainer` is transformers' and `SFTTrainer` is TRL's, each with `LoaderMixin` in front; they are imported on first use.
Lightning needs no class: ``fit(model, train_dataloaders=loader.dataloader())``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nopad.errors import MissingExtraError

if TYPE_CHECKING:
    from nopad.training.sft import SFTTrainer
    from nopad.training.trainer import LoaderMixin, Trainer

__all__ = ["LoaderMixin", "SFTTrainer", "Trainer"]

_LAZY = {
    "LoaderMixin": ("nopad.training.trainer", "nopad[train]"),
    "SFTTrainer": ("nopad.training.sft", "nopad[train] trl"),
    "Trainer": ("nopad.training.trainer", "nopad[train]"),
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'nopad.training' has no attribute {name!r}")
    from importlib import import_module

    module, needs = _LAZY[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"nopad.training.{name} needs {error.name}: pip install {needs}") from error


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
