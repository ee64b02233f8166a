"""The fingerprint of a tokenizer: tokenizers with the same fingerprint turn every text into the same sequence.

This holds if both are called with the same truncation and padding, which are not part of the fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from nopad.notation import from_json

__all__ = ["tokenizer_fingerprint"]

_STATE = ("truncation", "padding")  # set by the last call, and no part of the tokenizer
_PLACES = ("_file", "name_or_path", "backend")  # ends of names that say where a tokenizer was read from


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer, in hex.

    It covers the class, vocabulary, rules, special tokens and chat template, and which columns the tokenizer gives
    (such as token types). It does not cover the settings of truncation and padding. A tokenizer written in Python has
    no description of its rules. Instead, the arguments with which it was made are covered, except those that say where
    it was read from.
    """
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is not None:
        content = from_json(inner.to_str())
        rules: Any = {name: value for name, value in content.items() if name not in _STATE}
    else:
        given = getattr(tokenizer, "init_kwargs", {})
        rules = [sorted(tokenizer.get_vocab().items()), {n: v for n, v in given.items() if not n.endswith(_PLACES)}]
    facts = {
        "class": type(tokenizer).__name__,
        "rules": rules,
        "special": {name: str(value) for name, value in tokenizer.special_tokens_map.items()},
        "template": getattr(tokenizer, "chat_template", None),
        "columns": tokenizer.model_input_names,
    }
    if getattr(tokenizer, "split_special_tokens", False):
        facts["split"] = True  # names of special tokens in texts
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
