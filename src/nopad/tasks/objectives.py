"""The objectives of transformers' heads, which predict labels per token or per sequence, or a span in each sequence.

With default options, each loss equals what transformers computes for the same sequences in one padded batch. The loss
of a step of several batches or ranks equals that of all their sequences in one padded batch. `nopad.losses.span_loss`
names the exception: sequences that do not contain their answer.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from nopad.batch import PackedBatch
from nopad.errors import BatchError, OptionError, UnsupportedModelError
from nopad.losses import (
    sequence_denominator,
    sequence_loss,
    span_denominator,
    span_loss,
    token_denominator,
    token_loss,
)
from nopad.losses.checks import check_smoothing
from nopad.losses.means import Per
from nopad.losses.metrics import LONGEST
from nopad.model.safety import bare, state_of
from nopad.options import check_choice
from nopad.tasks.meters import ClassMeter, RegressionMeter, SeveralMeter, SpanMeter, TokenMeter
from nopad.tasks.next_sentence import OfPretraining
from nopad.tasks.objective import Meter, Objective
from nopad.tasks.perplexity import CausalMeter

__all__ = ["OfSequences", "OfSpans", "OfTokens", "objective_of"]


# Classes of transformers that learn masked tokens and next-sentence prediction
_PRETRAINED = tuple(f"{kind}ForPreTraining" for kind in ("Bert", "BigBird", "FNet", "MegatronBert", "MobileBert"))
Kind = Literal["classes", "several", "numbers"]
_LABELS: dict[Kind, str] = {
    "classes": "one class per sequence, integers [S]",
    "several": "several classes per sequence, floats [S, C]",
    "numbers": "a number per sequence, floats [S]",
}


class OfTokens(Objective):
    """Cross-entropy per labelled token, for masked and causal language models and token classification.

    Args:
        causal: whether the logits of a token predict the label of the next token, as in causal language models.
        per: "token" averages over all labelled tokens; "sequence" first within each sequence, then over sequences.
        smoothing: share of a label that is spread evenly over all classes, from 0 to 1.
        dynamic: whether the loss of each token is multiplied by the model's probability of its label. Metrics use the
            plain cross-entropy, without `smoothing` and `dynamic`.

    Raises:
        OptionError: `smoothing` is not a number from 0 to 1, or is above 0 although `dynamic` is True; or `per` is
            neither "token" nor "sequence".

    >>> import nopad
    >>> from nopad.tasks import OfTokens
    >>> features = [{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}, {"input_ids": [4], "labels": [4]}]
    >>> batch = nopad.PackedBatch.from_features(features, causal=True)
    >>> OfTokens(causal=True).denominator(batch).item()
    2.0

    The labels 2 and 3 count. The label 4 does not: it is that of a first token, which no token predicts.
    """

    gives = "token"

    def __init__(
        self, *, causal: bool = False, per: Per = "token", smoothing: float = 0.0, dynamic: bool = False
    ) -> None:
        check_choice("per", per, Per)
        self.causal, self.per, self.dynamic = causal, per, dynamic
        self.smoothing = check_smoothing(smoothing, dynamic)
        self.heads = ("causal",) if causal else ("tokens",)

    def denominator(self, batch: PackedBatch) -> Tensor:
        """Return the number of labelled tokens; a float64 scalar.

        If `per` is "sequence", it is the number of sequences with a labelled token. With `causal`, labels of first
        tokens do not count.
        """
        return token_denominator(batch["labels"], batch, per=self.per, causal=self.causal)

    def loss(self, outputs: Any, batch: PackedBatch, denominator: Tensor) -> Tensor:
        """Return the sum of the losses of labelled tokens, divided by `denominator`; a scalar (`token_loss`).

        If `per` is "sequence", it is the sum of the sequences' mean losses, divided by `denominator`.
        """
        how: dict[str, Any] = {"per": self.per, "smoothing": self.smoothing, "dynamic": self.dynamic}
        return token_loss(outputs["logits"], batch["labels"], batch, causal=self.causal, denominator=denominator, **how)

    def meter(self) -> Meter:
        """Return a meter of the accuracy per token, and for causal models of the perplexity too."""
        return CausalMeter(self.per) if self.causal else TokenMeter(per=self.per)


class OfSequences(Objective):
    """The loss of one label per sequence: a class, several classes, or a number (`nopad.losses.sequence_loss`).

    Args:
        kind: what a label is. "classes": one of `classes` classes; "several": any number of these classes; "numbers": a
            number (regression).
        classes: number of logits per sequence.

    Raises:
        OptionError: `kind` is none of these.

    >>> import nopad, torch
    >>> from nopad.tasks import OfSequences
    >>> batch = nopad.PackedBatch.from_features([{"input_ids": [1, 2], "labels": 1}, {"input_ids": [3], "labels": 0}])
    >>> OfSequences("classes", classes=2).denominator(batch).item()
    2.0
    """

    heads = ("classification",)

    def __init__(self, kind: Kind = "classes", classes: int = 2) -> None:
        self.kind: Kind = check_choice("kind", kind, Kind)
        self.classes: int = classes

    def check(self, batch: PackedBatch) -> None:
        """Check that `batch` is a `PackedBatch` whose labels are of the right kind.

        Raises:
            BatchError: the labels are missing, or have another dtype or shape; or `batch` is not a `PackedBatch`, or is
                for an encoder-decoder model.
        """
        super().check(batch)
        labels = batch["labels"]
        numbers, several = labels.is_floating_point(), labels.dim() > 1 and labels.shape[-1] > 1
        if numbers != (self.kind != "classes") or several != (self.kind == "several"):
            shape, wanted = list(labels.shape), _LABELS[self.kind]
            raise BatchError(
                f"labels are {labels.dtype} {shape}, and what is to be learned is {wanted}; give such labels, or say "
                "what is to be learned by a task, an objective, or the model's config.problem_type"
            )

    def denominator(self, batch: PackedBatch) -> Tensor:
        """Return the number of labelled sequences; a float64 scalar."""
        return sequence_denominator(batch["labels"])

    def loss(self, outputs: Any, batch: PackedBatch, denominator: Tensor) -> Tensor:
        """Return the sum of the sequences' losses, divided by `denominator`; a scalar (`sequence_loss`)."""
        return sequence_loss(outputs["logits"], batch["labels"], denominator=denominator)

    def meter(self) -> Meter:
        """Return a `ClassMeter`, a `SeveralMeter` or a `RegressionMeter`, by the kind of label."""
        if self.kind == "numbers":
            return RegressionMeter()
        return SeveralMeter() if self.kind == "several" else ClassMeter(self.classes)


