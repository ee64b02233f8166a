"""How long a batch takes: what is estimated, and that no estimate refuses requests for ever."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertConfig, BertModel

import nopad
from nopad.errors import DeadlineError
from nopad.serving.pace import Pace

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@given(st.floats(0, 1e9), st.floats(1, 1e6), st.lists(st.integers(1, 10_000), min_size=2), st.integers(1, 10_000))
def test_a_fixed_time_and_a_time_per_token_are_told_apart(fixed, per_token, sizes, asked):
    pace = Pace()
    for tokens in (*sizes, min(sizes), 2 * max(sizes)):
        pace.add(tokens, fixed + per_token * tokens)
    assert pace.estimate(asked) == pytest.approx(fixed + per_token * asked, rel=1e-3)


def test_one_size_of_batches_says_nothing_of_larger_ones():
    pace = Pace()
    for _ in range(30):
        pace.add(1, 2_200_000)
    assert pace.estimate(500) == pytest.approx(2_200_000)
    assert pace.ns_per_token == pytest.approx(2_200_000)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**12)), min_size=1), st.integers(1, 10**6))
def test_no_estimate_is_negative_and_more_tokens_never_take_less(batches, tokens):
    pace = Pace()
    for one in batches:
        pace.add(*one)
    assert 0 <= pace.estimate(tokens) <= pace.estimate(2 * tokens)


def test_a_slow_first_batch_refuses_nobody_for_ever():
    torch.manual_seed(0)
    model = nopad.packed(BertModel(BertConfig(**SIZES)).eval())
    hook = model.register_forward_pre_hook(lambda *_: time.sleep(0.5))
    with nopad.PackRunner(model, warm_up=False) as runner:
        runner({"input_ids": [5, 6]})
        hook.remove()
        assert runner.statistics.us_per_token >= 250_000  # 125 s for 500 tokens, if all of it were time per token
        for n in (500, 3, 400, 1):
            assert runner.submit({"input_ids": [7] * n}, deadline_s=100).result(60)
        with pytest.raises(DeadlineError, match="the deadline has passed already"):
            runner.submit({"input_ids": [7]}, deadline_s=0)
