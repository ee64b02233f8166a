"""Proofs are remembered in files, by a fingerprint of all that they depend on."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import logging
import os
import stat
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

import own

import nopad
from nopad.admitting import front, memory
from nopad.admitting.deriving import Derived, Times
from nopad.admitting.marks import is_library, mark_of
from nopad.admitting.proof import Proof
from nopad.errors import UnsupportedModelError
from nopad.model.families import FAMILIES, Family
from nopad.model.safety import state_of

LINE = Family(route="mixers", mixers=("ByHand",), places=(("bias", 1), ("bias", 2)), mixes=Times(3), pooled="last")
GOOD = Proof(kind="own", model="OwnEncoder", admitted=True, family=LINE, each={"ByHand": [1, 1]}, checks=31)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "nopad" / "proofs"


@pytest.fixture
def audits(monkeypatch):
    """How often a model was proven; the proof itself is not done."""
    done = []

    def counted(model, head=None):
        done.append(type(model).__name__)
        return GOOD

    monkeypatch.setattr(front, "prove", counted)
    return done


def model(**changes):
    return own.OwnEncoder(own.OwnConfig(hidden_size=16, num_hidden_layers=1, **changes))


def test_a_proof_is_read_again_as_it_was_written(cache):
    memory.remember(model(), None, GOOD)
    [file] = cache.iterdir()
    found = memory.recall(model())
    assert found.remembered
    assert found.family == LINE
    assert (found.each, found.checks, found.admitted) == ({"ByHand": [1, 1]}, 31, True)
    assert json.loads(file.read_text())["fingerprint"] == file.stem == memory.fingerprint(model())
    refused = Proof(kind="own", model="OwnEncoder", admitted=False, reason="it leaks")
    memory.remember(model(), None, refused)
    assert memory.recall(model()).reason == "it leaks"


def test_a_second_model_is_not_audited_again(audits, cache):
    for _ in range(2):
        front.proof_of(model())
    assert audits == ["OwnEncoder"]
    front.proof_of(model(), again=True)
    assert len(audits) == 2
    for changed in (model(extra="row"), model(vocab_size=500)):
        front.proof_of(changed)
    assert len(audits) == 4
    front.proof_of(model(), head="tokens")  # another question
    assert len(audits) == 5
    assert len(list(cache.iterdir())) == 4


def test_names_in_a_configuration_change_nothing(audits):
    front.proof_of(model())
    front.proof_of(model(name_or_path="elsewhere", id2label={0: "no", 1: "yes"}, architectures=["Other"]))
    assert len(audits) == 1


def test_versions_are_part_of_it(audits, monkeypatch):
    front.proof_of(model())
    for library in (memory.torch, memory.transformers):
        monkeypatch.setattr(library, "__version__", "99.0")
        front.proof_of(model())
    assert len(audits) == 3


def test_the_code_of_nopad_is_part_of_it(audits, monkeypatch, tmp_path):
    """In a checkout, the code changes while the version stays."""
    front.proof_of(model())
    package = tmp_path / "nopad"
    package.mkdir()
    for number, code in enumerate(("one = 1", "one = 2")):
        (package / "rules.py").write_text(code)
        monkeypatch.setattr(memory.nopad, "__file__", str(package / "__init__.py"))
        memory.code_of_nopad.cache_clear()
        front.proof_of(model())
        assert len(audits) == number + 2
    memory.code_of_nopad.cache_clear()


def test_another_method_of_a_class_is_another_model(audits, monkeypatch):
    front.proof_of(model())
    monkeypatch.setattr(own.ByHand, "forward", lambda self, x: x + 1)
    front.proof_of(model())
    monkeypatch.setattr(own.ByHand, "forward", lambda self, x: x + 2)
    front.proof_of(model())
    assert len(audits) == 3


SOURCE = """
from torch import nn
from transformers import PreTrainedModel
from own import OwnConfig
import {helper}

class Mine(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)

    def forward(self, input_ids):
        return {helper}.change(self.tokens(input_ids))
