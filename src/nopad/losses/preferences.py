"""Losses of preference pairs (a chosen and a rejected answer), for reward models and for DPO.

These losses take one number per sequence, for the chosen and the rejected answers in the same order, so packing does
not change them. Like all losses here, they are sums divided by a denominator: the number of pairs, or a number that the
caller gives.

The definitions are those of TRL 1.16: for reward models, Bradley-Terry with a margin and centred rewards (arXiv
2307.09288, 2312.09244); for DPO, the losses "sigmoid" (arXiv 2305.18290), "ipo" (arXiv 2310.12036) and "robust" (arXiv
2403.00409). "ipo" takes the mean log-probability of an answer's tokens instead of the sum. With "sigmoid",
`label_smoothing` gives conservative DPO, as in earlier versions of TRL; TRL 1.16 ignores it.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from nopad.batch import PackedBatch
from nopad.errors import BatchError, OptionError
from nopad.losses.checks import check_floating, check_tensors
from nopad.losses.slots import check_logits, divided, labelled, wide
from nopad.options import check_choice, check_number
from nopad.sequences import IGNORED

__all__ = ["PreferenceLoss", "label_logprobs", "preference_loss", "reward_loss"]

PreferenceLoss = Literal["sigmoid", "ipo", "robust"]
"""The losses that `preference_loss` knows, by name.

>>> from typing import get_args
>>> from nopad.losses import PreferenceLoss
>>> get_args(PreferenceLoss)
('sigmoid', 'ipo', 'robust')
"""
Denominator = float | Tensor | None


def label_logprobs(logits: Tensor, labels: Tensor, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each sequence's labelled tokens under a causal language model, and their number.

    Args:
        logits: ``[R, L, C]``, for R rows of L slots and C classes; those of a token predict the next token's label.
        labels: ``[R, L]``, -100 for tokens that do not count. The first token of a sequence never counts.
        batch: the batch whose layout logits and labels have.

    Returns:
        Each sequence's sum of log-probabilities, and its number of labelled tokens; ``[S]`` each, in the order in which
        sequences were given, in float32 or wider.

    Raises:
        BatchError: the type, device or shape of an argument does not fit the batch; or a label is not a class (checked
            on the CPU only).

    >>> import nopad, torch
    >>> from nopad.losses import label_logprobs
    >>> batch = nopad.PackedBatch.from_sequences([[1, 2, 3], [4, 5]])
    >>> sums, counts = label_logprobs(torch.zeros(1, 5, 8), torch.tensor([[1, -100, 3, 4, 5]]), batch)
    >>> [round(-one, 3) for one in sums.tolist()], counts.tolist()
    ([2.079, 2.079], [1.0, 1.0])

    All 8 labels are equally likely, so each token that counts adds -log 8, which is -2.079. First tokens do not count,
    nor does the label of -100.
    """
    number, wanted = labelled(labels, batch, causal=True)
    check_logits(logits, labels, batch)
    each = -cross_entropy(wide(logits.reshape(-1, logits.shape[-1])), wanted, ignore_index=IGNORED, reduction="none")
    known = (wanted != IGNORED).to(each.dtype)
    empty = each.new_zeros(batch.layout.sequences + 1)
    return empty.index_add(0, number, each)[1:], empty.index_add(0, number, known)[1:]


def reward_loss(
    chosen: Tensor,
    rejected: Tensor,
    *,
    margin: Tensor | None = None,
    center: float | None = None,
    denominator: Denominator = None,
) -> Tensor:
    """Return the Bradley-Terry loss of P pairs, from the rewards of their chosen and rejected answers.

    The loss of a pair is ``-log(sigmoid(chosen - rejected - margin))``. Without a margin, this is minus the log of the
    probability that the chosen answer is the better one.

    Args:
        chosen: rewards of the chosen answers, ``[P]``.
        rejected: rewards of the rejected answers, ``[P]``.
        margin: by how much the chosen reward should exceed the rejected one, ``[P]``; None: 0.
        center: weight of a second loss, the square of the sum of both rewards, which keeps rewards near 0 on average
            (TRL's ``center_rewards_coefficient``), at least 0. None: 0.
        denominator: divide by this number instead of P.

    Returns:
        The sum of the pairs' losses, divided by P or `denominator`; a scalar, in float32 or wider. NaN without pairs,
        if no `denominator` is given.

    Raises:
        BatchError: `chosen`, `rejected` and `margin` are not floats ``[P]`` of one shape and device, or `denominator`
            is not one number.
        OptionError: `center` is not a number of at least 0.

    >>> import torch
    >>> from nopad.losses import reward_loss
    >>> round(reward_loss(torch.tensor([1.0]), torch.tensor([1.0])).item(), 4)
    0.6931

    With equal rewards, either answer is the better one with probability 1/2, so the loss is log 2.
    """
    center = 0.0 if center is None else check_number("center", center, low=0)
    _check_pairs(chosen=chosen, rejected=rejected, **({} if margin is None else {"margin": margin}))
    chosen, rejected = wide(chosen), wide(rejected)
    apart = chosen - rejected if margin is None else chosen - rejected - margin.to(chosen)
    each = -logsigmoid(apart)
    if center:
        each = each + center * (chosen + rejected).square()
    return divided(each.sum(), denominator, len(each))


