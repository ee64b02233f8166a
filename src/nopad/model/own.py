"""The user's own classes: those of none of the libraries that nopad knows, whose code may do anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from nopad.model.known import class_of

__all__ = ["foreign", "is_own", "own_modules"]

# Their layers are known to nopad's tables, or give each token what depends on that token alone.
LIBRARIES = (
    *("torch", "transformers", "nopad", "peft", "accelerate", "trl", "optimum"),
    *("bitsandbytes", "torchao", "liger_kernel", "flash_attn", "fla", "mamba_ssm", "causal_conv1d", "kernels"),
)


def is_own(kind: type) -> bool:
    """Return whether a class is the user's own: defined in none of the libraries that nopad knows."""
    return kind.__module__.partition(".")[0] not in LIBRARIES


def own_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) of a model's modules, itself included, whose classes are the user's own."""
    for name, module in model.named_modules():
        if is_own(class_of(module)):
            yield name, module


def foreign(model: Any) -> dict[str, type]:
    """Return the user's own classes among a model's modules, itself included: ``{qualified name: class}``."""
    return {f"{kind.__module__}.{kind.__qualname__}": kind for kind in {class_of(one) for _, one in own_modules(model)}}
