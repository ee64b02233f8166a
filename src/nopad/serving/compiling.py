"""Compile a runner's model, so that every batch runs by the same graph (`nopad.model.compiled`)."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from nopad.errors import OptionError, UnsupportedModelError
from nopad.model.compiled import CompiledRows, is_compiled
from nopad.model.routers import ASKED, routes
from nopad.model.safety import bare, state_of
from nopad.options import shown
from nopad.serving.batching import Batching
from nopad.serving.forward import Tensors
from nopad.tasks.core import Core

__all__ = ["WARM_RUNS", "Mode", "compiled_rows", "unfit"]

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
WARM_RUNS = 3  # with CUDA graphs, the first call runs as it is, the second is recorded, and the third replays it


def compiled_rows(core: Core, batching: Batching, mode: bool | Mode) -> CompiledRows | None:
    """Return the `CompiledRows` that run a core's batches; None if its model is not compiled and `mode` is False.

    Nothing is compiled yet: the first call does that. A core (`nopad.tasks.core.Core`) turns requests into answers with
    a model.

    Args:
        core: the core.
        batching: the batches that it will run.
        mode: True, or a mode of torch.compile: compile the model. False: do not compile it; a model that is compiled
            already is used as it is.

    Raises:
        OptionError: `mode` is unknown; the model is compiled already, and `mode` is not False; the batches have no
            rows; the model returns no named outputs (`config.return_dict`); its configuration asks for the logits of
            routers; or it gives results per sequence, and was made pack-safe without `max_sequences`.
        UnsupportedModelError: the model cannot be compiled on packs; the message gives the reason.
    """
    if not isinstance(mode, bool) and not (isinstance(mode, str) and mode in get_args(Mode)):
        known = ", ".join(map(repr, get_args(Mode)))
        raise OptionError(f"compile is {shown(mode)}; it is True, False, or a mode of torch.compile: {known}")
    already = is_compiled(core.model)
    if not already and mode is False:
        return None
    name = type(bare(core.model)).__name__
    if already and mode is not False:
        raise OptionError(f"this {name} is compiled already, and runs as it is; leave compile out")
    if batching.rows is None:
        raise OptionError(
            f"a compiled model takes rows of one shape, and batches are flat; give batching=Batching("
            f"capacity={min(batching.capacity, 512)}, rows=8), or any other number of rows"
        )
    how = None if isinstance(mode, bool) else mode
    found = CompiledRows(core.model if already else torch.compile(core.model, mode=how, fullgraph=True, dynamic=False))
    if routes(bare(core.model).config):
        raise OptionError(
            f"the configuration of this {name} asks for the logits of routers ({ASKED}), which a compiled model cannot "
            f"give: those of real tokens have no static shape; set model.config.{ASKED} = False"
        )
    if isinstance(core, Tensors):
        _check_pooler(core)
    return found


def _check_pooler(core: Tensors) -> None:
    """Check that a compiled base model can give its results per sequence.

    Raises:
        OptionError: the model has such results, and was made pack-safe without `max_sequences`.
        UnsupportedModelError: the model reads them from a token that it finds by its id (CLIP).
    """
    state = state_of(core.model)
    name = type(state.model).__name__
    if state.family.pooled == "eos":
        raise UnsupportedModelError(
            f"{name} reads its pooler_output from the end-of-sequence token, which static shapes do not tell; leave "
            "compile out"
        )
    if state.most is None and state.head.pools:
        raise OptionError(
            f"{name} gives a result per sequence beside those per token (pooler_output), and static shapes need a "
            "limit: nopad.packed(model, max_sequences=...); or load the model with "
            "add_pooling_layer=False"
        )


def unfit(core: Core, error: Exception) -> UnsupportedModelError:
    """Return the error to raise when a compiled model could not run its first batch because of `error`."""
    said = " ".join(str(error).split())[:300]
    return UnsupportedModelError(
        f"{type(bare(core.model)).__name__} does not run compiled: {type(error).__name__}: {said}; leave compile out, "
        "or compile its layers one by one, each with layer.compile()"
    )
