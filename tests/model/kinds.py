"""A tiny configuration of every kind in `FAMILIES` that `zoo` does not build by hand.

Sizes have many names; each kind takes those that its configuration knows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import CONFIG_MAPPING

VOCABULARY = 61
SIZES = {
    # Tokens.
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "pronunciation_vocab_size"), VOCABULARY),
    **dict.fromkeys(("shape_vocab_size", "enlarged_vocab_size"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 40),
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 3,
    "cls_token_id": 1,
    "sep_token_id": 3,
    "sliding_window": 5,
    # Widths.
    **dict.fromkeys(("hidden_size", "d_model", "n_embd"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "dff", "n_inner", "ffn_dim"), 32),
    **dict.fromkeys(("pronunciation_embed_dim", "shape_embed_dim", "hidden_size_per_layer_input"), 8),
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "query_pre_attn_scalar": 8,
    "laurel_rank": 4,
    "altup_num_inputs": 2,
    "projection_dim": 32,
    # Experts.
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "top_k_experts", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "moe_layer_start_index", "first_k_dense_replace"), 1),
    # Latent attention.
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 6,
    # State-space layers and linear attention, in chunks that are shorter than some sequences.
    **dict.fromkeys(("mamba_n_heads", "num_heads", "n_mamba_heads", "mamba_num_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size"), 6),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "block_size"), 4),
    **dict.fromkeys(("linear_num_value_heads", "mamba_head_dim"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "mamba_d_ssm"), 8),
    **dict.fromkeys(("linear_num_key_heads", "mamba_n_groups", "n_groups", "attn_layer_period"), 2),
    **dict.fromkeys(("attn_layer_offset", "num_dense_layers"), 1),
    "moe_shared_expert_intermediate_size": 16,
    "attention_window_size": 5,
    # No chance.
    **dict.fromkeys(("attention_dropout", "hidden_dropout", "dropout", "embedding_dropout", "mlp_dropout"), 0.0),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), 0.0),
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "activation_dropout", "layerdrop"), 0.0),
    # Layers of their own for drafts of several tokens.
    **dict.fromkeys(("mtp_num_layers", "num_nextn_predict_layers", "num_mtp_layers", "num_kv_shared_layers"), 0),
}
WHOLE = {"num_key_value_heads": 4}  # no groups of queries
THREE = {"num_hidden_layers": 3}
CONVOLVED = {"layer_types": ["conv", "full_attention", "conv"], **THREE}
SHARED = {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "num_hidden_layers": 4}
LINEAR = {"layer_types": ["linear_attention", "full_attention", "linear_attention"], **THREE}
CHANGES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "deepseek_v2", "deepseek_v3", "esmc", "glm4_moe_lite", "minicpm3", "mistral4"), WHOLE),
    **dict.fromkeys(("bailing_hybrid", "kimi_linear"), WHOLE | LINEAR),
    **dict.fromkeys(("lfm2", "lfm2_moe"), CONVOLVED),
    "lfm3": {"layer_types": ["conv", "sliding_attention", "full_attention"], **THREE},
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "minimax"), LINEAR),
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_rms_norm": True},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba"], **THREE},
    "bamba": {"attn_layer_indices": [1], **THREE},
    "jamba": THREE,
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "moe", "mamba"]},
    "recurrent_gemma": THREE,
    **dict.fromkeys(("zamba", "zamba2"), SHARED),
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 5},
    "mobilebert": {"true_hidden_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 2},
    "youtu": WHOLE,
    "phimoe": {"sliding_window": None},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}
# Their own softmax or softcap is not SDPA's: alone they run eagerly.
EAGER = {
    *("flint", "gemma2", "gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash", "openai_privacy_filter"),
    "vaultgemma",
}
# Kinds whose attention was off the registry in older versions of transformers, and a version where it is on it.
SINCE = {"ctrl": "5.23", "diffllama": "5.23", "nemotron": "5.23", "recurrent_gemma": "5.23"}


def tiny(kind: str, **more: Any) -> Any:
    """A tiny configuration of this kind."""
    made = CONFIG_MAPPING[kind]
    known = {name for base in made.__mro__ for name in getattr(base, "__annotations__", ())} - set(made.attribute_map)
    return made(**{name: value for name, value in {**SIZES, **CHANGES.get(kind, {}), **more}.items() if name in known})


class AllDouble(TorchFunctionMode):
    """Computes in float64 what a model computes in float32 whatever its dtype is (norms, routers, rotary angles)."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return function(*(torch.float64 if value is torch.float32 else value for value in args), **kwargs)
