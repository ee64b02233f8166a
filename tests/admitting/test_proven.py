"""Code of one's own, and what it reads, that changes after a model was made pack-safe: its proof is of what it was."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import BertModel, BertPreTrainedModel

sys.path.insert(0, str(Path(__file__).parent))

import own
import wrapping

import nopad
from nopad.errors import UnsupportedModelError

SEQUENCES = [[5, 6, 7, 8], [9], [10, 11, 12]]
POOLS = False
OPTIONS = {"pools": False}
halves = None  # a variable of a script, of which the code below reads only an attribute of the same name


def whether():
    return POOLS


@pytest.fixture(autouse=True, scope="module")
def _proofs_of_this_file(tmp_path_factory):
    """What the tests change is proven once; a proof that was remembered holds for as much as a new one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("proofs")))
        yield


class Decides:
    """What decides whether tokens are mixed, in each way by which code may decide."""

    def build(self):
        self.pools, self.options, self.nested = False, {"pools": [False]}, SimpleNamespace(pools=False)
        self.adds = self.halves = False
        self.register_buffer("keep", torch.ones(20_001, dtype=torch.bool))
        self.register_buffer("scale", torch.ones(()))
        self.steps, self.width, self.losses = 0, 0, []

    def step(self, batch):
        """What a training loop runs, of which no proof is."""
        self.losses.append(self.steps)
        self.steps += 1
        return self(**batch)

    def change(self, states):
        return states

    def between(self, states, *_):
        self.width = states.shape[1]  # the code changes this by itself
        states = torch.where(self.keep[: self.width, None], states, 0.0) * self.scale
        asked = self.pools or self.options["pools"][0] or self.nested.pools or whether() or OPTIONS["pools"]
        asked = asked or any(getattr(self, name) for name in ("adds", "halves"))
        if asked or getattr(self.encoder.config, "pools", False):
            states = states + wrapping.mean(states)
        return self.change(states)


class Around(Decides, wrapping.Tagger):
    pass


