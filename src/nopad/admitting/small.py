"""`small_copy`: a narrow model with few layers of each kind, of the same class and configuration as a given model.

Isolation does not depend on how wide or deep a model is, so a small copy can be probed and audited in its place. Sizes
have many names in configurations; `SIZES` and `WIDTHS` know the common ones, and others stay as they are. If the copy
cannot be built or run, fewer sizes are changed. If that fails too, the whole model is copied, unless it is too large.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nopad.admitting.marks import mark_of
from nopad.errors import UnsupportedModelError
from nopad.model.calls import takes
from nopad.model.hooks import Hook
from nopad.model.known import class_of
from nopad.model.own import is_own

__all__ = [
    "LAYER_COUNTS",
    "SIZES",
    "WIDTHS",
    "deep_copy",
    "own_parts",
    "ran",
    "shake",
    "short_model",
    "small_copy",
    "uncached",
]

VOCABULARY, POSITIONS = 97, 600
MOST_LAYERS = 10  # of a copy
MOST_OWN_LAYERS = 32  # of a narrow copy in which the user's own code is looked into
# What libraries put in place of layers or around them, and modules that give each token what depends on it alone.
ADDED = ("peft.", "bitsandbytes.", "torchao.", "torch.nn.utils.parametrize")
LOCAL = (nn.Linear, nn.Identity, nn.Dropout, nn.LayerNorm, nn.Embedding)
# Attributes of a model that loading it and training it set.
LOADED = ("training", "config", "generation_config", "name_or_path", "warnings_issued", "gradient_checkpointing")
MOST_PARAMETERS = 20_000_000  # of a model that is tried itself
LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_blocks", "depth")
POSITION_COUNTS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_seq_length", "max_length")

SIZES: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "pronunciation_vocab_size"), VOCABULARY),
    **dict.fromkeys(("shape_vocab_size", "enlarged_vocab_size"), VOCABULARY),
    **dict.fromkeys(POSITION_COUNTS, POSITIONS),
    **dict.fromkeys(("sliding_window", "attention_window_size", "local_attention", "window_size"), 6),
    **dict.fromkeys(("attention_chunk_size", "mamba_chunk_size", "chunk_size", "block_size"), 4),
}
WIDTHS: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("mamba_n_heads", "n_mamba_heads", "mamba_num_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "dff", "n_inner", "ffn_dim", "d_ff", "hidden_dim"), 32),
    **dict.fromkeys(("projection_dim", "attention_hidden_size", "lru_width", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("pronunciation_embed_dim", "shape_embed_dim", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("num_key_value_heads", "n_head_kv", "num_kv_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "global_head_dim", "query_pre_attn_scalar", "attention_head_size"), 8),
    **dict.fromkeys(("laurel_rank", "kv_lora_rank", "q_lora_rank"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 4),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim"), 6),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 16),
    "moe_shared_expert_intermediate_size": 16,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_shared_experts", "moe_layer_start_index"), 1),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size"), 6),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "mamba_d_head"), 8),
    "mamba_d_ssm": 32,
    **dict.fromkeys(("linear_num_value_heads", "mamba_head_dim"), 4),
    **dict.fromkeys(("linear_num_key_heads", "mamba_n_groups", "n_groups"), 2),
    **dict.fromkeys(("true_hidden_size", "intra_bottleneck_size"), 16),
}
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KEY_HEADS = ("num_key_value_heads", "n_head_kv", "num_kv_heads")


def small_copy(model: Any) -> tuple[Any, str]:
    """Return a small model of the same class and configuration, and how it was made, in words.

    The copy is in float32 and in evaluation mode. Its weights are random, and its dropout rates 0. If no small model
    can be built, or if the model has changed since it was built, the copy is of the whole model, with noise added to
    its weights.

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
    """Return a copy of a model in which the user's own code is looked into; None: it cannot be built and run.

    Such code may do something else in a later layer, or from some width on. So the copy has all layers and the true
    sizes, or, if the model has more than `MOST_PARAMETERS`, is narrow and has its first `MOST_OWN_LAYERS` layers. Its
    weights are random, and its dropout rates 0.
    """
    config = model.config
    rates = {name: 0.0 for name, value in _values(config).items() if isinstance(value, float) and "drop" in name}
    ways: list[Callable[[type], Any]] = [lambda kind: _changed(config, rates, False)]
    if _number(model) > MOST_PARAMETERS:
        layers = list(range(min(_count(config), MOST_OWN_LAYERS)))
        sizes = {**SIZES, **WIDTHS}
        ways = [
            lambda kind, again=again: _with_layers(_narrowed(config, sizes, again), layers, again)  # type: ignore[misc]
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
    """Return a model of a class and configuration in which only what `sizes` names is smaller.

    It has few layers of each kind, but at least `fewest`, or `every` layer. It is in float32 and in evaluation mode,
    with random weights and no dropout.

    Raises:
        ValueError: it would have more than `most` parameters.
        Exception: the class may raise anything for these sizes.
    """

    def make(kind: type) -> Any:
        narrow = _narrowed(config, sizes, False)
        layers = list(range(_count(narrow))) if every else _layers_of(kind, narrow)
        if len(layers) < fewest:
            layers = list(range(min(fewest, _count(narrow))))
        return _with_layers(narrow, layers, False)

    return _built(kind, make, most)


def ran(model: Any, tokens: list[int], **more: Any) -> Any:
    """Return a model's output for one sequence of token ids, without a cache and without gradients.

    Ids beyond the vocabulary wrap around. `more` are further arguments of the model.
    """
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", None) or VOCABULARY
    more |= uncached(model)
    device = next(model.parameters()).device
    with torch.no_grad():
        return model(input_ids=torch.tensor([[token % vocabulary for token in tokens]], device=device), **more)


def uncached(model: Any) -> dict[str, Any]:
    """Return the keyword arguments with which a model returns no cache: ``{"use_cache": False}``, or none."""
    has = getattr(model.config, "use_cache", None) is not None and takes(model, "use_cache")
    return {"use_cache": False} if has else {}


def own_parts(model: nn.Module) -> str:
    """Return, in words, what a model has that a copy built from its configuration would lack; "": nothing."""
    for name, module in model.named_modules():
        tables = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        hooks = [one for table in tables for one in table.values()]
        odd = [one for one in hooks if not isinstance(one, Hook) and not _of_transformers(one)]
        if "forward" in vars(module) or odd:
            return f"{name or type(model).__name__} has a hook or a forward method of its own, which a copy would lack"
    return _unlike(model)


def _unlike(model: Any) -> str:
    """Return, in words, how a model differs from what its class builds from its configuration; "": it does not.

    Compared are the classes of modules, and the attributes of the user's own modules. Returns "" also if the class
    cannot be built from a configuration alone.
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
    """Yield (words, function) for each way to make a configuration small, the smallest first.

    The function takes the model's class and returns the configuration; the words say how it was made.
    """
    wide = next(
        (getattr(config, name) for name in ("hidden_size", "d_model", "n_embd", "dim") if hasattr(config, name)), 0
    )
    share = 2 ** max((int(wide) // 64).bit_length() - 1, 0) if isinstance(wide, int) else 1
    for how, widths in (
        ("few narrow layers", {**SIZES, **WIDTHS}),
        (f"few layers, 1/{share} as wide", {**SIZES, **_shares(config, share)}),
        ("few layers", SIZES),
    ):
        known: dict[str, list[int]] = {}
        for again in (False, True):

            def make(
                kind: type, widths: dict[str, int] = widths, again: bool = again, known: dict[str, list[int]] = known
            ) -> Any:
                narrow = _narrowed(config, widths, again)
                known["layers"] = known.get("layers") or _layers_of(kind, narrow)
                return _with_layers(narrow, known["layers"], again)

            yield how, make


def _shares(config: Any, share: int) -> dict[str, int]:
    """Return the widths of a configuration divided by `share`, so that their ratios stay.

    A width that cannot be divided is cut to that of `WIDTHS` if it is larger. Sizes of heads and states are left out.
    """
    widths = {name: value for name, value in _values(config).items() if name in WIDTHS and type(value) is int}
    return {
        name: value // share if value % share == 0 and value > share else min(value, WIDTHS[name])
        for name, value in widths.items()
        if not name.endswith(("head_dim", "d_head", "d_state", "state_size"))
    }


def _built(kind: type, make: Callable[[type], Any], most: int = 0) -> Any:
    """Build a model of a class, in float32 and evaluation mode, with random weights, none of which is 0.

    A bias of 0 could hide a mistake. `make` returns the configuration for the class; it may have `most` parameters (0:
    `MOST_PARAMETERS`).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = make(kind)
        _check_size(kind, config, most or MOST_PARAMETERS)
        made = kind(config)
        shake(made.parameters())
    return made.float().eval()


def shake(parameters: Iterable[Tensor]) -> None:
    """Add noise to weights, in place, so that none is 0; weights that are infinite or huge are replaced first."""
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
        ValueError: it would have more.
    """
    try:
        with torch.device("meta"):
            count = _number(kind(config))
    except Exception:  # it cannot be built on no device
        return
    if count > most:
        raise ValueError(f"{count:,} parameters, which are too many to try")


def _narrowed(config: Any, sizes: dict[str, int], again: bool) -> Any:
    """Return a copy of a configuration with sizes of at most `sizes`, and dropout rates of 0.

    Special token ids are moved into the smaller vocabulary. With `again`, the configuration is built anew, so that
    values that follow from sizes change too.
    """
    given = _values(config)
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, bool):
            continue
        size = sizes.get(name, VOCABULARY if "vocab" in name and name.endswith("size") else None)
        if isinstance(value, int) and size is not None and value > size:
            changes[name] = size
        elif isinstance(value, float) and "drop" in name:
            changes[name] = 0.0
    heads = next((name for name in HEADS if name in given), None)
    for name in KEY_HEADS:
        if heads is not None and isinstance(given.get(name), int):
            every = given[name] == given[heads]
            changes[name] = changes.get(heads, given[heads]) if every else min(changes.get(name, given[name]), 2)
    changes |= _equal_dims(given, changes)
    changes |= _special(given, changes.get("vocab_size", given.get("vocab_size")))
    return _changed(config, changes, again)


def _equal_dims(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return new sizes of heads (``head_dim`` and others), so that equal ones stay equal and sums stay sums.

    `given` are the values of the configuration, `changes` its new sizes. In latent attention, `qk_head_dim` is a sum.
    """
    dims = {name: value for name, value in given.items() if name.endswith("head_dim") and type(value) is int}
    new = {
        name: min(changes.get(other, dims[other]) for other in dims if dims[other] == value)
        for name, value in dims.items()
        if name != "v_head_dim"
    }
    parts = [new.get(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim")]
    if "qk_head_dim" in new and parts[0] and parts[1]:
        new["qk_head_dim"] = parts[0] + parts[1]
    return new


def _special(given: dict[str, Any], vocabulary: Any) -> dict[str, Any]:
    """Return new special token ids (``pad_token_id`` and others) within a small vocabulary; equal ids stay equal."""
    if not isinstance(vocabulary, int):
        return {}
    named = {name: value for name, value in given.items() if name.endswith("_token_id") and value is not None}
    ids = sorted({one for value in named.values() for one in (value if isinstance(value, list) else [value])} - {-1})
    inside = [one for one in ids if isinstance(one, int) and one < vocabulary]
    free = (one for one in range(vocabulary) if one not in inside)
    new = {one: one if one in inside else next(free) for one in ids}
    return {
        name: [new[one] for one in value] if isinstance(value, list) else new.get(value, value)
        for name, value in named.items()
    }


def _values(config: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}


def _changed(config: Any, changes: dict[str, Any], again: bool) -> Any:
    made = copy.deepcopy(config)
    if again:
        kept = {name: value for name, value in config.to_diff_dict().items() if name not in ("model_type", "dtype")}
        made = type(config)(**{**kept, **changes})
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def _layers_of(kind: type, config: Any) -> list[int]:
    """Return the numbers of the layers that a small copy keeps: few, but each kind of layer.

    At most `MOST_LAYERS` are kept: if there are more kinds of layers, some are missing.
    """
    there = _count(config)
    if there <= 2:
        return list(range(there))
    given = _per_layer(config, there)
    kinds = [repr([value[at] for value in given.values()]) for at in range(there)]
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            built = kind(config)
        lists = [one for one in built.modules() if isinstance(one, nn.ModuleList)]
        stacks = [one for one in lists if len(one) == there]
        kinds = [one + repr(signs) for one, signs in zip(kinds, _signatures(stacks, there), strict=True)]
    except Exception:  # not every model can be built on no device; lists of the configuration have to do
        pass
    first = sorted({kinds.index(one) for one in set(kinds)})
    prefix = max(first[-1] + 1, 2)
    if prefix <= MOST_LAYERS:
        return list(range(prefix))
    return first[:MOST_LAYERS]


def _signatures(stacks: list[nn.ModuleList], there: int) -> list[list[Any]]:
    """Return, for each layer, the classes and settings of its modules, to tell kinds of layers apart.

    Settings that differ in every layer (such as `layer_idx`) are left out. `stacks` are the lists of layers, `there` is
    how many layers each has.
    """
    found: list[dict[str, Any]] = []
    for at in range(there):
        signs: dict[str, Any] = {}
        for number, stack in enumerate(stacks):
            for name, module in stack[at].named_modules():
                signs[f"{number} {name}"] = type(module).__name__
                for field, value in vars(module).items():
                    if isinstance(value, bool | int | str | None) and not field.startswith("_"):
                        signs[f"{number} {name} {field}"] = value
        found.append(signs)
    names = sorted({name for signs in found for name in signs})
    telling = [name for name in names if len({repr(signs.get(name)) for signs in found}) < max(there, 3)]
    return [[(name, signs.get(name)) for name in telling] for signs in found]


def _per_layer(config: Any, there: int) -> dict[str, list[Any]]:
    return {name: value for name, value in _values(config).items() if isinstance(value, list) and len(value) == there}


def _count(config: Any) -> int:
    return next((int(getattr(config, name)) for name in LAYER_COUNTS if getattr(config, name, None)), 0)


def _with_layers(config: Any, layers: list[int], again: bool) -> Any:
    """Return a copy of a configuration with only these layers; lists with one entry per layer are cut to match."""
    there = _count(config)
    if not layers or len(layers) == there:
        return config
    changes: dict[str, Any] = {name: [value[at] for at in layers] for name, value in _per_layer(config, there).items()}
    changes |= {name: len(layers) for name in LAYER_COUNTS if getattr(config, name, None) == there}
    for name, value in _values(config).items():
        numbers = isinstance(value, list) and name not in changes and value and all(type(one) is int for one in value)
        if numbers and ("layer" in name or "idx" in name or "indices" in name) and max(value) < there:
            changes[name] = [layers.index(one) for one in value if one in layers]
    return _changed(config, changes, again)


def _number(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
