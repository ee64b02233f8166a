from __future__ import annotations

import os
from collections import UserDict
from pathlib import Path

import numpy as np
import pytest

import nopad
from nopad.corpus import BadRecord, ReaderOptions, open_source
from nopad.corpus.discover import CORPORA
from nopad.corpus.finding import ARCHIVES, Finder, FoundArrays, FoundDataset, FoundFile
from nopad.corpus.inputs import COMPRESSIONS
from nopad.errors import SourceError


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def message(*args, error=SourceError, **kwargs) -> str:
    with pytest.raises(error) as caught:
        open_source(*args, **kwargs)
    return str(caught.value)


def names(source) -> list[str]:
    return [block.name for block in source.blocks()]


def test_a_folder_is_read_in_byte_order_of_relative_paths(tmp_path):
    files = ["b.txt", "a/z.md", "a.txt", "a-b/x.rst", "B.text", "é.txt", "\U0001f600.TXT"]
    write(tmp_path, dict.fromkeys(files, b"x"))
    source = open_source(tmp_path)
    assert names(source) == ["B.text", "a-b/x.rst", "a.txt", "a/z.md", "b.txt", "é.txt", "\U0001f600.TXT"]
    assert source.inventory() == [(name, 1) for name in names(source)]
    assert source.total_bytes == 7
    assert source.kind == "text"


def test_hidden_is_passed_over_and_unknown_is_listed(tmp_path):
    write(tmp_path, dict.fromkeys([".a.txt", ".git/b.txt", "c.txt", "d.pdf", "e/f", "e/g.json.gz"], b"x"))
    source = open_source([tmp_path])
    assert names(source) == ["c.txt"]
    assert source.ignored == ("d.pdf", "e/f", "e/g.json.gz")


def test_files_and_folders_keep_the_order_given(tmp_path, one_by_one):
    write(tmp_path, {"in/a.txt": b"a", "in/b.jsonl": b'{"text": "b"}\n', "z.txt": b"z", "y": b"y"})
    source = open_source([tmp_path / "z.txt", str(tmp_path / "in"), tmp_path / "y"])
    blocks = list(source.blocks())
    assert [block.name for block in blocks] == ["z.txt", "a.txt", "b.jsonl", "y"]
    assert [block.path for block in blocks] == [str(tmp_path / n) for n in ("z.txt", "in/a.txt", "in/b.jsonl", "y")]
    assert [record.text for block in blocks for record in one_by_one(block.records())] == ["z", "a", "b", "y"]


def test_names_do_not_depend_on_where_the_input_is(tmp_path, monkeypatch):
    write(tmp_path, {"one/a/x.txt": b"x", "two/a/x.txt": b"x"})
    monkeypatch.chdir(tmp_path / "one")
    assert names(open_source(".")) == names(open_source(tmp_path / "two")) == ["a/x.txt"]


def test_links_are_followed_but_not_round_in_circles(tmp_path):
    write(tmp_path, {"data/a.txt": b"a", "else/b.txt": b"b"})
    (tmp_path / "data/linked").symlink_to("../else")
    (tmp_path / "data/round").symlink_to("..")
    source = open_source(tmp_path / "data")
    assert names(source) == ["a.txt", "linked/b.txt"]
    assert source.ignored == ("round",)


def test_a_folder_that_is_called_like_a_file_is_none(tmp_path):
    """It was opened as one: "not a regular file"."""
    write(tmp_path, {"data/a.txt": b"a", "data/wiki.txt/nopad.json": b"{}", "data/state.json/nopad.json": b"{}"})
    (tmp_path / "data/round.txt").symlink_to("..")
    source = open_source(tmp_path / "data")
    assert names(source) == ["a.txt"]
    assert source.ignored == ("round.txt", "wiki.txt")


def test_lines_of_a_text_file(tmp_path, one_by_one):
    write(tmp_path, {"a.txt": b"a\nb\n"})
    [block] = open_source(tmp_path, nopad.ReaderOptions(text_unit="line")).blocks()
    assert [record.text for record in one_by_one(block.records())] == ["a", "b"]


