"""Configurations made narrow and short: special tokens in the smaller vocabulary, and some layers of each kind."""

from __future__ import annotations

import pytest
import torch
import transformers

from nopad.admitting.narrowing import SIZES, VOCABULARY, WIDTHS, _is_index, layers_of, list_counts, narrowed
from nopad.admitting.small import small_copy


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        ({"eos_token_id": [2, -1]}, {"eos_token_id": [2, -1]}),
        ({"eos_token_id": [-1, 40_000], "pad_token_id": 40_000}, {"eos_token_id": [-1, 0], "pad_token_id": 0}),
        ({"eos_token_id": -1, "pad_token_id": -2}, {"eos_token_id": -1, "pad_token_id": -2}),
        ({"eos_token_id": [], "bos_token_id": 0, "pad_token_id": 99}, {"bos_token_id": 0, "pad_token_id": 1}),
    ],
)
def test_special_tokens_stay_in_the_vocabulary(ids, wanted):
    """A list of ids with a -1 in it, which stands for no token, gave a KeyError."""
    given = {"bos_token_id": None, "eos_token_id": None, **ids}
    found = narrowed(transformers.LlamaConfig(vocab_size=50_000, **given), SIZES, again=False)
    assert found.vocab_size == VOCABULARY
    assert {name: getattr(found, name) for name in wanted} == wanted


def test_a_number_that_only_counts_layers_makes_no_kinds():
    """The index of a layer lies in its attention module, so each hybrid layer was a kind of its own."""
    config = narrowed(transformers.Qwen3NextConfig(), {**SIZES, **WIDTHS}, again=False)
    assert config.layer_types[:4] == ["linear_attention"] * 3 + ["full_attention"]
    assert layers_of(transformers.Qwen3NextForCausalLM, config) == [0, 1, 2, 3]


def test_layers_that_share_weights_are_kept_in_pairs():
    """Zamba cannot be built with one hybrid layer: the second has the weights of the first."""
    config = narrowed(transformers.ZambaConfig(), {**SIZES, "hidden_size": 64}, again=False)
    found = layers_of(transformers.ZambaForCausalLM, config)
    assert found == [0, 1, 2, 7]
    assert [config.layers_block_type[at] for at in found] == ["linear_attention"] * 2 + ["hybrid"] * 2


def test_a_setting_that_differs_by_layer_makes_kinds():
    """Windows of 6 and no window are two kinds, although their numbers rise with the layers."""
    assert not _is_index([6, 7, 8])
    assert not _is_index([None, 3, None])
    assert not _is_index([0, None, "2"])
    assert _is_index([None, 1, None, 3])
    assert _is_index([None, 0, None, 1])


def test_other_lists_of_layers_are_short_too():
    """HRM runs two stacks of layers again and again; their length is in no field of `LAYER_COUNTS`."""
    small, _ = small_copy(_on_meta(transformers.HrmTextForCausalLM, transformers.HrmTextConfig()))
    assert small.config.num_layers_per_stack == 2
    assert [len(stack.layers) for stack in (small.model.L_module, small.model.H_module)] == [2, 2]
    assert small.config.L_cycles == 3  # how often the stacks run is as in the model


class Counted(transformers.PreTrainedModel):
    """A model that does not run with fewer than five blocks; what they are named says that they are layers."""

    config_class = transformers.LlamaConfig

    def __init__(self, config):
        super().__init__(config)
        self.table = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(config.mixer_layers))
        self.post_init()

    def forward(self, input_ids=None, **more):
        states = self.table(input_ids)
        for at in range(5):
            states = self.blocks[at](states)
        return (states,)


def test_lists_stay_long_if_the_model_does_not_run_with_short_ones():
    config = transformers.LlamaConfig(hidden_size=32, mixer_layers=6)
    assert list_counts(Counted, narrowed(config, SIZES, again=False)) == {"mixer_layers": 2}
    small, how = small_copy(_on_meta(Counted, config))
    assert len(small.blocks) == 6
    assert how.startswith("few narrow layers")


def _on_meta(kind, config):
    with torch.device("meta"):
        return kind(config)