class OfSpans(Objective):
    """The loss of extractive question answering (`nopad.losses.span_loss`).

    The loss of a sequence is the mean of two cross-entropies: of its answer's first token and of its last token. A
    batch has ``start_positions`` and ``end_positions`` (inclusive), integers ``[S]``, counted from the beginning of
    each sequence. A sequence does not count if one of its two positions lies outside of it.

    `longest` is the largest number of tokens of an answer that the meter predicts; the loss does not depend on it.

    Raises:
        OptionError: `longest` is not an integer of at least 1.

    >>> from nopad.tasks import OfSpans
    >>> meter = OfSpans().meter()
    >>> meter.reduce()
    >>> sorted(meter.values())
    ['exact', 'f1']
    """

    targets = ("start_positions", "end_positions")
    reads = ("start_logits", "end_logits")
    heads = ("answers",)

    def __init__(self, longest: int = 30) -> None:
        self.longest = LONGEST.check("longest", longest)

    def denominator(self, batch: PackedBatch) -> Tensor:
        """Return the number of sequences that contain their answer; a float64 scalar."""
        return span_denominator(batch["start_positions"], batch["end_positions"], batch)

    def loss(self, outputs: Any, batch: PackedBatch, denominator: Tensor) -> Tensor:
        """Return the sum of the sequences' losses, divided by `denominator`; a scalar (`span_loss`)."""
        return span_loss(
            outputs["start_logits"],
            outputs["end_logits"],
            batch["start_positions"],
            batch["end_positions"],
            batch,
            denominator=denominator,
        )

    def meter(self) -> Meter:
        """Return a meter of exact matches and F1 of answer spans, counted in tokens."""
        return SpanMeter(self.longest)


def objective_of(model: Any) -> Objective:
    """Return the objective whose loss equals the one that transformers computes for this pack-safe model.

    Raises:
        OptionError: the model is not pack-safe, or is for regression with several numbers per sequence.
        UnsupportedModelError: the model has no head, or a head that nopad does not know.

    >>> import nopad
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(BertForSequenceClassification(BertConfig(**sizes)))
    >>> type(nopad.tasks.objective_of(model)).__name__
    'OfSequences'
    """
    head, config = state_of(model).head, bare(model).config
    if head.name == "causal":
        return OfTokens(causal=True)
    if head.name == "answers":
        return OfSpans()
    if head.name == "classification":
        kinds: dict[str, Kind] = {"regression": "numbers", "multi_label_classification": "several"}
        kind = kinds.get(config.problem_type or "")
        if kind is None:
            kind = "numbers" if config.num_labels == 1 else "classes"
        if kind == "numbers" and config.num_labels > 1:
            raise OptionError(
                f"this model predicts {config.num_labels} numbers per sequence (problem_type 'regression'); give an "
                "objective of your own"
            )
        return OfSequences(kind, config.num_labels)
    name = type(bare(model)).__name__
    if name in _PRETRAINED:
        return OfPretraining()
    if not (name.endswith(("ForMaskedLM", "ForTokenClassification"))):
        raise UnsupportedModelError(
            f"what {name} learns is not known: give the trainer an objective or a task; those of nopad.tasks, or your "
            "own subclass of nopad.tasks.Objective"
        )
    return OfTokens()
