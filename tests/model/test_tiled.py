"""The compiled attention kernel: equal to exact attention, sequence by sequence, and taken only where it may be."""

from __future__ import annotations

import threading
from types import FunctionType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode
from zoo import build

import nopad
from nopad.batch import Flat, Rows
from nopad.batch.device import Placement
from nopad.model.backends import _tile_kernels, segments, tiled
from nopad.model.backends.core import Heads

ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
FORMS = [Flat(), Flat(pad_to_multiple_of=16), Rows(96), Rows(96, end_to_end=True)]


@pytest.fixture(autouse=True)
def faster(monkeypatch):
    """Let the kernel win, whatever this CPU is."""
    monkeypatch.setattr(tiled, "_gain", lambda size, dtype: 2.0)


@pytest.fixture
def runs(monkeypatch):
    """The calls of the kernel."""
    seen = []
    real = tiled._run
    monkeypatch.setattr(tiled, "_run", lambda *args: seen.append(1) or real(*args))
    return seen


def placement(lengths, form=None):
    sequences = [[5] * length for length in lengths]
    batch = nopad.PackedBatch.from_sequences(sequences, **({} if form is None else {"form": form}))
    return Placement(batch.layout, "cpu", "segments")


def states(placed, heads, groups, size, dtype, seed=0):
    rng = torch.Generator().manual_seed(seed)
    rows, slots = placed.layout.shape
    return [torch.randn(rows, slots, n, size, generator=rng).to(dtype).transpose(1, 2) for n in (heads, groups, groups)]


def exact(query, key, value, placed, heads):
    """Attention in float64, one sequence and one head after the other, by the order of the stream."""
    flat = [placed.stream(one.transpose(1, 2)).double() for one in (query, key, value)]
    share = flat[0].shape[1] // flat[1].shape[1]
    found = []
    for start, end in zip(placed.bounds, placed.bounds[1:], strict=False):
        one, other, third = (part[start:end].transpose(0, 1) for part in flat)
        scores = one @ other.repeat_interleave(share, 0).transpose(1, 2)
        scores = scores * (one.shape[-1] ** -0.5 if heads.scaling is None else heads.scaling)
        if heads.causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        found.append((torch.softmax(scores, -1) @ third.repeat_interleave(share, 0)).transpose(0, 1))
    return placed.rows(torch.cat(found))


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=9),
    groups=st.integers(1, 3),
    share=st.integers(1, 3),
    size=st.integers(1, 70),
    causal=st.booleans(),
    scaling=st.sampled_from([None, 0.3, 1, 0.0, -0.5]),
    dtype=st.sampled_from(list(ROUNDING)),
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 2**20),
)
def test_it_is_attention_of_each_sequence(lengths, groups, share, size, causal, scaling, dtype, form, seed):
    placed, heads = placement(lengths, form), Heads(scaling=scaling, causal=causal)
    given_ = states(placed, groups * share, groups, size, dtype, seed)
    with torch.no_grad():
        assert tiled.takes(*given_, heads)
        found = tiled.tiled(*given_, placed, heads)
    wanted = exact(*given_, placed, heads)
    assert (found.dtype, found.shape) == (dtype, wanted.shape)
    torch.testing.assert_close(found.double(), wanted, atol=ROUNDING[dtype], rtol=ROUNDING[dtype])
    padding = torch.from_numpy(placed.layout.sequence_ids == 0)
    assert not found[padding].any()


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("causal", [False, True])
def test_company_changes_no_bit(dtype, causal):
    lengths, heads = [3, 64, 17, 90, 1, 40], Heads(causal=causal)
    placed = placement(lengths)
    all_states = states(placed, 4, 2, 32, dtype)
    with torch.no_grad():
        together = tiled.tiled(*all_states, placed, heads)
        for at, length in enumerate(lengths):
            start = sum(lengths[:at])
            mine = [one[:, :, start : start + length] for one in all_states]
            alone = tiled.tiled(*mine, placement([length]), heads)
            assert torch.equal(alone[0], together[0, start : start + length])


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_nan_and_infinity_stay_in_their_sequence(dtype, bad, which):
    lengths = [20, 33, 7, 50]
    placed = placement(lengths)
    clean, dirty = states(placed, 2, 2, 16, dtype), states(placed, 2, 2, 16, dtype)
    dirty[which][:, :, 25] = bad
    with torch.no_grad():
        before, after = (tiled.tiled(*one, placed, Heads()) for one in (clean, dirty))
        parts = [one[:, :, 20:53] for one in dirty]
        plain = scaled_dot_product_attention(*parts).transpose(1, 2)
    assert torch.equal(before[:, :20], after[:, :20])
    assert torch.equal(before[:, 53:], after[:, 53:])
    assert torch.equal(after[:, 20:53].isnan(), plain.isnan())
    assert bool(plain.isnan().any()) == (which != 2 or bad is torch.nan)