class Inside(BertPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.bert, self.head = BertModel(config), nn.Linear(32, 3)
        self.part = Part()
        self.post_init()

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        states = self.bert(input_ids, attention_mask=attention_mask, position_ids=position_ids).last_hidden_state
        return self.head(self.part(states))


class Part(Decides, nn.Module):
    """Without what it would read of its model."""

    def __init__(self):
        super().__init__()
        self.encoder = SimpleNamespace(config=SimpleNamespace(pools=False))
        self.build()

    def forward(self, states):
        return self.between(states)


KINDS = {"around": lambda: Around(), "inside": lambda: Inside(own.bert_config())}


def made(name):
    torch.manual_seed(0)
    return nopad.packed(KINDS[name]().double().eval())


def decider(model):
    return model if isinstance(model, Around) else model.part


def packs_and_alone(model):
    batch = nopad.PackedBatch.from_sequences(SEQUENCES)
    with torch.no_grad():
        found, alone = model(**batch), [model(torch.tensor([one])) for one in SEQUENCES]
    first = [one if isinstance(one, torch.Tensor) else one[0] for one in (found, *alone)]
    return batch.unpack_tokens(first[0]), [one[0] for one in first[1:]]


def mixes(states):
    return states + wrapping.mean(states)


def an_attribute(part, patch):
    part.pools = True


def an_attribute_by_its_name(part, patch):
    part.halves = True


def a_list_in_a_dict(part, patch):
    part.options["pools"][0] = True


def a_namespace(part, patch):
    part.nested.pools = True


def a_buffer(part, patch):
    part.keep[::2] = False


def a_setting(part, patch):
    part.encoder.config.pools = True


def a_global(part, patch):
    patch.setattr(sys.modules[__name__], "POOLS", True)


def a_global_dict(part, patch):
    patch.setitem(OPTIONS, "pools", True)


def a_method_of_one(part, patch):
    part.change = mixes


def a_method_of_the_class(part, patch):
    patch.setattr(Decides, "change", lambda self, states: mixes(states))


def a_method_of_a_class_below(part, patch):
    patch.setattr(type(part), "change", lambda self, states: mixes(states))


def a_function_that_it_calls(part, patch):
    patch.setattr(sys.modules[__name__], "whether", lambda: True)


WAYS = [
    *(an_attribute, an_attribute_by_its_name, a_list_in_a_dict, a_namespace, a_buffer, a_setting, a_global),
    *(a_global_dict, a_method_of_one, a_method_of_the_class, a_method_of_a_class_below, a_function_that_it_calls),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_a_change_by_which_code_decides_is_refused(name, way, monkeypatch):
    model = made(name)
    packs_and_alone(model)
    other = copy.deepcopy(model)
    way(decider(model), monkeypatch)
    with pytest.raises(UnsupportedModelError, match="was changed after the model was made pack-safe, so its"):
        packs_and_alone(model)
    model(torch.tensor([SEQUENCES[0]]))  # an ordinary call may
    if way in WAYS[:5] and way is not a_setting:  # of this one only
        for one, alone in zip(*packs_and_alone(other), strict=True):
            torch.testing.assert_close(one, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_what_a_proof_holds_for_may_change(name, monkeypatch):
    model = made(name)
    packs_and_alone(model)
    monkeypatch.setattr(sys.modules[__name__], "halves", 0.5)
    decider(model).steps = 5  # which no forward method reads
    decider(model).losses.append(0.5)
    type(decider(model)).other = 3
    decider(model).scale.fill_(2.0)
    with torch.no_grad():
        model.head.weight.mul_(2)
    model.train()
    for one in (model.eval(), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        for packed, alone in zip(*packs_and_alone(one), strict=True):
            torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)


class Tabled(wrapping.Tagger):
    """Adds a table of places, which is all 0 until weights are loaded."""

    def build(self):
        self.register_buffer("table", torch.zeros(600, 32))

    def between(self, states, input_ids, attention_mask):
        return states + self.table[: states.shape[1]]


def test_a_buffer_of_zeros_may_be_anything_in_a_proof():
    with pytest.raises(UnsupportedModelError, match="what Tabled computes is not always the same: tokens get other"):
        nopad.packed(Tabled())


def mixing_hook(module, args, output):
    return mixes(output)


def writing_hook(module, args, output):
    output += wrapping.mean(output)


def writes_ids(module, args, given):
    given["input_ids"][:, 1:] = 9


@pytest.mark.parametrize("hook", [mixing_hook, writing_hook])
@pytest.mark.parametrize("place", ["", "head"])
def test_a_hook_that_comes_later_is_refused_if_it_changes_something(hook, place):
    model = made("around")
    model.get_submodule(place).register_forward_hook(hook)
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match=rf"{hook.__name__}.* came after the model was made pack-safe"):
            packs_and_alone(model)
    nopad.unpacked(model)
    assert list(model.get_submodule(place)._forward_hooks.values()) == [hook]


def test_a_hook_of_the_whole_module_is_judged_from_the_first_call_on():
    model = made("around")
    model.register_forward_pre_hook(writes_ids, with_kwargs=True)
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match=r"writes_ids.* came after the model was made pack-safe"):
            model(**nopad.PackedBatch.from_sequences(SEQUENCES))


def test_hooks_that_record_may_come_later():
    model, seen = made("around"), []
    for module in (model, model.head):
        module.register_forward_hook(lambda module, args, output: seen.append(output))
        module.register_forward_pre_hook(lambda module, args: None)
    for one, alone in zip(*packs_and_alone(model), strict=True):
        torch.testing.assert_close(one, alone, rtol=0, atol=1e-12)
    assert len(seen) == 2 * (1 + len(SEQUENCES))


@pytest.mark.parametrize("place", ["", "head"])
def test_a_forward_method_that_comes_later_is_refused(place):
    model = made("around")
    module = model.get_submodule(place)
    inner = module.forward
    module.forward = lambda *args, **given: mixes(inner(*args, **given))
    with pytest.raises(UnsupportedModelError, match=r"the forward method .* came after the model was made pack-safe"):
        packs_and_alone(model)
