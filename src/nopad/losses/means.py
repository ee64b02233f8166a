"""Losses of packed batches that equal those of the unpacked sequences, in value and gradient.

A mean needs a denominator. The number of packs is the wrong one, since packs hold different numbers of tokens and
sequences. So every loss here is a sum over labelled tokens or sequences, divided by a denominator. By default, the
denominator is the number of these tokens or sequences in the batch. For gradient accumulation and several ranks, give
`denominator`: the number of these tokens or sequences in all batches of a step, on all ranks; the loss is then exact.

With ``per="token"`` (the default), every labelled token has the same weight, as in transformers' losses of padded
batches, so packing does not change the loss. With ``per="sequence"``, a loss is first averaged over each sequence's
labelled tokens, then over sequences, so a short sequence weighs as much as a long one. This is the loss of the packing
papers (arXiv 2107.02027, section 3.3). The argument `weights` gives each sequence a weight: its losses are multiplied
by it, and denominators count with the same weights. This module needs the extra ``torch``.

`token_loss` is for masked and causal language models and token classification; `sequence_loss` for sequence
classification, regression and next-sentence prediction; `span_loss` for question answering. BERT's pre-training loss
is the sum of two of these losses. Each loss has a function that computes its denominator (`token_denominator`,
`sequence_denominator`, `span_denominator`), and `over_ranks` sums denominators over all ranks.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from nopad.batch import PackedBatch
from nopad.errors import BatchError
from nopad.losses.checks import check_batch, check_classes, check_integers, check_places, check_smoothing, check_tensors
from nopad.losses.slots import check_logits, divided, labelled, slot_weights, sparse, wide
from nopad.sequences import IGNORED

__all__ = [
    "over_ranks",
    "sequence_denominator",
    "sequence_loss",
    "span_denominator",
    "span_loss",
    "token_denominator",
    "token_loss",
]

Per = Literal["token", "sequence"]


def token_loss(
    logits: Tensor,
    labels: Tensor,
    batch: PackedBatch,
    *,
    per: Per = "token",
    causal: bool = False,
    smoothing: float = 0.0,
    dynamic: bool = False,
    weights: Tensor | None = None,
    denominator: float | Tensor | None = None,
) -> Tensor:
    """Return the cross-entropy of a head with one result per token (language models, token classification).

    Args:
        logits: ``[R, L, C]``, for R rows of L slots (tokens or padding) and C classes.
        labels: ``[R, L]``, -100 for tokens that the loss ignores.
        batch: the batch whose layout logits and labels have.
        per: "token": all labelled tokens have the same weight. "sequence": all sequences with a label have the same
            weight (see the module).
        causal: whether the logits of a token predict the label of the next token; the first label of a sequence is then
            not predicted.
        smoothing: share of a label that is spread evenly over all classes, from 0 to 1, as transformers'
            ``label_smoothing_factor``.
        dynamic: whether to multiply the loss of each token by the model's probability of its label, taken as a constant
            (no gradient). This is dynamic fine-tuning (arXiv 2508.05629), TRL's ``loss_type="dft"``. `smoothing` must
            be 0 then.
        weights: a weight for each of the S sequences, ``[S]``, in the order in which they were given; None: all 1.
        denominator: divide by this number instead of this batch's `token_denominator`; compute it with the same
            `per`, `causal` and `weights`.

    Returns:
        A scalar, in float32 or wider. NaN if no token is labelled and no `denominator` is given.

    Raises:
        BatchError: the type, device or shape of an argument does not fit; or a label is not a class (checked on the CPU
            only).
        OptionError: `per` is neither "token" nor "sequence"; `smoothing` is not a number from 0 to 1, or is above
            0 although `dynamic` is True.

    >>> import nopad, torch
    >>> from nopad.losses import token_denominator, token_loss
    >>> batch = nopad.PackedBatch.from_sequences([[1, 2, 3], [4]])
    >>> logits, labels = torch.zeros(1, 4, 8), torch.tensor([[1, -100, 3, 4]])
    >>> round(token_loss(logits, labels, batch).item(), 4), token_denominator(labels, batch)
    (2.0794, tensor(3., dtype=torch.float64))
    """
    check_smoothing(smoothing, dynamic)
    number, wanted = labelled(labels, batch, causal)
    check_logits(logits, labels, batch)
    scale = slot_weights(number, wanted, batch, per, weights)
    flat = logits.reshape(-1, logits.shape[-1])
    at = sparse(wanted)
    if at is not None:
        flat, wanted, scale = flat.index_select(0, at), wanted[at], scale[at]
    each = cross_entropy(wide(flat), wanted, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing)
    if dynamic:
        each = each * torch.exp(-each.detach())
    return _mean(each, scale, denominator)


def token_denominator(
    labels: Tensor, batch: PackedBatch, *, per: Per = "token", causal: bool = False, weights: Tensor | None = None
) -> Tensor:
    """Return the denominator of `token_loss`: the number of labelled tokens; a float64 scalar on the labels' device.

    Give the arguments that `token_loss` gets. `labels` are ``[R, L]``, -100 for tokens that the loss ignores. With
    ``per="sequence"``, the result is the number of sequences with a label. With `causal`, labels of first tokens do not
    count. With `weights`, ``[S]``, each token or sequence counts as the weight of its sequence instead of 1.

    transformers calls this number ``num_items_in_batch``; here it is the number for one batch. For gradient
    accumulation and several ranks, sum the denominators of all batches of a step; `over_ranks` sums them over ranks.
    Pass the sum to every `token_loss` as `denominator`, and sum the losses. With DDP, which averages gradients,
    multiply the loss by the number of ranks.

    Raises:
        BatchError: the type, device or shape of an argument does not fit. The values of labels are not checked.
        OptionError: `per` is neither "token" nor "sequence".

    >>> import nopad, torch
    >>> from nopad.losses import token_denominator
    >>> batch = nopad.PackedBatch.from_sequences([[1, 2, 3], [4]])
    >>> labels = torch.tensor([[1, -100, 3, 4]])
    >>> token_denominator(labels, batch).item(), token_denominator(labels, batch, causal=True).item()
    (3.0, 1.0)
    """
    number, wanted = labelled(labels, batch, causal)
    return slot_weights(number, wanted, batch, per, weights).sum()


def sequence_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    weights: Tensor | None = None,
    denominator: float | Tensor | None = None,
) -> Tensor:
    """Return the loss of a head with one result per sequence: classification, regression, next-sentence prediction.

    Args:
        logits: ``[S, C]``, for S sequences and C classes.
        labels: their dtype and shape decide which of transformers' three problem types this is:

            * integers ``[S]``: classes, -100 for sequences that the loss ignores. The loss is the cross-entropy.
            * floats ``[S, C]``, C above 1: 1 for each class that applies, else 0. The loss is the binary cross-entropy,
              averaged over classes.
            * floats ``[S]`` or ``[S, 1]``, with one logit: targets of a regression. The loss is the squared error.

            To ignore a sequence with float labels, give it the weight 0.
        weights: a weight per sequence, ``[S]``; None: all 1.
        denominator: divide by this number instead of `sequence_denominator`.

    Returns:
        A scalar, in float32 or wider. NaN if no sequence has a label and no `denominator` is given.

    Raises:
        BatchError: types, devices or shapes do not fit each other; or a label is not a class (checked on the CPU only).

    >>> import torch
    >>> from nopad.losses import sequence_loss
    >>> round(sequence_loss(torch.zeros(3, 4), torch.tensor([0, 3, -100])).item(), 4)
    1.3863
    """
    check_tensors(logits=logits, labels=labels)
    labels = _sequence_labels(logits, labels)
    logits = wide(logits)
    if not labels.is_floating_point():
        each = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    elif labels.dim() == 2:
        each = binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").mean(1)
    else:
        each = (logits[:, 0] - labels.to(logits.dtype)).square()
    return _mean(each, _sequence_scale(labels, weights), denominator)


def sequence_denominator(labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Return the denominator of `sequence_loss`: the number of sequences with a label; a float64 scalar.

    `labels` are integers ``[S]``, -100 for sequences without a label; or floats, and then every sequence has a label.
    With `weights`, ``[S]``, each sequence counts as its weight instead of 1.

    Raises:
        BatchError: `labels` are not a tensor of integers up to int64 or of floats, or have another shape than integers
            ``[S]`` or floats ``[S]`` or ``[S, C]``; or `weights` do not fit them.

    >>> import torch
    >>> from nopad.losses import sequence_denominator
    >>> sequence_denominator(torch.tensor([0, 3, -100])).item()
    2.0
    """
    check_tensors(labels=labels)
    if not labels.is_floating_point():
        (labels,) = check_integers("numbers of classes", labels=labels)
    if labels.dim() not in ((1, 2) if labels.is_floating_point() else (1,)):
        kind = "floats [S] or [S, C]" if labels.is_floating_point() else "integers [S]"
        raise BatchError(f"labels have the shape {list(labels.shape)}; expected {kind}, one entry for each sequence")
    return _sequence_scale(labels, weights).sum()


