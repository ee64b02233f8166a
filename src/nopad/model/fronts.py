"""Models with a front end that makes tokens from raw data, such as patches of an image with 2-D positions.

Such a front end (`ViTModel.embeddings`) works on one grid of pixels. So the caller runs it before packing, on each
image by itself. A packed call begins with the resulting states, as ``inputs_embeds`` ``[R, L, H]``. A hook cannot skip
a module, so the front end also runs inside the packed call: it gets one blank image, and `GiveStates` replaces its
result by the batch's states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nopad.errors import BatchError, UnsupportedModelError
from nopad.model.calls import parameters
from nopad.model.families import Family
from nopad.model.hooks import Hook

__all__ = ["STATES", "GiveStates", "blank", "check_raw", "front_of", "refuse_static_front", "takes_states"]

STATES = "inputs_embeds"


@dataclass(eq=False)
class GiveStates(Hook):
    """Replaces the front end's output for the blank image by the states of the batch, ``[R, L, H]``.

    Attributes:
        moment: when PyTorch calls the hook; always "after", when the front end has returned.
    """

    moment: Literal["before", "after"] = "after"

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Return the batch's states ``[R, L, H]``; None in a call that is not packed, so that the output stays.

        Raises:
            UnsupportedModelError: a compiler traces the hook during a packed call.
        """
        self.cell.refuse_compiling()
        call = self.cell.call
        if call is None:
            return None
        call.ran[self.role] += 1
        return call.seen[STATES]


def front_of(base: Any, family: Family) -> nn.Module:
    """Return the front end of a base model, the module that `family.front` names.

    Raises:
        UnsupportedModelError: the base model has no such module.
    """
    name = "" if family.front is None else family.front[0]
    module = getattr(base, name, None)
    if not isinstance(module, nn.Module):
        raise UnsupportedModelError(f"{type(base).__name__} has no {name!r}, which makes states of its images")
    return module


def takes_states(base: Any, family: Family, takes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the arguments that a model takes in packed calls.

    `takes` has the names of the arguments that the model takes in ordinary calls. Those that its front end takes are
    left out, and ``inputs_embeds`` is added at the end. Without a front end, `takes` itself is returned.

    Raises:
        UnsupportedModelError: the base model lacks the front end that `family` names.
    """
    if family.front is None:
        return takes
    raw = parameters(type(front_of(base, family)).forward)
    return (*(name for name in takes if name not in raw), STATES)


def check_raw(model: Any, base: Any, family: Family, named: Mapping[str, Any]) -> None:
    """Check that a packed call to a model with a front end gives states, and neither raw data nor token ids.

    `named` has the arguments of the call by name. Without a front end, nothing is checked.

    Raises:
        BatchError: an argument of the front end or ``input_ids`` was given; or ``inputs_embeds`` are missing, not a
            tensor, or of another width than the model.
        UnsupportedModelError: the base model lacks the front end that `family` names.
    """
    if family.front is None:
        return
    module, way = family.front[0], "nopad.PackedBatch.from_embeddings"
    raw = parameters(type(front_of(base, family)).forward)
    wrong = [name for name in (*raw, "input_ids") if named.get(name) is not None]
    if wrong:
        raise BatchError(
            f"{', '.join(wrong)} were given to {type(model).__name__} with a packed batch, which begins with states of "
            f"patches; run .{module} of {type(base).__name__} on each image by itself, and build the batch with {way}"
        )
    states = named.get(STATES)
    if not isinstance(states, Tensor) or states.shape[-1] != model.config.hidden_size:
        said = "missing" if states is None else f"{list(getattr(states, 'shape', []))}"
        raise BatchError(
            f"{STATES} are {said}; {type(model).__name__} takes [R, L, {model.config.hidden_size}]: what its "
            f".{module} gives for each image, laid out by {way}"
        )


def blank(config: Any, like: Tensor) -> Tensor:
    """Return one image of zeros ``[1, C, height, width]``, of the size that the configuration states.

    Its dtype and device are those of `like`.
    """
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return torch.zeros(1, config.num_channels, height, width, dtype=like.dtype, device=like.device)


def refuse_static_front(model: Any, family: Family) -> None:
    """Refuse a call with static shapes (`nopad.model.static_inputs`) to a model with a front end or with images.

    The model of such a call is compiled as one graph, and the front end or the images would be part of it.

    Raises:
        UnsupportedModelError: the model has a front end, or takes images.
    """
    if family.images is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__} is not compiled whole on packs, since its images differ from batch to batch; "
            "compile its layers one by one instead, each with layer.compile()"
        )
    if family.front is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__} is not compiled whole on packs, which begin behind its .{family.front[0]}; "
            "compile its layers one by one instead, each with layer.compile()"
        )
