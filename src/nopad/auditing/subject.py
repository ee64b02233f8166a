"""Make the copy of a model that is audited, in one dtype, and pack-safe unless a collator keeps sequences apart."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from nopad.auditing.failure import inside_model
from nopad.errors import NopadError
from nopad.model.replacing import uncompile
from nopad.model.safety import bare, is_packed, packed, state_of, unpacked

__all__ = ["compiled_layers", "eager_experts", "recompiled", "room_to_compile", "subject_of"]

ROOM = 1024  # compiled graphs that one layer may have
TABLE = 4096  # embeddings with so many rows get sparse gradients


@contextmanager
def subject_of(model: Any, dtype: torch.dtype, safe: bool, backend: str = "auto") -> Iterator[Any]:
    """Give, for a ``with`` block, a copy of a model in `dtype` and in evaluation mode, without compiled layers.

    All parameters of the copy are trainable. With `safe`, the copy is made pack-safe if it is not yet. `backend` is the
    attention backend of a pack-safe copy, even if the model is pack-safe with another one.

    At the end the copy's hooks are removed. Otherwise hooks and copy would refer to each other, and the copy, as large
    as the model or larger, would stay in memory.

    Raises:
        UnsupportedModelError: nopad refuses the model.
        OptionError: a part of the model is pack-safe by itself, or the model does not run with this backend.
        ModelFailedError: the model cannot be copied, converted or made pack-safe.
    """
    with inside_model(f"{type(bare(model)).__name__} cannot be copied in {dtype}"):
        made = copy.deepcopy(bare(model)).to(dtype).eval()
        made.requires_grad_(True)
        made.config.return_dict = True  # outputs are compared by name
        uncompile(made)
        _sparse_tables(made)
        if dtype == torch.float64:
            eager_experts(made)
    if safe and not is_packed(made):
        try:
            packed(made, backend=backend)
        except NopadError:
            raise
        except Exception:
            with inside_model(f"{type(made).__name__} cannot be made pack-safe"):
                raise
    if is_packed(made):
        state_of(made).backend = backend
        state_of(made).most = None  # the audit may use more sequences than the user's limit
    try:
        yield made
    finally:
        if is_packed(made):
            unpacked(made)


def compiled_layers(model: Any) -> dict[str, Any]:
    """Return the ``torch.compile`` context of each compiled module inside a model, by the module's name.

    A context holds the settings of `torch.compile`; it is None if it cannot be found.
    """
    found: dict[str, Any] = {}
    for name, module in bare(model).named_modules():
        plain = ".".join(part for part in name.split(".") if part != "_orig_mod")
        if hasattr(module, "_orig_mod"):
            found[plain] = getattr(module, "dynamo_ctx", None)
        elif name and module._compiled_call_impl is not None:
            found[plain] = _compiler_of(module._compiled_call_impl)
    return found


def recompiled(subject: Any, layers: dict[str, Any]) -> None:
    """Compile the parts of `subject` that `layers` names, each with the ``torch.compile`` context given for it.

    `layers` is the result of `compiled_layers` on the original model; a part whose context is None is compiled with
    the default settings.
    """
    for name, compiler in layers.items():
        module = subject.get_submodule(name)
        if compiler is None:
            module.compile()
        else:
            module._compiled_call_impl = compiler(module._call_impl)


def room_to_compile() -> Any:
    """Return a context in which a layer may be compiled for up to 1,024 shapes; outside, torch stops after a few."""
    import torch._dynamo

    return torch._dynamo.config.patch(recompile_limit=ROOM, accumulated_recompile_limit=ROOM)


def _compiler_of(compiled: Any) -> Any:
    """Return the ``torch.compile`` context that made a function; None if it cannot be found."""
    code, cells = getattr(compiled, "__code__", None), getattr(compiled, "__closure__", None) or ()
    held = dict(zip(getattr(code, "co_freevars", ()), cells, strict=False))
    found = held["self"].cell_contents if "self" in held else None
    return found if callable(found) else None


def _sparse_tables(model: nn.Module) -> None:
    """Make gradients of large embeddings sparse.

    Dense gradients, for the whole vocabulary, would take most of the time.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings >= TABLE and module.max_norm is None:
            module.sparse = True


def eager_experts(model: Any) -> None:
    """Make a model run its experts one by one, since the grouped kernels of transformers do not support float64."""
    config = model.config.get_text_config()
    if getattr(config, "_experts_implementation", None) not in (None, "eager"):
        model.set_experts_implementation("eager")
