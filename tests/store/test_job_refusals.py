"""What a packing job will not do: write over something else, or begin what cannot end."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

import nopad
from nopad.corpus import IterableSource, open_source
from nopad.errors import (
    CorruptError,
    FormatError,
    LengthError,
    OptionError,
    OutputExistsError,
    RecordError,
    ResumeError,
)
from nopad.store import build


def test_the_same_call_again_reuses_the_dataset(tmp_path, pack, make_records, break_at):
    source, out = IterableSource(make_records(50)), tmp_path / "out"
    made = pack(source, out)
    before = {path: path.stat() for path in out.rglob("*")}
    steps = break_at(AssertionError("written"))
    assert pack(source, out) == made
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == {
        path: stat.st_mtime_ns for path, stat in before.items()
    }
    assert steps == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"capacity": 17}, "capacity was 16, now 17"),
        ({"depth": 3}, "depth was none, now 3"),
        ({"algorithm": "greedy", "seed": 1}, "algorithm was auto, now greedy; seed was 0, now 1"),
        ({"order": "source"}, "order was random, now source"),
        ({"over_long": "split"}, "over_long was error, now split"),
        ({"shard_tokens": 300}, "shard_tokens was 200, now 300"),
        ({"index_only": True}, "kind was packed, now index"),
    ],
)
def test_a_dataset_made_with_other_settings_is_kept(tmp_path, pack, make_records, tree, change, says):
    source, out = IterableSource(make_records(20)), tmp_path / "out"
    pack(source, out)
    before = tree(out)
    with pytest.raises(OutputExistsError) as caught:
        pack(source, out, **change)
    assert str(caught.value) == (
        f"{out} already holds a packed dataset made with other settings ({says}); choose another folder"
    )
    assert tree(out) == before


def test_a_dataset_of_another_source_is_kept(tmp_path, pack, make_records, tree):
    out = tmp_path / "out"
    pack(IterableSource(make_records(20)), out)
    before = tree(out)
    with pytest.raises(OutputExistsError) as caught:
        pack(IterableSource(make_records(20, seed=1)), out)
    assert str(caught.value) == f"{out} already holds a packed dataset of another source; choose another folder"
    assert tree(out) == before


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "shards/a", ".work/mine", ".work"])
def test_a_folder_that_holds_something_else_is_refused_untouched(tmp_path, pack, tree, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    with pytest.raises(OutputExistsError) as caught:
        pack(IterableSource([[1]]), tmp_path)
    assert str(caught.value) == f"{tmp_path} already holds something else; choose a new or empty folder"
    assert tree(tmp_path) == {name: b"mine"}


def test_another_kind_of_manifest_is_refused_untouched(tmp_path, pack, tree):
    (tmp_path / "nopad.json").write_text("{}")
    with pytest.raises(FormatError, match="is not the manifest of a packed dataset"):
        pack(IterableSource([[1]]), tmp_path)
    assert tree(tmp_path) == {"nopad.json": b"{}"}


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path, pack):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputExistsError, match="already holds something else"):
        pack(IterableSource([[1]]), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize(
    ("records", "options", "error", "message"),
    [
        ([[1]] * 9 + [[1] * 17], {}, RecordError, "memory, line 10: 17 tokens, capacity is 16; "),
        ([[1], []], {"empty": "error"}, RecordError, "memory, line 2: an empty document"),
        ([[1], [-1]], {}, RecordError, r"memory, line 2: ids\[0\] is -1; "),
        ([[1]], {"depth": 0}, OptionError, "depth must be an integer from 1 "),
        ([[1]], {"algorithm": "lpfph"}, OptionError, "unknown algorithm 'lpfph'; did you mean lpfhp"),
        ([[1]], {"order": "sideways"}, OptionError, "order is 'sideways'; it is 'random' or 'source'"),
        ([[1]], {"shard_tokens": 0}, OptionError, "shard_tokens must be an integer of at least 1, got 0"),
        ([], {}, RecordError, "nothing to pack: 0 records gave no sequence "),
        (
            [[], [1] * 17],
            {"over_long": "drop"},
            RecordError,
            r"nothing to pack: 2 .*\(1 empty, 0 bad, 1 dropped as over",
        ),
    ],
)
def test_what_can_never_be_packed_leaves_nothing_behind(tmp_path, small_groups, pack, records, options, error, message):
    with pytest.raises(error, match=f"^{message}"):
        pack(IterableSource(records, block_records=2), tmp_path / "out", **options)
    assert os.listdir(tmp_path) == []


def test_text_without_a_tokenizer_leaves_nothing_behind(tmp_path, pack):
    with pytest.raises(OptionError, match="no tokenizer was given"):
        pack(IterableSource(["w1"]), tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_bad_length_leaves_nothing_behind(tmp_path, pack, monkeypatch):
    def refuse(*_, **__):
        raise LengthError("no such length")

    monkeypatch.setattr(build, "plan", refuse)
    with pytest.raises(LengthError):
        pack(IterableSource([[1]]), tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_options_are_refused_before_anything_is_read(tmp_path, pack):
    class Unreadable(IterableSource):
        def blocks(self):
            raise AssertionError("read")
            yield

    source = object.__new__(Unreadable)
    for bad in (
        {"order": "sideways"},
        {"depth": -1},
        {"seed": -1},
        {"shard_tokens": 1.5},
        {"options": {"align": 0}},
        {"algorithm": "best"},
    ):
        with pytest.raises(OptionError):
            pack(source, tmp_path / "out", **bad)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["shards/00000-of-00001.parquet", "plan.json"])
def test_a_damaged_dataset_is_not_reused(tmp_path, pack, name):
    source = IterableSource([[1, 2], [3]])
    made = pack(source, tmp_path / "out")
    assert pack(source, tmp_path / "out") == made
    path = tmp_path / "out" / name
    whole = path.read_bytes()
    message = f"{path} is missing or damaged; delete {tmp_path / 'out'} to pack again"
    for content in (whole[:-1], whole.replace(whole[9:10], b"x", 1), None):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(CorruptError, match=f"^{re.escape(message)}$"):
            pack(source, tmp_path / "out")


@pytest.fixture
def two_fields(tmp_path):
    path = tmp_path / "two.jsonl"
    path.write_text("".join(f'{{"a": {[n] * (1 + n % 2)}, "b": {[n] * (1 + n % 2)}}}\n' for n in range(500)))
    return lambda field: open_source(path, nopad.ReaderOptions(ids_field=field), block_bytes=256)


def test_the_same_file_read_in_another_way_is_another_job(tmp_path, pack, two_fields, interrupt):
    out = tmp_path / "out"
    interrupt(two_fields("a"), out, match="plan.json")
    with pytest.raises(ResumeError, match="ids_field was a, now b"):
        pack(two_fields("b"), out)
    pack(two_fields("a"), out)
    with pytest.raises(OutputExistsError, match="ids_field was a, now b"):
        pack(two_fields("b"), out)
    assert nopad.verify(out, source=two_fields("a")) == []
    assert nopad.verify(out, source=two_fields("b")) == [
        "the source was read in another way when it was packed: ids_field was a, now b"
    ]


def test_options_that_are_no_mapping(tmp_path, pack):
    with pytest.raises(OptionError, match="options is None; it must be a mapping of names to values"):
        pack(IterableSource([[1, 2]]), tmp_path / "out", options=None)


def test_numbers_of_numpy_are_those_of_python(tmp_path, pack, make_records):
    """They were errors of the JSON library, or made another job of the same."""
    plain = {"options": {"align": 2}, "depth": 3, "seed": 5, "algorithm": "lpfhp"}
    odd = {**plain, "options": {"align": np.int16(2)}, "depth": np.int8(3)}
    source = IterableSource(make_records(50))
    made = pack(source, tmp_path / "out", **plain)
    assert pack(source, tmp_path / "out", **{**odd, "seed": np.uint64(5)}) == made


def test_what_was_given_instead_of_a_source_or_its_options(tmp_path):
    source, corpus = IterableSource([[1, 2]]), nopad.CorpusOptions(capacity=4)
    for given, says in [
        (("a.jsonl", tmp_path / "out", corpus), "str is no Source; open it with nopad.open_source"),
        ((source, tmp_path / "out", 4), "int is no CorpusOptions; give nopad.CorpusOptions"),
    ]:
        with pytest.raises(OptionError, match=re.escape(says)):
            nopad.pack_corpus(*given)
    with pytest.raises(OptionError, match=r"str is no Tokenizer; load it with nopad.load_tokenizer"):
        nopad.pack_corpus(source, tmp_path / "out", corpus, tokenizer="bert-base-uncased")
    with pytest.raises(OptionError, match=r"NoneType is no path; give the dataset folder"):
        nopad.pack_corpus(source, None, corpus)
    for named, says in (
        ({"packing": "x"}, "str is no PackOptions; give nopad.PackOptions"),
        ({"packing": {}}, "dict is no PackOptions; give nopad.PackOptions"),
        ({"index_only": "no"}, "str is no bool; give True or False (index_only=)"),
        ({"monitor": print}, "builtin_function_or_method is no Monitor; give an object with the methods stage and"),
        ({"commit_every_s": "2"}, "commit_every_s is '2'; it is a number from 0"),
    ):
        with pytest.raises(OptionError, match=re.escape(says)):
            nopad.pack_corpus(source, tmp_path / "out", corpus, **named)