def span_loss(
    start_logits: Tensor,
    end_logits: Tensor,
    starts: Tensor,
    ends: Tensor,
    batch: PackedBatch,
    *,
    weights: Tensor | None = None,
    denominator: float | Tensor | None = None,
) -> Tensor:
    """Return the loss of question answering: the mean over sequences that contain their answer.

    The loss of a sequence is the mean of two cross-entropies: that of its answer's start and that of its answer's end.

    Args:
        start_logits: a row for each of the S sequences, at least as wide as the longest sequence, ``[S, longest]``.
            Logits after a sequence's end are minus infinity, as a pack-safe model for question answering gives them.
        end_logits: the same for the ends of answers.
        starts: position of each answer's first token in its sequence, integers ``[S]``.
        ends: position of each answer's last token (inclusive), integers ``[S]``. A sequence counts only if both
            positions lie in it. (transformers takes negative positions as 0, and counts a start or an end even if the
            other one lies outside.)
        batch: the batch of these sequences.
        weights: a weight per sequence, ``[S]``; None: all 1.
        denominator: divide by this number instead of `span_denominator`.

    Returns:
        A scalar, in float32 or wider. NaN if no sequence contains its answer and no `denominator` is given.

    Raises:
        BatchError: types, devices or shapes do not fit the batch.

    >>> import nopad, torch
    >>> from nopad.losses import span_loss
    >>> batch = nopad.PackedBatch.from_sequences([[1, 2, 3], [4, 5, 6]])
    >>> logits = torch.zeros(2, 3)
    >>> round(span_loss(logits, logits, torch.tensor([1, 0]), torch.tensor([2, 0]), batch).item(), 4)
    1.0986
    """
    check_tensors(start_logits=start_logits, end_logits=end_logits, starts=starts, ends=ends)
    starts, ends, known = _spans(starts, ends, batch)
    for name, value in (("start_logits", start_logits), ("end_logits", end_logits)):
        wanted = (batch.layout.sequences, batch.layout.max_seqlen)
        if value.dim() != 2 or value.shape[0] != wanted[0] or value.shape[1] < wanted[1]:
            raise BatchError(f"{name} have the shape {list(value.shape)}; expected {list(wanted)}")
    first, last = (
        cross_entropy(wide(logits), places.masked_fill(~known, IGNORED), ignore_index=IGNORED, reduction="none")
        for logits, places in ((start_logits, starts), (end_logits, ends))
    )
    return _mean((first + last) / 2, _weighted(known.double(), weights), denominator)


