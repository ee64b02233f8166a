"""Whether a checkpoint is of the model that resumes from it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.model.zoo import build
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from nopad.errors import OptionError
from nopad.training import checkpoint
from nopad.training.checkpoint import check_same_model

NESTED = ["clip", "gemma3", "llava", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "siglip", "t5gemma"]


class Bare:
    def __init__(self, config):
        self.config = config


@pytest.fixture
def any_model(monkeypatch):
    monkeypatch.setattr("nopad.model.safety.bare", lambda model: model)


@pytest.mark.parametrize("kind", [kind for kind in NESTED if kind in CONFIG_MAPPING])
def test_nested_configurations_are_compared_field_by_field(kind, any_model, tmp_path):
    """A saved one has only the fields that differ from those of its class."""
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    check_same_model(tmp_path, Bare(AutoConfig.for_model(kind)))
    saved = json.loads((tmp_path / "config.json").read_text())
    part = next(name for name, value in saved.items() if isinstance(value, dict) and "model_type" in value)
    other = AutoConfig.for_model(kind)
    saved[part]["hidden_size"] = 7
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with pytest.raises(OptionError, match=rf"another model: .*{part}\.hidden_size is 7 there and \d+ here"):
        check_same_model(tmp_path, Bare(other))


def test_what_may_differ(tmp_path):
    model = build("bert", "base")
    model.config.save_pretrained(tmp_path)
    model.config.hidden_dropout_prob, model.config.pad_token_id, model.config.use_cache = 0.3, 5, False
    check_same_model(tmp_path, model)
    model.config.layer_norm_eps = 1e-3
    with pytest.raises(OptionError, match=r"another model: layer_norm_eps is 1e-12 there and 0\.001 here"):
        check_same_model(tmp_path, model)
    assert not (tmp_path / checkpoint.STATE_FILE).exists()
