from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.balance import Attention, CostModel, Measured, Tokens, round_up
from nopad.balance.costs import check_costs, cost_model
from nopad.errors import BalanceError, LengthError, OptionError

lengths_lists = st.lists(st.integers(0, 100_000), max_size=20)


@given(lengths_lists, st.integers(1, 20_000))
def test_attention_is_exact(lengths, hidden):
    costs = Attention(hidden_size=hidden).of(lengths)
    assert costs.dtype == np.int64
    assert costs.tolist() == [6 * hidden * n + n * n for n in lengths]
    assert Tokens().of(lengths).tolist() == lengths


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64])
def test_narrow_lengths_do_not_wrap(dtype):
    lengths = np.array([100, 120], dtype=dtype)
    assert Attention(hidden_size=4096).of(lengths).tolist() == [24576 * n + n * n for n in (100, 120)]


def test_costs_beyond_64_bits_are_refused():
    assert Attention(hidden_size=1).of([3_037_000_490]).tolist() == [6 * 3_037_000_490 + 3_037_000_490**2]
    with pytest.raises(BalanceError, match=r"the cost of 3037000500 tokens is 92233.*does not fit into 64 bits"):
        Attention(hidden_size=1).of([5, 3_037_000_500])
    with pytest.raises(BalanceError, match="the cost of a sequence"):
        Measured(ns_per_token=1e15, ns_per_square=0).of([10_000])
    with pytest.raises(BalanceError, match="a length is 18446744073709551615"):
        Tokens().of(np.array([2**64 - 1], dtype=np.uint64))


@given(st.lists(st.lists(st.integers(1, 500), max_size=5), max_size=8))
def test_packs_cost_what_their_sequences_cost(packs):
    indptr = np.cumsum([0, *map(len, packs)])
    lengths = [n for pack in packs for n in pack]
    costs = Attention(hidden_size=3).of_packs(indptr, lengths)
    assert costs.tolist() == [sum(18 * n + n * n for n in pack) for pack in packs]


def test_sums_that_wrap_over_all_packs_are_right_for_each():
    class Heavy(CostModel):
        def of(self, seq_lengths):
            return np.asarray(seq_lengths, dtype=np.int64) * 2**61

    assert Heavy().of_packs(np.array([0, 3, 6, 9]), np.ones(9, np.int64)).tolist() == [3 * 2**61] * 3
    with pytest.raises(BalanceError, match="the cost of a pack is 9223372036854775808"):
        Heavy().of_packs(np.array([0, 4]), np.ones(4, np.int64))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Attention(hidden_size=0), OptionError, "hidden_size must be an integer from 1 to 2147483647, got 0"),
        (lambda: Attention(hidden_size=1.5), OptionError, "hidden_size must be an integer from 1"),
        (lambda: Tokens().of([3, -1]), BalanceError, "length -1 at index 1; lengths are not negative"),
        (lambda: Tokens().of([0.5]), LengthError, "lengths must be integers, got 0.5"),
        (lambda: round_up([1], 0), OptionError, "multiple must be an integer from 1"),
        (lambda: round_up([1, 2**63 - 1], 8), BalanceError, "to a multiple of 8 is 9223372036854775808, which is"),
        (lambda: Measured(1.0, 1e300).of([2**40]), BalanceError, "the cost of a sequence is inf, which does not fit"),
        (lambda: check_costs([3, -4]), BalanceError, "cost -4 at index 1; costs are integers of at least 0"),
        (lambda: check_costs([2**62, 2**62]), BalanceError, "the sum of all costs is 9223372036854775808, which does"),
        (lambda: Attention.of_model(SimpleNamespace()), OptionError, "SimpleNamespace has no hidden_size; give"),
    ],
)
def test_wrong_use(call, error, message):
    with pytest.raises(error, match=message.replace("(", r"\(").replace(".", r"\.")):
        call()


def test_the_largest_multiple_is_taken():
    assert round_up([2**63 - 9], 8).tolist() == [2**63 - 8]


def test_large_costs_whose_sum_fits_are_taken():
    assert check_costs([2**62, 2**62 - 1]).sum() == 2**63 - 1
    assert check_costs([]).tolist() == []


@given(lengths_lists, st.integers(1, 300))
def test_rounded_up(lengths, multiple):
    for before, after in zip(lengths, round_up(lengths, multiple).tolist(), strict=True):
        assert after % multiple == 0
        assert before <= after < before + multiple


def weights_of(layer):
    """Weights of the matrices among a layer's parameters."""
    return sum(value.numel() for value in layer.parameters() if value.ndim == 2)


def test_the_ratio_of_a_model_is_that_of_its_weights():
    transformers = pytest.importorskip("transformers")
    bert = transformers.BertConfig(hidden_size=64, intermediate_size=256, num_attention_heads=4, num_hidden_layers=1)
    assert Attention.of_model(bert) == Attention(hidden_size=64)
    llama = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1
    )
    layer = transformers.LlamaModel(llama).layers[0]
    # 2 operations per weight and token, against 4 * 64 per pair of tokens, half of them masked
    ratio = 2 * weights_of(layer) / (4 * 64 / 2)
    assert Attention.of_model(llama, causal=True).hidden_size == round(ratio / 6)
    llama.architectures = ["LlamaForCausalLM"]
    assert Attention.of_model(llama) == Attention.of_model(llama, causal=True)
    assert Attention.of_model(llama, causal=False).hidden_size == pytest.approx(ratio / 12, abs=0.5)


