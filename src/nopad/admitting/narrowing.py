"""Make configurations narrow and short: with smaller sizes, and with few layers of each kind.

Sizes have many names in configurations. `SIZES` and `WIDTHS` have the common ones, each with the largest size that it
has in a small copy. Sizes of other names stay as they are, except vocabularies (`narrowed`) and lists of layers
(`list_counts`).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from nopad.model.postconditions import LAYERS

__all__ = [
    "LAYER_COUNTS",
    "SIZES",
    "VOCABULARY",
    "WIDTHS",
    "layer_count",
    "layers_of",
    "list_counts",
    "narrowed",
    "shares",
    "values_of",
    "with_layers",
    "with_values",
]

VOCABULARY, POSITIONS = 97, 600
MOST_LAYERS = 10  # of a copy
LAYER_COUNTS = (*LAYERS, "num_blocks", "depth")
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


def shares(config: Any, share: int) -> dict[str, int]:
    """Return smaller widths for a configuration, by the names of their fields (those in `WIDTHS`).

    Each width is divided by `share`, so that the ratios between widths stay. A width that is not a multiple of `share`,
    or is equal to it, becomes its value in `WIDTHS` instead, but never larger than it was. Fields whose names end with
    ``head_dim``, ``d_head``, ``d_state`` or ``state_size`` are left out.
    """
    widths = {name: value for name, value in values_of(config).items() if name in WIDTHS and type(value) is int}
    return {
        name: value // share if value % share == 0 and value > share else min(value, WIDTHS[name])
        for name, value in widths.items()
        if not name.endswith(("head_dim", "d_head", "d_state", "state_size"))
    }


def narrowed(config: Any, sizes: dict[str, int], again: bool) -> Any:
    """Return a copy of a configuration with smaller sizes, and dropout rates of 0.

    `sizes` gives the largest value of each field by name. Vocabularies that it does not name get at most 97 tokens, and
    special token ids are moved into the smaller vocabulary. The number of key heads stays equal to the number of heads
    if it was equal; otherwise it becomes at most 2. Sizes of heads that were equal stay equal. With `again`, the
    configuration is built anew from its values, so that values that follow from sizes change too.
    """
    given = values_of(config)
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
    return with_values(config, changes, again)


def _equal_dims(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return new sizes of heads, by the names of their fields, which end with ``head_dim``.

    `given` are the values of the configuration, and `changes` its new sizes, by name. Fields that had equal sizes get
    the smallest of their new sizes. ``v_head_dim`` counts among these, but is not in the result. In latent attention,
    ``qk_head_dim`` becomes the sum of the new ``qk_nope_head_dim`` and ``qk_rope_head_dim``.
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
    """Return new special token ids (``pad_token_id`` and others) within a small vocabulary; equal ids stay equal.

    Numbers below 0, which some configurations have in place of an id, stay as they are.
    """
    if not isinstance(vocabulary, int):
        return {}
    named = {name: value for name, value in given.items() if name.endswith("_token_id") and value is not None}
    each = [one for value in named.values() for one in (value if isinstance(value, list) else [value])]
    ids = sorted({one for one in each if isinstance(one, int) and one >= 0})
    inside = [one for one in ids if one < vocabulary]
    free = (one for one in range(vocabulary) if one not in inside)
    new = {one: one if one in inside else next(free) for one in ids}
    return {
        name: [new.get(one, one) for one in value] if isinstance(value, list) else new.get(value, value)
        for name, value in named.items()
    }


def values_of(config: Any) -> dict[str, Any]:
    """Return the values of a configuration by their names, without private ones."""
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}


def with_values(config: Any, changes: dict[str, Any], again: bool) -> Any:
    """Return a copy of a configuration with the values in `changes`, by name.

    With `again`, its class builds the copy anew from its values, so that values that follow from others change too.
    """
    made = copy.deepcopy(config)
    if again:
        kept = {name: value for name, value in config.to_diff_dict().items() if name not in ("model_type", "dtype")}
        made = type(config)(**{**kept, **changes})
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def layers_of(kind: type, config: Any) -> list[int]:
    """Return the indices of the layers that a small copy keeps, ascending: few, but some of each kind of layer.

    `kind` is the model's class. Layers are of one kind if they have the same entries in the configuration's lists, and
    modules of the same classes and settings; settings that only number the layers (`layer_idx`) do not count. If the
    class cannot be built without weights, only the configuration's lists count.

    All layers from the first one on are kept until each kind has occurred, and at least two. If these are more than 10,
    only the first layer of each kind is kept, up to 10 layers.

    The class may not allow these layers, for example because it shares weights between layers of one kind (Zamba). Then
    the first two layers of each kind are tried, up to 10 layers, if the configuration's lists tell all kinds apart. If
    they do not, or if the class does not allow these layers either, the first 10 layers are kept.
    """
    there = layer_count(config)
    if there <= 2:
        return list(range(there))
    telling = [value for value in _per_layer(config, there).values() if not _is_index(value)]
    listed = [repr([value[at] for value in telling]) for at in range(there)]
    kinds = listed
    try:
        built = _on_no_device(kind, config)
    except Exception:  # not every model can be built on no device; lists of the configuration have to do
        return _first(kinds)
    stacks = [one for one in built.modules() if isinstance(one, nn.ModuleList) and len(one) == there]
    kinds = [one + repr(signs) for one, signs in zip(kinds, _signatures(stacks, there), strict=True)]
    ways = [_first(kinds)]
    if len(set(kinds)) == len(set(listed)):  # else a layer's kind may follow from its number
        ways.append([at for at, one in enumerate(kinds) if kinds[:at].count(one) < 2][:MOST_LAYERS])
    for layers in ways:
        try:
            _on_no_device(kind, with_layers(config, layers, False))
        except Exception:  # a class may raise anything
            continue
        return layers
    return list(range(min(there, MOST_LAYERS)))


def _first(kinds: list[str]) -> list[int]:
    """Return the indices of the layers that a small copy should keep; `kinds` has the kind of each layer.

    They are all layers from the first one on until each kind has occurred, and at least two. If these are more than 10,
    they are the first layer of each kind, up to 10 layers.
    """
    first = sorted({kinds.index(one) for one in set(kinds)})
    prefix = max(first[-1] + 1, 2)
    return list(range(prefix)) if prefix <= MOST_LAYERS else first[:MOST_LAYERS]


def _on_no_device(kind: type, config: Any) -> nn.Module:
    """Build a model of the class `kind` without weights, on the device "meta"; the class may raise anything."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        built: nn.Module = kind(config)
    return built


