"""`input_embeddings`: find the module that embeds a model's token ids."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["input_embeddings"]


def input_embeddings(model: Any) -> nn.Module | None:
    """Return the module that embeds a model's ``input_ids``; None: it has none, or it is not known which.

    The module is what ``model.get_input_embeddings()`` returns. If this method is missing or fails, the result is the
    ``nn.Embedding`` inside the model with ``config.vocab_size`` rows, and None if there are several or none.

    >>> from types import SimpleNamespace
    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Embedding(5, 4), nn.Linear(4, 9))
    >>> model.config = SimpleNamespace(vocab_size=9)
    >>> input_embeddings(model)
    Embedding(9, 4)
    """
    try:
        found: nn.Module | None = model.get_input_embeddings()
        return found
    except (AttributeError, NotImplementedError):  # transformers' own method knows only usual names
        pass
    words = getattr(getattr(model, "config", None), "vocab_size", None)
    tables = [one for one in model.modules() if isinstance(one, nn.Embedding) and one.num_embeddings == words]
    return tables[0] if len(tables) == 1 else None