def test_fields(tmp_path, one_by_one):
    write(tmp_path, {"a.jsonl": b'{"text": "x", "t": "y", "i": [1]}'})
    [block] = open_source(tmp_path, nopad.ReaderOptions(text_field="t")).blocks()
    assert [record.text for record in one_by_one(block.records())] == ["y"]
    source = open_source(tmp_path, nopad.ReaderOptions(ids_field="i", carry=()))
    assert source.kind == "ids"
    assert source.left_out == ("text", "t")
    assert [record.ids.tolist() for block in source.blocks() for record in one_by_one(block.records())] == [[1]]


def test_an_unreadable_file_in_the_middle_is_found_before_anything_is_read(tmp_path):
    write(tmp_path, {"a.txt": b"a", "c.txt": b"c"})
    (tmp_path / "b.txt").symlink_to("gone")
    assert message(tmp_path) == (f"{tmp_path}/b.txt: a link to something that does not exist; repair it, or remove it")


def test_a_file_that_vanishes_in_the_middle(tmp_path):
    write(tmp_path, {"a.txt": b"a", "b.txt": b"b", "c.txt": b"c"})
    blocks = open_source(tmp_path).blocks()
    assert next(blocks).name == "a.txt"
    (tmp_path / "b.txt").unlink()
    with pytest.raises(SourceError) as caught:
        next(blocks)
    assert str(caught.value) == f"{tmp_path}/b.txt: no such file or folder; check the path, or put it back"


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    write(tmp_path, {"a.txt": b"a", "sub/b.txt": b"b"})
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert message(tmp_path) == f"{tmp_path}/sub: permission denied; make it readable, or leave it out"


def test_missing(tmp_path):
    assert message(tmp_path / "no") == f"{tmp_path}/no: no such file or folder; check the path, or put it back"


def test_no_input():
    assert message([]) == "no input was given; give text files, JSONL files, Parquet files, or folders of them"


@pytest.mark.parametrize("other", ["", "\n", "no JSON\n", '{"tokens": null}\n', '{"tokens": ["a"]}\n'])
@pytest.mark.parametrize("named", [True, False])
def test_a_file_without_a_good_record_is_like_all_others(tmp_path, other, named):
    good = '{"tokens": [1, 2], "attention_mask": [1, 1], "labels": [1, 2]}\n'
    for name, text in {"a": other, "b": good, "c": other, "d": good}.items():
        (tmp_path / f"{name}.jsonl").write_text(text if named else text.replace("tokens", "input_ids"))
    options = ReaderOptions(ids_field="tokens") if named else None
    paths = {name: tmp_path / f"{name}.jsonl" for name in "abcd"}
    for inputs in (tmp_path, paths, {"first": [paths["a"], paths["c"]], "second": [paths["b"], paths["a"]]}):
        source = open_source(inputs, options)
        assert [column.name for column in source.carried] == ["labels"]
        assert (source.kind, source.mask, source.columns_known) == ("ids", "attention_mask", True)
        found = [record for block in source.blocks() for record in block.records() if not isinstance(record, BadRecord)]
        assert {tuple(records.ids.tokens) for records in found} == {("input_ids", "labels")}
    differs = good.replace("labels", "scores")
    (tmp_path / "e.jsonl").write_text(differs if named else differs.replace("tokens", "input_ids"))
    with pytest.raises(SourceError, match=r"the column 'labels' is not alike in all files: .*b\.jsonl, no such"):
        open_source(tmp_path, options)


def test_empty_folder(tmp_path):
    write(tmp_path, {".hidden.txt": b"x"})
    assert message(tmp_path) == (
        f"{tmp_path}: the folder is empty (hidden files do not count); "
        "nopad reads .txt, .text, .md, .rst, .jsonl, .ndjson, .parquet, .arrow, .feather, .csv, .tsv, "
        "and .json if the path of the file itself is given; files of lines also with .gz or .zst"
    )


