"""`nopad audit` on small models in folders: verdicts, exit codes, whose collator, and what is refused."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import transformers

import nopad

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(vocab_size=99, **SIZES)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    return str(folder)


def test_isolated(bert, call):
    out = call("audit", bert, "--capacity", "32")
    assert out.code == 0
    assert out.startswith("BertForMaskedLM, nopad, backend 'auto': isolated")
    assert "12 times" not in out
    assert "2 calls in 2 layers" in out


@pytest.fixture(scope="module")
def pictured(tmp_path_factory):
    """A folder with a small model that takes images beside its tokens; it has no processor."""
    folder = tmp_path_factory.mktemp("llava")
    text = {"model_type": "llama", "vocab_size": 60, "num_key_value_heads": 1, "max_position_embeddings": 96, **SIZES}
    eye = {"model_type": "clip_vision_model", "image_size": 16, "patch_size": 4, **SIZES}
    config = transformers.LlavaConfig(vision_config=eye, text_config=text, image_token_index=50)
    transformers.LlavaForConditionalGeneration(config).save_pretrained(folder)
    return str(folder)


def test_models_with_images(pictured, call):
    out = call("audit", pictured)
    assert out.code == 0
    assert out.startswith("LlavaForConditionalGeneration, nopad, backend 'auto': isolated")
    assert "its images were drawn by its configuration" in out
    found = json.loads(call("audit", pictured, "--backend", "mask", "--no-gradients", "--seed", "3", "--json"))
    assert found["outcome"] == "isolated"
    assert not any("gradients" in check["name"] for check in found["checks"])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--layers", "3"], "layers is 3; this LlavaForConditionalGeneration has 2"),
        (["--capacity", "32"], "capacity is 32, and LlavaForConditionalGeneration takes images"),
        (["--fix"], "--fix mends a foreign collator or step; give --collator or --step"),
    ],
)
def test_what_is_not_done_with_images(pictured, call, given, says):
    out = call("audit", pictured, *given)
    assert out.code == 2
    assert says in " ".join(out.err.split())


def test_a_trace_of_a_model_with_images(pictured, call):
    out = call("audit", pictured, "--trace", "--poisoned", "0:5", "--no-gradients", "--layers", "1")
    assert out.code == 0
    assert "the first 1 of 2 layers only, and its vision tower whole" in out
    assert "token 5 of sequence 0 replaced; only its own sequence moves" in out
    for name in ("model.vision_tower.encoder.layers.0", "model.language_model.layers.0", "logits"):
        assert f"\n{name} " in out
    assert "model.language_model.layers.1" not in out


def test_a_collator_that_drops_images(pictured, call):
    """transformers' own; no small change brings them back."""
    out = call("audit", pictured, "--collator", "flattening", "--fix", "--no-gradients")
    assert out.code == 1
    assert "nopad.packed(model)" in out


def test_contaminated_as_json(bert, call):
    out = call("audit", bert, "--collator", "flattening", "--json", "--no-gradients", "--layers", "1")
    found = json.loads(out)
    assert out.code == 1
    assert found["isolated"] is False
    assert found["first_difference"] == "bert.encoder.layer.0.attention.self"
    assert found["max_abs_diff"] > 1e-6


def test_what_trl_feeds(bert, call):
    pytest.importorskip("trl")
    out = call("audit", bert, "--collator", "trl", "--no-gradients")
    assert out.code == 1
    assert "CONTAMINATED at bert.encoder.layer.0.attention.self" in out


