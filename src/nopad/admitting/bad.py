"""Refuse models about which a proof on a small copy (`nopad.admitting.proof`) would say nothing.

The model is refused without running it if it has one of these:

* batch norm or instance norm, quantised weights, or experts of limited capacity
* the user's own hooks on gradients
* an encoder and a decoder, or parts for other data than text
* a class whose code was loaded twice

A copy is run to find layers that draw random numbers, keep something from call to call, or let the rows of a batch
change each other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from nopad.admitting.marks import mark_of, settings_of
from nopad.admitting.modes import in_mode, recording
from nopad.admitting.probing import length_for
from nopad.admitting.small import ran, two_rows, uncached
from nopad.errors import UnsupportedModelError
from nopad.model.batchwide import check_experts
from nopad.model.families import PAIRS
from nopad.model.own import is_own_call

__all__ = [
    "check_forgets",
    "check_model",
    "check_modules",
    "check_parts",
    "check_rows_apart",
    "check_steady",
    "outputs_of",
]

STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
PARTS = ("vision_config", "audio_config", "speech_config", "image_config", "video_config")
OF_TORCH = frozenset(vars(nn.Module()))  # attributes that every module has


def check_model(model: Any) -> None:
    """Check the modules, weights and configuration of a model, without running it.

    Raises:
        UnsupportedModelError: a proof would say nothing about the model. It has batch norm or instance norm, quantised
            weights, experts of limited capacity, the user's own hooks on gradients, an encoder and a decoder, parts for
            other data than text, or a class whose code was loaded twice. The message names what it has.
    """
    name, config = type(model).__name__, model.config
    check_experts(model, also=config)
    check_modules(name, dict(model.named_modules()))
    _check_gradients(name, dict(model.named_modules()))
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModelError(
            f"weights of this {name} are quantised (quantization_config), and a small copy of it would not be; prove "
            "the model that it was made of"
        )
    check_parts(model)
    _check_versions(model)


def check_modules(name: str, modules: Mapping[str, nn.Module]) -> None:
    """Check that a model's modules compute no statistics over rows or the batch, and have no quantised weights.

    `modules` are the modules by their names in the model. `name` is what messages call the model.

    Raises:
        UnsupportedModelError: a module computes statistics over rows or over the batch (instance norm, batch norm), or
            has quantised weights; weights that are not plain floating-point `nn.Parameter` count as quantised.
    """
    for place, module in modules.items():
        if isinstance(module, STATISTICS):
            raise UnsupportedModelError(
                f"{place} of {name} is a {type(module).__name__}, which takes its statistics over whole rows or the "
                "whole batch, so a sequence's result depends on what shares its batch; use LayerNorm or RMSNorm"
            )
        own = [one for one in module._parameters.values() if one is not None]
        lowered = type(module).__module__.startswith(("torch.ao.nn.", "torch.nn.quantized"))
        if lowered or any(type(one) is not nn.Parameter or not one.is_floating_point() for one in own):
            raise UnsupportedModelError(
                f"weights of {place or name} ({type(module).__name__}) are quantised, and a small copy of this model "
                "would not be; prove it before quantising, and see docs/models.md for what nopad runs quantised"
            )


def _check_gradients(name: str, modules: Mapping[str, nn.Module]) -> None:
    """Check that no module of a model called `name` has one of the user's own hooks on gradients.

    `modules` are all its modules, by their names in the model.

    Raises:
        UnsupportedModelError: there is such a hook; the message names the module and the hook.
    """
    for place, module in modules.items():
        for hook in (*module._backward_pre_hooks.values(), *module._backward_hooks.values()):
            if is_own_call(hook):
                where = f"{place} of {name}" if place else name
                raise UnsupportedModelError(
                    f"{where} has a hook of your own on its gradients ({getattr(hook, '__qualname__', hook)}), which "
                    "cannot be followed and may mix tokens; take it off, and put a hook that only looks on again "
                    "after nopad.packed"
                )


def check_parts(model: Any) -> None:
    """Check that a model is one text model, not several parts.

    Raises:
        UnsupportedModelError: the model has an encoder and a decoder, parts for images, video or sound, or a text model
            as one of its parts.
    """
    name, config = type(model).__name__, model.config
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name} has an encoder and a decoder, and of such models nopad runs those of its tables only: bart, t5, "
            f"{', '.join(PAIRS)}; run its sequences padded"
        )
    parts = [part for part in PARTS if getattr(config, part, None) is not None]
    if parts or config.get_text_config() is not config:
        what = ", ".join(parts) or "a text_config"
        raise UnsupportedModelError(
            f"{name} has several parts ({what}), and nopad proves models of text only; make its text model pack-safe"
        )


def _check_versions(model: nn.Module) -> None:
    kinds: dict[str, type] = {}
    for module in model.modules():
        kind = type(module)
        if kind.__module__.startswith("torch."):  # parametrisations make a class for each module
            continue
        other = kinds.setdefault(f"{kind.__module__}.{kind.__qualname__}", kind)
        if other is not kind:
            raise UnsupportedModelError(
                f"{type(model).__name__} has modules of two versions of {kind.__module__}.{kind.__qualname__}: its "
                "code was loaded twice; load it once, and build the model anew"
            )


def outputs_of(output: Any) -> dict[str, Tensor]:
    """Return the floating-point tensors with at least one dimension in a model's output, by name.

    A single tensor is named "output 0"; tensors in a tuple are named "output 0", "output 1", ... by their index.
    Tensors in nested tuples (such as `hidden_states`) are left out.
    """
    if isinstance(output, Tensor):
        output = (output,)
    named = output if hasattr(output, "items") else {f"output {at}": each for at, each in enumerate(output)}
    return {n: v for n, v in named.items() if isinstance(v, Tensor) and v.is_floating_point() and v.dim() > 0}


def check_steady(model: Any) -> None:
    """Check that a small model, in evaluation mode, gives a sequence the same result in two calls.

    Raises:
        UnsupportedModelError: the two results differ, so the model draws random numbers; the message names the module.
    """
    tokens = list(range(5, 5 + length_for(model)))
    alone = partial(ran, model, tokens)
    name = _first_apart(model, alone, alone, _same)
    if name is not None:
        raise UnsupportedModelError(
            f"{_place(model, name)} gives one sequence two results in evaluation mode: it draws random numbers, so "
            "there is nothing to compare packs with"
        )


def check_forgets(model: Any) -> None:
    """Check that the user's own modules keep nothing from call to call, except what depends on the length alone.

    A copy of the model runs on three sequences of one length, in evaluation mode and in training mode. What the user's
    own modules hold, and the globals that their code uses, must be the same after the second call and after the third.
    A value that can be hashed after neither call counts as unchanged.

    Raises:
        UnsupportedModelError: something changed; the message names it.
    """
    length = length_for(model)
    for training in (False, True):
        fresh, found = copy.deepcopy(model), []
        with in_mode(fresh, training):
            for number in range(3):
                ran(fresh, [5 + 3 * at + number for at in range(length)])
                found.append({key: mark_of(value) for key, value in _kept(fresh)})
        # The first call may make tables that later ones read.
        for key in found[1] | found[2]:  # a name that is new in the third call has changed too
            if found[1].get(key) != found[2].get(key):
                raise UnsupportedModelError(
                    f"{key} of {type(model).__name__} changes with every call{', in training' if training else ''}, so "
                    "what a sequence gets may depend on what ran before it; nopad cannot tell what it gets alone"
                )


def _kept(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield what the user's own modules hold, as pairs (name, value).

    There is a pair for each buffer of a module, and for each attribute that a plain `nn.Module` does not have.
    Attributes that nopad or loading a model sets are left out. Each module has one more pair, whose value is the
    module's class: a hash of the class (`mark_of`) covers its code and the globals that this code uses.
    """
    for name, kind, held in settings_of(model):
        yield f"what the code of {kind.__name__} reaches", kind
        for key, value in held.items():
            place = ".".join(filter(None, (name, key)))
            if key == "_buffers":
                yield from ((".".join(filter(None, (name, one))), each) for one, each in value.items())
            elif key not in OF_TORCH:
                yield place, value


