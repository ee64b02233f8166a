"""Tell from a module's name which input of the model it embeds: token ids, positions or token types."""

from __future__ import annotations

import re

__all__ = ["UNSEEN", "input_of"]

UNSEEN = "no sequence sees another"
_TABLES = {
    "token types": re.compile("token_type|segment_emb"),
    "positions": re.compile("position|wpe|rotary|pos_emb"),
    "ids": re.compile("wte|word_emb|embed_tokens|tok_emb"),
}


def input_of(name: str | None) -> str:
    """Return what the module with this name embeds: "positions", "token types" or "ids"; "" for other names and None.

    >>> input_of("transformer.wpe"), input_of("bert.embeddings.token_type_embeddings"), input_of("model.layers.0")
    ('positions', 'token types', '')
    """
    last = (name or "").rsplit(".", 1)[-1]
    return next((what for what, pattern in _TABLES.items() if pattern.search(last)), "")
