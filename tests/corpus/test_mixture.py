from __future__ import annotations

import pytest

from nopad.corpus import CorpusOptions, IterableSource, chain, open_source, sequences
from nopad.corpus.mixture import MixtureSource
from nopad.errors import SourceError


@pytest.fixture
def files(tmp_path):
    for name, lines in (("a", '{"input_ids": [1]}\n{"input_ids": [2, 3]}\n'), ("b", '{"input_ids": [4]}\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jsonl").write_text(lines)
    return tmp_path


def test_sources_in_turn_under_their_names(files):
    source = open_source({"web": files / "a", "code": [files / "b" / "x.jsonl"]})
    assert source.names == ("web", "code")
    assert source.kind == "ids"
    assert [(block.source, block.name) for block in source.blocks()] == [
        ("web", "web=x.jsonl"),
        ("code", "code=x.jsonl"),
    ]
    assert source.inventory() == [("web=x.jsonl", 41), ("code=x.jsonl", 19)]
    assert source.total_bytes == 60
    assert source.settings() == open_source(files / "a").settings()
    first = next(source.blocks())
    assert first.place(2) == f"{files / 'a' / 'x.jsonl'}, line 2"
    assert chain(bytes(32), first) != chain(bytes(32), next(open_source(files / "a").blocks()))


def test_a_group_is_of_one_source(files):
    source = open_source({"web": files / "a", "code": files / "b"})
    groups = list(sequences(source.blocks(), None, CorpusOptions(capacity=8)))
    assert [(group.blocks[0].source, group.batch.values["seq_index"].tolist()) for group in groups] == [
        ("web", [0, 1]),
        ("code", [2]),
    ]


def test_objects_and_files_mix(files):
    import datasets

    source = open_source({"web": files / "a", "given": datasets.Dataset.from_list([{"input_ids": [9, 9]}])})
    groups = list(sequences(source.blocks(), None, CorpusOptions(capacity=8)))
    assert [group.batch.tokens["input_ids"].tolist() for group in groups] == [[1, 2, 3], [9, 9]]


def test_what_does_not_fit_together(files):
    (files / "t.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(SourceError, match="text holds text and ids ready-made ids; pack them in two separate jobs"):
        open_source({"ids": files / "a", "text": files / "t.jsonl"})
    (files / "l.jsonl").write_text('{"input_ids": [1], "label": 3}\n')
    with pytest.raises(SourceError, match="the column 'label' is not alike in all files: no such column in web, int64"):
        open_source({"web": files / "a", "labelled": files / "l.jsonl"})


def test_ignored_files_carry_the_name_of_their_source(files):
    (files / "a" / "x.pdf").write_text("")
    assert open_source({"web": files / "a", "code": files / "b"}).ignored == ("web=x.pdf",)


@pytest.mark.parametrize("name", ["", "a b", "a=b", "ä", "-a"])
def test_names_are_words(name):
    with pytest.raises(SourceError, match="cannot name a source; choose letters, digits"):
        MixtureSource({name: IterableSource([[1]])})


def test_mappings_that_are_no_mixture():
    import datasets

    with pytest.raises(SourceError, match="the mapping of named inputs is empty"):
        open_source({})
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list([{"input_ids": [1]}])})
    with pytest.raises(SourceError, match=r"this DatasetDict holds several splits \(train\); give one of them"):
        open_source(splits)


def test_from_each_block_on_the_same_blocks_come_again(files):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"input_ids": [[n] for n in range(50)]}), files / "b" / "t.parquet", row_group_size=7)
    (files / "a" / "y.jsonl").write_text("".join(f'{{"input_ids": [{n}]}}\n' for n in range(30)))
    memory = [{"input_ids": [n]} for n in range(3)]
    for given in (files / "b", {"web": files / "a", "code": files / "b", "memory": memory}):
        source = open_source(given, block_bytes=64)
        blocks = list(source.blocks())
        assert len(blocks) > 12
        assert len({block.at for block in blocks}) == len(blocks)
        for number, block in enumerate(blocks):
            again = list(source.blocks_from(block.at))
            assert [(one.name, one.at, one.first_line) for one in again] == [
                (one.name, one.at, one.first_line) for one in blocks[number:]
            ]
            assert [one.digest() for one in again] == [one.digest() for one in blocks[number:]]
