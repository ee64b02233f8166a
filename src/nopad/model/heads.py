"""Get results per sequence from a model's own heads, by giving them pooled states per sequence instead of per row.

Heads with one result per token (masked and causal language models, token classification) keep the layout of the batch;
`PackedBatch.unpack_tokens` splits their results. Heads that pool give ``[S, ...]``, in the order in which sequences
were given. Question answering gives ``[S, longest]``; logits after a sequence's end are minus infinity, so no token of
another sequence can be an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nopad.errors import BatchError, UnsupportedModelError
from nopad.model.calls import Call, Cell
from nopad.model.families import Family
from nopad.model.hooks import Feed, Hook, Keep, unwrapped
from nopad.model.known import class_of, head_name, is_stock
from nopad.model.last_token import eos_tokens, last_tokens, static_last_tokens
from nopad.model.pooling import last_true, mine, pool
from nopad.model.vocabulary import LabelledOnly, output_embeddings
from nopad.sequences import IGNORED

__all__ = ["Causal", "Head", "head_of"]


class Head:
    """A model's head: what it takes and gives in packed calls. This base class is for heads with one result per token.

    It also stands for a model without a head. R, L and S in shapes are rows, slots per row, and sequences of the batch.

    Attributes:
        model, family: the transformers model, and the facts about its model type.
        name: the head's name, one of `nopad.model.known.NAMES`.
        gives: "token" or "sequence": what one entry of the logits belongs to.
        stock: whether the model is one of transformers' own classes; other classes are checked more strictly.
        per_token, per_sequence: names of the arguments that hold labels per token, and labels per sequence.
    """

    name = "tokens"
    gives = "token"
    per_token: tuple[str, ...] = ("labels",)
    per_sequence: tuple[str, ...] = ("next_sentence_label", "sentence_order_label")

    def __init__(self, model: Any, family: Family, stock: bool = True) -> None:
        self.model, self.family, self.stock = model, family, stock

    @property
    def one_row(self) -> bool:
        """Whether the model accepts only calls with one row."""
        return False

    @property
    def by_token(self) -> bool:
        """Whether the logits, and so the labels, are per token."""
        return self.gives == "token"

    @property
    def pools(self) -> bool:
        """Whether the model returns something per sequence, such as logits or the `pooler_output` of a base model."""
        return not self.by_token or self.family.pooled == "eos" or any(True for _ in self._poolers())

    @property
    def base(self) -> Any:
        """The base model, without the head. It is looked up at each access, since it may be replaced."""
        return getattr(self.model, self.model.base_model_prefix, self.model)

    def hooks(self, cell: Cell) -> Iterator[tuple[nn.Module, Hook]]:
        """Yield (module, hook) pairs: each hook that this head needs, with the module on which it runs.

        Raises:
            UnsupportedModelError: a module was replaced by one that nopad does not know.
        """
        for name, dims, module, inner in self._poolers():
            yield from self._feed(cell, name, module, dims, inner)
        vocabulary = output_embeddings(self.model) if self.by_token else None
        if vocabulary is not None:
            yield vocabulary, LabelledOnly(cell, "output embeddings")

    def _poolers(self) -> Iterator[tuple[str, int, nn.Module, nn.Module]]:
        """Yield ``(name, dims, pooler, inner)`` for each pooler of the base model and of the model.

        `name` is the attribute with the pooler. In a packed call, the pooler gets one pooled state per sequence, in a
        tensor of `dims` dimensions. With `dims` 3, this tensor is ``[S, 1, H]``, pooled from the states ``[R, L, H]``
        that the model passes to the pooler. With `dims` 2, it is ``[S, H]``, pooled from the output of the module
        `inner`.
        """
        name, dims = self.family.pooler or ("", 0)
        for holder in dict.fromkeys((self.base, self.model)):
            module = getattr(holder, name, None) if name else None
            if isinstance(module, nn.Module):
                # In ALBERT the base model itself takes the first token of its encoder's states.
                yield name, dims, module, getattr(holder, "encoder", holder)

    def enter(self, call: Call, named: dict[str, Any]) -> None:
        """Check the shapes of the labels before the model runs; `named` are the model's arguments by name.

        For CLIP, this also stores in `call.seen` where each sequence's end-of-sequence token lies, as an index into the
        concatenated rows. Subclasses change or remove labels in `named` if the model would compute a wrong loss from
        them.

        Raises:
            BatchError: labels have another shape than the batch needs.
        """
        for name in self.per_token:
            _check_shape(named, name, [call.side.layout.shape])
        for name in self.per_sequence:
            _check_shape(named, name, [(call.placed.layout.sequences,)])
        if self.family.pooled == "eos":
            call.seen["eos"] = eos_tokens(self.model.config, named["input_ids"], call.placed)

    def leave(self, call: Call, output: Any) -> Any:
        """Replace results per row in `output` by results per sequence, in place; return `output`.

        This class replaces only the `pooler_output` of CLIP.
        """
        if "eos" in call.seen:
            states = output["last_hidden_state"]
            output["pooler_output"] = states.reshape(-1, states.shape[-1])[call.seen["eos"]]
        return output

    def enter_static(self, named: Mapping[str, Any]) -> None:
        """Check the arguments of a call with static shapes (`nopad.model.static_inputs`); this class accepts all."""

    def static_labels(self, labels: Tensor, positions: Tensor) -> Tensor:
        """Return labels per token, ``[R, L]``, as the model must get them in a call with static shapes.

        This class returns `labels` unchanged. `positions` ``[R, L]`` are the positions of the tokens in their
        sequences, from 0, with 0 in padding.
        """
        return labels

    def leave_static(self, cell: Cell, output: Any) -> Any:
        """Set wrong results in the output of a call with static shapes to None, in place; return the output.

        `cell.most` is the largest number of sequences in a batch. If it is None, `pooler_output`,
        `seq_relationship_logits` and `sop_logits` are wrong, since they were computed per row. If it is a number, only
        CLIP's `pooler_output` is wrong.
        """
        for name in ("pooler_output", "seq_relationship_logits", "sop_logits"):
            unread = cell.most is None or (name == "pooler_output" and self.family.pooled == "eos")
            if name in (output or ()) and unread:
                output[name] = None  # computed per row, so meaningless
        return output

    def _feed(
        self, cell: Cell, role: str, module: nn.Module, dims: int, inner: nn.Module
    ) -> Iterator[tuple[nn.Module, Hook]]:
        """Yield (module, hook) pairs; with these hooks, `module` gets one pooled state per sequence.

        With `dims` 3, `module` gets ``[S, 1, H]``, pooled from its own input. With `dims` 2, it gets ``[S, H]``, pooled
        from the output of `inner`. `role` is a name for `module`: its runs are counted under this name, and error
        messages have it. `cell` is the state that the model's hooks share.

        Raises:
            UnsupportedModelError: `dims` is 3, and the module's class is neither one of transformers' own nor one of
                `Family.readers`.
        """
        reader = class_of(unwrapped(module))
        ours = reader.__module__.startswith("transformers.") or reader.__name__ in self.family.readers
        if dims == 3 and not ours:
            raise UnsupportedModelError(
                f"{role} of {type(self.model).__name__} is now a {reader.__name__}, and nopad does not know "
                "whether it reads only the first token, as transformers' own does; put that back, or run the base "
                "model and pool its states with nopad.model.pooled"
            )
        yield module, Feed(cell, role, dims=dims, stock=self.stock)
        if dims == 2:
            yield inner, Keep(cell, f"states before the {role}", name="hidden", first=True)

    def pooling(self) -> str:
        """Return how a sequence's result is made from its tokens, as one of five words.

        "first": from the state of its first token; "last": from that of its last token; "eos": from that of its first
        end-of-sequence token; "mean": from the mean of its tokens' states; "late": as the mean of its tokens' scores.
        """
        if self.family.pooled == "config":
            how = str(self.model.config.classifier_pooling)
            return "first" if how in ("cls", "bos") else how
        return self.family.pooled


class _Classifier(Head):
    """A head with one result per sequence, computed from pooled states."""

    name = "classification"
    gives = "sequence"
    per_token = ()

    def hooks(self, cell: Cell) -> Iterator[tuple[nn.Module, Hook]]:
        found = list(super().hooks(cell))
        if self.family.head is not None and isinstance(getattr(self.model, self.family.head[0], None), nn.Module):
            name, dims = self.family.head
            found += self._feed(cell, name, getattr(self.model, name), dims, self.base)
        if not any(isinstance(hook, Feed) for _, hook in found):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no part that nopad could hand each sequence's states, as it does for "
                "a classifier of transformers; run the base model, and pool its states with nopad.model.pooled"
            )
        yield from found

    def enter(self, call: Call, named: dict[str, Any]) -> None:
        _check_sequence_labels(self.model, call, named)


class _LastToken(Head):
    """A classifier that scores every token; a sequence's result is one token's score, or the mean score (EuroBERT)."""

    name = "classification"
    gives = "sequence"
    per_token = ()

    def hooks(self, cell: Cell) -> Iterator[tuple[nn.Module, Hook]]:
        assert self.family.head is not None
        name = next((one for one in ("score", "classifier") if hasattr(self.model, one)), self.family.head[0])
        module = getattr(self.model, name, None)
        if not isinstance(module, nn.Module):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no {name!r} that scores every token, as classifiers "
                "of transformers have; run the base model, and pool its states with nopad.model.pooled"
            )
        yield module, Keep(cell, name, name="logits")

    def enter(self, call: Call, named: dict[str, Any]) -> None:
        _check_sequence_labels(self.model, call, named)
        call.labels = {"labels": named.pop("labels", None)}
        if self.pooling() == "last":
            call.seen["last"] = last_tokens(
                self.model.config, named.get("input_ids"), call.placed, self.family.pads_inside
            )
        if self.one_row and call.placed.layout.shape[0] > 1:
            raise BatchError(
                "this model classifies several rows only with config.pad_token_id set; set it, or use nopad.Flat()"
            )

    @property
    def one_row(self) -> bool:
        """Whether the model accepts only one row: it reads the last token of each sequence, and has no pad id.

        Without a pad id, transformers cannot tell where padding begins in a row, and refuses several rows.
        """
        return self.pooling() == "last" and self.model.config.get_text_config().pad_token_id is None

    def leave(self, call: Call, output: Any) -> Any:
        from transformers.loss.loss_utils import ForSequenceClassificationLoss

        scores = call.seen["logits"]
        if tuple(scores.shape[:2]) != call.placed.layout.shape or not (self.stock or _takes_last(scores, call, output)):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} does not score every token and take the last one's, as classifiers of "
                "transformers do; run the base model, and pool its states with nopad.model.pooled"
            )
        if self.pooling() == "last":
            at = call.seen["last"]
            if not self.stock and not torch.equal(at, call.placed.last):
                raise BatchError(
                    f"a sequence ends with the pad id, and nopad cannot tell whether {type(self.model).__name__} reads "
                    "that token or the one before; take pad ids off the ends"
                )
            logits = scores.reshape(-1, scores.shape[-1])[at]
        else:
            logits = pool(scores, call.placed, "mean")
        output["logits"] = logits
        labels = call.labels["labels"]
        if labels is not None:
            _settle_problem(self.model, labels)
            output["loss"] = ForSequenceClassificationLoss(labels, logits, self.model.config)
        return _in_order(output)

    def leave_static(self, cell: Cell, output: Any) -> Any:
        kept, ids = cell.static.kept, cell.static.ids
        if cell.most is not None:
            assert kept is not None
            assert ids is not None
            at = static_last_tokens(self.model.config, cell.static.tokens, ids, cell.most)
            output["logits"] = kept.reshape(-1, kept.shape[-1])[at]
        return output


class Causal(Head):
    """The head of a causal language model, in which no sequence may predict the first token of the next one."""

    name = "causal"

    def enter(self, call: Call, named: dict[str, Any]) -> None:
        """Set the label of each sequence's first token to -100, if labels are given.

        A call is refused in these cases, since its loss would be wrong (``num_items_in_batch`` is the number by which
        the loss is divided):

        * labels are given, and rows are filled end to end. The model shifts labels within rows, so it would not predict
          the first token of a row.
        * labels and ``num_items_in_batch`` are given, and the first token of a sequence has a label. The number counts
          this label, but nothing predicts it.
        * ``num_items_in_batch`` is given without labels, and the batch was built without ``causal=True`` or is filled
          end to end. The loss is then computed outside of the model, where labels are shifted along rows.

        Raises:
            BatchError: the call is refused for one of these reasons, or labels have a wrong shape.
        """
        super().enter(call, named)
        labels, layout = named.get("labels"), call.placed.layout
        counts = named.get("num_items_in_batch") is not None
        if labels is None:
            if counts and (layout.crossing or not layout.causal):
                raise BatchError(
                    "num_items_in_batch was given and labels were not, so the loss is computed outside of the model "
                    "(label smoothing, compute_loss_func), where labels are shifted along rows, across the borders of "
                    "sequences; build the batch with causal=True, and not end to end"
                )
            return
        if layout.crossing:
            raise BatchError(
                "the model's own loss shifts labels within rows, and these rows are filled end to end, so the first "
                "token of a row would go unpredicted; take labels out and use nopad.losses.token_loss(causal=True)"
            )
        counted = labels.reshape(-1)[call.placed.first] != IGNORED
        if counts and bool(counted.any()):
            raise BatchError(
                "labels of first tokens are in the number of items that the loss is divided by, and nothing "
                "predicts them; build the batch with causal=True"
            )
        named["labels"] = labels.reshape(-1).index_fill(0, call.placed.first, IGNORED).reshape(labels.shape)

    def enter_static(self, named: Mapping[str, Any]) -> None:
        """Check the arguments of a call with static shapes (`nopad.model.static_inputs`).

        Raises:
            BatchError: ``num_items_in_batch``, the number by which the loss is divided, was given.
        """
        if named.get("num_items_in_batch") is not None:
            raise BatchError(
                "num_items_in_batch was given to a call of static shapes, which cannot tell whether it counts labels "
                "of first tokens; leave it out, or use nopad.losses.token_loss(causal=True, denominator=...)"
            )

    def static_labels(self, labels: Tensor, positions: Tensor) -> Tensor:
        """Return the labels ``[R, L]`` with -100 for first tokens and padding, that is where `positions` is 0."""
        return labels.masked_fill(positions == 0, IGNORED)


class _Answers(Head):
    """The head of question answering: logits per sequence for the first and the last token of an answer."""

    name = "answers"
    gives = "sequence"
    per_token = ()
    per_sequence = ("start_positions", "end_positions")

    def enter(self, call: Call, named: dict[str, Any]) -> None:
        super().enter(call, named)
        call.labels = {name: named.pop(name, None) for name in self.per_sequence}

    def leave(self, call: Call, output: Any) -> Any:
        placed = call.side
        losses = []
        for side in ("start", "end"):
            name = f"{side}_logits"
            given = output.get(name) if isinstance(output, Mapping) else None
            if given is None or tuple(given.shape) != placed.layout.shape:
                raise UnsupportedModelError(
                    f"{type(self.model).__name__} gives no {name} per token, as question answering of transformers "
                    "does; run the base model, and unpack its states with batch.unpack_tokens"
                )
            output[name] = placed.to_padded(placed.stream(output[name]), fill=-torch.inf)
            wanted = call.labels[f"{side}_positions"]
            if wanted is not None:
                # A position beyond the sequence is no answer and is ignored, as in transformers.
                inside = wanted.clamp(min=0)
                inside = inside.masked_fill(inside >= placed.lens, IGNORED)
                losses.append(cross_entropy(output[name], inside, ignore_index=IGNORED))
        if len(losses) == 2:
            output["loss"] = (losses[0] + losses[1]) / 2
        return _in_order(output)

    def leave_static(self, cell: Cell, output: Any) -> Any:
        ids = cell.static.ids
        if cell.most is not None:
            assert ids is not None
            for name in ("start_logits", "end_logits"):
                output[name] = _static_padded(output[name], ids, cell.most)
        return output


HEADS: dict[str, type[Head]] = {"tokens": Head, "causal": Causal, "classification": _Classifier, "answers": _Answers}


def head_of(model: Any, family: Family, given: str | None = None) -> Head:
    """Return the head of a model; `given` is the name of the head that the user gives, or None.

    A name is needed only for a class that nopad does not know.

    Raises:
        OptionError: no head is called `given`, or nopad knows that the class has another head.
        UnsupportedModelError: nopad does not know the class, and `given` is None or the model is not a
            `PreTrainedModel`; or the model type is an encoder–decoder, and the head is "classification" or "causal".
    """
    name = head_name(model, family, given)
    late = family.pooled == "config" and getattr(model.config, "classifier_pooling", None) == "late"
    scored = late or family.head in (("score", 0), ("classifier", 0))
    kind = _LastToken if name == "classification" and scored else HEADS[name]
    return kind(model, family, is_stock(class_of(model)))


def _takes_last(scores: Tensor, call: Call, output: Any) -> bool:
    """Return whether the logits ``[R, C]`` in `output` are the scores of the last real token of each row.

    `output` is the model's output. `scores` ``[R, L, C]`` are the scores of all slots, and `call` has the layout of the
    rows. Rows without tokens are not compared. The result is False if `output` has no logits.
    """
    real = call.placed.ids != 0
    rows = torch.arange(real.shape[0], device=real.device)[real.any(1)]
    logits = output.get("logits") if isinstance(output, Mapping) else None
    return logits is not None and torch.equal(logits[rows], scores[rows, last_true(real)[rows]])


def _static_padded(values: Tensor, ids: Tensor, most: int) -> Tensor:
    """Turn logits ``[R, L]`` into ``[most, L]``: row i has the logits of sequence number i + 1, then minus infinity.

    `ids` ``[R, 1, 1, L]`` is the number of each slot's sequence, from 1, and 0 in padding. `most` is the number of rows
    of the result; rows beyond the last sequence are all minus infinity.
    """
    owned = mine(ids, most)
    places = torch.arange(ids.shape[-1], device=ids.device) + owned.int().argmax(1)[:, None]
    places = places.clamp(max=owned.shape[1] - 1)
    return values.reshape(-1)[places].masked_fill(~owned.gather(1, places), -torch.inf)


def _check_sequence_labels(model: Any, call: Call, named: dict[str, Any]) -> None:
    sequences = call.placed.layout.sequences
    _check_shape(named, "labels", [(sequences,), (sequences, max(model.config.num_labels, 1))])


def _check_shape(named: dict[str, Any], name: str, wanted: list[tuple[int, ...]]) -> None:
    value = named.get(name)
    if value is not None and tuple(value.shape) not in wanted:
        raise BatchError(
            f"{name} have the shape {list(value.shape)}; expected {' or '.join(str(list(shape)) for shape in wanted)}"
        )


def _settle_problem(model: Any, labels: Tensor) -> None:
    """If the configuration's `problem_type` is None, set it, as transformers' own heads do.

    It follows from the configuration's `num_labels` and the dtype of the labels.
    """
    if model.config.problem_type is None:
        many = "single_label_classification" if not labels.is_floating_point() else "multi_label_classification"
        model.config.problem_type = "regression" if model.config.num_labels == 1 else many


def _in_order(output: Any) -> Any:
    """Return the model's output with the loss, if there is one, as the first entry, as in transformers' own outputs."""
    if "loss" not in output or output["loss"] is None:
        return output
    return type(output)(**{"loss": output["loss"], **{k: v for k, v in output.items() if k != "loss"}})
