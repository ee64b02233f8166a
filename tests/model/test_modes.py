"""Evaluation mode for a while: modules get back the mode that they had, also where blocks of threads overlap."""

from __future__ import annotations

import torch
from torch import nn

from nopad.model.modes import evaluated, in_training, to_evaluation


def modes(model):
    return [module.training for module in model.modules()]


def test_modules_get_back_the_mode_that_they_had():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()).eval()).train()
    model[1].eval()
    before = modes(model)
    with evaluated(model):
        assert modes(model) == [False] * 4
    assert modes(model) == before == [True, True, False, False]


def test_the_last_of_overlapping_blocks_ends_evaluation_mode():
    """The first to end turned dropout on again while the other still ran: wrong vectors, without a word."""
    model = nn.Sequential(nn.Dropout(), nn.Linear(2, 2)).train()
    first, other = evaluated(model), evaluated(model[0])
    first.__enter__()
    other.__enter__()
    first.__exit__(None, None, None)
    assert modes(model) == [True, False, True]
    assert torch.equal(model[0](torch.ones(50)), torch.ones(50))
    other.__exit__(None, None, None)
    assert modes(model) == [True] * 3


def test_what_is_put_into_evaluation_mode_meanwhile_stays_there():
    model = nn.Sequential(nn.Dropout(), nn.Linear(2, 2)).train()
    with evaluated(model):
        assert in_training(list(model.modules()))
        to_evaluation(model[0])
        assert not in_training(list(model[0].modules()))
    assert modes(model) == [True, False, True]
