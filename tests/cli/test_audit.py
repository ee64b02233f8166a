"""`nopad audit` on small models in folders: verdicts, exit codes, whose collator, and what is refused."""

from __future__ import annotations

import json
import sys

import pytest
import transformers

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
    assert "2 times in 2 layers" in out


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