def _signatures(stacks: list[nn.ModuleList], there: int) -> list[list[Any]]:
    """Return, for each layer, a list of (name, value) pairs: the classes and settings of its modules.

    Layers of one kind have the same pairs. Settings that differ in every layer, or only number layers (such as
    `layer_idx`), are left out. `stacks` are the model's lists of layers, each with `there` layers.
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
    columns = {name: [signs.get(name) for signs in found] for name in names}
    telling = [name for name in names if len(set(map(repr, columns[name]))) < max(there, 3)]
    telling = [name for name in telling if not _is_index(columns[name])]
    return [[(name, signs.get(name)) for name in telling] for signs in found]


def _is_index(values: list[Any]) -> bool:
    """Return whether the values of one setting, one for each layer, only number the layers (`layer_idx`).

    None stands for a layer without the setting. At least two layers must have it. Their values must be the indices of
    these layers, or count only these layers: 0, 1, 2, and so on.
    """
    there = [(at, value) for at, value in enumerate(values) if value is not None]
    if len(there) < 2 or any(type(value) is not int for _, value in there):
        return False
    return all(at == value for at, value in there) or [value for _, value in there] == list(range(len(there)))


def list_counts(kind: type, config: Any) -> dict[str, int]:
    """Return smaller values for the configuration's fields that give the length of a list of layers, by field name.

    The usual fields for the number of layers (`LAYER_COUNTS`) are left out. An example of another one is
    ``num_layers_per_stack``, in a model that runs two stacks of layers again and again. A field is taken if its name
    contains "layer" or "block", and its value is the length of a list of modules in a model of the class `kind`. The
    value must also differ from the number of layers. The new value is the smallest with which the list still has each
    kind of layer (see `layers_of`), and at least 2. Fields for which this is not smaller are left out. The result is
    empty if the class cannot be built without weights.
    """
    counts = {
        name: value
        for name, value in values_of(config).items()
        if type(value) is int and value > 2 and name not in LAYER_COUNTS and ("layer" in name or "block" in name)
    }
    if not counts:
        return {}
    try:
        built = _on_no_device(kind, config)
    except Exception:  # not every model can be built on no device: its lists stay as long as they are
        return {}
    lists = [one for one in built.modules() if isinstance(one, nn.ModuleList)]
    found: dict[str, int] = {}
    for name, there in counts.items():
        stacks = [one for one in lists if len(one) == there]
        kinds = list(map(repr, _signatures(stacks, there))) if stacks and there != layer_count(config) else []
        fewest = max((kinds.index(one) + 1 for one in kinds), default=there)
        if max(fewest, 2) < there:
            found[name] = max(fewest, 2)
    return found


def _per_layer(config: Any, there: int) -> dict[str, list[Any]]:
    """Return, by name, the lists of a configuration that have one entry per layer; `there` is the number of layers."""
    return {name: value for name, value in values_of(config).items() if isinstance(value, list) and len(value) == there}


def layer_count(config: Any) -> int:
    """Return the number of layers that a configuration states; 0: it states none."""
    return next((int(getattr(config, name)) for name in LAYER_COUNTS if getattr(config, name, None)), 0)


def with_layers(config: Any, layers: list[int], again: bool) -> Any:
    """Return a copy of a configuration with only those of its layers whose indices are in `layers`.

    Lists with one entry per layer are cut to match, and lists of layer indices get the new indices. If `layers` is
    empty or has all layers, the configuration itself is returned. With `again`, the configuration's class builds the
    copy anew from its values.
    """
    there = layer_count(config)
    if not layers or len(layers) == there:
        return config
    changes: dict[str, Any] = {name: [value[at] for at in layers] for name, value in _per_layer(config, there).items()}
    changes |= {name: len(layers) for name in LAYER_COUNTS if getattr(config, name, None) == there}
    for name, value in values_of(config).items():
        numbers = isinstance(value, list) and name not in changes and value and all(type(one) is int for one in value)
        if numbers and ("layer" in name or "idx" in name or "indices" in name) and max(value) < there:
            changes[name] = [layers.index(one) for one in value if one in layers]
    return with_values(config, changes, again)
