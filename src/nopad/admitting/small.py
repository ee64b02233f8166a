"""`small_copy`: a narrow model with few layers of each kind, of the same class and configuration as a given model.

Isolation does not depend on how wide or deep a model is, so a small copy can be probed and audited in its place. Its
configuration is made small by `nopad.admitting.narrowing`. If the copy cannot be built or run, fewer sizes are changed.
If that fails too, the whole model is copied, unless it is too large.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from nopad.admitting.marks import mark_of
from nopad.admitting.modes import recording
from nopad.admitting.narrowing import (
    SIZES,
    VOCABULARY,
    WIDTHS,
    layer_count,
    layers_of,
    list_counts,
    narrowed,
    shares,
    values_of,
    with_layers,
    with_values,
)
from nopad.errors import UnsupportedModelError
from nopad.model.calls import parameters, takes
from nopad.model.hooks import Hook
from nopad.model.known import class_of
from nopad.model.own import is_own

__all__ = ["deep_copy", "own_parts", "ran", "shake", "short_model", "small_copy", "two_rows", "uncached"]

MOST_OWN_LAYERS = 32  # of a narrow copy in which the user's own code is looked into
# What libraries put in place of layers or around them, and modules that give each token what depends on it alone.
ADDED = ("peft.", "bitsandbytes.", "torchao.", "torch.nn.utils.parametrize")
LOCAL = (nn.Linear, nn.Identity, nn.Dropout, nn.LayerNorm, nn.Embedding)
# Attributes of a model that loading it and training it set.
LOADED = ("training", "config", "generation_config", "name_or_path", "warnings_issued", "gradient_checkpointing")
MOST_PARAMETERS = 20_000_000  # of a model that is tried itself


def small_copy(model: Any) -> tuple[Any, str]:
    """Return a small model of the same class, with a smaller configuration, and how it was made, in words.

    The copy is in float32 and in evaluation mode. Its weights are random, and its dropout rates are 0. If no small
    model can be built and run, or if the model was changed after it was built (`own_parts`), the whole model is copied
    instead. Such a copy has the model's weights, with noise added, and the model's dropout rates.

    Raises:
        UnsupportedModelError: no small copy can be built and run, and the model itself is too large to be tried, has no
            weights (the device "meta"), or cannot be copied.
    """
    reasons: list[str] = []
    if own := own_parts(model):
        reasons.append(own)
    else:
        for how, make in _attempts(model.config):
            try:
                made = _built(type(model), make)
                ran(copy.deepcopy(made), list(range(5, 12)))  # it may change with what it is called with
            except Exception as error:  # any size may be one that the model's code does not allow
                said = (str(error).strip().splitlines() or ["no message"])[0]
                reasons.append(f"{how}: {type(error).__name__}: {said}")
                continue
            return made, f"{how}, {_number(made)} parameters"
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UnsupportedModelError(
            f"{type(model).__name__} is not proven: no small copy of it could be built and run ({reasons[0]}), and "
            "it has no weights to be tried itself (it is on the device 'meta')"
        )
    if _number(model) <= MOST_PARAMETERS:
        try:
            made = copy.deepcopy(model).float().eval().requires_grad_(True)
        except Exception as error:  # a module may hold anything
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}), and a proof is of a copy"
            ) from error
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            shake(made.parameters())
        return made, f"a copy of the whole model, {_number(made)} parameters"
    raise UnsupportedModelError(
        f"{type(model).__name__} is not proven: no small copy of it could be built and run ({reasons[0]}), and with "
        f"{_number(model):,} parameters it is too large to be tried whole; build a small one yourself, with the same "
        "class, and see nopad.packed(small)"
    )


def deep_copy(model: Any) -> Any:
    """Return a copy of a model, to look into the user's own code; None: no copy can be built and run.

    Such code may do something else in a later layer, or from some width on. So the copy of a model with up to 20
    million parameters has all layers and the true sizes. The copy of a larger model is narrow, and has at most the
    first 32 layers. A copy is in float32 and in evaluation mode. Its weights are random, and its dropout rates are 0.
    """
    config = model.config
    rates = {name: 0.0 for name, value in values_of(config).items() if isinstance(value, float) and "drop" in name}
    ways: list[Callable[[type], Any]] = [lambda kind: with_values(config, rates, False)]
    if _number(model) > MOST_PARAMETERS:
        layers = list(range(min(layer_count(config), MOST_OWN_LAYERS)))
        sizes = {**SIZES, **WIDTHS}
        ways = [
            lambda kind, again=again: with_layers(narrowed(config, sizes, again), layers, again)  # type: ignore[misc]
            for again in (False, True)
        ]
    for make in ways:
        try:
            made = _built(type(model), make)
            ran(copy.deepcopy(made), list(range(5, 12)))
        except Exception:  # the small copy says what is wrong
            continue
        return made
    return None


def short_model(config: Any, kind: type, sizes: dict[str, int], *, every: bool, fewest: int, most: int) -> Any:
    """Return a model of the class `kind`, built from `config`, which `narrowed` makes smaller with these `sizes`.

    The model has few layers of each kind (`layers_of`), but at least `fewest` if the configuration has so many; with
    `every`, all layers. It is in float32 and in evaluation mode, with random weights and no dropout.

    Raises:
        ValueError: it would have more than `most` parameters.
        Exception: the class may raise anything for these sizes.
    """

    def make(kind: type) -> Any:
        narrow = narrowed(config, sizes, False)
        layers = list(range(layer_count(narrow))) if every else layers_of(kind, narrow)
        if len(layers) < fewest:
            layers = list(range(min(fewest, layer_count(narrow))))
        return with_layers(narrow, layers, False)

    return _built(kind, make, most)


def ran(model: Any, tokens: list[int], **more: Any) -> Any:
    """Return a model's output for one sequence of token ids, without a cache; gradients are recorded in training only.

    Ids beyond the vocabulary are taken modulo its size. In a model with an encoder and a decoder, both get the same
    ids. `more` are further arguments of the model.
    """
    vocabulary = _vocabulary(model)
    more |= uncached(model)
    device = next(model.parameters()).device
    ids = torch.tensor([[token % vocabulary for token in tokens]], device=device)
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters(type(model).forward):
        more = {"decoder_input_ids": ids, **more}
    with recording(model):
        return model(input_ids=ids, **more)


def two_rows(model: Any, length: int) -> Tensor:
    """Return two rows of `length` token ids of a model's vocabulary, int64 ``[2, length]``."""
    return torch.stack([5 + 3 * torch.arange(length) + number for number in range(2)]) % _vocabulary(model)


