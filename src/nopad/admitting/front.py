"""`packed`: make a transformers model pack-safe; a model whose type is in no table is proven on a small copy first."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Literal, TypeVar

from transformers import PreTrainedModel

from nopad.admitting.changed import check_changes
from nopad.admitting.memory import recall, recall_wrapper, remember, remember_wrapper
from nopad.admitting.proof import Proof, prove
from nopad.admitting.wrapping import prove_wrapper
from nopad.errors import OptionError, UnsupportedModelError
from nopad.model import safety
from nopad.model.families import FAMILIES, FRONTS, IMAGES, PAIRS
from nopad.model.known import NAMES, class_of, is_stock
from nopad.model.own import foreign, refuse_scripted
from nopad.model.refused import REFUSED
from nopad.model.safety import bare, is_packed, outermost
from nopad.model.wrapper_parts import Admitted, bases_of, wraps
from nopad.model.wrappers import wrap
from nopad.options import check_choice, shown

__all__ = ["packed", "proof_of"]

M = TypeVar("M")
Prove = Literal["cached", "always", "never"]
log = logging.getLogger("nopad")


def packed(
    model: M,
    *,
    backend: str = "auto",
    max_sequences: int | None = None,
    head: str | None = None,
    prove: Prove = "cached",
) -> M:
    """Make a model pack-safe, in place; the same object is returned.

    Called with a `PackedBatch`, a pack-safe model gives each sequence the result that it would get alone. nopad has
    tables of model types. A model of another type, or with classes of your own, is proven first: nopad builds a small
    copy of the same classes and configuration, derives from it how sequences can be kept apart, and audits the copy on
    packs. This takes some seconds. The verdict is remembered in ``~/.cache/nopad`` (or ``$XDG_CACHE_HOME/nopad``) until
    something changes on which it depends, such as the classes' source, the configuration, the versions of Python, torch
    and transformers, or nopad's code. It is not remembered if classes of your own have no source file (a notebook).

    Args:
        model: a transformers model, bare or with a head, also inside PEFT; or a module of your own (`nn.Module`) that
            holds one such model, which is proven as a whole.
        backend: how attention keeps sequences apart. "segments": one SDPA call per sequence; "varlen": PyTorch's
            variable-length flash kernel; "mask": a dense mask over whole rows; "repack": one padded row per sequence;
            "flex": FlexAttention with a block mask; "auto": `segments` on a CPU. On other devices, "auto" is
            `varlen` for flat batches in half precision on a CUDA GPU that the kernel supports, with `segments` in
            layers that the kernel does not support. Otherwise it is `repack` if sequences may go on in the next row
            (rows filled end to end), else `mask`. For models with attention of their own (DeBERTa), "auto" is never
            `varlen`; if their layers are compiled, it is `mask` on all devices.
        max_sequences: the most sequences that a batch may have; a batch with more is refused. None: unlimited. Heads
            that give a result per sequence need this limit for calls with static shapes (`nopad.model.static_inputs`).
        head: the kind of head, if the model's class is your own. "tokens": one result per token; "causal": the same,
            with labels that the model shifts; "classification": one result per sequence; "answers": start_logits and
            end_logits of question answering. None: nopad finds it out, and proves it. A call whose results contradict
            the kind of head raises an error.
        prove: "cached": models that are in no table are proven, and the verdict is remembered. "always": the same, but
            the proof is done again now, and model types that nopad's tables refuse are tried too. "never": models that
            are in no table, and modules of your own around a model, are refused; for a `PreTrainedModel` of your own
            around a base model of the tables, `head` is believed without a proof. Except with "never", a model with
            hooks or forward methods of your own is tried: it runs on a few sequences, alone and in packs.

    Raises:
        UnsupportedModelError: sequences of this model cannot be kept apart, or the proof failed; the message names the
            reason, such as the first layer that differs.
        OptionError: `backend`, `head` or `prove` has an unknown value; the class is known to have another head, or the
            proof of your own module around a model found another; `max_sequences` is not an integer of at least 1; the
            model, or a part of it, is already pack-safe; it is not a transformers model; or it has attention of its own
            that runs sequence by sequence, and `backend` is neither "auto" nor "segments".
        MemoryError, torch.OutOfMemoryError: a trial run of a model with hooks or forward methods of your own needs too
            much memory.

    >>> import nopad, torch
    >>> from transformers import BertConfig, BertModel
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(BertModel(BertConfig(**sizes)).eval())
    >>> batch = nopad.PackedBatch.from_sequences([[101, 7, 102], [101, 102]])
    >>> states = batch.unpack_tokens(model(**batch).last_hidden_state)
    >>> alone = model(torch.tensor([[101, 7, 102]])).last_hidden_state
    >>> torch.allclose(states[0], alone[0], atol=1e-6)
    True
    """
    check_choice("prove", prove, Prove)
    if head is not None and not (isinstance(head, str) and head in NAMES):
        raise OptionError(f"unknown head {shown(head)}; there are {', '.join(NAMES)}")
    whole = outermost(model)
    refuse_scripted(whole)
    if wraps(whole):
        _wrapped(whole, backend, max_sequences, head, prove)
        return model
    inner = bare(model)
    if is_packed(model) or _in_tables(inner, prove):
        safety.packed(model, backend=backend, max_sequences=max_sequences, head=head)
        if prove != "never":
            check_changes(inner)
        return model
    proof = proof_of(inner, head, again=prove == "always")
    if not proof.admitted:
        raise UnsupportedModelError(
            f"{proof.model} of type {proof.kind!r} {_why_proven(inner)}, and the proof that its sequences can be "
            f"kept apart failed: {proof.reason}"
        )
    named = None if is_stock(class_of(inner)) else proof.head
    safety.packed(model, backend=backend, max_sequences=max_sequences, head=named, family=proof.of(inner))
    safety.state_of(inner).admitted = None if named is None else proof.covers
    check_changes(inner)
    return model


def _wrapped(whole: Any, backend: str, max_sequences: int | None, head: str | None, prove: Prove) -> None:
    """Make `whole`, the user's own module around a model, pack-safe in place, after a proof.

    `backend` is the attention backend, `max_sequences` the most sequences of a batch (None: unlimited), and `head` the
    kind of head that the user names (None: the proof decides). A remembered proof is used unless `prove` is "always".

    Raises:
        UnsupportedModelError: the proof of the module failed, `prove` is "never", or the model inside is refused.
        OptionError: the module or the model inside is pack-safe already, `head` contradicts the proof, or the model
            inside cannot use this backend or limit of sequences.
    """
    name, (place, base) = type(whole).__name__, next(iter(bases_of(whole).items()))
    kind = type(base).__name__
    if is_packed(whole):
        raise OptionError(f"this {name} is pack-safe already; nopad.unpacked(model) undoes it")
    if prove == "never":
        raise UnsupportedModelError(
            f"{name} is a module of your own around {kind}, which only a proof can admit (prove='cached'); or make "
            f"that pack-safe by itself, nopad.packed(model.{place}), if all that is computed from its "
            "states is per token"
        )
    if is_packed(base):
        raise OptionError(
            f"{place} of this {name} is pack-safe by itself; undo it, nopad.unpacked(model.{place}), and make the "
            "whole so"
        )
    proof = None if prove == "always" else recall_wrapper(whole, base)
    if proof is None:
        proof = prove_wrapper(whole, packed)
        remember_wrapper(whole, base, proof)
    log.info(str(proof))
    if proof.admitted is None:
        raise UnsupportedModelError(
            f"{name} is a module of your own around {kind}, and the proof that sequences can be kept apart in it "
            f"failed: {proof.reason}"
        )
    _check_head(name, head, proof.admitted)
    wrap(whole, proof.admitted, partial(packed, backend=backend, max_sequences=max_sequences, prove=prove))


def _check_head(name: str, head: str | None, admitted: Admitted) -> None:
    """Check that the kind of head that the user names, `head`, does not contradict the proof of a wrapper.

    `name` is the wrapper's class, for the message. `admitted` is what the proof found. `head` None never contradicts.

    Raises:
        OptionError: `head` contradicts the proof; "answers" (question answering) always does.
    """
    per_token = "causal" if head == "causal" else "tokens"  # without labels, nothing tells the two apart
    found = admitted.labels or ("classification" if admitted.sequences else per_token)
    if head is not None and (head == "answers" or head != found):
        raise OptionError(
            f"{name} has no head {head!r}: by its proof it gives "
            f"{NAMES[found] if found in NAMES and found != 'answers' else NAMES['tokens']}; leave head out"
        )


def proof_of(model: Any, head: str | None = None, again: bool = False) -> Proof:
    """Return the proof of a transformers model: the remembered one; if there is none, or with `again`, a new one.

    The proof is logged, and a new one is remembered if possible (`nopad.admitting.memory`). If the model is refused, no
    error is raised: `Proof.admitted` is False and `Proof.reason` says why.

    Args:
        model: the model, without wrappers; it is not run, and may be on the device "meta".
        head: the kind of head that the user names: "tokens", "causal", "classification" or "answers"; None: it is
            found out.
        again: do the proof again even if one is remembered.

    nopad's tables refuse LayoutLM (`nopad.model.refused`). A proof admits it: its attention modules run on each
    sequence by itself.

    >>> import torch
    >>> from nopad.admitting import proof_of
    >>> from transformers import LayoutLMConfig, LayoutLMModel
    >>> with torch.device("meta"):
    ...     model = LayoutLMModel(LayoutLMConfig())
    >>> proof = proof_of(model)
    >>> proof.admitted, proof.family.mixers
    (True, ('LayoutLMSelfAttention',))
    """
    proof = None if again else recall(model, head)
    if proof is None:
        proof = prove(model, head)
        remember(model, head, proof)
    log.info(str(proof))
    return proof


def _why_proven(model: Any) -> str:
    """Return the reason why a model needs a proof, as a part of a sentence for messages."""
    if is_stock(class_of(model)) and (own := foreign(model)):
        return f"has modules of your own ({', '.join(kind.__name__ for kind in own.values())})"
    return "is in no table of nopad"


def _in_tables(model: Any, prove: Prove) -> bool:
    """Return whether a model is made pack-safe, or refused, by nopad's tables alone, without a proof.

    It is so in these cases:

    * `prove` is "never"
    * `model` is no `PreTrainedModel`: the next step then raises the right error
    * the tables refuse the model's type, and `prove` is not "always"
    * the tables have the type among those that take images
    * the tables have the type, the model's class is one that transformers exports, and no module inside the model has a
      class of the user's own
    """
    if prove == "never" or not isinstance(model, PreTrainedModel):
        return True
    kind = getattr(model.config, "model_type", "") or type(model.config).__name__
    if kind in REFUSED:
        return prove != "always"
    if kind in FRONTS or kind in IMAGES:
        return True
    return (kind in FAMILIES or kind in PAIRS) and is_stock(class_of(model)) and not foreign(model)
