"""What nopad knows of each kind of model: how its attention is reached, where positions begin, how its heads pool.

A model type that is not here, or is here with a reason against it, is refused: a wrong answer looks like a right one.
All of it is data; `nopad.audit` proves it, and the equality tests do for every line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from nopad.errors import UnsupportedModelError

__all__ = ["FAMILIES", "REFUSED", "Family", "family_of"]

Route = Literal["interface", "encoder mask"]
Pooled = Literal["first", "last", "config"]


def _never(config: Any) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of model.

    Attributes:
        route: "interface": its layers call transformers' registered attention; "encoder mask": they do not, and the
            mask is put in at the encoder.
        attention: for "encoder mask": class names of the modules between which sequences are unpacked and repacked.
        after_padding: its positions are counted as RoBERTa's are, from `padding_idx + 1` of its embeddings on, pad ids
            left out (`nopad.model.positions`). Others count from 0.
        mask: for "encoder mask": "bool" or "additive".
        head: module of the sequence classification head that gets the pooled states, by name, and how many dimensions
            it wants: ``[S, 1, H]`` (3) or ``[S, H]`` (2).
        pooled: which token a sequence's result is read from.
        pooler: module of the base model that gets ``[S, 1, H]`` (3) or ``[S, H]`` (2); None: there is none.
        mask_at: the part of the base model where the mask goes in; "": at the base itself. Others use it before
            (ESM, MPNet, DeBERTa), or have heads that go around the base (OPT).
        bias: for "encoder mask": the encoder's method that makes what attention gets as ``relative_pos`` or
            ``position_bias``, and the name of that argument.
        encoder_decoder: it has both, and cross attention.
        refuse: why a model of this kind with this configuration is refused; None: it is not.
        notes: what a reader should know.
    """

    route: Route = "interface"
    attention: tuple[str, ...] = ()
    after_padding: bool = False
    mask: Literal["bool", "additive"] = "bool"
    head: tuple[str, int] | None = None
    pooled: Pooled = "first"
    pooler: tuple[str, int] | None = None
    mask_at: str = ""
    bias: tuple[str, str] = ("", "")
    encoder_decoder: bool = False
    refuse: Callable[[Any], str | None] = _never
    notes: str = ""


def _deberta_refuses(config: Any) -> str | None:
    if getattr(config, "conv_kernel_size", 0) > 0:
        return "its convolution (conv_kernel_size > 0) mixes tokens across the borders of sequences"
    return None


_BERT = Family(pooler=("pooler", 3))
_ROBERTA = Family(after_padding=True, head=("classifier", 3), pooler=("pooler", 3))
_DEBERTA = Family(
    route="encoder mask",
    attention=("DisentangledSelfAttention",),
    mask_at="encoder",
    bias=("get_rel_pos", "relative_pos"),
    refuse=_deberta_refuses,
    pooler=("pooler", 3),
    notes="`segments` is unpack, attention, repack: its attention is not one call of SDPA",
)
_DECODER = Family(pooled="last", head=("score", 0))

FAMILIES: dict[str, Family] = {
    "albert": Family(pooler=("pooler", 2)),
    "bart": Family(encoder_decoder=True),
    "bert": _BERT,
    "camembert": _ROBERTA,
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA,
    "distilbert": Family(head=("pre_classifier", 2)),
    "electra": Family(head=("classifier", 3)),
    "esm": Family(head=("classifier", 3), pooler=("pooler", 3), after_padding=True, mask_at="encoder"),
    "gemma": _DECODER,
    "gpt2": _DECODER,
    "gpt_neox": _DECODER,
    "llama": _DECODER,
    "mistral": _DECODER,
    "modernbert": Family(head=("head", 2), pooled="config"),
    "mpnet": Family(
        route="encoder mask",
        attention=("MPNetSelfAttention",),
        mask="additive",
        mask_at="encoder",
        bias=("compute_position_bias", "position_bias"),
        after_padding=True,
        head=("classifier", 3),
        pooler=("pooler", 3),
    ),
    "opt": Family(pooled="last", head=("score", 0), mask_at="decoder"),
    "qwen2": _DECODER,
    "qwen3": _DECODER,
    "roberta": _ROBERTA,
    "t5": Family(encoder_decoder=True),
    "xlm-roberta": _ROBERTA,
}

REFUSED: dict[str, str] = {
    "big_bird": "its block-sparse attention and global tokens span the whole row",
    "falcon_h1": "its state-space layers carry their state from one sequence into the next",
    "funnel": "it pools neighbouring tokens, across the borders of sequences",
    "jamba": "its state-space layers carry their state from one sequence into the next",
    "longformer": "its windows and global tokens span the whole row",
    "mamba": "its state-space layers carry their state from one sequence into the next",
    "mamba2": "its state-space layers carry their state from one sequence into the next",
    "qwen2_vl": "its rotary positions have three axes (M-RoPE), which packing does not lay out",
    "qwen2_5_vl": "its rotary positions have three axes (M-RoPE), which packing does not lay out",
    "qwen3_next": "its linear-attention layers carry their state from one sequence into the next",
    "rwkv": "its recurrent layers carry their state from one sequence into the next",
    "xlnet": "its relative attention and permutation masks run over the whole row",
    "zamba": "its state-space layers carry their state from one sequence into the next",
}


def family_of(config: Any) -> Family:
    """Return what is known of a model with this configuration.

    Raises:
        UnsupportedModelError: its sequences cannot be kept apart, with the reason; or nothing is known of it.
    """
    kind = getattr(config, "model_type", "") or type(config).__name__
    if kind in REFUSED:
        raise UnsupportedModelError(f"{kind} cannot run on packs: {REFUSED[kind]}; run its sequences padded")
    layers = set(getattr(config, "layer_types", None) or ())
    if layers - {"full_attention", "sliding_attention"}:
        odd = ", ".join(sorted(layers - {"full_attention", "sliding_attention"}))
        raise UnsupportedModelError(f"{kind} cannot run on packs: its layers of type {odd} do not stop at sequences")
    if kind not in FAMILIES:
        raise UnsupportedModelError(
            f"nothing is known of {kind!r}: without proof its sequences may see each other. Known are "
            f"{', '.join(FAMILIES)}; see docs/models.md for how a kind is added and audited"
        )
    family = FAMILIES[kind]
    reason = family.refuse(config)
    if reason is not None:
        raise UnsupportedModelError(f"this {kind} cannot run on packs: {reason}; run its sequences padded")
    return family
