"""Losses of pairs by their definitions, and what they refuse; packs are in `tests/tasks/test_preferences.py`."""

from __future__ import annotations

import math

import pytest
import torch

import nopad
from nopad.errors import BatchError, OptionError
from nopad.losses import label_logprobs, preference_loss, reward_loss


def test_bradley_terry_by_hand():
    chosen, rejected = torch.tensor([2.0, 0.5], dtype=torch.double), torch.tensor([1.0, 1.0], dtype=torch.double)
    wanted = [-math.log(1 / (1 + math.exp(-apart))) for apart in (1.0, -0.5)]
    assert reward_loss(chosen, rejected).item() == pytest.approx(sum(wanted) / 2)
    assert reward_loss(chosen, rejected, denominator=5).item() == pytest.approx(sum(wanted) / 5)
    assert reward_loss(chosen, rejected, center=0.1).item() == pytest.approx(sum(wanted) / 2 + 0.1 * (9 + 2.25) / 2)
    margin = torch.tensor([1.0, -0.5])
    assert reward_loss(chosen, rejected, margin=margin).item() == pytest.approx(math.log(2))


def test_large_margins_are_finite():
    for dtype in (torch.bfloat16, torch.float32):
        far = torch.tensor([1e4], dtype=dtype)
        assert reward_loss(far, -far).item() == 0
        assert reward_loss(-far, far).item() == pytest.approx(2e4, rel=0.01)
        assert reward_loss(far, far).dtype == torch.float32


def test_what_does_not_fit_is_refused():
    one, two = torch.zeros(1), torch.zeros(2)
    with pytest.raises(BatchError, match=r"chosen \[1\], rejected \[2\]; expected \[P\]"):
        reward_loss(one, two)
    with pytest.raises(BatchError, match="expected floating-point"):
        reward_loss(one, one.long())
    with pytest.raises(BatchError, match="expected a torch tensor"):
        reward_loss(one, [0.0])
    with pytest.raises(BatchError, match=r"margin \[2\]"):
        reward_loss(one, one, margin=two)
    with pytest.raises(OptionError, match="kind is 'hinge'; it is 'sigmoid', 'ipo' or 'robust'"):
        preference_loss(one, one, (one, one), kind="hinge")
    for options, told in (
        ({"beta": 0}, "beta is 0; it is a number above 0"),
        ({"beta": True}, "beta is True"),
        ({"label_smoothing": 0.5}, "label_smoothing is 0.5; it is a number from 0 to below 0.5"),
        ({"label_smoothing": False}, "label_smoothing is False"),
        ({"kind": "ipo", "label_smoothing": 0.1}, "label_smoothing is not for kind 'ipo'"),
    ):
        with pytest.raises(OptionError, match=told):
            preference_loss(one, one, (one, one), **options)
    for center in (False, -1, math.inf):
        with pytest.raises(OptionError, match="center is"):
            reward_loss(one, one, center=center)
    with pytest.raises(BatchError, match="the denominator is a bool"):
        reward_loss(one, one, denominator=True)
    batch = nopad.PackedBatch.from_sequences([[1, 2, 3], [4]])
    with pytest.raises(BatchError):
        label_logprobs(torch.zeros(1, 3, 8), torch.tensor([[1, 2, 3, 4]]), batch)
    with pytest.raises(BatchError, match="there are 4 classes"):
        label_logprobs(torch.zeros(1, 4, 4), torch.tensor([[1, 2, 4, 4]]), batch)


def test_ignored_tokens_count_nothing_even_where_logits_are_infinite():
    batch = nopad.PackedBatch.from_sequences([[1, 2, 3], [4]], nopad.Rows(4))
    logits = torch.zeros(1, 4, 8)
    logits[0, 0, 3] = -torch.inf
    logits.requires_grad_()
    sums, counts = label_logprobs(logits, torch.tensor([[1, -100, 3, 4]]), batch)
    assert sums.tolist() == pytest.approx([-math.log(8), 0.0])
    assert counts.tolist() == [1.0, 0.0]
    sums.sum().backward()
    assert logits.grad.isfinite().all()
