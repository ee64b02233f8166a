"""Models of transformers' own classes whose code was changed: tried when they are made pack-safe, watched later."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)
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


def a_method(model, change):
    layer = model.encoder.layer[0]
    inner = layer.feed_forward_chunk
    layer.feed_forward_chunk = lambda states: change(inner(states))


def a_function_that_a_module_holds(model, change):
    module = model.encoder.layer[0].intermediate
    inner = module.intermediate_act_fn
    del module.intermediate_act_fn
    module.intermediate_act_fn = lambda states: change(inner(states))


def a_cached_forward_method(model, change):
    module = model.encoder.layer[0].intermediate
    inner = module.forward
    module.forward = functools.lru_cache(maxsize=2)(lambda states: change(inner(states)))


def a_decorated_forward_method(model, change):
    """PyTorch's decorator is of PyTorch, and calls the function that it holds."""
    module = model.encoder.layer[0].intermediate
    inner = module.forward
    decorated = torch.no_grad()(lambda states: change(inner(states)))
    del decorated.__wrapped__
    module.forward = decorated


def a_hook_of_accelerate(model, change):
    hooks = pytest.importorskip("accelerate.hooks")

    class Changes(hooks.ModelHook):
        def post_forward(self, module, output):
            return change(output)

    hooks.add_hook_to_module(model.encoder.layer[0].intermediate, hooks.SequentialHook(Changes()))


def a_class_of_a_module(model, change):
    module = model.encoder.layer[0].intermediate
    inner = type(module).forward
    names = {"forward": lambda self, states: change(inner(self, states)), "__module__": type(module).__module__}
    module.__class__ = type("BertIntermediate", (type(module),), names)


def a_method_of_a_class(model, change, monkeypatch):
    inner = modeling_bert.BertLayer.feed_forward_chunk
    monkeypatch.setattr(modeling_bert.BertLayer, "feed_forward_chunk", lambda self, states: change(inner(self, states)))


def a_function_of_a_file(model, change, monkeypatch):
    inner = modeling_bert.apply_chunking_to_forward
    monkeypatch.setattr(modeling_bert, "apply_chunking_to_forward", lambda *given: change(inner(*given)))


def an_operation(model, change, monkeypatch):
    inner = torch.Tensor.transpose  # of attention's values
    monkeypatch.setattr(torch.Tensor, "transpose", lambda states, *dims: change(inner(states, *dims)))


def a_hook_of_all_modules(model, change, monkeypatch):
    def hook(module, args, output):
        return change(output) if type(module) is torch.nn.Linear and output.dim() == 3 else None

    return torch.nn.modules.module.register_module_forward_hook(hook)


ONE = [
    *(a_hook, a_hook_before, a_forward_method, a_cached_forward_method, a_decorated_forward_method, a_method),
    *(a_function_that_a_module_holds, a_hook_of_accelerate, a_class_of_a_module),
]
ALL = [
    *(a_class, a_wrapped_class, a_function, a_hook_of_all_modules, a_method_of_a_class, a_function_of_a_file),
    an_operation,
]


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


@pytest.mark.parametrize("way", [*ONE, *(one for one in ALL if one is not an_operation)])
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


@pytest.mark.parametrize("way", [*ONE, *(one for one in ALL if one is not an_operation)])
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


def written(states):
    states += states.mean(1, keepdim=True)


def hook_that_writes(module, args, output):
    written(output)


def hook_that_writes_and_returns(module, args, output):
    written(output)
    return output


def hook_that_writes_by_numpy(module, args, output):
    array = output.detach().numpy()
    array += array.mean(1, keepdims=True)


def hook_before_that_writes(module, args):
    written(args[0])


def hook_that_puts_something_else(module, args, output):
    output["last_hidden_state"] = mixed(output["last_hidden_state"])


@pytest.mark.parametrize(
    ("place", "hook"),
    [
        ("encoder.layer.0.intermediate", hook_that_writes),
        ("encoder.layer.0.intermediate", hook_that_writes_and_returns),
        ("encoder.layer.0.intermediate", hook_that_writes_by_numpy),
        ("encoder.layer.0.output", hook_before_that_writes),
        ("encoder", hook_that_puts_something_else),
        ("", hook_that_puts_something_else),
    ],
)
def test_a_later_hook_that_writes_to_what_it_sees_is_refused(place, hook):
    model = nopad.packed(stock())
    module = model.get_submodule(place)
    before = hook is hook_before_that_writes
    (module.register_forward_pre_hook if before else module.register_forward_hook)(hook)
    said = rf"{hook.__name__}.* changes what \w+ computes, and came after the model was made pack-safe"
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match=said):
            packs_and_alone(model)
    model(torch.tensor([[7, 8]]))  # an ordinary call may, also after a packed one