def _vocabulary(model: Any) -> int:
    return getattr(model.config.get_text_config(), "vocab_size", None) or VOCABULARY


def uncached(model: Any) -> dict[str, Any]:
    """Return the keyword arguments with which a model returns no cache.

    These are ``{"use_cache": False}``; or ``{}``, if the model does not know `use_cache`.
    """
    has = getattr(model.config, "use_cache", None) is not None and takes(model, "use_cache")
    return {"use_cache": False} if has else {}


def own_parts(model: nn.Module) -> str:
    """Return a sentence on a part of a model that a copy built from its configuration would lack; "": there is none.

    Examples are a hook, a replaced forward method and an attribute that was set later.
    """
    for name, module in model.named_modules():
        tables = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        hooks = [one for table in tables for one in table.values()]
        odd = [one for one in hooks if not isinstance(one, Hook) and not _of_transformers(one)]
        if "forward" in vars(module) or odd:
            return f"{name or type(model).__name__} has a hook or a forward method of its own, which a copy would lack"
    return _unlike(model)


def _unlike(model: Any) -> str:
    """Return a sentence on how a model differs from what its class builds from its configuration; "": it does not.

    The classes of modules are compared, and the public attributes of the user's own modules. Left out are what
    libraries such as PEFT added (`ADDED`), and layers that treat each token by itself (`LOCAL`). The result is "" also
    if the class cannot be built from a configuration alone.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            built = type(model)(copy.deepcopy(model.config))
    except Exception:  # no copy can be built, which says it better
        return ""
    other, skipped = dict(built.named_modules()), "\n"
    for name, module in model.named_modules():
        kind, wanted = class_of(module), other.get(name)
        if name.startswith(skipped) or kind.__module__.startswith(ADDED):
            skipped = skipped if name.startswith(skipped) else f"{name}."
            continue
        if kind in LOCAL:
            continue
        if wanted is None or class_of(wanted) is not kind:
            return f"{name} was made a {kind.__name__} after the model was built, and a copy would not have it"
        if is_own(kind):
            changed = next((key for key in _public(module) if not _same_setting(module, wanted, key)), None)
            if changed is not None:
                return f"{name or type(model).__name__}.{changed} was set after the model was built"
    return ""


def _public(module: nn.Module) -> list[str]:
    return [key for key in vars(module) if not key.startswith("_") and key not in LOADED]


def _same_setting(module: nn.Module, other: nn.Module, key: str) -> bool:
    one, two = vars(module)[key], vars(other).get(key)
    return type(one) is type(two) and (isinstance(one, Tensor) or mark_of(one) == mark_of(two))


def _of_transformers(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith("transformers.")


def _attempts(config: Any) -> Iterator[tuple[str, Callable[[type], Any]]]:
    """Yield (description, function) for each way to make a configuration small, the smallest first.

    The function takes the model's class and returns the configuration. Call it before the next pair is asked for: what
    it finds decides which ways follow.
    """
    wide = next(
        (getattr(config, name) for name in ("hidden_size", "d_model", "n_embd", "dim") if hasattr(config, name)), 0
    )
    share = 2 ** max((int(wide) // 64).bit_length() - 1, 0) if isinstance(wide, int) else 1
    for how, widths in (
        ("few narrow layers", {**SIZES, **WIDTHS}),
        (f"few layers, 1/{share} as wide", {**SIZES, **shares(config, share)}),
        ("few layers", SIZES),
    ):
        known: dict[str, Any] = {}
        for again, shorter in product((False, True), (True, False)):
            if not shorter and not known.get("lists"):
                continue  # all lists of layers were as long already

            def make(
                kind: type,
                widths: dict[str, int] = widths,
                again: bool = again,
                shorter: bool = shorter,
                known: dict[str, Any] = known,
            ) -> Any:
                narrow = narrowed(config, widths, again)
                known["layers"] = known.get("layers") or layers_of(kind, narrow)
                made = with_layers(narrow, known["layers"], again)
                known["lists"] = list_counts(kind, made) if shorter else {}
                return with_values(made, known["lists"], again) if known["lists"] else made

            yield how, make


def _built(kind: type, make: Callable[[type], Any], most: int = 0) -> Any:
    """Build a model of a class, in float32 and evaluation mode, with random weights, none of which is 0.

    A bias of 0 could hide a mistake. `make` returns the configuration for the class `kind`. The model may have at most
    `most` parameters (0: 20 million).

    Raises:
        ValueError: it would have more parameters.
        Exception: the class may raise anything.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = make(kind)
        _check_size(kind, config, most or MOST_PARAMETERS)
        made = kind(config)
        shake(made.parameters())
    return made.float().eval()


def shake(parameters: Iterable[Tensor]) -> None:
    """Add noise to weights, in place, so that none is 0.

    If a tensor holds NaN or an absolute value above 1,000, all its values are drawn anew first.
    """
    with torch.no_grad():
        for parameter in parameters:
            largest = float(parameter.abs().max() if parameter.numel() else 0)
            if not largest <= 1e3:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
            parameter.add_(torch.randn_like(parameter) * 0.05)


def _check_size(kind: type, config: Any, most: int) -> None:
    """Check that a model is not too large to be built: it may have at most `most` parameters.

    A class that cannot be built on the device "meta" is not checked.

    Raises:
        ValueError: it would have more parameters.
    """
    try:
        with torch.device("meta"):
            count = _number(kind(config))
    except Exception:  # it cannot be built on no device
        return
    if count > most:
        raise ValueError(f"{count:,} parameters, which are too many to try")


def _number(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