def test_far_scores_are_no_nan():
    """Scores of 1e4, whose exponentials would overflow; and those that are nothing beside them."""
    placed = placement([24])
    query, key, value = (100 * one for one in states(placed, 1, 1, 8, torch.float32))
    with torch.no_grad():
        found = tiled.tiled(query, key, value, placed, Heads())
    torch.testing.assert_close(found.double(), exact(query, key, value, placed, Heads()), atol=0.2, rtol=1e-3)


def test_long_sequences_round_no_more():
    """One sum over all tokens was off by 3e-5 for equal values at 2,048 tokens."""
    placed = placement([4096])
    query, key, value = states(placed, 1, 1, 8, torch.float32)
    equal = torch.full_like(value, 1.1)
    with torch.no_grad():
        for one in (equal, value + 1):
            found = tiled.tiled(torch.zeros_like(query), key, one, placed, Heads())
            assert (found.double() / exact(torch.zeros_like(query), key, one, placed, Heads()) - 1).abs().max() < 6e-6


def test_a_later_token_has_no_weight_at_all():
    placed = placement([24])
    query, key, value = states(placed, 1, 1, 8, torch.float32)
    with torch.no_grad():
        before = tiled.tiled(query, key, value, placed, Heads(causal=True))
        value[:, :, 5] = 3e38
        after = tiled.tiled(query, key, value, placed, Heads(causal=True))
    assert torch.equal(before[:, :5], after[:, :5])


def test_bfloat16_is_rounded_to_the_nearest():
    """A single token's result is its value, so rounding must change nothing; means of two are rounded as torch does."""
    placed = placement([1] * 8 + [2] * 8)
    query, key, value = states(placed, 1, 1, 64, torch.bfloat16)
    with torch.no_grad():
        found = tiled.tiled(torch.zeros_like(query), key, value, placed, Heads())[0, :, 0]
    values = value[0, 0].float()
    assert torch.equal(found[:8].float(), values[:8])
    means = values[8:].view(8, 2, 64).mean(1).bfloat16()
    assert torch.equal(found[8::2], means)
    assert torch.equal(found[9::2], means)


def kinds():
    """Calls that the kernel must leave to PyTorch."""
    placed = placement([9, 20])
    plain = states(placed, 2, 2, 8, torch.float32)

    class Own(torch.Tensor):
        pass

    yield "float64", [one.double() for one in plain], Heads()
    yield "float16", [one.half() for one in plain], Heads()
    yield "mixed", [plain[0], plain[1].bfloat16(), plain[2]], Heads()
    yield "subclass", [one.as_subclass(Own) for one in plain], Heads()
    yield "meta", [one.to("meta") for one in plain], Heads()
    yield "smaller values", [*plain[:2], plain[2][..., :4]], Heads()
    yield "window", plain, Heads(window=4)
    yield "dropout", plain, Heads(dropout=0.1)
    yield "softcap", plain, Heads(softcap=5.0)
    yield "sinks", plain, Heads(sinks=torch.zeros(2))
    yield "bias", plain, Heads(bias=torch.zeros(1, 2, 40, 40))


@pytest.mark.parametrize(("given_", "heads"), [one[1:] for one in kinds()], ids=[one[0] for one in kinds()])
def test_what_it_cannot_compute_it_leaves(given_, heads):
    with torch.no_grad():
        assert not tiled.takes(*given_, heads)