def rolls_ids(module, args, given):
    ids = given.get("input_ids")
    return (args, {**given, "input_ids": ids.roll(1, 1)}) if ids is not None else None


def writes_ids(module, args, given):
    given.get("input_ids", torch.zeros(1, 2))[:, 1:] = 9


@pytest.mark.parametrize("hook", [rolls_ids, writes_ids])
@pytest.mark.parametrize("prepend", [False, True])
def test_a_later_hook_of_the_whole_model_is_judged_from_the_first_call_on(hook, prepend):
    model = nopad.packed(stock())
    model.register_forward_pre_hook(hook, with_kwargs=True, prepend=prepend)
    model.register_forward_pre_hook(lambda module, args: None)
    said = rf"{hook.__name__}.* changes what BertModel computes, and came after the model was made pack-safe"
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match=said):
            packs_and_alone(model)


def test_hooks_of_the_whole_model_may_record():
    model, seen = nopad.packed(stock()), []
    wanted = packs_and_alone(model)[0]
    model.register_forward_pre_hook(lambda module, args, given: seen.append(given), with_kwargs=True)
    model.register_forward_hook(lambda module, args, output: seen.append(output))
    for _ in range(2):
        found = packs_and_alone(model)[0]
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert len(seen) == 4 * (1 + len(SEQUENCES))


def test_a_hook_is_put_back_as_it_was():
    model = nopad.packed(stock())
    hook = lambda module, args, output: None  # noqa: E731
    handle = model.encoder.layer[0].register_forward_hook(hook)
    packs_and_alone(model)
    nopad.unpacked(model)
    assert list(model.encoder.layer[0]._forward_hooks.values()) == [hook]
    handle.remove()
    assert not model.encoder.layer[0]._forward_hooks


def two_heads():
    first = stock(BertForTokenClassification)
    second = BertForMaskedLM(first.config).double().eval()
    second.bert = first.bert
    return first, second


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_later_hook_of_an_encoder_that_two_models_share_is_judged_for_each(order):
    heads = [nopad.packed(one) for one in two_heads()]
    for one in heads:
        packs_and_alone(one)
    seen = []
    layer = heads[0].bert.encoder.layer[0]
    layer.register_forward_hook(lambda module, args, output: seen.append(output))
    for at in order:
        packs_and_alone(heads[at])
    handle = layer.register_forward_hook(lambda module, args, output: mixed(output))
    for at in order * 2:
        with pytest.raises(UnsupportedModelError, match="changes what BertLayer computes, and came after"):
            packs_and_alone(heads[at])
    handle.remove()
    nopad.unpacked(heads[order[0]])
    packs_and_alone(heads[order[1]])
    assert seen


def test_a_hook_that_came_later_for_one_model_was_tried_with_another():
    """The second model has it when it is made pack-safe, whether or not it is a stand-in of the first by then."""
    for called in (False, True):
        first, second = two_heads()
        nopad.packed(first)
        first.bert.encoder.layer[0].register_forward_hook(lambda module, args, output: output * 1.5)
        said = "changes what BertLayer computes, and came after"
        if called:
            with pytest.raises(UnsupportedModelError, match=said):
                packs_and_alone(first)
        nopad.packed(second)
        with pytest.raises(UnsupportedModelError, match=said):
            packs_and_alone(first)
        for again in (False, True):
            for one, other in zip(*packs_and_alone(second), strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
            if not again:
                nopad.unpacked(first)


def test_which_calls_are_of_ones_own():
    assert not is_own_call(BertModel.forward)
    assert not is_own_call(functools.partial(torch.nn.functional.linear))
    assert not is_own_call(len)
    assert is_own_call(mixed)
    assert is_own_call(functools.partial(functools.partial(mixed)))
    assert is_own_call(functools.wraps(BertModel.forward)(mixed))
    assert is_own_call(functools.lru_cache(mixed))
    assert is_own_call(functools.partial(functools.reduce, mixed))
    assert not is_own_call(functools.lru_cache(BertModel.forward))


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
