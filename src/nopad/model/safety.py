"""`packed` makes a transformers model pack-safe by registries and hooks, without copying code; `unpacked` undoes it.

The model stays the same object with the same parameters and `state_dict`, and ordinary calls work as before. When it is
called with a `PackedBatch`, every sequence gets the result it would get alone:

* the outermost hook takes the layout from the batch's `attention_mask`, checks that batch and model fit, and converts
  positions (`nopad.model.state`);
* where the base model (or its encoder) begins, a hook replaces the mask by one that carries the layout to each layer's
  attention (`nopad.model.hooks`);
* where a head pools, it gets each sequence's states instead of each row's (`nopad.model.heads`);
* at the end the output is checked, and an error is raised if a hook or an attention layer did not run as it should
  (`nopad.model.postconditions`).
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from nopad.errors import OptionError, UnsupportedModelError
from nopad.model.backends import BACKENDS
from nopad.model.families import Family, family_of
from nopad.model.heads import head_of
from nopad.model.own import refuse_scripted
from nopad.model.state import State
from nopad.options import Option, shown

__all__ = ["bare", "facts_of", "is_packed", "outermost", "packed", "state_of", "unpacked"]

M = TypeVar("M")

STATE = "_nopad_state"
MOST = Option(default=None, none=True, help="most sequences of a batch")


def packed(
    model: M,
    *,
    backend: str = "auto",
    max_sequences: int | None = None,
    head: str | None = None,
    family: Family | None = None,
) -> M:
    """Make a model pack-safe, in place; the same object is returned.

    Called with a `PackedBatch`, a pack-safe model gives each sequence the result that it would get alone. This function
    takes the models of nopad's tables only; `nopad.packed` also proves models of other types.

    Args:
        model: a transformers model, bare or with a head, also inside PEFT.
        backend: how attention keeps sequences apart. "segments": one SDPA call per sequence; "varlen": PyTorch's
            variable-length flash kernel; "mask": a dense mask over whole rows; "repack": one padded row per sequence;
            "flex": FlexAttention with a block mask; "auto": `segments` on a CPU. On other devices, "auto" is
            `varlen` for flat batches in half precision on a CUDA GPU that the kernel supports, with `segments` in
            layers that the kernel does not support. Otherwise it is `repack` if sequences may go on in the next row
            (rows filled end to end), else `mask`. For models with attention of their own (DeBERTa), "auto" is never
            `varlen`; if their layers are compiled, it is `mask` on all devices.
        max_sequences: the most sequences that a batch may have; a batch with more is refused. None: unlimited. Heads
            with a result per sequence need this limit for calls with static shapes (`nopad.model.static_inputs`).
        head: the kind of head, needed only if the model's class is your own. "tokens": one result per token; "causal":
            the same, with labels that the model shifts; "classification": one result per sequence, read from the same
            token or mean as in transformers' own classes of this model type; "answers": start_logits and end_logits of
            question answering. A call whose results have shapes that contradict this raises an error.
        family: the facts about a model whose type no table has (`nopad.model.families.Family`); None: those of the
            table.

    Raises:
        UnsupportedModelError: sequences of this model cannot be kept apart, or nopad does not know the model.
        OptionError: there is no such backend or head; the class is known to have another head; `max_sequences` is not
            an integer of at least 1; the model, or a part of it, is already pack-safe; it is not a transformers model;
            or the model has attention of its own that runs sequence by sequence, and `backend` is neither "auto" nor
            "segments".

    >>> import nopad, torch
    >>> from nopad.model import packed
    >>> from transformers import BertConfig, BertModel
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = packed(BertModel(BertConfig(**sizes)).eval())
    >>> batch = nopad.PackedBatch.from_sequences([[101, 7, 102], [101, 102]])
    >>> states = batch.unpack_tokens(model(**batch).last_hidden_state)
    >>> alone = model(torch.tensor([[101, 7, 102]])).last_hidden_state
    >>> torch.allclose(states[0], alone[0], atol=1e-6)
    True
    """
    if not isinstance(backend, str) or backend not in ("auto", *BACKENDS):
        raise OptionError(f"unknown backend {shown(backend)}; there are auto, {', '.join(BACKENDS)}")
    max_sequences = MOST.check("max_sequences", max_sequences)
    inner = bare(model)
    refuse_scripted(inner)
    if hasattr(inner, STATE):
        raise OptionError(f"this {type(inner).__name__} is pack-safe already; nopad.unpacked(model) undoes it")
    parts = [name for name, part in inner.named_modules() if name and STATE in vars(part)]
    if parts:
        raise OptionError(
            f"{parts[0]} of this {type(inner).__name__} is pack-safe by itself; undo it, nopad.unpacked(model."
            f"{parts[0]}), and make the whole model so"
        )
    family = family_of(inner.config) if family is None else family
    if family.route == "mixers" and backend not in ("auto", "segments"):
        raise OptionError(
            f"{type(inner).__name__} has attention of its own, which is run sequence by sequence; {backend!r} is no "
            "way to run it: take 'segments', or leave backend out"
        )
    state = State(inner, family, backend, head_of(inner, family, head), max_sequences)
    state.install()
    object.__setattr__(inner, STATE, state)
    return model


def unpacked(model: M) -> M:
    """Undo `packed`, in place; the same object is returned, without nopad's hooks and attention.

    Raises:
        OptionError: the model is not pack-safe.
        UnsupportedModelError: PEFT adds tokens to the model's input (prompt or prefix tuning); such a model is never
            pack-safe.

    >>> import nopad
    >>> from nopad.model import is_packed
    >>> from transformers import BertConfig, BertModel
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(BertModel(BertConfig(**sizes)))
    >>> is_packed(model), is_packed(nopad.unpacked(model))
    (True, False)
    """
    inner = outermost(model)
    state = getattr(inner, STATE, None)
    (state_of(model) if state is None else state).remove()  # `state_of` raises the error that says why
    object.__delattr__(inner, STATE)
    return model


def is_packed(model: Any) -> bool:
    """Return whether a model is pack-safe; `model` may also be a module of your own around a transformers model.

    Raises:
        OptionError: `model` neither is nor holds a transformers model.
        UnsupportedModelError: PEFT adds tokens to the model's input (prompt or prefix tuning).

    >>> import nopad
    >>> from nopad.model import is_packed
    >>> from transformers import BertConfig, BertModel
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = BertModel(BertConfig(**sizes))
    >>> is_packed(model), is_packed(nopad.packed(model))
    (False, True)
    """
    inner = outermost(model)
    return hasattr(inner if _holds_model(inner) else bare(model), STATE)


def state_of(model: Any) -> State:
    """Return the `State` that makes a model pack-safe.

    Raises:
        OptionError: the model is not pack-safe, is not a transformers model, or is a module of your own around one.
        UnsupportedModelError: PEFT adds tokens to the model's input (prompt or prefix tuning).
    """
    inner = outermost(model)
    state = getattr(inner, STATE, None)
    if isinstance(state, State):
        return state
    if state is not None:
        raise OptionError(
            f"this {type(inner).__name__} is a module of your own around a model, and pack-safe in calls, "
            "model(**batch); here a model of transformers itself is needed"
        )
    name = type(inner if _holds_model(inner) else bare(model)).__name__
    raise OptionError(f"this {name} is not pack-safe; make it so with nopad.packed(model)")


def facts_of(model: Any) -> Family:
    """Return the facts about a model: those with which it was made pack-safe, else those in the tables for its type.

    Raises:
        UnsupportedModelError: the model is not pack-safe, and `family_of` refuses its type; or PEFT adds tokens to its
            input (prompt or prefix tuning).
        OptionError: `bare` finds no transformers model; or `model` is a module of your own around one, and pack-safe.
    """
    packs = getattr(bare(model), STATE, None) is not None
    return state_of(model).family if packs else family_of(bare(model).config)


def bare(model: Any) -> Any:
    """Return the transformers model inside wrappers of PEFT, DDP, DataParallel and torch.compile.

    Raises:
        OptionError: there is no transformers model inside.
        UnsupportedModelError: PEFT adds tokens to the model's input (prompt or prefix tuning).
    """
    seen = outermost(model)
    if not isinstance(seen, nn.Module) or not hasattr(seen, "config"):
        own = (
            "; a module of your own around one is proven by nopad.packed, and its training audited by nopad.audit_step"
            if isinstance(seen, nn.Module)
            else ""
        )
        raise OptionError(f"{type(model).__name__} is no transformers model; give one, bare or wrapped by PEFT{own}")
    return seen


def outermost(model: Any) -> Any:
    """Return what is inside wrappers of PEFT, DDP, DataParallel and torch.compile: a model, or a module around one.

    Raises:
        UnsupportedModelError: PEFT adds tokens to the model's input (prompt or prefix tuning).
    """
    seen = model
    while True:
        if hasattr(seen, "get_base_model"):
            if any(getattr(one, "is_prompt_learning", False) for one in getattr(seen, "peft_config", {}).values()):
                raise UnsupportedModelError(
                    f"{type(seen).__name__} puts tokens of its own before each row (prompt or prefix tuning), which "
                    "packs have no room for; run its sequences padded"
                )
            seen = seen.get_base_model()
        elif hasattr(seen, "_orig_mod"):
            seen = seen._orig_mod
        elif isinstance(seen, nn.parallel.DistributedDataParallel | nn.DataParallel):
            seen = seen.module
        else:
            return seen


def _holds_model(module: Any) -> bool:
    """Return whether a module is a transformers model, or holds one."""
    from transformers import PreTrainedModel

    return isinstance(module, nn.Module) and any(isinstance(one, PreTrainedModel) for one in module.modules())
