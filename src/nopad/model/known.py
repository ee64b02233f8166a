"""Find out which head a model has, by its exact transformers class or by what the user says.

A class name proves nothing: a user's ``MyForSequenceClassification`` may pool in any way. So a class is known only if
it is the very class that transformers' tables of Auto classes list for a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from torch import nn

from nopad.errors import OptionError, UnsupportedModelError
from nopad.model.families import Family
from nopad.options import shown

__all__ = ["NAMES", "class_of", "head_name", "is_stock", "walk"]

# What each head returns, by its name in `nopad.packed(head=...)`.
NAMES = {
    "tokens": "one result per token (base models, masked LM, token classification, pre-training)",
    "causal": "one result per token, and labels that a causal language model shifts",
    "classification": "one result per sequence",
    "answers": "start_logits and end_logits of question answering",
}
# Tables of transformers' Auto classes, most specific first: a class may be in several.
TABLES = {
    "SEQUENCE_CLASSIFICATION": "classification",
    "IMAGE_CLASSIFICATION": "classification",
    "NEXT_SENTENCE_PREDICTION": "classification",
    "QUESTION_ANSWERING": "answers",
    "CAUSAL_LM": "causal",
    "TOKEN_CLASSIFICATION": "tokens",
    "MASKED_LM": "tokens",
    "IMAGE_TEXT_TO_TEXT": "causal",
    "SEQ_TO_SEQ_CAUSAL_LM": "tokens",
    "PRETRAINING": "tokens",
    "TEXT_ENCODING": "tokens",
    "": "tokens",  # base models
}


def class_of(module: nn.Module) -> type:
    """Return the class of a module; if FSDP's `fully_shard` replaced it by a subclass, the original class."""
    kind = type(module)
    first = kind.__bases__[0]
    wrapped = first.__name__ == "FSDPModule" and first.__module__.startswith("torch.distributed.")
    return kind.__bases__[1] if wrapped else kind


def walk(model: nn.Module) -> Iterator[nn.Module]:
    """Yield all modules of a model, a shared one more than once, in any order.

    This runs at each call, and is faster than ``model.modules()``.
    """
    waiting = [model]
    while waiting:
        module = waiting.pop()
        yield module
        waiting.extend(child for child in module._modules.values() if child is not None)


def is_stock(kind: type) -> bool:
    """Return whether a class is one that ``transformers`` itself exports under its name.

    It is False for a subclass, for another class of the same name, and for classes that only a submodule of
    transformers has, such as ``LlamaAttention``.
    """
    import transformers

    return kind.__module__.startswith("transformers.") and getattr(transformers, kind.__name__, None) is kind


def head_name(model: Any, family: Family, given: str | None) -> str:
    """Return the name of a model's head; `given` is the name that the user gives, or None.

    The names are those in `NAMES`, such as "causal". nopad knows the heads of the classes in transformers' tables of
    Auto classes (`TABLES`); for another class, `given` is returned.

    Raises:
        OptionError: no head is called `given`, or nopad knows that the class has another head.
        UnsupportedModelError: nopad does not know the class, and `given` is None or the model is not a
            `PreTrainedModel`; or the model type is an encoder–decoder, and the head is "classification" or "causal".
    """
    from transformers import PreTrainedModel

    kind = class_of(model)
    name = kind.__name__
    if given is not None and not (isinstance(given, str) and given in NAMES):
        raise OptionError(f"unknown head {shown(given)}; there are {', '.join(NAMES)}")
    known = _tables().get(name) if is_stock(kind) else None
    if known is None and (given is None or not isinstance(model, PreTrainedModel)):
        raise UnsupportedModelError(f"nopad does not know the head of {name}: {_way_out(model)}")
    if known is not None and given not in (None, known):
        raise OptionError(f"the head of {name} is {known!r}, not {given!r}; leave it out")
    found = known or given
    assert found is not None
    if family.encoder_decoder and found in ("classification", "causal"):
        raise UnsupportedModelError(
            f"{name} cannot run on packs: "
            + (
                "it reads the states of a row's last end-of-sequence token, not of each sequence's"
                if found == "classification"
                else "it is a decoder without its encoder, of which nothing is proven"
            )
            + "; run its sequences padded"
        )
    return found


def _way_out(model: Any) -> str:
    """Return advice on what to do with a model whose class nopad does not know, as the end of an error message."""
    from transformers import PreTrainedModel

    if type(model).__module__.startswith("sentence_transformers."):
        return (
            "it is a model of sentence-transformers; nopad.tasks.Embedder.from_folder(FOLDER) embeds on packs with the "
            "folder that it was loaded from or that its save writes, and nopad.tasks.Contrastive trains its base model"
        )
    inner = [(name, child) for name, child in model.named_children() if isinstance(child, PreTrainedModel)]
    if isinstance(model, nn.Module) and not isinstance(model, PreTrainedModel) and len(inner) == 1:
        name, child = inner[0]
        return (
            f"it wraps {type(child).__name__} (TRL's value heads do), and only a proof can admit it, as nopad.packed "
            f"does; or make that pack-safe by itself, nopad.packed(model.{name}), if all that is computed from its "
            "states is per token"
        )
    return (
        "it is not a class of transformers that nopad has a head for. If its forward reads results as one of "
        f"transformers' own does, say which with nopad.packed(model, head=...): {', '.join(map(repr, NAMES))}; else "
        "run the base model, and pool its states with nopad.model.pooled"
    )


@cache
def _tables() -> dict[str, str]:
    """Return ``{class name: head name}``, made of the tables of transformers' Auto classes."""
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    for table, head in TABLES.items():
        listed = getattr(modeling_auto, f"MODEL_{'FOR_' if table else ''}{table}_MAPPING_NAMES".replace("__", "_"), {})
        for names in listed.values():
            for name in [names] if isinstance(names, str) else names:
                found.setdefault(name, head)
    return found