class Watched(TorchFunctionMode):
    """A mode of the user's own, which would not see the attention."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_where_it_must_not_run(monkeypatch, runs):
    placed, heads = placement([9, 20]), Heads()
    given_ = states(placed, 2, 2, 8, torch.float32)
    assert not tiled.takes(*given_, heads)  # gradients
    with torch.no_grad():
        assert tiled.takes(*given_, heads)
        with torch.autocast("cpu", torch.bfloat16):
            assert not tiled.takes(*given_, heads)
        with FlopCounterMode(display=False):  # a TorchDispatchMode: it would see no attention
            segments(*given_, placed, heads)
        torch.vmap(lambda *one: segments(*one, placed, heads))(*(one[None] for one in given_))
        with Watched():
            segments(*given_, placed, heads)
        assert not runs
        monkeypatch.setattr(tiled, "_gain", lambda size, dtype: 1.0)
        assert not tiled.takes(*given_, heads)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
        monkeypatch.setattr(tiled, "_gain", lambda size, dtype: 2.0)
        assert not tiled.takes(*given_, heads)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated", "ignore::torch.jit.TracerWarning")
def test_a_traced_model_holds_no_result_of_the_kernel(runs):
    """A trace would keep the kernel's numbers as constants: another input would get them too."""
    placed, heads = placement([9, 20]), Heads()
    given_ = states(placed, 2, 2, 8, torch.float32)
    with torch.no_grad():
        traced = torch.jit.trace(lambda *one: segments(*one, placed, heads), given_, check_trace=False)
        others = states(placed, 2, 2, 8, torch.float32, seed=1)
        assert not runs
        torch.testing.assert_close(traced(*others), segments(*others, placed, heads))
        assert runs


def test_models_run_on_it_and_stay_what_they_are(runs, sequences):
    for kind in ("bert", "llama"):
        model = build(kind, dtype=torch.float32)
        with torch.no_grad():
            alone = [model(input_ids=one[None]).last_hidden_state[0] for one in sequences]
            batch = nopad.PackedBatch.from_sequences(sequences)
            found = batch.unpack_tokens(nopad.packed(model)(**batch).last_hidden_state)
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert runs


def test_threads_do_not_share_anything():
    placed, heads = placement([30, 70, 12] * 6), Heads()
    given_ = [states(placed, 4, 4, 32, torch.float32, seed) for seed in range(4)]
    with torch.no_grad():
        wanted = [tiled.tiled(*one, placed, heads) for one in given_]
    wrong = []

    def work(which):
        with torch.no_grad():
            for _ in range(30):
                if not torch.equal(tiled.tiled(*given_[which], placed, heads), wanted[which]):
                    wrong.append(which)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_trial_leaves_threads_as_they_are(monkeypatch):
    monkeypatch.undo()
    tiled._gains.clear()
    before = torch.get_num_threads()
    gains = [tiled._gain(16, torch.float32), tiled._gain(16, torch.float32)]
    assert gains[0] == gains[1] > 0
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *seen] == [before, before]


def test_the_kernel_as_plain_python():
    """What is compiled, run by Python: the same numbers, and every line runs."""
    space = dict(vars(_tile_kernels))
    plain = FunctionType(_tile_kernels.attention.py_func.__code__, space)
    rng = np.random.default_rng(0)
    starts, lengths = np.array([0, 9, 12]), np.array([9, 3, 20])
    for causal in (False, True):
        query, key, value = (rng.normal(size=(32, n, 5)).astype(np.float32) for n in (4, 2, 2))
        for numbers in (
            (query, key, value),
            tuple((one.view(np.uint32) >> 16).astype(np.uint16) for one in (query, key, value)),
        ):
            found, wanted = (np.zeros_like(numbers[0]) for _ in range(2))
            plain(*numbers, starts, lengths, 0.4, causal, found)
            _tile_kernels.attention(*numbers, starts, lengths, 0.4, causal, wanted)
            if found.dtype == np.uint16:
                found, wanted = ((one.astype(np.uint32) << 16).view(np.float32) for one in (found, wanted))
            np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-5 if numbers[0].dtype == np.float32 else 1e-2)