def check_rows_apart(model: Any, close: float) -> None:
    """Check that a sequence's results do not change if another row is in the batch.

    A sequence is run alone, and in a batch of two rows: once as the first row, once as the second. This is done in
    evaluation mode, and in training mode without dropout. Training mode is left out if the model is random there even
    without dropout. Differences of at most `close`, relative to an output's largest value, are rounding.

    Raises:
        UnsupportedModelError: results differ, or the model does not run on two rows; the message names the module or
            the error.
    """
    ids = two_rows(model, length_for(model))
    alone = partial(ran, model, ids[0].tolist())

    def together(place: int) -> Any:
        with recording(model):
            return model(input_ids=ids.flip(0) if place else ids, **uncached(model))

    for training, place in product((False, True), (0, 1)):  # a row may change only those after it
        with in_mode(model, training):
            if training and _first_apart(model, alone, alone, _same) is not None:
                return  # random in training, by more than dropout: nothing can be compared
            try:
                alike = partial(_row, close, place)
                name = _first_apart(model, alone, partial(together, place), alike)
            except Exception as error:  # a model's code may raise anything
                raise UnsupportedModelError(
                    f"{type(model).__name__} does not run on two rows ({type(error).__name__}: {error}); is there a "
                    "module that has no dimension for the batch?"
                ) from error
        if name is not None:
            raise UnsupportedModelError(
                f"the result of {_place(model, name)} for a row changes if the batch has another row"
                f"{', in training' if training else ''}: it takes statistics over the batch, or has no dimension for "
                "the batch; nopad has no way to keep sequences apart there"
            )


