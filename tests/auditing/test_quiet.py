"""Copies of a model whose modules have a `forward` that a trainer put there; steps that fail while traced."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nopad.auditing.steps.quiet import copied
from nopad.auditing.steps.tracing import first_differences


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, states):
        return self.linear(states)


def run(states, linear, times=2):
    return times * linear(states)


def in_keywords(linear):
    return functools.partial(run, linear=linear, times=3)


def in_keywords_inside_a_closure(linear):
    inside = functools.partial(run, linear=linear)
    return lambda states: inside(states)


def in_arguments(linear):
    return functools.partial(lambda module, states: run(states, module), linear)


def in_a_closure(linear):
    return lambda states: run(states, linear)


def in_a_default(linear):
    return lambda states, module=linear: run(states, module)


def in_a_default_by_name(linear):
    return lambda states, *, module=linear: run(states, module)


def beside_an_empty_cell(linear):
    def forward(states):
        return run(states, linear) if states is not None else later

    if linear is None:
        later = 1
    return forward


@pytest.mark.parametrize("error", [AssertionError, AttributeError, KeyError, SystemExit])
def test_a_step_that_fails_while_it_is_traced_has_no_finding_of_its_own(error):
    """Whatever the user's model or loss raises."""

    def run():
        raise error("no")

    assert first_differences(SimpleNamespace(shape=(1, 2), made=()), run, Model(), Model(), 0.0) == []


@pytest.mark.parametrize(
    "made",
    [
        in_keywords,
        in_keywords_inside_a_closure,
        in_arguments,
        in_a_closure,
        in_a_default,
        in_a_default_by_name,
        beside_an_empty_cell,
    ],
)
def test_a_copy_trains_only_itself_wherever_its_forward_holds_the_module(made):
    model, states = Model(), torch.ones(2, 3)
    model.forward = made(model.linear)
    copy = copied(model, torch.float64, plain=False)
    assert torch.allclose(copy(states.double()), model(states).double(), atol=1e-6)
    copy(states.double()).sum().backward()
    assert copy.linear.weight.grad is not None
    assert model.linear.weight.grad is None
