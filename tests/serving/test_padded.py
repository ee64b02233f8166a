"""Padded rows [B, L] in, the same padding out, into buffers by choice; the buffers are checked before any work."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification, BertModel

import nopad
from nopad.errors import BatchError, LengthError, OptionError, RequestError
from nopad.serving import Batching

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
CONFIG = {**SIZES, "vocab_size": 120, "max_position_embeddings": 64, "num_labels": 2}
POISON = 13


def a_model(kind=BertModel):
    torch.manual_seed(0)
    return kind(BertConfig(**CONFIG)).double().eval()


@pytest.fixture(scope="module")
def models():
    return a_model(), nopad.packed(a_model())


@pytest.fixture(scope="module")
def runners(models):
    with nopad.PackRunner(models[1]) as flat, nopad.PackRunner(models[1], Batching(capacity=12, rows=2)) as rows:
        yield flat, rows


def padded(spans, width, seed=0):
    """Rows of ids, where each span (begin, end) has tokens."""
    draw = np.random.default_rng(seed)
    mask = np.zeros((len(spans), width), np.int64)
    for row, (begin, end) in enumerate(spans):
        mask[row, begin:end] = 1
    return {"input_ids": np.where(mask, draw.integers(20, 120, mask.shape), 0), "attention_mask": mask}


SPANS = [(0, 5), (2, 9), (0, 1), (8, 9), (0, 9)]


def by_row(plain, batch):
    """Each row's tokens alone, as transformers runs them."""
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        with torch.no_grad():
            yield mask > 0, plain(input_ids=torch.from_numpy(ids[mask > 0])[None])


@settings(deadline=None)
@given(data=st.data())
def test_rows_come_back_as_they_were_padded(models, runners, data):
    width = data.draw(st.integers(1, 12))
    span = st.tuples(st.integers(0, width - 1), st.integers(1, width)).filter(lambda one: one[0] < one[1])
    batch = padded(data.draw(st.lists(span, min_size=1, max_size=6)), width)
    as_tensors = data.draw(st.booleans())
    handed = {name: torch.from_numpy(array) if as_tensors else array for name, array in batch.items()}
    result = data.draw(st.sampled_from(runners))(handed)
    for row, (inside, alone) in enumerate(by_row(models[0], batch)):
        states = result["last_hidden_state"][row].numpy()
        np.testing.assert_allclose(states[inside], alone["last_hidden_state"][0].numpy(), rtol=0, atol=1e-12)
        assert (states[~inside] == 0).all()
        np.testing.assert_allclose(result["pooler_output"][row], alone["pooler_output"][0].numpy(), rtol=0, atol=1e-12)
    assert result["last_hidden_state"].shape == (*batch["input_ids"].shape, 16)


def test_rows_without_a_mask_types_and_fixed_widths():
    plain, model = a_model(BertForQuestionAnswering), nopad.packed(a_model(BertForQuestionAnswering))
    ids, types = torch.randint(20, 120, (3, 7)), torch.randint(0, 2, (3, 7))
    with torch.no_grad():
        expected = plain(input_ids=ids, token_type_ids=types).start_logits
    with nopad.PackRunner(model, widths=9) as runner:
        found = runner({"input_ids": ids, "token_type_ids": types})["start_logits"]
    torch.testing.assert_close(found[:, :7], expected, rtol=0, atol=1e-12)
    assert (found[:, 7:] == float("-inf")).all()


def test_many_callers_share_batches_of_rows_and_of_single_sequences(models):
    plain, model = models
    batch = padded(SPANS, 9)
    with nopad.PackRunner(model, Batching(capacity=16)) as runner:  # rows of one request run in different batches
        futures = [runner.submit(batch) for _ in range(5)]
        singles = [runner.submit({"input_ids": [20 + n] * 3}) for n in range(20)]
        for future in futures:
            result = future.result(60)["last_hidden_state"]
            for row, (inside, alone) in enumerate(by_row(plain, batch)):
                torch.testing.assert_close(result[row][inside], alone["last_hidden_state"][0], rtol=0, atol=1e-12)
        assert all(len(one.result(60)["last_hidden_state"]) == 3 for one in singles)
        assert runner.drain(60)
        assert (runner.statistics.answered, runner.statistics.packer.packed) == (25, 45)


