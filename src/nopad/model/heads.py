"""Results per sequence from the model's own heads: each is handed its sequence's states, where it would take a row's.

Heads that speak per token (masked and causal language models, token classification) keep the layout of the batch:
`PackedBatch.unpack` splits it. Heads that pool give ``[S, ...]``. Question answering gives ``[S, longest]``, and what
is behind a sequence's end is minus infinity, so no other sequence's token can be an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nopad.errors import BatchError, UnsupportedModelError
from nopad.model.calls import Call
from nopad.model.families import Family
from nopad.model.last_token import eos_tokens, last_tokens, static_last_tokens

if TYPE_CHECKING:
    from nopad.batch.device import Placement

__all__ = ["Causal", "Head", "head_of", "pooled"]

IGNORED = -100


class Head:
    """What a model does with its states. This one leaves them as they are: base models, and heads per token."""

    per_token: tuple[str, ...] = ("labels",)
    per_sequence: tuple[str, ...] = ("next_sentence_label",)
    by_token = True  # what comes out is per token, and so are the labels
    most: int | None = None  # sequences of a batch

    def __init__(self, model: Any, family: Family) -> None:
        self.model, self.family = model, family

    def install(self, state: Any) -> list[Any]:
        """Hook what pools; `state` knows the call under way."""
        handles = []
        if self.family.pooler is not None:
            for name, module in self.model.named_modules():
                if name.rpartition(".")[2] == self.family.pooler[0]:
                    handles += self._feed(state, module, self.family.pooler[1])
        return handles

    def enter(self, call: Call, named: dict[str, Any]) -> None:
        """Check labels, and take those away that the model itself would get wrong."""
        target = call.target or call.placed
        for name in self.per_token:
            _check_shape(named, name, [target.layout.shape])
        for name in self.per_sequence:
            _check_shape(named, name, [(call.placed.layout.sequences,)])
        if self.family.pooled == "eos":
            call.seen["eos"] = eos_tokens(self.model.config, named["input_ids"], call.placed)

    def leave(self, call: Call, output: Any) -> Any:
        """Put the output right."""
        if "eos" in call.seen:
            states = output["last_hidden_state"]
            output["pooler_output"] = states.reshape(-1, states.shape[-1])[call.seen["eos"]]
        return output

    def static_labels(self, labels: Tensor, positions: Tensor) -> Tensor:
        """Put labels right in a call of static shapes."""
        return labels

    def leave_static(self, state: Any, output: Any) -> Any:
        """Put the output of a call of static shapes right."""
        if "pooler_output" in (output or ()) and (self.most is None or self.family.pooled == "eos"):
            output["pooler_output"] = None  # it is a row's
        if "seq_relationship_logits" in (output or ()) and self.most is None:
            output["seq_relationship_logits"] = None
        return output

    def _feed(self, state: Any, module: nn.Module, dims: int) -> list[Any]:
        """Hand a module each sequence's pooled states: ``[S, 1, H]`` (3) or ``[S, H]`` (2)."""
        handles = [module.register_forward_pre_hook(_Feed(state, self, dims))]
        if dims == 2:
            base = getattr(self.model, self.model.base_model_prefix, self.model)
            inner = getattr(base, "encoder", base) if module is getattr(base, "pooler", None) else base
            handles.append(inner.register_forward_hook(_Keep(state, "hidden", first=True)))
        return handles

    def pooling(self) -> str:
        """From which tokens a sequence's result is read."""
        if self.family.pooled == "config":
            how = str(self.model.config.classifier_pooling)
            return "first" if how in ("cls", "bos") else how
        return self.family.pooled


class _Classifier(Head):
    """One result a sequence, from pooled states."""

    per_token = ()
    by_token = False

    def install(self, state: Any) -> list[Any]:
        handles = super().install(state)
        if self.family.head is not None:
            name, dims = self.family.head
            handles += self._feed(state, getattr(self.model, name), dims)
        return handles

    def enter(self, call: Call, named: dict[str, Any]) -> None:
        s, n = call.placed.layout.sequences, self.model.config.num_labels
        _check_shape(named, "labels", [(s,), (s, n)] if n > 1 else [(s,), (s, 1)])


