"""Models of transformers' own classes whose code was changed: tried when they are made pack-safe, watched later."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel
from transformers.models.bert import modeling_bert

import nopad
from nopad.errors import UnsupportedModelError
from nopad.model.own import changes, is_own_call

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SEQUENCES = [[7, 8, 9], [10] * 6, [11, 12]]


def stock(kind=BertModel, dtype=torch.float64):
    torch.manual_seed(0)
    return kind(BertConfig(**SIZES, vocab_size=120)).to(dtype).eval()


def packs_and_alone(model):
    batch = nopad.PackedBatch.from_sequences(SEQUENCES)
    with torch.no_grad():
        alone = [model(torch.tensor([one]))[0][0] for one in SEQUENCES]
        return batch.unpack_tokens(model(**batch)[0]), alone


def mixed(states):
    return states + states.mean(1, keepdim=True)


def rolled(states):
    return states + 0.1 * states.roll(1, 1)


def a_hook(model, change):
    model.encoder.layer[0].intermediate.register_forward_hook(lambda module, args, output: change(output))


def a_hook_before(model, change):
    model.encoder.layer[0].intermediate.register_forward_pre_hook(lambda module, args: (change(args[0]),))


def a_forward_method(model, change):
    module = model.encoder.layer[0].intermediate
    inner = module.forward
    module.forward = functools.partial(lambda states: change(inner(states)))


def a_class(model, change, monkeypatch):
    inner = modeling_bert.BertIntermediate.forward
    monkeypatch.setattr(modeling_bert.BertIntermediate, "forward", lambda self, states: change(inner(self, states)))


def a_wrapped_class(model, change, monkeypatch):
    """`functools.wraps` gives the new function the old one's module."""
    inner = modeling_bert.BertIntermediate.forward

    @functools.wraps(inner)
    def forward(self, states):
        return change(inner(self, states))

    monkeypatch.setattr(modeling_bert.BertIntermediate, "forward", forward)


def a_function(model, change, monkeypatch):
    inner = torch.nn.functional.linear

    def linear(states, *given):
        found = inner(states, *given)
        return change(found) if states.dim() == 3 else found

    monkeypatch.setattr(torch.nn.functional, "linear", linear)


def a_hook_of_all_modules(model, change, monkeypatch):
    def hook(module, args, output):
        return change(output) if type(module) is torch.nn.Linear and output.dim() == 3 else None

    return torch.nn.modules.module.register_module_forward_hook(hook)


ONE = [a_hook, a_hook_before, a_forward_method]
ALL = [a_class, a_wrapped_class, a_function, a_hook_of_all_modules]


@pytest.fixture
def changed(monkeypatch):
    handles = []

    def change(model, way, what):
        if way in ONE:
            way(model, what)
        else:
            handles.append(way(model, what, monkeypatch))
        return model

    yield change
    for handle in handles:
        if handle is not None:
            handle.remove()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("what", [mixed, rolled])
@pytest.mark.parametrize("way", [*ONE, *ALL])
def test_what_mixes_tokens_is_refused(changed, way, what, dtype):
    model = changed(stock(dtype=dtype), way, what)
    with pytest.raises(UnsupportedModelError, match=r"chang.* what BertModel computes, .* differs by .*prove='never'"):
        nopad.packed(model)
    assert not nopad.model.is_packed(model)


@pytest.mark.parametrize("way", [*ONE, *ALL])
def test_what_sees_one_token_at_a_time_is_taken(changed, way):
    model = nopad.packed(changed(stock(), way, lambda states: states * 1.5))
    for one, other in zip(*packs_and_alone(model), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_head_that_gives_one_result_for_each_sequence_is_tried_too():
    model = stock(BertForSequenceClassification)
    model.bert.encoder.layer[1].register_forward_hook(lambda module, args, output: mixed(output))
    with pytest.raises(UnsupportedModelError, match=r"chang.* what BertForSequenceClassification computes"):
        nopad.packed(model)


def test_a_model_that_is_as_its_library_made_it_is_not_run():
    model = stock()
    ran = []
    model.forward = functools.partial(
        lambda inner, *args, **given: (ran.append(1), inner(*args, **given))[1], model.forward
    )
    nopad.packed(model, prove="never")
    assert not ran
    assert [what for what, _ in changes(model)] == ["the forward method"]
    nopad.unpacked(model)
    del model.forward
    assert changes(nopad.packed(model)) == []


def test_a_hook_that_records_may_come_later():
    model, seen = nopad.packed(stock()), []
    wanted = packs_and_alone(model)[0]
    model.encoder.layer[0].register_forward_hook(lambda module, args, output: seen.append(output))
    model.encoder.layer[1].register_forward_hook(lambda module, args, output: output)
    model.encoder.layer[1].register_forward_pre_hook(lambda module, args: args)
    found = packs_and_alone(model)[0]
    assert len(seen) == 1 + len(SEQUENCES)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("way", [*ONE, a_class, a_hook_of_all_modules])
def test_what_changes_values_is_refused_if_it_comes_later(changed, way):
    model = nopad.packed(stock())
    packs_and_alone(model)
    changed(model, way, lambda states: states * 1.5)
    said = r"changes what \w+ computes, and came after the model was made pack-safe"
    for one in (model, copy.deepcopy(model)):
        with pytest.raises(UnsupportedModelError, match=said):
            packs_and_alone(one)
        model(torch.tensor([[7, 8]]))  # an ordinary call may
    nopad.packed(nopad.unpacked(model))  # which tries it
    for one, other in zip(*packs_and_alone(model), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_hook_is_put_back_as_it_was():
    model = nopad.packed(stock())
    hook = lambda module, args, output: None  # noqa: E731
    handle = model.encoder.layer[0].register_forward_hook(hook)
    packs_and_alone(model)
    nopad.unpacked(model)
    assert list(model.encoder.layer[0]._forward_hooks.values()) == [hook]
    handle.remove()
    assert not model.encoder.layer[0]._forward_hooks


def test_which_calls_are_of_ones_own():
    assert not is_own_call(BertModel.forward)
    assert not is_own_call(functools.partial(torch.nn.functional.linear))
    assert not is_own_call(len)
    assert is_own_call(mixed)
    assert is_own_call(functools.partial(functools.partial(mixed)))
    assert is_own_call(functools.wraps(BertModel.forward)(mixed))


def test_changes_of_a_model_without_weights_count_as_made_later():
    with torch.device("meta"):
        model = BertModel(BertConfig(**SIZES, vocab_size=120)).eval()
    a_hook(model, mixed)
    whole = stock(dtype=torch.float32)
    nopad.packed(model).to_empty(device="cpu").load_state_dict(whole.state_dict())
    for name, buffer in whole.named_buffers():
        model.get_buffer(name).copy_(buffer)
    with pytest.raises(UnsupportedModelError, match="came after"):
        packs_and_alone(model)


def test_no_memory_for_a_trial_is_no_verdict(monkeypatch):
    model = stock()

    def fails(*_, **__):
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(modeling_bert.BertIntermediate, "forward", fails)
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        nopad.packed(model)