def test_nothing_readable(tmp_path):
    write(tmp_path, {"a.pdf": b"x", "b.docx": b"x"})
    assert message(tmp_path) == (
        f"{tmp_path}: none of its 2 files is of a kind that nopad reads (such as 'a.pdf'); "
        "nopad reads .txt, .text, .md, .rst, .jsonl, .ndjson, .parquet, .arrow, .feather, .csv, .tsv, "
        "and .json if the path of the file itself is given; files of lines also with .gz or .zst"
    )


def test_text_and_ids_in_one_job(tmp_path):
    write(tmp_path, {"a.txt": b"a", "b.jsonl": b'{"input_ids": [1]}'})
    assert message(tmp_path) == (
        f"{tmp_path}/a.txt holds text and {tmp_path}/b.jsonl ready-made ids; pack them in two separate jobs, "
        "or, where both have both, choose one kind with text_field= or ids_field="
    )


def test_the_same_file_twice(tmp_path):
    write(tmp_path, {"a.txt": b"a"})
    assert message([tmp_path, tmp_path / "a.txt"]) == (
        f"{tmp_path}/a.txt: given twice; give each file, or the folder it is in, once"
    )


TWICE = [f"a{inner}{outer}" for inner in (*ARCHIVES, *COMPRESSIONS) for outer in COMPRESSIONS]


@pytest.mark.parametrize("name", ["a.pdf", "table.XLSX", "a.parquet.gz", "a.tar.gz", "ids.npy", *TWICE])
def test_what_is_known_not_to_be_text_is_not_read_as_text(tmp_path, name):
    path = tmp_path / name
    path.write_text('{"text": "a"}\n')
    with pytest.raises(SourceError, match="would be read as plain text, which it is not"):
        open_source(path)
    kind = "".join(path.suffixes)
    assert message([path]).startswith(f"{path}: a {kind} file would be read as plain text")


def test_a_file_reached_twice_is_read_once(tmp_path):
    write(tmp_path, {"data/a/x.txt": b"x", "data/y.txt": b"y"})
    (tmp_path / "data/b").symlink_to("a")
    (tmp_path / "data/z.txt").symlink_to("y.txt")
    source = open_source(tmp_path / "data")
    assert [block.data for block in source.blocks()] == [b"x", b"y"]
    assert source.ignored == ("b/x.txt (the same file as a/x.txt)", "z.txt (the same file as y.txt)")


def test_a_file_given_twice_by_a_link(tmp_path):
    write(tmp_path, {"a.txt": b"a"})
    (tmp_path / "b.txt").symlink_to("a.txt")
    assert message([tmp_path / "a.txt", tmp_path / "b.txt"]) == (
        f"{tmp_path}/b.txt: given twice (it is the same file as {tmp_path}/a.txt); "
        "give each file, or the folder it is in, once"
    )


def test_names_that_are_no_utf8(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"input_ids": [[1, 2]]}), tmp_path / "a.parquet")
    os.rename(tmp_path / "a.parquet", os.fsencode(tmp_path) + b"/\xff.parquet")
    [block] = open_source(tmp_path).blocks()
    assert block.data.column("input_ids").to_pylist() == [[1, 2]]


@pytest.mark.parametrize("packed", [False, True])
def test_one_large_text(tmp_path, monkeypatch, packed):
    import gzip

    monkeypatch.setattr("nopad.corpus.text.DOCUMENT_BYTES", 1000)
    data = b"word\n" * 201
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(data) if packed else data)
    size = "more than 1,000 bytes" if packed else "1,005 bytes"
    with pytest.raises(SourceError, match=rf"{path.name}: one document of {size}, above .* with text_unit=\"line\""):
        list(open_source(path).blocks())
    assert sum(len(block.data) for block in open_source(path, nopad.ReaderOptions(text_unit="line")).blocks()) == 1005


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, b"a.txt"])
def test_what_is_no_path(tmp_path, monkeypatch, path):
    write(tmp_path, {"a.txt": b"a"})
    monkeypatch.chdir(tmp_path)  # an empty path is not the folder one is in
    with pytest.raises(SourceError):
        open_source([path])