def preference_loss(
    chosen: Tensor,
    rejected: Tensor,
    counts: tuple[Tensor, Tensor],
    *,
    beta: float = 0.1,
    kind: PreferenceLoss = "sigmoid",
    label_smoothing: float = 0.0,
    denominator: Denominator = None,
) -> Tensor:
    """Return the DPO loss of P pairs, which moves the model towards chosen and away from rejected answers.

    Args:
        chosen: the model's log-probability of each chosen answer minus the reference model's, ``[P]``.
        rejected: the same for the rejected answers, ``[P]``.
        counts: numbers of labelled tokens of the chosen and of the rejected answers, floats ``[P]`` each; "ipo" divides
            by these numbers (by 1 where they are less).
        beta: how strongly the model is held to the reference model, above 0, as in TRL.
        kind: "sigmoid", "ipo" or "robust".
        label_smoothing: share of pairs whose answers are assumed to be swapped, from 0 to below 0.5; 0 with "ipo".
        denominator: divide by this number instead of P.

    Returns:
        The sum of the pairs' losses, divided by P or `denominator`; a scalar, in float32 or wider. NaN without pairs,
        if no `denominator` is given.

    Raises:
        BatchError: `chosen`, `rejected` and `counts` are not floats ``[P]`` of one shape and device, or `denominator`
            is not one number.
        OptionError: there is no such kind, or `beta` or `label_smoothing` is out of its range.

    >>> import torch
    >>> from nopad.losses import preference_loss
    >>> zero, one = torch.zeros(1), torch.ones(1)
    >>> [round(preference_loss(zero, zero, (one, one), kind=kind).item(), 4) for kind in ("sigmoid", "ipo")]
    [0.6931, 25.0]

    The model still equals the reference model: "sigmoid" gives log 2, and "ipo" gives 1 / (2 beta), squared.
    """
    beta, label_smoothing = check_preferences(beta, kind, label_smoothing)
    _check_pairs(chosen=chosen, rejected=rejected, counts=counts[0], **{"counts of rejected": counts[1]})
    chosen, rejected = wide(chosen), wide(rejected)
    if kind == "ipo":
        each = (chosen / counts[0].clamp(min=1) - rejected / counts[1].clamp(min=1) - 1 / (2 * beta)).square()
    else:
        apart = beta * (chosen - rejected)
        right, flipped = -logsigmoid(apart), -logsigmoid(-apart)
        if kind == "robust":
            each = ((1 - label_smoothing) * right - label_smoothing * flipped) / (1 - 2 * label_smoothing)
        else:
            each = (1 - label_smoothing) * right + label_smoothing * flipped if label_smoothing else right
    return divided(each.sum(), denominator, len(each))


def check_preferences(beta: Any, kind: Any, label_smoothing: Any, name: str = "kind") -> tuple[float, float]:
    """Check three options of `preference_loss`; return `beta` and `label_smoothing` as floats.

    `beta` must be above 0, `kind` "sigmoid", "ipo" or "robust", and `label_smoothing` from 0 to below 0.5. `name` is
    what error messages call the option `kind`.

    Raises:
        OptionError: an option is out of its range, or "ipo" gets a `label_smoothing`.
    """
    check_choice(name, kind, PreferenceLoss)
    beta = check_number("beta", beta, above=0)
    label_smoothing = check_number("label_smoothing", label_smoothing, low=0, below=0.5)
    if label_smoothing and kind == "ipo":
        raise OptionError(f"label_smoothing is not for {name} 'ipo'; leave it at 0")
    return beta, label_smoothing


def _check_pairs(**given: Tensor) -> None:
    check_tensors(**given)
    check_floating(**given)
    if len({tuple(one.shape) for one in given.values()}) > 1 or next(iter(given.values())).dim() != 1:
        shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in given.items())
        raise BatchError(f"the shapes are {shapes}; expected [P], one number for each pair")