class _LastToken(Head):
    """One result a sequence, of a model that scores every token and then reads one of a row, or the mean (EuroBERT)."""

    per_token = ()
    by_token = False

    def install(self, state: Any) -> list[Any]:
        return [
            getattr(self.model, "score" if hasattr(self.model, "score") else "classifier").register_forward_hook(
                _Keep(state, "logits")
            )
        ]

    def enter(self, call: Call, named: dict[str, Any]) -> None:
        s, n = call.placed.layout.sequences, self.model.config.num_labels
        _check_shape(named, "labels", [(s,), (s, n)] if n > 1 else [(s,), (s, 1)])
        call.labels = {"labels": named.pop("labels", None)}
        if self.pooling() == "last":
            call.seen["last"] = last_tokens(
                self.model.config, named.get("input_ids"), call.placed, self.family.pads_inside
            )
        if (
            self.pooling() == "last"
            and self.model.config.get_text_config().pad_token_id is None
            and call.placed.layout.shape[0] > 1
        ):
            raise BatchError(
                "this model classifies several rows only with config.pad_token_id set; set it, or use flat"
            )

    def leave(self, call: Call, output: Any) -> Any:
        from transformers.loss.loss_utils import ForSequenceClassificationLoss

        scores = call.seen["logits"]
        if self.pooling() == "last":
            logits = scores.reshape(-1, scores.shape[-1])[call.seen["last"]]
        else:
            logits = pooled(scores, call.placed, "mean")
        output["logits"] = logits
        labels = call.labels["labels"]
        if labels is not None:
            _settle_problem(self.model, labels)
            output["loss"] = ForSequenceClassificationLoss(labels, logits, self.model.config)
        return _in_order(output)

    def leave_static(self, state: Any, output: Any) -> Any:
        if self.most is not None:
            static = state.static
            at = static_last_tokens(self.model.config, static.tokens, static.ids, self.most)
            output["logits"] = static.kept.reshape(-1, static.kept.shape[-1])[at]
        return output


class Causal(Head):
    """A causal language model: no sequence is to predict the first token of the next one."""

    def enter(self, call: Call, named: dict[str, Any]) -> None:
        """Take labels of first tokens out, and refuse those that a row's own shift would get wrong."""
        super().enter(call, named)
        labels = named.get("labels")
        if labels is not None and call.placed.layout.crossing:
            raise BatchError(
                "the model's own loss shifts labels within rows, and these rows are filled end to end, so the first "
                "token of a row would go unpredicted; take labels out and use nopad.losses.token_loss(causal=True)"
            )
        if labels is not None and call.target is None:
            counted = labels.reshape(-1)[call.placed.first] != IGNORED
            if named.get("num_items_in_batch") is not None and bool(counted.any()):
                raise BatchError(
                    "labels of first tokens are in the number of items that the loss is divided by, and nothing "
                    "predicts them; build the batch with causal=True"
                )
            named["labels"] = labels.reshape(-1).index_fill(0, call.placed.first, IGNORED).reshape(labels.shape)

    def static_labels(self, labels: Tensor, positions: Tensor) -> Tensor:
        """The same in a call of static shapes."""
        return labels.masked_fill(positions == 0, IGNORED)


class _Answers(Head):
    """Question answering: where an answer begins and ends in each sequence."""

    per_token = ()
    per_sequence = ("start_positions", "end_positions")
    by_token = False

    def enter(self, call: Call, named: dict[str, Any]) -> None:
        super().enter(call, named)
        call.labels = {name: named.pop(name, None) for name in self.per_sequence}

    def leave(self, call: Call, output: Any) -> Any:
        placed = call.placed
        losses = []
        for side in ("start", "end"):
            name = f"{side}_logits"
            output[name] = placed.to_padded(placed.stream(output[name]), fill=-torch.inf)
            wanted = call.labels[f"{side}_positions"]
            if wanted is not None:
                # A position beyond the sequence is no answer, as in transformers; there is nothing to learn from it.
                inside = wanted.clamp(min=0)
                inside = inside.masked_fill(inside >= placed.lens, IGNORED)
                losses.append(cross_entropy(output[name], inside, ignore_index=IGNORED))
        if len(losses) == 2:
            output["loss"] = (losses[0] + losses[1]) / 2
        return _in_order(output)

    def leave_static(self, state: Any, output: Any) -> Any:
        if self.most is not None:
            for name in ("start_logits", "end_logits"):
                output[name] = _static_padded(output[name], state.static.ids, self.most)
        return output


HEADS: dict[str, Callable[[Any, Family], Head]] = {
    "ForSequenceClassification": _Classifier,
    "ForTokenClassification": Head,
    "ForQuestionAnswering": _Answers,
    "ForMaskedLM": Head,
    "ForPreTraining": Head,
    "ForNextSentencePrediction": _Classifier,
    "ForCausalLM": Causal,
    "LMHeadModel": Causal,
    "ForConditionalGeneration": Head,
    "EncoderModel": Head,
    "Model": Head,
}


def head_of(model: Any, family: Family) -> Head:
    """Return what is done with a model's results, by the name of its class.

    Raises:
        UnsupportedModelError: nothing is known of this head.
    """
    name = type(model).__name__
    kind = next((kind for kind in HEADS if name.endswith(kind)), None)
    if kind is None:
        raise UnsupportedModelError(
            f"{name} has a head of which nothing is known; known are {', '.join(HEADS)}: use the base model, and pool "
            "its states with nopad.model.heads.pooled"
        )
    late = family.pooled == "config" and model.config.classifier_pooling == "late"
    if kind == "ForSequenceClassification" and (late or family.head in (("score", 0), ("classifier", 0))):
        return _LastToken(model, family)
    return HEADS[kind](model, family)


