"""Slots of batches without packing, against batches that are really made."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import Histogram
from nopad.errors import LengthError, OptionError
from nopad.planning.baselines import padded


def slots(lengths, batch_size):
    """Pad batches, in this order, to their longest."""
    return sum(
        max(part) * len(part) for part in (lengths[i : i + batch_size] for i in range(0, len(lengths), batch_size))
    )


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 7))
def test_every_order(lengths, batch_size):
    found = padded(Histogram.from_lengths(lengths), 9, batch_size)
    orders = [slots(order, batch_size) for order in itertools.permutations(lengths)]
    assert found.dynamic == pytest.approx(sum(orders) / len(orders), abs=0.5 + 1e-9)
    assert found.by_length == slots(sorted(lengths, reverse=True), batch_size)
    assert (found.fixed, found.tokens) == (9 * len(lengths), sum(lengths))


def test_shares_on_many_sequences():
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(5, 1, 100_000).astype(int), 1, 2048)
    found = padded(Histogram.from_lengths(lengths), 2048)
    drawn = np.mean([slots(draw.permutation(lengths).tolist(), 32) for _ in range(5)])
    assert found.dynamic == pytest.approx(drawn, rel=0.005)
    assert found.by_length == slots(sorted(lengths.tolist(), reverse=True), 32)
    assert found.share(found.fixed) == pytest.approx(1 - lengths.sum() / (2048 * 100_000))
    assert found.share(found.tokens) == 0


def test_one_sequence_per_batch_has_no_padding():
    found = padded(Histogram.from_lengths([3, 9, 4]), 10, 1)
    assert found.dynamic == found.by_length == found.tokens == 16


@pytest.mark.parametrize("wrong", [0, -1])
def test_batch_size(wrong):
    with pytest.raises(OptionError, match=f"batch_size.*{wrong}"):
        padded(Histogram.from_lengths([1]), 2, wrong)


def test_nothing():
    found = padded(Histogram.from_counts({}), 10)
    assert (found.fixed, found.dynamic, found.by_length, found.share(0)) == (0, 0, 0, 0.0)


def test_counts_beyond_64_bits():
    found = padded(Histogram.from_counts(dict.fromkeys([5, 6, 8], 2**62)), 10, 4)
    assert found.fixed == 30 * 2**62
    assert found.by_length == found.tokens == 19 * 2**62  # whole batches of one length each
    chances = np.array([(1 / 3) ** 4, (2 / 3) ** 4 - (1 / 3) ** 4, 1 - (2 / 3) ** 4])
    assert found.dynamic == pytest.approx(3 * 2**62 * float(chances @ [5, 6, 8]))


def test_a_billion_sequences_take_no_memory_of_their_own():
    found = padded(Histogram.from_counts({7: 10**9, 3: 10**9 + 1}), 8, 1)
    assert found.by_length == found.dynamic == found.tokens


def test_more_sequences_than_fit_in_memory():
    n = 2**40
    found = padded(Histogram.from_counts({3: n, 5: n + 1}), 8, 2)
    assert found.by_length == 5 * (n + 2) + 3 * (n - 1)  # an odd one of length 5 takes a shorter one into its batch
    assert found.fixed == 8 * (2 * n + 1)


@pytest.mark.parametrize("capacity", [0, -3, 10.5, True, "x"])
def test_capacities_that_are_refused(capacity):
    with pytest.raises(OptionError, match="capacity must be an integer from 1"):
        padded(Histogram.from_lengths([5]), capacity)


def test_nothing_is_padded_to_less_than_its_length():
    with pytest.raises(LengthError, match="the longest sequence has 9 tokens, and cannot be padded to 4"):
        padded(Histogram.from_lengths([5, 9]), 4)