def test_buffers_hold_the_result(models):
    plain, model = models
    batch = padded(SPANS, 9)
    expected = [alone for _, alone in by_row(plain, batch)]
    states, pooled = torch.full((5, 9, 16), 7.0, dtype=torch.float64), np.full((5, 16), 7.0)
    with nopad.PackRunner(model) as runner:
        result = runner(batch, out={"last_hidden_state": states, "pooler_output": pooled})
        one = np.full((3, 16), 7.0)
        single = runner.submit({"input_ids": [20, 21, 22]}, out={"last_hidden_state": one}).result(60)
        same = runner({"input_ids": [20, 21, 22]})
    assert result["last_hidden_state"] is states
    assert result["pooler_output"] is pooled
    for row, (begin, end) in enumerate(SPANS):
        torch.testing.assert_close(states[row, begin:end], expected[row]["last_hidden_state"][0], rtol=0, atol=1e-12)
        assert (states[row, :begin] == 0).all()
        assert (states[row, end:] == 0).all()
        np.testing.assert_allclose(pooled[row], expected[row]["pooler_output"][0], rtol=0, atol=1e-12)
    assert single["last_hidden_state"] is one
    assert single.keys() == same.keys()
    np.testing.assert_allclose(one, same["last_hidden_state"], rtol=0, atol=1e-12)


def ragged(*parts):
    """A nested tensor; torch warns that it is a prototype."""
    with warnings.catch_warnings(action="ignore"):
        return torch.nested.nested_tensor(list(parts))


def without_memory(tensor):
    tensor.untyped_storage().resize_(0)  # as FSDP does
    return tensor


def masked_tensor(tensor):
    with warnings.catch_warnings(action="ignore"):
        return torch.masked.masked_tensor(tensor, tensor == 0)


def buffers(kind):
    good = torch.zeros(5, 9, 16, dtype=torch.float64)
    read_only = np.zeros((5, 9, 16))
    read_only.flags.writeable = False
    return {
        "name": {"logits": good},
        "type": {"last_hidden_state": [1.0]},
        "no dict": [good],
        "shape": {"last_hidden_state": torch.zeros(5, 8, 16, dtype=torch.float64)},
        "dtype": {"last_hidden_state": good.float()},
        "numpy dtype": {"last_hidden_state": np.zeros((5, 9, 16), "U3")},
        "gaps": {"last_hidden_state": torch.zeros(5, 9, 32, dtype=torch.float64)[..., ::2]},
        "numpy gaps": {"last_hidden_state": np.zeros((5, 9, 32))[..., ::2]},
        "read-only": {"last_hidden_state": read_only},
        "gradients": {"last_hidden_state": good.clone().requires_grad_()},
        "twice": {"last_hidden_state": good, "pooler_output": good.view(-1)[:80].view(5, 16)},
        "overlap": {"last_hidden_state": good, "pooler_output": good.view(-1)[70:150].view(5, 16)},
        "around": {"pooler_output": good.view(-1)[70:150].view(5, 16), "last_hidden_state": good},
        "meta": {"last_hidden_state": torch.zeros(5, 9, 16, dtype=torch.float64, device="meta")},
        "sparse": {"last_hidden_state": good.to_sparse()},
        "nested": {"last_hidden_state": ragged(good[0], good[1])},
        "no memory": {"last_hidden_state": without_memory(torch.zeros(5, 9, 16, dtype=torch.float64))},
        "zeros without memory": {"last_hidden_state": torch._efficientzerotensor(5, 9, 16, dtype=torch.float64)},
        "masked tensor": {"last_hidden_state": masked_tensor(good)},
        "functional": {"last_hidden_state": torch._to_functional_tensor(good)},
        "fake": {"last_hidden_state": FakeTensorMode().from_tensor(good)},
        "not made yet": {"last_hidden_state": torch.nn.UninitializedParameter()},
        "masked": {"last_hidden_state": np.ma.masked_array(np.zeros((5, 9, 16)), mask=True)},
    }[kind]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("name", "out has 'logits', and the model's outputs are last_hidden_state, pooler_output"),
        ("type", "of type list; expected a tensor or a NumPy array"),
        ("no dict", "out is of type list; expected a dict of buffers"),
        ("shape", r"is \[5, 8, 16\] of torch.float64; this request gives \[5, 9, 16\] of torch.float64"),
        ("dtype", r"is \[5, 9, 16\] of torch.float32; this request gives \[5, 9, 16\] of torch.float64"),
        ("numpy dtype", "has the dtype <U3, which no tensor has"),
        ("gaps", "is not contiguous; give a buffer without gaps"),
        ("numpy gaps", "is not contiguous; give a buffer without gaps"),
        ("read-only", "is read-only"),
        ("gradients", "requires gradients, and is overwritten; give a detached buffer"),
        ("overlap", r"out\['pooler_output'\] shares memory with out\['last_hidden_state'\]"),
        ("around", r"out\['last_hidden_state'\] shares memory with out\['pooler_output'\]"),
        ("meta", "is on device meta; give a buffer with memory"),
        ("sparse", "is torch.sparse_coo; give a buffer with memory"),
        ("nested", "is nested; give a buffer with memory"),
        ("no memory", "has lost its memory: its storage was resized"),
        ("zeros without memory", "has lost its memory"),
        ("masked tensor", "is a MaskedTensor of a special kind; give a plain torch.Tensor"),
        ("functional", "is a Tensor of a special kind; give a plain torch.Tensor"),
        ("fake", "is a FakeTensor of a special kind"),
        ("not made yet", "is a UninitializedParameter of a special kind"),
        ("masked", "of type MaskedArray; expected a tensor or a NumPy array"),
        ("twice", r"out\['pooler_output'\] shares memory with out\['last_hidden_state'\]"),
    ],
)
def test_buffers_that_do_not_fit_are_refused_before_any_work(models, kind, message):
    calls = []
    with nopad.PackRunner(models[1]) as runner:
        hook = models[1].register_forward_pre_hook(lambda *_: calls.append(1))
        with pytest.raises(OptionError, match=message):
            runner.submit(padded(SPANS, 9), out=buffers(kind))
        assert runner.drain(60)
        hook.remove()
    assert not calls