def test_ones_own_collator(bert, call, tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(
        "import torch\n"
        "def alone(features):\n"
        "    width = max(len(f['input_ids']) for f in features)\n"
        "    pad = [f['input_ids'] + [0] * (width - len(f['input_ids'])) for f in features]\n"
        "    ids = torch.tensor(pad)\n"
        "    return {'input_ids': ids, 'attention_mask': (ids != 0).long()}\n"
        "text = 'no function'\n"
    )
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    out = call("audit", bert, "--collator", "theirs:alone")
    assert out.code == 0, out
    assert "as it is, with alone" in out
    assert sys.path == path
    for name, why in (("theirs:text", "is str, which cannot be called"), ("nowhere:x", "No module named 'nowhere'")):
        out = call("audit", bert, "--collator", name)
        assert out.code == 2
        assert why in out.error()


def test_refusals(bert, call, tmp_path):
    for args, why in (
        ([bert, "--collator", "other"], "unknown collator 'other'; there are nopad, flattening, trl, or your own"),
        ([str(tmp_path)], "is no folder with a model: it has no config.json"),
        ([bert, "--layers", "9"], "layers is 9; this BertForMaskedLM has 2"),
        ([bert, "--backend", "x"], "backend must be one of 'auto', 'flex'"),
    ):
        out = call("audit", *args)
        assert out.code == 2
        assert why in out.error()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(vocab_size=99, **SIZES)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def test_trl_is_fed_as_by_its_trainer(llama, call):
    pytest.importorskip("trl")
    out = call("audit", llama, "--collator", "trl", "--capacity", "32", "--no-gradients")
    assert out.code == 0, out
    assert "as it is, with DataCollatorForLanguageModeling and use_cache=False, as its trainer does: isolated" in out
    stock = call("audit", llama, "--collator", "flattening", "--capacity", "32", "--no-gradients")
    assert stock.code == 1  # in a loop of one's own the cache is on


def test_a_model_that_fails(bert, call, tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text(
        "import torch\n"
        "def collate(features):\n"
        "    ids = torch.tensor([[t for feature in features for t in feature['input_ids']]])\n"
        "    return {'input_ids': ids, 'token_type_ids': torch.full_like(ids, 7)}\n"
    )
    monkeypatch.chdir(tmp_path)
    out = call("audit", bert, "--collator", "odd:collate", "--no-gradients")
    assert (out.code, out.err) == (1, "")
    assert out.startswith("BertForMaskedLM, as it is, with collate: FAILED\n")
    assert "packed, packed: IndexError: index out of range in self" in out
    found = json.loads(call("audit", bert, "--collator", "odd:collate", "--no-gradients", "--json"))
    assert found["outcome"] == "failed"
    assert {check["error"] for check in found["checks"]} == {"IndexError"}


def test_weights_that_cannot_be_read(bert, call, tmp_path):
    shutil.copytree(bert, tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"no weights")
    out = call("audit", tmp_path / "damaged")
    assert out.code == 2
    assert "damaged: transformers cannot read this model (" in out.error()


def test_advice_names_what_there_is():
    options = inspect.signature(nopad.audit).parameters
    flags = set(re.findall(r"--[a-z-]+", (Path(nopad.cli.__file__).parent / "audit.py").read_text()))
    for path in Path(nopad.auditing.__file__).parent.glob("*.py"):
        for text in re.findall(r'f?"([^"\n]*)"', path.read_text()):
            for name in re.findall(r"\b([a-z_]+)=(?!=)", text):
                assert name in options, f"{path.name}: {text}"
            for name in re.findall(r"--[a-z-]+", text):
                assert name in flags, f"{path.name}: {text}"
            for name in re.findall(r"\bnopad\.([a-z_]+)\(", text):
                assert hasattr(nopad, name), f"{path.name}: {text}"


def test_derived_from_a_configuration_alone(call, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    transformers.LayoutLMConfig(vocab_size=300, **SIZES).save_pretrained(tmp_path)
    out = call("audit", "--derive", str(tmp_path))
    assert out.code == 0
    assert out.startswith("LayoutLMModel (layoutlm): isolated, in ")
    line = "Family(route='mixers', pooler=('pooler', 3), mixers=('LayoutLMSelfAttention',), masked=False)"
    assert out.rstrip().endswith(f'"layoutlm": {line},')
    found = json.loads(call("audit", "--derive", str(tmp_path), "--json"))
    assert (found["admitted"], found["family"], found["head"]) == (True, line, None)


def test_what_cannot_be_derived(call, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    transformers.MarianConfig(vocab_size=300, pad_token_id=0, decoder_vocab_size=300).save_pretrained(tmp_path)
    out = call("audit", "--derive", str(tmp_path))
    assert out.code == 1
    assert "refused" in out
    assert "has an encoder and a decoder" in out
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config"}})
    )
    said = call("audit", "--derive", str(tmp_path))
    assert said.code == 2
    assert "the code of this model is its own (auto_map), and nopad imports no such code" in said.err
    said = call("audit", "--derive", str(tmp_path), "--layers", "1")
    assert said.code == 2
    assert "--layers does not go with --derive, which chooses by itself what to try; leave it out" in said.err
    said = call("audit", "--derive")
    assert said.code == 2
    assert "give a MODEL with --derive" in said.err