def _place(model: nn.Module, name: str) -> str:
    kind = type(model.get_submodule(name)).__name__
    return f"{name} ({kind}) of {type(model).__name__}" if name else type(model).__name__


def _same(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.equal(one.nan_to_num(), two.nan_to_num())


def _row(close: float, place: int, one: Tensor, two: Tensor) -> bool:
    """Return whether row `place` of the tensor `two` equals the tensor `one`.

    `one` is an output of the model for one row alone; `two` is the output for two rows, of which row `place` is this
    row. Differences of at most `close`, relative to the largest value of `one`, are allowed. True also if the tensors
    cannot be compared: their first dimensions are not 1 row and 2 rows, or their other dimensions differ.
    """
    if two.dim() != one.dim() or one.shape[:1] != (1,) or two.shape[:1] != (2,) or two.shape[1:] != one.shape[1:]:
        return True
    scale = float(one.abs().max()) if one.numel() else 0.0
    return float((two[place : place + 1] - one).abs().max() if one.numel() else 0.0) <= close * max(scale, 1e-30)


def _first_apart(
    model: Any, one: Callable[[], Any], two: Callable[[], Any], alike: Callable[[Tensor, Tensor], bool]
) -> str | None:
    """Run `one` and `two`, which call the model, and return the name of the first module whose outputs differ.

    Modules are compared in the order in which they finish; the model itself, with the name "", comes last. None: no
    outputs differ. ``alike(tensor of one, tensor of two)`` says whether two tensors count as equal. Of modules inside
    the model, only tensors with at least three dimensions are compared. If the two runs call different modules, or in
    another order, only the model's outputs are compared.
    """
    runs: list[list[tuple[str, list[Tensor]]]] = []
    for run in (one, two):
        runs.append([])
        with _recording(model, runs[-1]):
            output = run()
        runs[-1].append(("", [one.detach() for one in outputs_of(output).values()]))
    if [name for name, _ in runs[0]] != [name for name, _ in runs[1]]:
        runs = [run[-1:] for run in runs]  # other modules ran: only the outputs can be compared
    first, second = runs
    for (name, before), (_, after) in zip(first, second, strict=True):
        if len(before) != len(after):
            return name
        # Inside, what has fewer dimensions may be tokens that are routed to an expert, and no rows.
        pairs = [(a, b) for a, b in zip(before, after, strict=True) if not name or a.dim() > 2]
        if not all(alike(a, b) for a, b in pairs):
            return name
    return None


@contextmanager
def _recording(model: nn.Module, found: list[tuple[str, list[Tensor]]]) -> Iterator[None]:
    def after(name: str, module: nn.Module, args: Any, output: Any) -> None:
        output = dict(output) if hasattr(output, "items") else output
        found.append(
            (name, [v.detach() for v in tree_leaves(output) if isinstance(v, Tensor) and v.is_floating_point()])
        )

    handles = [one.register_forward_hook(partial(after, name)) for name, one in model.named_modules() if name]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
