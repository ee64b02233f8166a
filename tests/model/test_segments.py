"""The backend `segments` by itself: equal to attention of each sequence alone, and no copies where nothing is cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import nopad
from nopad.batch.device import Placement, place
from nopad.model.backends.core import Heads
from nopad.model.backends.segments import segments

HEADS, SIZE = 2, 4
FORMS = {
    "flat": nopad.Flat(),
    "rows": nopad.Rows(12),
    "end to end": nopad.Rows(7, end_to_end=True),
}


def placed_of(lengths: list[int], form: str) -> Placement:
    batch = nopad.PackedBatch.from_sequences([[1] * n for n in lengths], form=FORMS[form])
    return place(batch["attention_mask"], "cpu", "segments")


def states_of(placed: Placement) -> list[torch.Tensor]:
    """Query, key and value ``[R, H, L, D]``, laid out as a model's linear layers give them."""
    draw = torch.Generator().manual_seed(placed.layout.tokens)
    rows, width = placed.layout.shape
    shape = (rows, width, HEADS, SIZE)
    return [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for _ in range(3)]


def operations(result: torch.Tensor) -> set[str]:
    """Names of the nodes of a result's graph."""
    left, names = [result.grad_fn], set()
    while left:
        node = left.pop()
        if node is not None:
            names.add(node.name())
            left += [one for one, _ in node.next_functions]
    return names


@given(
    lengths=st.lists(st.sampled_from([1, 3, 3, 4, 7]), min_size=1, max_size=8),
    form=st.sampled_from(list(FORMS)),
    causal=st.booleans(),
)
def test_equal_to_each_sequence_alone(lengths, form, causal):
    placed = placed_of(lengths, form)
    leaves = states_of(placed)
    found = segments(*(leaf.transpose(1, 2) for leaf in leaves), placed, Heads(causal=causal))
    assert found.shape == leaves[0].shape
    weights = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).reshape(found.shape)
    gradients = torch.autograd.grad((found * weights).sum(), leaves)

    alone, total = [], torch.zeros((), dtype=torch.float64)
    stream, aims = [placed.stream(leaf) for leaf in leaves], placed.stream(weights)
    for begin, end in zip(placed.bounds, placed.bounds[1:], strict=False):
        mine = (states[begin:end].transpose(0, 1)[None] for states in stream)
        one = scaled_dot_product_attention(*mine, is_causal=causal)[0].transpose(0, 1)
        alone.append(one)
        total = total + (one * aims[begin:end]).sum()
    assert (placed.stream(found) - torch.cat(alone)).abs().max() < 1e-12
    assert not found[placed.ids == 0].any()
    for gradient, wanted in zip(gradients, torch.autograd.grad(total, leaves), strict=True):
        assert (gradient - wanted).abs().max() < 1e-12


@pytest.mark.parametrize(("lengths", "form"), [([5], "flat"), ([4, 4, 4], "flat"), ([12, 12], "rows"), ([12], "rows")])
def test_one_run_that_fills_the_batch_is_not_copied(lengths, form):
    """Neither forward nor backward: a packed step of full rows costs no more than one of an ordinary batch."""
    placed = placed_of(lengths, form)
    leaves = states_of(placed)
    found = segments(*(leaf.transpose(1, 2) for leaf in leaves), placed, Heads())
    names = operations(found)
    assert not [name for name in names if name.startswith(("Cat", "Split", "Index"))], names


@pytest.mark.parametrize(("lengths", "form"), [([5, 4], "flat"), ([11], "rows"), ([3, 4, 5], "end to end")])
def test_other_batches_are_cut(lengths, form):
    placed = placed_of(lengths, form)
    names = operations(segments(*(leaf.transpose(1, 2) for leaf in states_of(placed)), placed, Heads()))
    assert [name for name in names if name.startswith(("Cat", "Split", "Index"))], names