@pytest.mark.parametrize(
    "columns",
    [
        {"input_ids": [[7, 8], [9]], "attention_mask": [[1, 1], [1]]},
        {"attention_mask": [[1, 1], [1]], "tokens": [[7, 8], [9]]},
        {"labels": [[7, 8], [9]]},
        UserDict(input_ids=[[7, 8], [9]], token_type_ids=[[0, 0], [0]]),
        {"input_ids": [[7, 8]], "label": [1]},
    ],
)
def test_columns_by_name_are_no_named_sources(columns):
    """What a tokenizer or `dataset[:]` gives: each column was packed as a source of its own, masks as ids."""
    with pytest.raises(
        SourceError, match="is a column, and a mapping names whole inputs: give the columns as a dataset"
    ):
        open_source(columns)


def test_a_source_may_be_called_auto():
    """As the default of `mask_field`, which is no name of a column."""
    assert [name for name, _ in open_source({"auto": [[1]], "b": [[2]]}).inventory()] == []
    with pytest.raises(SourceError, match="'mine' is a column"):
        open_source({"mine": [[1]]}, nopad.ReaderOptions(mask_field="mine"))
    with pytest.raises(SourceError, match="None cannot name a source"):
        open_source({None: [[1]]})


def test_the_columns_that_are_named_are_columns_too(tmp_path):
    with pytest.raises(SourceError, match="'tokens' is a column"):
        open_source({"tokens": [[7, 8]], "segments": [[0, 0]]}, nopad.ReaderOptions(ids_field="tokens"))
    write(tmp_path, {"a.txt": b"a"})
    assert names(open_source({"text": tmp_path})) == ["text=a.txt"]  # a path is a whole input


def test_a_source_whose_name_is_no_text():
    with pytest.raises(SourceError, match="1 cannot name a source"):
        open_source({1: [[7, 8]]})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"carry": ("label",)}, "the column 'label' cannot be carried: these files are text, without columns"),
        ({"ids_field": "tokens"}, "ids_field is 'tokens', which is for ready-made ids, and this is text; leave it out"),
        ({"mask_field": "mask"}, "mask_field is 'mask', which is for ready-made ids, and this is text; leave it out"),
        ({"pad_id": 0}, "pad_id is 0, which is for ready-made ids, and this is text; leave it out"),
    ],
)
def test_what_is_asked_for_is_not_passed_over(tmp_path, options, says):
    write(tmp_path, {"a.txt": b"a"})
    for given in (tmp_path, {"named": tmp_path}):
        assert message(given, nopad.ReaderOptions(**options)) == says
    if "ids_field" not in options and "carry" not in options:
        assert message([{"text": "a"}], nopad.ReaderOptions(**options)) == says
    assert open_source([{"text": "a", "label": 1}], nopad.ReaderOptions(carry=("label",))).carried[0].name == "label"


def test_each_kind_of_input_is_found_as_its_own_type(tmp_path):
    """Not as a path or a text, which the reader would have to tell apart."""
    arrays, text = tmp_path / "arrays", tmp_path / "a.txt"
    arrays.mkdir()
    np.save(arrays / "offsets.npy", [0, 1])
    text.write_text("x")
    finder = Finder(suffixes=CORPORA)
    finder.find_all([str(arrays), text, "hf:name"])
    assert [type(one) for one in finder.found] == [FoundArrays, FoundFile, FoundDataset]
    assert [one.place for one in finder.found] == [str(arrays), str(text), "hf:name"]
    (tmp_path / "link").symlink_to(arrays)
    for twice in ([arrays, tmp_path / "link"], [text, str(text)], ["hf:name", "hf:name"]):
        with pytest.raises(SourceError, match="given twice"):
            Finder(suffixes=CORPORA).find_all(twice)
