"""A tiny model of every kind, drawn by seed: small enough to run alone and packed in float64 many times."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as t
from packaging.version import Version

import nopad
from nopad.errors import UnsupportedModelError
from nopad.model.safety import state_of

VOCABULARY = 99
LENGTHS = [7, 1, 30, 12, 3, 19, 30, 5]
FORMS = {
    "flat": {"form": nopad.Flat()},
    "rows": {"form": nopad.Rows(40)},
    "end to end": {"form": nopad.Rows(37, end_to_end=True)},
}
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DECODER = {**SMALL, "num_key_value_heads": 2, "head_dim": 6, "attention_dropout": 0.0}

CONFIGS: dict[str, Any] = {
    "albert": lambda: t.AlbertConfig(**SMALL, **QUIET, embedding_size=16),
    "bart": lambda: t.BartConfig(
        vocab_size=VOCABULARY,
        d_model=24,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=80,
        dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    ),
    "bert": lambda: t.BertConfig(**SMALL, **QUIET),
    "camembert": lambda: t.CamembertConfig(**{**SMALL, "pad_token_id": 1}, **QUIET),
    "deberta": lambda: t.DebertaConfig(
        **SMALL, **QUIET, relative_attention=True, pos_att_type=["c2p", "p2c"], pooler_dropout=0.0
    ),
    "deberta-v2": lambda: t.DebertaV2Config(
        **SMALL,
        **QUIET,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["c2p", "p2c"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        pooler_dropout=0.0,
    ),
    "distilbert": lambda: t.DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=24,
        n_layers=2,
        n_heads=4,
        hidden_dim=32,
        max_position_embeddings=80,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        qa_dropout=0.0,
    ),
    "electra": lambda: t.ElectraConfig(**SMALL, **QUIET, embedding_size=16),
    "esm": lambda: t.EsmConfig(
        **{**SMALL, "pad_token_id": 1}, **QUIET, mask_token_id=4, position_embedding_type="rotary", token_dropout=False
    ),
    "gemma": lambda: t.GemmaConfig(**DECODER),
    "gpt2": lambda: t.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=24,
        n_layer=2,
        n_head=4,
        n_positions=80,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        pad_token_id=0,
    ),
    "gpt_neox": lambda: t.GPTNeoXConfig(**SMALL, attention_dropout=0.0, hidden_dropout=0.0),
    "llama": lambda: t.LlamaConfig(**DECODER),
    "mistral": lambda: t.MistralConfig(**DECODER, sliding_window=6),
    "modernbert": lambda: t.ModernBertConfig(
        **{**SMALL, "num_hidden_layers": 3},
        local_attention=8,
        global_attn_every_n_layers=3,
        attention_dropout=0.0,
        embedding_dropout=0.0,
        mlp_dropout=0.0,
        classifier_dropout=0.0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
    "mpnet": lambda: t.MPNetConfig(**{**SMALL, "pad_token_id": 1}, **QUIET),
    "opt": lambda: t.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        word_embed_proj_dim=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=32,
        max_position_embeddings=80,
        dropout=0.0,
        attention_dropout=0.0,
        pad_token_id=1,
    ),
    "qwen2": lambda: t.Qwen2Config(**{k: v for k, v in DECODER.items() if k != "head_dim"}),
    "qwen3": lambda: t.Qwen3Config(**DECODER),
    "roberta": lambda: t.RobertaConfig(**{**SMALL, "pad_token_id": 1}, **QUIET),
    "t5": lambda: t.T5Config(
        vocab_size=VOCABULARY,
        d_model=24,
        d_kv=6,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=0,
        decoder_start_token_id=0,
    ),
    "xlm-roberta": lambda: t.XLMRobertaConfig(**{**SMALL, "pad_token_id": 1}, **QUIET),
}

AUTO = {  # by name, because transformers imports a model's code when its class is named
    "base": "AutoModel",
    "sequence classification": "AutoModelForSequenceClassification",
    "token classification": "AutoModelForTokenClassification",
    "question answering": "AutoModelForQuestionAnswering",
    "masked LM": "AutoModelForMaskedLM",
    "causal LM": "AutoModelForCausalLM",
    "next sentence": "AutoModelForNextSentencePrediction",
    "pre-training": "AutoModelForPreTraining",
}


def skip_where_unsupported(kind: str) -> None:
    """T5 takes a registered attention from transformers 5.20 on; nopad's range begins earlier."""
    if kind == "t5" and Version(t.__version__) < Version("5.20"):
        with pytest.raises(UnsupportedModelError, match="does not take a registered attention; newer versions may"):
            nopad.packed(t.T5EncoderModel(CONFIGS["t5"]()))
        pytest.skip(f"T5 is off the interface in transformers {t.__version__}")


def has_head(kind: str, head: str) -> bool:
    """Whether transformers has this head for this kind: by its tables of names, as its classes are slow to import."""
    assert kind in t.CONFIG_MAPPING
    return kind in getattr(t, AUTO[head])._model_mapping._model_mapping


def build(kind: str, head: str = "base", *, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """A model of this kind, of seed 0, in evaluation mode."""
    skip_where_unsupported(kind)
    config = CONFIGS[kind]()
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    auto = {**AUTO, "conditional generation": "AutoModelForSeq2SeqLM"}[head]
    make = t.T5EncoderModel if (kind, head) == ("t5", "base") else getattr(t, auto).from_config
    model = make(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases of 0 would hide what is not added
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.to(dtype).eval()


def let(model: Any, call: Any) -> Any:
    """Take a hook or forward method as known to a pack-safe model, to see what catches it else; return it."""
    state_of(model).watch.known.append(call)
    return call