def test_buffers_need_a_warm_runner_and_one_request(models):
    batch = padded(SPANS, 9)
    with (
        nopad.PackRunner(models[1], warm_up=False) as runner,
        pytest.raises(OptionError, match="a runner that warms up"),
    ):
        runner(batch, out={})
    with nopad.PackRunner(models[1]) as runner, pytest.raises(OptionError, match="one request, and 2 are given"):
        runner([batch, batch], out={})


def test_a_buffer_stays_untouched_where_the_request_fails():
    model = a_model(BertForSequenceClassification)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[POISON] = float("nan")
    batch = padded(SPANS, 9)
    batch["input_ids"][3, 8] = POISON
    out = torch.full((5, 2), 7.0, dtype=torch.float64)
    with nopad.PackRunner(nopad.packed(model)) as runner:
        good = runner.submit({"input_ids": [20, 21]})
        with pytest.raises(RequestError, match="sequence 3 of 5: the model gives NaN for this request, in logits"):
            runner(batch, out={"logits": out})
        assert good.result(60)["logits"].shape == (2,)
        assert (runner.statistics.answered, runner.statistics.failed) == (1, 1)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("error", "change", "message"),
    [
        (
            BatchError,
            {"attention_mask": np.ones((5, 8), np.int64)},
            r"one shape, and these have input_ids \[5, 9\], att",
        ),
        (BatchError, {"attention_mask": np.tile([1, 0, 1, 0, 0, 0, 0, 0, 0], (5, 1))}, "row 0: "),
        (LengthError, {"attention_mask": np.eye(5, 9, 1, np.int64)[[0, 1, 2, 3, 3]] * 0}, "row 0: "),
        (OptionError, {"input_ids": np.full((5, 9), 500)}, "row 0: input_ids: token 0 has the value 500"),
        (BatchError, {"input_ids": np.full((5, 9), 1.5)}, "row 0: "),
        (
            BatchError,
            {"input_ids": ragged(torch.ones(3), torch.ones(2))},
            "input_ids of a request is a nested tensor, of several sequences",
        ),
        (
            BatchError,
            {"input_ids": [1, 2], "attention_mask": [torch.ones(2), torch.ones(2)]},
            "attention_mask of sequence 0 has 2 dimensions",
        ),
    ],
)
def test_rows_that_are_refused(models, error, change, message):
    with nopad.PackRunner(models[1]) as runner, pytest.raises(error, match=message):
        runner({**padded(SPANS, 9), **change})


@pytest.mark.parametrize("name", ["input_ids", "attention_mask"])
@pytest.mark.parametrize("rows", [False, True], ids=["masked rows", "masked array"])
def test_masked_values_are_no_tokens(models, name, rows):
    """Values that NumPy had masked ran as tokens."""
    given = {"input_ids": np.full((2, 3), 20), "attention_mask": np.ones((2, 3), np.int64)}
    masked = np.ma.array(given[name], mask=[[0, 0, 1], [0, 0, 0]])
    with nopad.PackRunner(models[1]) as runner, pytest.raises(BatchError, match=f"{name} of a request has values that"):
        runner({**given, name: masked if rows else list(masked)})


def test_more_rows_than_may_wait_are_refused(models):
    with nopad.PackRunner(models[1], Batching(capacity=16, max_waiting_tokens=20)) as runner:
        with pytest.raises(
            LengthError, match="a request has 23 tokens in all, and at most 20 may wait; give it in par"
        ):
            runner(padded(SPANS, 9))
        assert runner(padded(SPANS[:2], 9))["pooler_output"].shape == (2, 16)
        with pytest.raises(LengthError, match="a request has no rows"):
            runner(padded([], 9))
