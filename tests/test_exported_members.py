from __future__ import annotations

import importlib
import pkgutil
import types

import pytest

import nopad

MODULES = [found.name for found in pkgutil.walk_packages(nopad.__path__, "nopad.") if found.name != "nopad.__main__"]


def test_the_public_names():
    assert nopad.__all__ == [
        "ALGORITHMS",
        "CorpusOptions",
        "Embedder",
        "Flat",
        "Histogram",
        "NopadError",
        "PackOptions",
        "PackRunner",
        "PackedBatch",
        "PackedDataset",
        "PackedLoader",
        "Packs",
        "Plan",
        "ReaderOptions",
        "Rows",
        "SeveralPlan",
        "StreamPacker",
        "assign",
        "audit",
        "audit_samples",
        "audit_step",
        "load_tokenizer",
        "open_packed",
        "open_source",
        "pack",
        "pack_corpus",
        "pack_dataset",
        "pack_several",
        "packed",
        "plan",
        "plan_several",
        "stream_pack",
        "unpacked",
        "verify",
    ]
    assert nopad.__all__ == sorted(nopad.__all__) == dir(nopad)


@pytest.mark.parametrize("name", nopad.__all__)
def test_every_name_is_reachable_and_documented(name):
    value = getattr(nopad, name)
    assert name == "ALGORITHMS" or (value.__doc__ and value.__name__ == name)


def test_nothing_leaks():
    public = {name for name, value in vars(nopad).items() if name[0] != "_" and not isinstance(value, types.ModuleType)}
    assert public - set(nopad.__all__) == {"Any", "TYPE_CHECKING", "annotations"}  # Python's own


def test_lazy_names_are_the_rest():
    eager = set(nopad.__all__) & vars(nopad).keys()
    assert nopad._LAZY.keys() == set(nopad.__all__) - eager
    for name, module in nopad._LAZY.items():
        assert getattr(nopad, name) is getattr(importlib.import_module(module), name)


def test_importing_everything_gives_the_public_names():
    names: dict[str, object] = {}
    exec("from nopad import *", names)
    assert names.keys() - {"__builtins__"} == set(nopad.__all__)


def test_an_unknown_name():
    with pytest.raises(AttributeError, match=r"\Amodule 'nopad' has no attribute 'packs_'\Z"):
        nopad.packs_  # noqa: B018


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is_and_exports_what_it_has(name):
    module = importlib.import_module(name)
    assert module.__doc__
    missing = [member for member in getattr(module, "__all__", []) if not hasattr(module, member)]
    assert missing == []
