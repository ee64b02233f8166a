"""Facts about each model type: how to reach its attention, where its positions begin, and how its heads pool.

`family_of` raises an error for a model type that is not listed, and for one that `nopad.model.refused` lists with a
reason, since a wrong result looks like a right one. `nopad.audit` and the equality tests check what these tables say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import transformers
from packaging.version import Version

from nopad.errors import UnsupportedModelError
from nopad.model.refused import REFUSED

__all__ = ["FAMILIES", "FRONTS", "IMAGES", "PAIRS", "Family", "Images", "family_of"]

Route = Literal["interface", "encoder mask", "mixers"]
Pooled = Literal["first", "last", "mean", "config", "eos"]


def _never(config: Any) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Images:
    """How a model type takes images beside its tokens (`nopad.model.images`).

    Attributes:
        tower: name of the base model's part that runs on the images of a batch, each by itself.
        text: name of the base model's part that runs on the tokens, with the images' features among them.
        axes: True: images and videos come as patches with a grid, and positions have three axes, counted by the base
            model's `get_rope_index` (M-RoPE). False: images are of one size, positions are ordinary ones, and there are
            no videos.
        steps: whether each step in time of a video is a separate run of tokens, after a text that says its time.
    """

    tower: str
    text: str = "language_model"
    axes: bool = False
    steps: bool = False


@dataclass(frozen=True, kw_only=True)
class Family:
    """The facts about one model type that nopad needs to run it on packs.

    Attributes:
        route: "interface": its layers call transformers' registered attention; "encoder mask": they do not, and nopad
            replaces the encoder's mask; "mixers": only its own mixing modules (`mixers`) move information between
            tokens.
        attention: for "encoder mask": class names of the attention modules around which states are unpacked and packed
            again.
        after_padding: whether positions are counted as in RoBERTa: from `padding_idx + 1` on, and pad ids are not
            counted (`nopad.model.positions`). Otherwise they count from 0.
        mask: for "encoder mask": whether its mask is "bool", or "additive" (numbers that are added to scores).
        head: (name, dims) of the module that gets the states in a sequence classification head. `dims` says which: 3
            for pooled states ``[S, 1, H]``; 2 for pooled states ``[S, H]``; 0 for the states of all tokens: the module
            scores every token, and the score of one token is read. None: there is no such module; a head may still read
            the `pooler`'s output.
        pooled: what a sequence's result is read from: "first": its first token; "last": its last token; "mean": the
            mean over its tokens; "eos": its first end-of-sequence token (CLIP); "config": what the configuration's
            `classifier_pooling` says.
        pads_inside: whether a sequence that is classified may have pad ids inside; False if different versions
            of transformers would then read different tokens.
        pooler: (name of the base model's pooler, number of dimensions of its input): 3 for ``[S, 1, H]``, 2 for
            ``[S, H]``; None: there is no pooler.
        mask_at: name of the base model's part that gets the mask; "": the base model itself. A part is named where the
            base model itself uses the mask (ESM, MPNet, DeBERTa), where a head calls the part directly (OPT), and in
            models that take images: there it is the part for text.
        bias: for "encoder mask": the encoder's method that computes the relative positions or position bias, and the
            name of the attention's argument for it.
        encoder_decoder: whether the model has an encoder, a decoder and cross attention.
        attends: how often each layer mixes tokens in one call (differential attention: twice; Falcon-H1: an attention
            and a state-space module).
        mixers: class names of the modules that move information between tokens and do not use the registered attention
            (convolutions, state-space scans, linear attention): each is run on every sequence by itself
            (`nopad.model.mixers`).
        alone: class names of those `mixers` that are called with one sequence at a time, since the rest of a batch may
            change what they compute.
        mixes: function of the configuration that returns how often tokens are mixed in one call, by registered
            attention and by mixing modules; None: `attends` times in each layer.
        places: (name, dimension) of a mixing module's arguments that have one entry per position in a row (ALiBi,
            rotary angles); the entries lie along this dimension. A name is listed twice if they lie along two
            dimensions (a table of pairs). A sequence of l tokens gets the first l entries; if the dimension is None, it
            gets the whole argument, from which the module itself takes what it needs.
        tables: (name, first) of each learned table of position embeddings for which the model counts positions along
            the row (``torch.arange``). A sequence's first token has the position `first`.
        readers: class names of poolers and heads that are not transformers' own, but like these are given all states
            ``[R, L, H]`` and read those of one token.
        masked: whether the base model gets nopad's mask; False: it gets no mask, since it would compute ALiBi from it.
        narrow: whether a row must not have more slots than the model has positions.
        front: name of the base model's part that turns raw data (images) into states, and the name of its argument for
            the raw data; a packed call begins with these states (`nopad.model.fronts`). None: tokens are ids.
        images: how the model takes images beside its tokens; None: it takes none.
        since: oldest version of transformers with which this model type is accepted; "": any version. In older ones,
            a sequence's results depend on the rest of its batch, or the model cannot be built.
        refuse: function that returns why a model with this configuration is refused, or None if it is not.
        notes: remarks for the documentation.
    """

    route: Route = "interface"
    attention: tuple[str, ...] = ()
    after_padding: bool = False
    mask: Literal["bool", "additive"] = "bool"
    head: tuple[str, int] | None = None
    pooled: Pooled = "first"
    pads_inside: bool = True
    pooler: tuple[str, int] | None = None
    mask_at: str = ""
    bias: tuple[str, str] = ("", "")
    encoder_decoder: bool = False
    attends: int = 1
    mixers: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    mixes: Callable[[Any], int] | None = None
    places: tuple[tuple[str, int | None], ...] = ()
    tables: tuple[tuple[str, int], ...] = ()
    readers: tuple[str, ...] = ()
    masked: bool = True
    narrow: bool = False
    front: tuple[str, str] | None = None
    images: Images | None = None
    since: str = ""
    refuse: Callable[[Any], str | None] = _never
    notes: str = ""

    @property
    def causal(self) -> bool:
        """Whether this is a decoder, in which no token sees later ones; False also for CLIP's causal text model."""
        return self.pooled == "last"