"""


def loaded(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_source_that_a_class_uses_is_part_of_it(audits, tmp_path):
    """Functions in another file of one's own, too."""
    helper, mine = tmp_path / "own_helper.py", tmp_path / "own_mine.py"
    mine.write_text(SOURCE.format(helper="own_helper"))
    for body in ("return x", "return x", "return x.cumsum(1)"):
        helper.write_text(f"def change(x):\n    {body}\n")
        loaded("own_helper", helper)
        front.proof_of(loaded("own_mine", mine).Mine(own.OwnConfig(hidden_size=16)))
    assert len(audits) == 2


SCRIPT = """
from torch import nn
from transformers import PreTrainedModel
from own import OwnConfig

def helper(x):
    return x * {}

class Mine(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)

    def forward(self, input_ids):
        return helper(self.tokens(input_ids))
"""


@pytest.mark.parametrize("name", ["__main__", "own_script"])
@pytest.mark.parametrize("file", ["train.py", "train", "train.txt"])
def test_a_script_may_have_any_name(monkeypatch, tmp_path, name, file):
    """Code in a file without .py was taken for a library's, whose functions count by their names only."""
    found = []
    for factor in (1, 2, 2):
        (tmp_path / file).write_text(SCRIPT.format(factor))
        loader = importlib.machinery.SourceFileLoader(name, str(tmp_path / file))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
        monkeypatch.setitem(sys.modules, name, module)
        exec(SCRIPT.format(factor), vars(module))  # not a compiled file of the last second
        assert not is_library(name)
        marks = (memory.fingerprint(module.Mine(own.OwnConfig(hidden_size=16))), mark_of(module.Mine))
        assert None not in marks
        found.append(marks)
    assert not set(found[0]) & set(found[1])
    assert found[1] == found[2]


class Held:
    """Hashed by what it holds."""


class Listed(list):
    """A list that may have attributes."""


class Named(dict):
    """A dict that may have attributes."""


def test_changes_in_place_give_another_mark():
    """The bytes of an array of objects are where these lie, and the text of an object is too."""
    one, listed, named = Held(), Listed([1]), Named(a=1)
    one.size = listed.size = named.size = 1
    own = np.array([one, 2], dtype=object)
    fields = np.array([(one, 2)], dtype=[("a", object), ("b", int)])
    values = {
        "array": own,
        "fields": fields,
        "set": {one},
        "frozen": frozenset([one, 3]),
        "list": listed,
        "dict": named,
    }
    before = {name: mark_of(value) for name, value in values.items()}
    assert None not in before.values()
    assert before == {name: mark_of(value) for name, value in values.items()}
    one.size = listed.size = named.size = 2
    assert [name for name, value in values.items() if mark_of(value) == before[name]] == []
    assert mark_of({"a", "b", 3}) == mark_of({3, "b", "a"})
    one.own = {one}
    assert mark_of(one) is not None


def test_a_set_takes_as_long_as_a_list():
    """All that was seen before was copied for each element."""

    def seconds(kind):
        before, values = [(n,) for n in range(20_000)], kind((n,) for n in range(20_000))
        begin = time.process_time()
        assert mark_of(before, values) is not None
        return time.process_time() - begin

    assert seconds(set) < 4 * seconds(list)


def test_a_mapped_array_counts_as_an_array(tmp_path):
    array = np.arange(5)
    np.save(tmp_path / "a.npy", array)
    assert mark_of(np.load(tmp_path / "a.npy", mmap_mode="r")) == mark_of(array)


