"""Metrics over packed batches that equal those over the unpacked sequences.

The mean of a metric over batches would be wrong, since packs hold different numbers of tokens and sequences. So each
class here sums counts over batches, then over ranks (`reduce`), and divides at the end. This module needs the extra
``torch``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.errors import BatchError, OptionError
from nopad.losses.checks import check_classes, check_floating, check_per, check_places, check_tensors
from nopad.losses.means import Per, over_ranks
from nopad.losses.slots import check_logits, labelled, slot_weights
from nopad.options import Option, shown
from nopad.sequences import IGNORED

__all__ = ["Accuracy", "Confusion", "Spans", "best_spans", "span_scores"]


CLASSES = Option(default=2, help="classes")
LONGEST = Option(default=30, help="most tokens of an answer")


class _Counts:
    """Base class of metrics, which sum their `counts`, a float64 tensor, over batches."""

    def __init__(self, *shape: int) -> None:
        self.counts = torch.zeros(*shape, dtype=torch.double)

    def _add(self, counts: Tensor) -> None:
        self.counts = self.counts.to(counts.device) + counts.detach().double()

    def reduce(self) -> None:
        """Sum the counts over all ranks, so that each rank has the total; call this once at the end, on every rank."""
        self.counts = over_ranks(self.counts)


class Accuracy(_Counts):
    """Accuracy of tokens, for masked and causal language models and token classification.

    With ``per="token"``, all labelled tokens have the same weight. With ``per="sequence"``, accuracy is first computed
    over each sequence's labelled tokens, then averaged over sequences.

    Raises:
        OptionError: `per` is neither "token" nor "sequence".

    >>> import nopad, torch
    >>> from nopad.losses import Accuracy
    >>> batch = nopad.PackedBatch.from_sequences([[1, 2, 3], [4]])
    >>> labels = torch.tensor([[1, 2, 3, 4]])
    >>> logits = torch.nn.functional.one_hot(torch.tensor([[1, 0, 0, 4]]), 8).float()
    >>> for per in ("token", "sequence"):
    ...     accuracy = Accuracy(per)
    ...     accuracy.add(logits, labels, batch)
    ...     print(round(accuracy.value, 3))
    0.5
    0.667

    Two of the four tokens are right; of the sequences' own accuracies, 1/3 and 1, the mean is 2/3.
    """

    def __init__(self, per: Per = "token") -> None:
        super().__init__(2)
        check_per(per)
        self.per: Per = per

    def add(self, logits: Tensor, labels: Tensor, batch: PackedBatch, *, causal: bool = False) -> None:
        """Add a batch: logits ``[R, L, C]``, labels ``[R, L]``; labels of -100 are ignored.

        There are R rows of L slots (tokens or padding), and C classes. With `causal`, the logits of a token predict the
        label of the next token.

        Raises:
            BatchError: the type, device or shape of an argument does not fit the batch; or a label is not a class
                (checked on the CPU only).
        """
        number, wanted = labelled(labels, batch, causal)
        check_logits(logits, labels, batch)
        right = logits.argmax(-1).reshape(-1) == wanted
        scale = slot_weights(number, wanted, batch, self.per, None)
        self._add(torch.stack([(scale * right).sum(), scale.sum()]))

    @property
    def value(self) -> float:
        """Accuracy from 0 to 1; NaN if nothing was counted."""
        return float(self.counts[0] / self.counts[1])


class Confusion(_Counts):
    """Confusion matrix of sequence or token classes, for accuracy, F1 and Matthews correlation.

    ``counts[i, j]`` is how often class j was predicted where the label is class i; float64 ``[classes, classes]``.

    Raises:
        OptionError: the number of classes is not an integer from 1 to 2^31 - 1.

    >>> import torch
    >>> from nopad.losses import Confusion
    >>> confusion = Confusion(2)
    >>> confusion.add(torch.tensor([[2.0, 1.0], [0.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0, 1]))
    >>> round(confusion.accuracy, 3), round(confusion.f1(1), 3), round(confusion.f1(), 3)
    (0.667, 0.667, 0.667)
    """

    def __init__(self, classes: int) -> None:
        classes = CLASSES.check("classes", classes)
        super().__init__(classes, classes)

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: logits ``[..., C]``, integer labels ``[...]``; labels of -100 are ignored.

        Raises:
            BatchError: an argument is not a tensor, devices differ, shapes do not fit each other, labels are not
                integers, or a label is not a class.
        """
        check_tensors(logits=logits, labels=labels)
        classes = len(self.counts)
        if tuple(logits.shape) != (*labels.shape, classes):
            raise BatchError(f"logits have the shape {list(logits.shape)}; expected {[*labels.shape, classes]}")
        labels = check_classes(labels, classes, anywhere=True)  # counting waits for the accelerator anyway
        known = labels != IGNORED
        wanted, guess = labels[known], logits.argmax(-1)[known]
        self._add(torch.bincount(wanted * classes + guess, minlength=classes**2).reshape(classes, classes))

    @property
    def accuracy(self) -> float:
        """Share of correct predictions; NaN if nothing was counted."""
        return float(self.counts.trace() / self.counts.sum())

    @property
    def matthews(self) -> float:
        """Matthews correlation of predictions and labels, for any number of classes.

        The formula is Gorodkin's correlation coefficient R_K (2004), which for two classes is the usual Matthews
        correlation. It is 0 if all predictions are one class, if all labels are one class, or if nothing was counted.
        """
        found = self.counts
        total, right = found.sum(), found.trace()
        wanted, guessed = found.sum(1), found.sum(0)
        spread = (total**2 - guessed.square().sum()) * (total**2 - wanted.square().sum())
        return float((right * total - wanted @ guessed) / spread.sqrt()) if spread > 0 else 0.0

    def f1(self, label: int | None = None) -> float:
        """Return the F1 score of class `label`; None: the unweighted mean over all classes (macro F1).

        The F1 score of a class that is neither labelled nor predicted is 0.

        Raises:
            OptionError: `label` is neither None nor a Python integer that is the number of a class.
        """
        if label is not None and not (type(label) is int and 0 <= label < len(self.counts)):
            raise OptionError(f"label is {shown(label)}; there are {len(self.counts)} classes, from 0")
        right = self.counts.diagonal()
        given = self.counts.sum(0) + self.counts.sum(1)
        each = torch.where(given > 0, 2 * right / given.clamp(min=1), 0)
        return float(each.mean() if label is None else each[label])


class Spans(_Counts):
    """Metrics of question answering: exact matches and F1 of answer tokens; all sequences have the same weight.

    Answers are compared by token positions, and each sequence has one correct answer. SQuAD's scores compare normalised
    texts with several correct answers; `nopad.tasks.Answers.scores` computes those.

    >>> import torch
    >>> from nopad.losses import Spans
    >>> spans = Spans()
    >>> spans.add(*(torch.tensor(side) for side in ([3, 5], [4, 6], [3, 6], [4, 9])))
    >>> spans.exact, round(spans.f1, 3)
    (0.5, 0.667)

    The first answer is exact, with an F1 of 1. The second, 5 to 6, shares one token with the true one, 6 to 9: 1/3.
    """

    def __init__(self) -> None:
        super().__init__(3)

    def add(self, starts: Tensor, ends: Tensor, true_starts: Tensor, true_ends: Tensor) -> None:
        """Add a batch: the first and last position of each predicted answer, and of each true one; integers ``[S]``.

        A sequence without a true answer (a true position is below 0) is ignored. An answer that ends before it begins
        is empty.

        Raises:
            BatchError: an argument is not a tensor, devices or shapes differ, or positions are not integers.
        """
        given = {"starts": starts, "ends": ends, "true_starts": true_starts, "true_ends": true_ends}
        check_tensors(**given)
        shapes = [list(side.shape) for side in given.values()]
        if any(shape != shapes[0] for shape in shapes):
            raise BatchError(f"starts, ends and the true ones have the shapes {shapes}; expected one shape")
        starts, ends, true_starts, true_ends = check_places(**given)
        known = (true_starts >= 0) & (true_ends >= 0)
        starts, ends, true_starts, true_ends = (side[known] for side in (starts, ends, true_starts, true_ends))
        common = (torch.minimum(ends, true_ends) - torch.maximum(starts, true_starts) + 1).clamp(min=0)
        tokens = (ends - starts + 1).clamp(min=0) + (true_ends - true_starts + 1).clamp(min=0)
        exact = (starts == true_starts) & (ends == true_ends)
        f1 = torch.where(exact, 1.0, 2 * common.double() / tokens.clamp(min=1))
        self._add(torch.stack([exact.sum().double(), f1.sum(), known.sum().double()]))

    @property
    def exact(self) -> float:
        """Share of answers that match the true ones exactly; NaN if nothing was counted."""
        return float(self.counts[0] / self.counts[2])

    @property
    def f1(self) -> float:
        """Mean F1 of answer tokens; NaN if nothing was counted."""
        return float(self.counts[1] / self.counts[2])


def best_spans(start_logits: Tensor, end_logits: Tensor, longest: int = 30) -> tuple[Tensor, Tensor]:
    """Return each sequence's best answer of 1 to `longest` tokens, by the sum of its start and end logits.

    Args:
        start_logits: ``[S, L]``, a row for each of S sequences, minus infinity after the sequence's end.
        end_logits: the same for the ends of answers.
        longest: largest number of tokens of an answer.

    Returns:
        First and last position of each answer, int64 ``[S]`` each.

    Raises:
        OptionError: `longest` is not an integer from 1 to 2^31 - 1.
        BatchError: the logits differ in shape or device, or are not float tensors ``[S, L]`` with L above 0.

    >>> import torch
    >>> from nopad.losses import best_spans
    >>> best_spans(torch.tensor([[0.0, 5.0, 9.0]]), torch.tensor([[8.0, 7.0, 0.0]]))
    (tensor([1]), tensor([1]))

    The highest start logit, at 2, comes after the highest end logit, at 0; of the answers that end at or after their
    start, 1 to 1 has the highest sum, 12.
    """
    longest = LONGEST.check("longest", longest)
    check_tensors(start_logits=start_logits, end_logits=end_logits)
    check_floating(start_logits=start_logits, end_logits=end_logits)
    if start_logits.dim() != 2 or start_logits.shape != end_logits.shape or not start_logits.shape[1]:
        shapes = [list(side.shape) for side in (start_logits, end_logits)]
        raise BatchError(f"start_logits and end_logits have the shapes {shapes}; expected [S, L] both")
    scores = span_scores(start_logits, end_logits, longest)
    best = scores.flatten(1).argmax(1)
    starts = best // scores.shape[2]
    return starts, starts + best % scores.shape[2]


def span_scores(start_logits: Tensor, end_logits: Tensor, longest: int) -> Tensor:
    """Return the score of each span of 1 to `longest` tokens (at most L): its start logit plus its end logit.

    `start_logits` and `end_logits` are ``[S, L]``. Entry ``[s, i, k]`` of the result is the score of the span of k + 1
    tokens that begins at token i; it is minus infinity if the span ends beyond the row.
    """
    longest = min(longest, start_logits.shape[1])
    behind = torch.nn.functional.pad(end_logits, (0, longest - 1), value=-torch.inf)
    return start_logits[:, :, None] + behind.unfold(1, longest, 1)
