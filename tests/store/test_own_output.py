"""What nopad has packed is no source, wherever it is found; and nothing is written into what is read."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nopad
from nopad.corpus import DatasetSource, DictSource
from nopad.errors import OptionError, SourceError
from nopad.store.manifest import FORMAT_VERSION

PACKED = "packed already: its rows are packs, and each would be taken for one sequence"


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps({"input_ids": [n] * n}) + "\n" for n in range(1, 6)))
    return folder


def pack(source, out, **how):
    return nopad.pack_corpus(nopad.open_source(source), out, nopad.CorpusOptions(capacity=8), **how)


def tokens(folder):
    return sorted(token for row in nopad.open_packed(folder) for token in row.input_ids.tolist())


def test_a_packed_folder_in_the_source_is_not_walked_into(corpus, tmp_path):
    pack(corpus, tmp_path / "out")
    for name, how in (("packed", {}), ("index", {"index_only": True})):
        pack(corpus, tmp_path / name, **how)
        (tmp_path / name).rename(corpus / name)
    source = nopad.open_source(corpus)
    assert source.ignored == ("index", "packed")
    pack(corpus, tmp_path / "again")
    assert tokens(tmp_path / "again") == tokens(tmp_path / "out") == sorted(n for n in range(1, 6) for _ in range(n))


def test_both_datasets_of_a_job_are_not_walked_into(corpus, tmp_path):
    pack(corpus, tmp_path / "both", packing=nopad.PackOptions(validation=0.3))
    (tmp_path / "both").rename(corpus / "both")
    assert [name for name, _ in nopad.open_source(corpus).inventory()] == ["a.jsonl"]
    with pytest.raises(SourceError, match="none of its 2 files is of a kind that nopad reads"):
        nopad.open_source(corpus / "both")


@pytest.mark.parametrize("what", ["shards", "shards/00000-of-00001.parquet"])
def test_shards_are_refused_by_their_mark(corpus, tmp_path, what):
    pack(corpus, tmp_path / "packed")
    mark = pq.read_schema(tmp_path / "packed/shards/00000-of-00001.parquet").metadata
    assert (mark[b"nopad.format"], mark[b"nopad.format_version"]) == (b"nopad.packed", str(FORMAT_VERSION).encode())
    with pytest.raises(SourceError, match=f"00000-of-00001.parquet: {PACKED}"):
        nopad.open_source(tmp_path / "packed" / what)


def test_shards_that_another_tool_rewrote(corpus, tmp_path):
    pack(corpus, tmp_path / "packed")
    table = pq.read_table(tmp_path / "packed/shards").replace_schema_metadata(None)
    pq.write_table(table, tmp_path / "bare.parquet")
    with pa.ipc.new_file(tmp_path / "bare.arrow", table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "bare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    for given in (tmp_path / "bare.parquet", tmp_path / "bare.arrow", tmp_path / "bare.jsonl"):
        with pytest.raises(SourceError, match=PACKED):
            nopad.open_source(given)
    import datasets

    for make in (lambda: DatasetSource(datasets.Dataset(table)), lambda: DictSource(table.to_pylist())):
        with pytest.raises(SourceError, match=PACKED):
            make()


def test_what_to_hf_made():
    with pytest.raises(SourceError, match=PACKED):
        DatasetSource(nopad.pack_dataset([[1, 2], [3]], 4).to_hf())


def test_an_index_named_itself(corpus, tmp_path):
    pack(corpus, tmp_path / "index", index_only=True)
    with pytest.raises(SourceError, match=f"packs.arrow: {PACKED}"):
        nopad.open_source(tmp_path / "index/packs.arrow")


@pytest.mark.parametrize("out", ["", "packed", "deep/packed"])
@pytest.mark.parametrize("named", [False, True])
def test_an_output_inside_the_input(corpus, out, named):
    given = {"a": corpus} if named else corpus
    with pytest.raises(OptionError, match="which is read; choose a folder outside of it"):
        pack(given, corpus / out)
    assert [path.name for path in corpus.iterdir()] == ["a.jsonl"]


def test_an_output_inside_the_input_by_a_link(corpus, tmp_path):
    (tmp_path / "link").symlink_to(corpus)
    with pytest.raises(OptionError, match="which is read"):
        pack(corpus, tmp_path / "link/packed")


def test_an_output_beside_a_file_that_is_read(corpus):
    assert pack(corpus / "a.jsonl", corpus / "packed").sequences == 5


@pytest.mark.parametrize("name", ["seq_lengths", "seq_index", "seq_start", "seq_source"])
def test_columns_called_as_nopads(name):
    rows = [{"input_ids": [1, 2], name: 7}]
    with pytest.raises(SourceError, match=f"the column '{name}' cannot be carried: nopad writes one of that name"):
        nopad.open_source(rows)
    assert nopad.open_source(rows, nopad.ReaderOptions(carry=())).left_out == (name,)
