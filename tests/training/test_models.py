"""The model of a run: adapters over their model, what is new, what is of another model."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import peft
import torch
from tests.tasks.tiny import bert, tokenizer

from nopad.errors import FormatError, OptionError
from nopad.tasks import Classification
from nopad.training.models import load_model, outline, read_model_config
from nopad.training.tables import Model

pytestmark = pytest.mark.filterwarnings("ignore")

AUTO = "AutoModelForSequenceClassification"


def task():
    return Classification(tokenizer(), ["no", "yes"])


@pytest.fixture
def given(tmp_path):
    """The folders of a model without a head, and of adapters over it that were trained; what both give together."""
    torch.manual_seed(1)
    base = bert(task())
    base.bert.save_pretrained(tmp_path / "base")
    how = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    adapted = peft.get_peft_model(copy.deepcopy(base), how)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    adapted.save_pretrained(tmp_path / "adapters")
    ids = torch.tensor([tokenizer()("is it why not")["input_ids"]])
    with torch.no_grad():
        return tmp_path, ids, adapted.eval()(ids).logits


def loaded(table):
    config = read_model_config(table, task())
    return outline(table, config, AUTO), *load_model(table, config, AUTO)


def test_adapters_are_loaded_over_their_model_and_trained(given):
    folder, ids, wanted = given
    shape, model, new = loaded(Model(name=str(folder / "base"), init_from=str(folder / "adapters"), dtype="float64"))
    with torch.no_grad():
        found = model.eval()(ids).logits
    assert (found - wanted).abs().max() < 1e-6  # adapters are stored in float32
    assert not [name for name in new if "classifier" in name]  # which is saved with the adapters
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name or "modules_to_save" in name for name in trained)
    assert {name for name, parameter in shape.named_parameters() if parameter.requires_grad} == trained


def test_adapters_of_another_model_are_refused(given):
    folder, *_ = given
    adapters = str(folder / "adapters")
    with pytest.raises(
        FormatError, match=r"holds adapters and no model; give the model that they are of as model.name"
    ):
        loaded(Model(init_from=adapters))
    with pytest.raises(OptionError, match=r"model.lora makes new adapters, and model.init_from .* gives some"):
        loaded(Model(name=str(folder / "base"), init_from=adapters, lora={"r": 2}))
    bert(task(), hidden_size=16).save_pretrained(folder / "small")
    with pytest.raises(OptionError, match=r"holds adapters of another model: "):
        loaded(Model(name=str(folder / "small"), init_from=adapters))
    bert(task(), num_hidden_layers=1).save_pretrained(folder / "short")
    with pytest.raises(OptionError, match=r"holds adapters of another model: .*layer\.1\..* on one side only"):
        loaded(Model(name=str(folder / "short"), init_from=adapters))
    bert(task(), num_hidden_layers=3).save_pretrained(folder / "long")
    with pytest.raises(OptionError, match=r"holds adapters of another model: .*layer\.2\..* on one side only"):
        loaded(Model(name=str(folder / "long"), init_from=adapters))
    (folder / "adapters" / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(FormatError, match=r"holds adapters that peft cannot read"):
        loaded(Model(name=str(folder / "base"), init_from=adapters))