def _deberta_refuses(config: Any) -> str | None:
    if getattr(config, "conv_kernel_size", 0) > 0:
        return "its convolution (conv_kernel_size > 0) mixes tokens across the borders of sequences"
    return None


def _decoder_refuses(config: Any) -> str | None:
    both = getattr(config, "use_bidirectional_attention", None)
    if both and both != "vision" and config.model_type != "gemma3_text":  # its layers set is_causal to match
        return "with use_bidirectional_attention, tokens see later tokens only in batches without padding"
    if getattr(config, "is_causal", True) is False:
        return "with is_causal = False in its configuration, tokens see later tokens only in padded batches"
    return None


def _encoder_refuses(config: Any) -> str | None:
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return "nothing is proven of it as a decoder"
    return None


def _one_more(config: Any) -> int:
    """Return how often tokens are mixed in a model whose embeddings mix them too: once more than it has layers."""
    return int(config.num_hidden_layers) + 1


def _falcon_refuses(config: Any) -> str | None:
    if config.alibi:
        return "it computes its ALiBi from a mask of whole rows"
    return _decoder_refuses(config)


def _phimoe_refuses(config: Any) -> str | None:
    if config.sliding_window is not None:
        return "its window (sliding_window) is in its own masks only, and its layers do not know of it"
    return _decoder_refuses(config)


_BERT = Family(pooler=("pooler", 3))
_ROBERTA = Family(after_padding=True, head=("classifier", 3), pooler=("pooler", 3))
_DEBERTA = Family(
    route="encoder mask",
    attention=("DisentangledSelfAttention",),
    mask_at="encoder",
    bias=("get_rel_pos", "relative_pos"),
    refuse=_deberta_refuses,
    pooler=("pooler", 3),
    notes="`segments` unpacks groups of like length: its attention is not one call of SDPA",
)
_DECODER = Family(pooled="last", head=("score", 0), refuse=_decoder_refuses)
NOTHING = Family()

# Model types of decoders whose classifier scores every token (`score`) and reads the score of the last one.
_DECODERS = """
    afmoe apertus arcee aria_text axk1 bitnet cohere cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3 dots1 ernie4_5
    ernie4_5_moe exaone4 exaone_moe flex_olmo flint gemma gemma2 gemma3_text gemma3n_text gemma4_text
    gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode gpt_neox gpt_oss granite granite_swa
    granitemoe granitemoe_swa granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3
    iquestcoder jais2 jetmoe llama mellum mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 mistral mistral4
    mixtral nanochat nemotron olmo olmo2 olmo3 olmoe persimmon phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe seed_oss
    smollm3 solar_open stablelm starcoder2 vaultgemma youtu
"""

