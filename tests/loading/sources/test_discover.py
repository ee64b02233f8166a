from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopad import CorpusOptions, ReaderOptions, open_source, pack_corpus
from nopad.corpus import IterableSource
from nopad.errors import OptionError, SourceError
from nopad.loading.sources import TokenSource, open_tokens


@settings(max_examples=15)
@given(st.lists(st.lists(st.integers(0, 65_535), max_size=7), min_size=1, max_size=9).filter(any), st.data())
def test_the_same_tokens_are_the_same_source_whatever_they_are_stored_in(
    tmp_path_factory, write_arrays, write_megatron, lists, data
):
    datasets = pytest.importorskip("datasets")
    here = tmp_path_factory.mktemp("all")
    rows = [{"input_ids": ids} for ids in lists]
    table = pa.table({"input_ids": pa.array(lists, pa.list_(pa.uint16()))})
    pq.write_table(table, here / "a.parquet", row_group_size=2)
    (here / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pack_corpus(IterableSource(lists), here / "index", CorpusOptions(capacity=7), index_only=True)
    given = {
        "folder": write_arrays(here / "f", rows, np.uint16),
        "megatron": write_megatron(here / "m", lists),
        "dataset": datasets.Dataset(table),
        "parquet": here / "a.parquet",
        "spool": here / "a.parquet",
        "lines": here / "a.jsonl",
        "lists": lists,
    }
    spools = {"spool": here / "s"}
    kinds = {kind: open_tokens(one, empty="skip", spool=spools.get(kind)) for kind, one in given.items()}
    kept = [ids for ids in lists if ids]
    numbers = data.draw(st.lists(st.integers(0, len(kept) - 1), max_size=12))
    expected = [i for number in numbers for i in kept[number]]
    for kind, source in kinds.items():
        assert source.gather(numbers).tokens["input_ids"].tolist() == expected, kind
        assert source.seq_lengths.tolist() == list(map(len, kept)), kind
        assert source.skipped == len(lists) - len(kept), kind
        index = open_tokens(here / "index", source=given[kind], spool=spools.get(kind))
        assert index.gather(numbers).tokens["input_ids"].tolist() == expected, kind
    assert len({source.fingerprint for source in kinds.values()}) == 1


@pytest.mark.parametrize("name", ["gone", "gone.parquet", "gone.npy", "gone/"])
def test_a_missing_path(tmp_path, name):
    with pytest.raises(SourceError, match="no such file or folder"):
        open_tokens(tmp_path / name)


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_what_is_no_path(name):
    with pytest.raises(SourceError, match="is no path"):
        open_tokens(name)


def test_an_open_source_is_itself():
    source = open_tokens([[1, 2]])
    assert isinstance(source, TokenSource)
    assert open_tokens(source) is source


def test_what_open_source_opened_is_a_source_of_its_ids(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"input_ids": [1, 2, 3], "label": 1}\n{"input_ids": [4], "label": 0}\n')
    rows = [{"input_ids": [1, 2, 3], "label": 1}, {"input_ids": [4], "label": 0}]
    for kind in (path, rows, lambda: iter(rows)):
        found = open_tokens(open_source(kind)).gather([1, 0])
        assert found.tokens["input_ids"].tolist() == [4, 1, 2, 3]
        assert found.values["label"].tolist() == [0, 1]
    assert open_tokens(open_source(path)).fingerprint == open_tokens(path).fingerprint
    with pytest.raises(SourceError, match="holds text, and no ids; tokenise it first"):
        open_tokens(open_source([{"text": "a"}]))
    with pytest.raises(OptionError, match=r"options is .*, and is not for an open source"):
        open_tokens(open_source(path), ReaderOptions())


@pytest.mark.parametrize("given", [5, None, b"ab", {1, 2}, object()])
def test_what_is_no_input(given):
    with pytest.raises(SourceError, match="is no input; give a path"):
        open_tokens(given)


def test_an_empty_list():
    with pytest.raises(SourceError, match="no input was given"):
        open_tokens([])


def test_a_mapping_names_several_sources():
    with pytest.raises(SourceError, match=r"a dict with a, b is no list of sequences: .* nopad.loading.Mixture"):
        open_tokens({"a": [[1]], "b": [[2]]})


def test_an_unknown_kind_of_file(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"a \.npy file would be read as plain text"):
        open_tokens(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"empty": "drop"}, "empty must be one of 'refuse', 'skip', got 'drop'"),
        ({"unit": "tokens"}, "unit must be one of 'sequences', 'documents', got 'tokens'"),
        ({"unit": "documents"}, "unit is 'documents', and is not for records; leave it out"),
        ({"source": "a"}, "source is 'a', and is not for records; leave it out"),
    ],
)
def test_options_that_are_wrong_or_would_be_passed_over(refuses, wrong, message):
    with refuses(OptionError, message):
        open_tokens([[1, 2]], **wrong)


def test_no_option_is_passed_over(tmp_path, write_arrays, write_megatron):
    folder = write_arrays(tmp_path / "a", [{"input_ids": [1, 2]}])
    pair = write_megatron(tmp_path / "b", [[1, 2]])
    packed, index = tmp_path / "packed", tmp_path / "index"
    for out in (packed, index):
        pack_corpus(IterableSource([[1, 2]]), out, CorpusOptions(capacity=2), index_only=out == index)
    for path, option in (
        (folder, {"options": ReaderOptions(pad_id=0)}),
        (folder, {"spool": "s"}),
        (folder, {"unit": "documents"}),
        (pair, {"spool": "s"}),
        (pair, {"options": ReaderOptions(pad_id=0)}),
        (open_tokens(folder), {"spool": "s"}),
        (open_tokens(folder), {"empty": "skip"}),
        (packed, {"empty": "skip"}),
        (index, {"empty": "skip", "source": folder}),
        (index, {"unit": "documents", "source": folder}),
    ):
        with pytest.raises(OptionError, match="and is not for"):
            open_tokens(path, **option)
