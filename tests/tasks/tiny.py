"""A tokenizer whose tokens are words, and tiny models with every head that tasks need."""

from __future__ import annotations

import copy
from functools import cache

import torch
import transformers

TEXT = """
is it ? why not yes no red blue green one two three four five the a of and who what where when said dog cat house tree
river runs sleeps eats Paris London Rome Berlin in was born 1 2 3 4 5 6 7 8 9 0 user assistant system tool : . , hello
thanks please
"""
WORDS = TEXT.split()
ROLES = ("<|user|>", "<|assistant|>", "<|system|>", "<|tool|>")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOS]", *ROLES)


def tokenizer():
    """A fast tokenizer like BERT's: ``[CLS] a [SEP] b [SEP]``, with token types and offsets; a new copy."""
    return copy.deepcopy(_tokenizer())


@cache
def _tokenizer():
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        eos_token="[EOS]",
        additional_special_tokens=list(ROLES),
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def wordpieces():
    """The same with WordPiece, which has a token for a last ``s`` (##s) and ``es``, and letters of no meaning."""
    return copy.deepcopy(_wordpieces())


@cache
def _wordpieces():
    import tokenizers
    from tokenizers import models

    inner = tokenizers.Tokenizer.from_str(tokenizer()._tokenizer.to_str())
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *WORDS, "##s", "##es", "##and"))}
    inner.model = models.WordPiece(vocabulary, unk_token="[UNK]")
    made = tokenizer()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, **made.special_tokens_map, model_input_names=made.model_input_names
    )


SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def bert(task, kind: str | None = None, **options):
    """A tiny BERT in float64 without dropout, with the head of a task."""
    torch.manual_seed(0)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 256}
    config = transformers.BertConfig(**{**SIZES, **still, **task.model_options(), **options})
    return _spread(getattr(transformers, kind or task.auto.replace("AutoModel", "Bert"))(config))


def llama(task, kind: str | None = None, **options):
    """A tiny Llama in float64, with the head of a task."""
    torch.manual_seed(0)
    same = {**SIZES, "num_key_value_heads": 2, "pad_token_id": 0}
    config = transformers.LlamaConfig(**{**same, **task.model_options(), **options})
    return _spread(getattr(transformers, kind or task.auto.replace("AutoModel", "Llama"))(config))


def _spread(model):
    """Make all parameters larger, so that a wrong result is a clearly wrong one."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.double().train()


def words(generator, count: int) -> str:
    """A random text of so many words."""
    return " ".join(WORDS[number] for number in torch.randint(len(WORDS), (count,), generator=generator).tolist())