FAMILIES: dict[str, Family] = {
    "albert": Family(pooler=("pooler", 2)),
    "bart": Family(encoder_decoder=True),
    "bert": _BERT,
    "biogpt": replace(_DECODER, pads_inside=False),
    "camembert": _ROBERTA,
    "clip_text_model": Family(pooled="eos", narrow=True),
    "ctrl": replace(_DECODER, head=("classifier", 0)),
    "data2vec-text": _ROBERTA,
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA,
    "diffllama": replace(_DECODER, attends=2),
    "distilbert": Family(head=("pre_classifier", 2)),
    "electra": Family(head=("classifier", 3)),
    "embedding_gemma2_text": Family(),
    "ernie": _BERT,
    "esm": Family(head=("classifier", 3), pooler=("pooler", 3), after_padding=True, mask_at="encoder"),
    "esmc": Family(head=("classifier", 3)),
    "eurobert": Family(head=("dense", 2), pooled="config"),
    "gte": _BERT,
    "jina_embeddings_v3": Family(head=("classifier", 3), pooler=("pooler", 3)),
    "modernbert": Family(head=("head", 2), pooled="config"),
    "modernbert-decoder": replace(_DECODER, head=("classifier", 0)),
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
    "nomic_bert": _BERT,
    "openai_privacy_filter": Family(),
    "opt": replace(_DECODER, mask_at="decoder"),
    "phimoe": replace(_DECODER, refuse=_phimoe_refuses),
    "roberta": _ROBERTA,
    "roberta-prelayernorm": _ROBERTA,
    "roc_bert": _BERT,
    "t5": Family(encoder_decoder=True),
    "ultrabert": Family(head=("head", 2), pooled="config"),
    "xlm-roberta": _ROBERTA,
    "xlm-roberta-xl": Family(after_padding=True, head=("classifier", 3), pooler=("pooler", 3)),
    "xmod": _ROBERTA,
    **dict.fromkeys(_DECODERS.split(), _DECODER),
}


def _hybrids_too(config: Any) -> int:
    """Return how often tokens are mixed if each layer has a state-space module, and some have attention too.

    The layers with attention are those of the type "hybrid".
    """
    return len(config.layers_block_type) + int(config.layers_block_type.count("hybrid"))


def _but_experts(config: Any) -> int:
    """Return how often tokens are mixed: once in each layer, except layers of experts ("moe") and of an MLP ("mlp")."""
    return sum(kind not in ("moe", "mlp") for kind in config.layers_block_type)


# Hybrids and state-space models: each line names the classes of mixing modules, except registered attention.
HYBRIDS: dict[str, Family] = {
    "bailing_hybrid": replace(_DECODER, mixers=("BailingHybridDeltaAttention",)),
    "bamba": replace(_DECODER, mixers=("BambaMixer",)),
    "falcon_h1": replace(_DECODER, mixers=("FalconH1Mixer",), attends=2),
    "falcon_mamba": replace(_DECODER, mixers=("FalconMambaMixer",)),
    "granitemoehybrid": replace(_DECODER, mixers=("GraniteMoeHybridMambaLayer",)),
    "jamba": replace(_DECODER, mixers=("JambaMambaMixer",)),
    "kimi_linear": replace(_DECODER, mixers=("KimiLinearDeltaAttention",)),
    "lfm2": replace(_DECODER, mixers=("Lfm2ShortConv",)),
    "lfm2_moe": replace(_DECODER, mixers=("Lfm2MoeShortConv",)),
    "lfm3": replace(_DECODER, mixers=("Lfm3ShortConv",)),
    "mamba": replace(_DECODER, mixers=("MambaMixer",)),
    "mamba2": replace(_DECODER, mixers=("Mamba2Mixer",)),
    "minimax": replace(_DECODER, mixers=("MiniMaxLightningAttention",)),
    "nemotron_h": replace(_DECODER, mixers=("NemotronHMamba2Mixer",), mixes=_but_experts, since="5.23"),
    "olmo_hybrid": replace(_DECODER, mixers=("OlmoHybridGatedDeltaNet",)),
    "qwen3_5_moe_text": replace(_DECODER, mixers=("Qwen3_5MoeGatedDeltaNet",)),
    "qwen3_5_text": replace(_DECODER, mixers=("Qwen3_5GatedDeltaNet",)),
    "qwen3_next": replace(_DECODER, mixers=("Qwen3NextGatedDeltaNet",)),
    "recurrent_gemma": replace(_DECODER, mixers=("RecurrentGemmaRecurrentBlock",)),
    "zamba": replace(_DECODER, mixers=("ZambaMambaMixer",), mixes=_hybrids_too, since="5.23"),
    "zamba2": replace(_DECODER, mixers=("Zamba2MambaMixer",), mixes=_hybrids_too, since="5.23"),
}
# Models whose attention does not go through transformers' registry, or that have other mixing modules.
_OWN = Family(route="mixers", refuse=_encoder_refuses)
OWN: dict[str, Family] = {
    "bloom": replace(_DECODER, route="mixers", mixers=("BloomAttention",), places=(("alibi", 2),), masked=False),
    "codegen": replace(_DECODER, route="mixers", mixers=("CodeGenAttention",)),
    "convbert": replace(_OWN, mixers=("ConvBertSelfAttention",), head=("classifier", 3)),
    "fnet": replace(_OWN, mixers=("FNetFourierTransform",), pooler=("pooler", 3), narrow=True),
    "mobilebert": Family(mixers=("MobileBertEmbeddings",), mixes=_one_more, pooler=("pooler", 3)),
    "falcon": replace(_DECODER, route="mixers", mixers=("FalconAttention",), refuse=_falcon_refuses),
    "gpt_neo": replace(_DECODER, route="mixers", mixers=("GPTNeoSelfAttention",)),
    "gptj": replace(_DECODER, route="mixers", mixers=("GPTJAttention",)),
    "megatron-bert": replace(_OWN, mixers=("MegatronBertSelfAttention",), pooler=("pooler", 3)),
    "mpt": replace(_DECODER, route="mixers", mixers=("MptAttention",), places=(("position_bias", None),)),
    "rembert": replace(_OWN, mixers=("RemBertSelfAttention",), pooler=("pooler", 3)),
    "roformer": replace(
        _OWN,
        mixers=("RoFormerSelfAttention",),
        head=("classifier", 3),
        places=(("sinusoidal_pos", 2),),
        narrow=True,
    ),
}
FAMILIES |= HYBRIDS | OWN