def pooled(states: Tensor, placed: Placement, how: str) -> Tensor:
    """Pool ``[R, L, ...]`` to ``[S, ...]``: the "first" or "last" token of each sequence, or the "mean" of all.

    Raises:
        BatchError: another way.
    """
    flat = states.reshape(-1, *states.shape[2:])
    if how == "first":
        return flat[placed.first]
    if how == "last":
        return flat[placed.last]
    if how == "mean":
        stream = placed.stream(states)
        lens = placed.lens
        number = torch.repeat_interleave(torch.arange(lens.numel(), device=lens.device), lens)
        total = stream.new_zeros(lens.numel(), *stream.shape[1:]).index_add(0, number, stream)
        return total / lens.reshape(-1, *[1] * (total.dim() - 1)).to(total.dtype)
    raise BatchError(f"unknown pooling {how!r}; it is 'first', 'last' or 'mean'")


def static_pooled(states: Tensor, ids: Tensor, most: int, how: str) -> Tensor:
    """The same of sequence numbers ``[R, 1, 1, L]``, in shapes that depend on no batch: ``[most, ...]``.

    Results beyond the last sequence mean nothing.
    """
    flat = states.reshape(-1, *states.shape[2:])
    mine = _mine(ids, most)
    if how == "mean":
        shares = mine.to(flat.dtype) / mine.sum(1, keepdim=True).clamp(min=1).to(flat.dtype)
        return (shares @ flat.reshape(flat.shape[0], -1)).reshape(most, *flat.shape[1:])
    if how == "first":
        return flat[mine.int().argmax(1)]
    return flat[mine.shape[1] - 1 - mine.flip(1).int().argmax(1)]


def _mine(ids: Tensor, most: int) -> Tensor:
    """Which slots belong to each sequence; bool ``[most, R x L]``."""
    numbers = torch.arange(1, most + 1, device=ids.device, dtype=ids.dtype)
    return ids.reshape(1, -1) == numbers[:, None]


def _static_padded(values: Tensor, ids: Tensor, most: int) -> Tensor:
    """``[R, L]`` to ``[most, L]``: each sequence from slot 0 on, minus infinity behind it."""
    mine = _mine(ids, most)
    places = torch.arange(ids.shape[-1], device=ids.device) + mine.int().argmax(1)[:, None]
    places = places.clamp(max=mine.shape[1] - 1)
    return values.reshape(-1)[places].masked_fill(~mine.gather(1, places), -torch.inf)


@dataclass
class _Feed:
    """A hook that hands a module each sequence's pooled states. Hooks are objects: a copied model copies them too."""

    state: Any
    head: Head
    dims: int

    def __call__(self, module: nn.Module, args: Any) -> Any:
        state, head, most = self.state, self.head, self.head.most
        call, ids = state.call, state.static.ids
        if call is not None:
            found = pooled(call.seen["hidden"] if self.dims == 2 else args[0], call.placed, head.pooling())
        elif ids is not None and most is not None:
            found = static_pooled(state.static.kept if self.dims == 2 else args[0], ids, most, head.pooling())
        else:
            return None
        return (found if self.dims == 2 else found[:, None], *args[1:])


@dataclass
class _Keep:
    """A hook that keeps what a module gives, for the head."""

    state: Any
    name: str
    first: bool = False

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        kept = output[0] if self.first else output
        if self.state.call is not None:
            self.state.call.seen[self.name] = kept
        elif self.state.static.ids is not None:
            self.state.static.kept = kept


def _check_shape(named: dict[str, Any], name: str, wanted: list[tuple[int, ...]]) -> None:
    value = named.get(name)
    if value is not None and tuple(value.shape) not in wanted:
        raise BatchError(
            f"{name} have the shape {list(value.shape)}; wanted {' or '.join(str(list(shape)) for shape in wanted)}"
        )


def _settle_problem(model: Any, labels: Tensor) -> None:
    """Say what kind of problem it is, as transformers does when the user has not."""
    if model.config.problem_type is None:
        many = "single_label_classification" if not labels.is_floating_point() else "multi_label_classification"
        model.config.problem_type = "regression" if model.config.num_labels == 1 else many


def _in_order(output: Any) -> Any:
    """Put a loss that came last to the front, where tuples have it."""
    if "loss" not in output or output["loss"] is None:
        return output
    return type(output)(**{"loss": output["loss"], **{k: v for k, v in output.items() if k != "loss"}})