def test_experts_that_a_token_visits_count():
    config = {"hidden_size": 64, "num_attention_heads": 4, "hidden_act": "silu", "intermediate_size": 999}
    routed = SimpleNamespace(**config, num_experts_per_tok=2, moe_intermediate_size=100)
    dense = SimpleNamespace(**{**config, "intermediate_size": 200})
    assert Attention.of_model(routed) == Attention.of_model(dense)
    assert Attention.of_model(SimpleNamespace(text_config=dense)) == Attention.of_model(dense)


@pytest.mark.parametrize(
    ("outer", "text", "causal"),
    [
        ({"architectures": ["LlavaForConditionalGeneration"]}, {}, True),
        ({"architectures": ["LlavaForConditionalGeneration"]}, {"architectures": None}, True),
        ({}, {"architectures": ["LlamaForCausalLM"]}, True),
        ({"architectures": ["NewForCausalLM"]}, {"architectures": ["NewTextModel"]}, True),
        ({"is_decoder": True}, {}, True),
        ({}, {"is_decoder": True}, True),
        ({"architectures": ["SiglipModel"]}, {}, False),
        ({"architectures": ["Florence2ForConditionalGeneration"], "is_encoder_decoder": True}, {}, False),
        ({"architectures": ["Blip2ForConditionalGeneration"]}, {"is_encoder_decoder": True}, False),
    ],
)
def test_a_text_config_is_of_the_model_around_it(outer, text, causal):
    sizes = {"hidden_size": 64, "num_attention_heads": 4}
    config = SimpleNamespace(**outer, text_config=SimpleNamespace(**sizes, **text))
    expected = Attention.of_model(SimpleNamespace(**sizes), causal=causal)
    assert Attention.of_model(config) == expected
    assert Attention.of_model(config, causal=not causal) != expected


def test_a_model_that_sees_is_causal_as_its_language_model_is():
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2VLConfig(architectures=["Qwen2VLForConditionalGeneration"])
    assert Attention.of_model(config) == Attention.of_model(config.text_config, causal=True)
    bart = transformers.BartConfig(architectures=["BartForConditionalGeneration"])
    assert Attention.of_model(bart) == Attention.of_model(bart, causal=False)


def test_a_fit_finds_what_made_the_times():
    rng = np.random.default_rng(0)
    batches = [rng.integers(1, 4000, rng.integers(1, 20)) for _ in range(40)]
    true = Measured(ns_per_token=900.0, ns_per_square=0.7, ns_per_batch=2e6)
    times = [2e-3 + sum(900e-9 * n + 0.7e-9 * n * n for n in batch.tolist()) for batch in batches]
    found = Measured.fit(batches, times)
    for name in ("ns_per_token", "ns_per_square", "ns_per_batch"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-6)
    assert found.of([1000]).tolist() == [900 * 1000 + 700_000]
    assert found.of([0]).tolist() == [1]


def test_no_share_of_a_fit_is_negative():
    batches = [[100], [200], [300], [400]]
    found = Measured.fit(batches, [4e-3, 3e-3, 2e-3, 1e-3])
    assert min(found.ns_per_token, found.ns_per_square, found.ns_per_batch) >= 0


@pytest.mark.parametrize(
    ("batches", "seconds", "message"),
    [
        ([[1], [2]], [1, 2], "2 batches and times of shape .* at least 3"),
        ([[1], [2], [3]], [1, 2], "3 batches and times of shape"),
        ([[1], [2], [3]], [1, 2, np.nan], "times must be finite and above 0"),
        ([[1], [2], [3]], [1, 2, 0], "times must be finite and above 0"),
        ([[5], [5], [5]], [1, 2, 3], "too much alike"),
    ],
)
def test_a_fit_of_too_little_is_refused(batches, seconds, message):
    with pytest.raises(OptionError, match=message):
        Measured.fit(batches, seconds)


@pytest.mark.parametrize("values", [(float("nan"), 0.0), (1.0, float("inf")), (-1.0, 1.0), ("1", 0.0), (True, 0.0)])
def test_times_that_cannot_be_are_refused(values):
    with pytest.raises(OptionError, match="is a number of nanoseconds, at least 0"):
        Measured(*values)


@pytest.mark.parametrize("size", ["0", "-1", "2147483648", "1" * 5000, "٣", "x", ""])
def test_a_hidden_size_that_cannot_be_is_refused(size):
    with pytest.raises(OptionError, match="cost must be tokens or attention:HIDDEN_SIZE, such as attention:1024"):
        cost_model(f"attention:{size}")


def test_a_hidden_size_may_begin_with_zeros():
    assert cost_model(f"attention:{'0' * 5000}7") == Attention(hidden_size=7)