def span_denominator(starts: Tensor, ends: Tensor, batch: PackedBatch, *, weights: Tensor | None = None) -> Tensor:
    """Return the denominator of `span_loss`: the number of sequences that contain their answer; a float64 scalar.

    `starts` and `ends` are the positions of each answer's first and last token in its sequence, integers ``[S]``. With
    `weights`, ``[S]``, each sequence counts as its weight instead of 1.

    Raises:
        BatchError: types, devices or shapes do not fit the batch.

    >>> import nopad, torch
    >>> from nopad.losses import span_denominator
    >>> batch = nopad.PackedBatch.from_sequences([[1, 2, 3], [4]])
    >>> span_denominator(torch.tensor([1, 5]), torch.tensor([2, 6]), batch).item()  # the second lies outside
    1.0
    """
    return _weighted(_spans(starts, ends, batch)[2].double(), weights).sum()


def over_ranks(count: Tensor) -> Tensor:
    """Return the sum of `count` over all ranks of the default process group; without a group, `count` itself.

    `count` is a tensor of any shape, and is not changed. The result is on its device, without gradients if there is a
    group. All ranks must call this function.

    >>> import torch
    >>> from nopad.losses import over_ranks
    >>> over_ranks(torch.tensor(3.0))
    tensor(3.)
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return count
    total = count.detach().clone()
    if total.device.type == "cpu" and torch.distributed.get_backend() == "nccl":  # NCCL cannot reduce CPU tensors
        total = total.to("cuda")
    torch.distributed.all_reduce(total)
    return total.to(count.device)


def _mean(each: Tensor, scale: Tensor, denominator: float | Tensor | None) -> Tensor:
    """Return the sum of ``each * scale``, divided by `denominator`; a scalar with the dtype of `each`.

    `each` and `scale` have one shape. If `denominator` is None, the sum of `scale` is used. Entries with a scale of 0
    are left out, even if they are infinite.

    Raises:
        BatchError: `denominator` is not one number.
    """
    # Not a plain product, since 0 * inf would be NaN.
    total = torch.where(scale == 0, torch.zeros_like(each), each * scale.to(each)).sum()
    return divided(total, denominator, scale.sum())


def _sequence_scale(labels: Tensor, weights: Tensor | None) -> Tensor:
    """Return the weight of each sequence's loss, float64 ``[S]``: its entry in `weights` (None: 1), 0 without a label.

    `labels` are floats, or int64.

    Raises:
        BatchError: `weights` are not a tensor ``[S]`` on the labels' device.
    """
    if labels.is_floating_point():
        return _weighted(labels.new_ones(len(labels), dtype=torch.double), weights)
    return _weighted((labels != IGNORED).double(), weights)


def _weighted(counts: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return counts
    check_tensors(weights=weights, labels=counts)
    if weights.shape != counts.shape:
        raise BatchError(
            f"weights have the shape {list(weights.shape)}; expected {list(counts.shape)}, one per sequence"
        )
    return counts * weights.double()


def _spans(starts: Tensor, ends: Tensor, batch: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return `starts` and `ends` as int64, and which sequences contain both; ``[S]`` each.

    Raises:
        BatchError: `batch` is not a `PackedBatch`, or has sources and targets; or `starts` and `ends` are not integer
            tensors ``[S]`` on one device.
    """
    check_batch(batch)
    check_tensors(starts=starts, ends=ends)
    starts, ends = check_places(starts=starts, ends=ends)
    for name, value in (("starts", starts), ("ends", ends)):
        if tuple(value.shape) != (batch.layout.sequences,):
            raise BatchError(f"{name} have the shape {list(value.shape)}; expected [{batch.layout.sequences}]")
    lens = torch.from_numpy(batch.layout.seq_lengths).to(starts.device)
    return starts, ends, (starts >= 0) & (starts < lens) & (ends >= 0) & (ends < lens)


def _sequence_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the labels of sequences as the loss reads them: int64 ``[S]``, floats ``[S, C]``, or floats ``[S]``.

    Raises:
        BatchError: shapes do not fit each other; or labels are neither floats nor classes.
    """
    if logits.dim() != 2:
        raise BatchError(f"logits have the shape {list(logits.shape)}; expected [S, C], a row for each sequence")
    if labels.is_floating_point() and tuple(labels.shape) == (len(logits), 1):
        labels = labels[:, 0]
    several = labels.is_floating_point() and labels.dim() == 2
    wanted = tuple(logits.shape) if several else (len(logits),)
    if tuple(labels.shape) != wanted:
        raise BatchError(f"labels have the shape {list(labels.shape)}; expected {list(wanted)}")
    if not labels.is_floating_point() and logits.shape[1] == 1:
        raise BatchError("labels are integers, and there is one logit per sequence; give floats for regression")
    if labels.is_floating_point() and not several and logits.shape[1] != 1:
        raise BatchError(
            f"labels are {labels.dtype}, which is regression, and there are {logits.shape[1]} logits per sequence; "
            "give integers for one class, floats [S, C] for several"
        )
    return labels if labels.is_floating_point() else check_classes(labels, logits.shape[1])