def test_nothing_is_remembered_of_code_without_a_file(monkeypatch):
    """As in a notebook, or with ``python -c``."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(SCRIPT.format(1), vars(module))
    assert not is_library("__main__")
    assert memory.fingerprint(module.Mine(own.OwnConfig(hidden_size=16))) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"format": 1}', "half", "other", "no line", "[" * 100_000])
def test_damaged_files_are_made_again(audits, cache, damage):
    front.proof_of(model())
    [file] = cache.iterdir()
    whole = file.read_text()
    if damage == "half":
        file.write_text(whole[: len(whole) // 2])
    elif damage == "other":
        file.write_text(whole.replace(file.stem, "0" * 64))
    elif damage == "no line":
        file.write_text(json.dumps({**json.loads(whole), "family": None}))
    else:
        file.write_text(damage)
    front.proof_of(model())
    front.proof_of(model())
    assert len(audits) == 2
    assert file.read_text() == whole


CHANGES = {
    "family": {"mixers": [], "after_padding": True, "table": "bert"},
    "admitted": False,
    "worst": "x",
    "each": None,
    "head": "answers",
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_file_whose_content_changed_is_made_again(audits, cache, field):
    """Whatever it says now: a line with one other fact would let sequences see each other."""
    front.proof_of(model())
    [file] = cache.iterdir()
    whole = json.loads(file.read_text())
    changed = CHANGES[field]
    new = {**whole[field], **changed} if isinstance(changed, dict) else changed
    file.write_text(json.dumps({**whole, field: new}))
    assert front.proof_of(model()).family == LINE
    assert len(audits) == 2
    assert json.loads(file.read_text()) == whole


def test_a_proof_has_the_mode_that_the_umask_gives(cache):
    mask = os.umask(0o022)
    try:
        memory.remember(model(), None, GOOD)
    finally:
        os.umask(mask)
    [file] = cache.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_threads_and_processes_may_write_the_same_proof(cache, caplog):
    def write(number):
        memory.remember(model(), None, replace(GOOD, how="x" * 4000 * number))

    with caplog.at_level(logging.WARNING, logger="nopad"), ThreadPoolExecutor(4) as threads:
        list(threads.map(write, [1, 2, 3, 4] * 5))
    assert not caplog.text
    assert len(list(cache.iterdir())) == 1
    assert memory.recall(model()).family == LINE


def test_a_user_without_a_home_is_told_how_to_keep_proofs(audits, monkeypatch, caplog):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(
        Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home directory."))
    )
    with caplog.at_level(logging.WARNING, logger="nopad"):
        assert front.proof_of(model()).admitted
    assert "Could not determine home directory.; set XDG_CACHE_HOME" in caplog.text


def test_a_folder_that_cannot_be_written_is_a_warning(audits, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, logger="nopad"):
        assert front.proof_of(model()).admitted
    assert "the proof of OwnEncoder is not remembered, and will be done again: " in caplog.text


def test_a_cache_of_a_relative_path_is_not_taken(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert memory.folder() == tmp_path / ".cache" / "nopad" / "proofs"


def test_a_refusal_is_remembered_and_says_why(monkeypatch):
    refused = Proof(kind="own", model="OwnEncoder", admitted=False, reason="layers.0 leaks")
    monkeypatch.setattr(front, "prove", lambda given, head=None: refused)
    with pytest.raises(
        UnsupportedModelError, match=r"the proof that its sequences can be kept apart failed: layers\.0"
    ):
        nopad.packed(model())
    monkeypatch.setattr(front, "prove", None)
    with pytest.raises(UnsupportedModelError, match=r"layers\.0 leaks"):
        nopad.packed(model())


def test_a_remembered_line_makes_a_model_pack_safe(audits):
    """The line is for any number of layers: the count of mixing modules is the model's own."""
    family = Family(mixers=("ByHand",), mixes=Times(1), tables=(("places", 0),))
    memory.remember(
        model(),
        None,
        Proof(kind="own", model="OwnEncoder", admitted=True, family=family, each={"ByHand": [1, 1]}, head="tokens"),
    )
    packed = nopad.packed(model())
    assert not audits
    assert state_of(packed).family.mixes(None) == 1
    assert GOOD.of(own.OwnEncoder(own.OwnConfig(hidden_size=16, num_hidden_layers=5))).mixes(None) == 5


@pytest.mark.parametrize("kind", ["diffllama", "falcon_h1"])  # two attentions, or another mixer, in each layer
def test_a_line_of_the_tables_is_tried_as_it_is(kind):
    table = FAMILIES[kind]
    assert table.attends == 2
    assert Derived(table, {}).of(nn.Identity()) is table