# Encoder–decoders built as BART or T5 are.
PAIRS: dict[str, Family] = dict.fromkeys(
    ("blenderbot", "blenderbot-small", "marian", "mbart", "mt5", "pegasus", "plbart", "umt5"),
    Family(encoder_decoder=True),
)

# Model types with a front end that makes tokens from images.
_PATCHES = Family(front=("embeddings", "pixel_values"), head=("classifier", 2), pooler=("pooler", 3))
FRONTS: dict[str, Family] = {"deit": _PATCHES, "vit": _PATCHES, "vit_msn": _PATCHES}

TEXTS = ("llama", "mistral", "qwen2", "qwen3")
TOWERS = ("clip_vision_model", "siglip_vision_model")  # each image is a row of the batch there
STEADY_ROPES = ("default", "linear", "llama3", "mrope", "yarn")  # frequencies of all lengths alike


def _llava_refuses(config: Any) -> str | None:
    text, tower = config.text_config, config.vision_config.model_type
    if text.model_type not in TEXTS:
        return f"it is proven with text models of type {', '.join(TEXTS)}, and this one is {text.model_type!r}"
    if tower not in TOWERS:
        return f"it is proven with vision towers of type {', '.join(TOWERS)}, and this one is {tower!r}"
    family_of(text)  # raises for a text model that is refused
    return None


def _axes_refuses(config: Any) -> str | None:
    kind = str((config.text_config.rope_parameters or {}).get("rope_type", "default"))
    if kind not in STEADY_ROPES:
        return f"rotary frequencies of type {kind!r} would depend on the longest sequence of a batch"
    return _decoder_refuses(config.text_config)


# Model types that take images, and videos, beside their tokens: a vision tower, and a decoder.
_AXES = Family(pooled="last", mask_at="language_model", images=Images(tower="visual", axes=True), refuse=_axes_refuses)
_STEPS = replace(_AXES, images=Images(tower="visual", axes=True, steps=True))
IMAGES: dict[str, Family] = {
    "llava": replace(_AXES, images=Images(tower="vision_tower"), refuse=_llava_refuses),
    "qwen2_5_vl": _AXES,
    "qwen2_vl": _AXES,
    "qwen3_vl": _STEPS,
    "qwen3_vl_moe": _STEPS,
}


def family_of(config: Any) -> Family:
    """Return the `Family` (facts about the model type) of a model with this configuration.

    Raises:
        UnsupportedModelError: nopad cannot keep the sequences of this model apart, does not know its type, or needs a
            newer transformers for it.
    """
    kind = getattr(config, "model_type", "") or type(config).__name__
    if kind in REFUSED:
        raise UnsupportedModelError(f"{kind} cannot run on packs: {REFUSED[kind]}; run its sequences padded")
    layers = set(getattr(config, "layer_types", None) or ())
    if layers - {"full_attention", "sliding_attention"} and not FAMILIES.get(kind, NOTHING).mixers:
        odd = ", ".join(sorted(layers - {"full_attention", "sliding_attention"}))
        raise UnsupportedModelError(f"{kind} cannot run on packs: its layers of type {odd} do not stop at sequences")
    family = FAMILIES.get(kind) or PAIRS.get(kind) or FRONTS.get(kind) or IMAGES.get(kind)
    if family is None:
        raise UnsupportedModelError(
            f"nopad does not know models of type {kind!r}, whose sequences may see each other in packs. It knows "
            f"{', '.join((*FAMILIES, *PAIRS, *FRONTS, *IMAGES))}; docs/models.md says how to add and audit a type"
        )
    if family.since and Version(transformers.__version__) < Version(family.since):
        raise UnsupportedModelError(
            f"{kind} runs on packs from transformers {family.since} on, and this is {transformers.__version__}"
        )
    reason = family.refuse(config)
    if reason is not None:
        raise UnsupportedModelError(f"this {kind} cannot run on packs: {reason}; run its sequences padded")
    return family
