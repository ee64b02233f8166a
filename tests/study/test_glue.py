from __future__ import annotations

import json
from collections import Counter

import pytest

from nopad import Histogram, load_tokenizer
from nopad.corpus.glue import GLUE, glue_files
from nopad.errors import RecordError, SourceError
from nopad.study.glue import GlueSet, glue_lengths, glue_sets, redo_glue
from nopad.study.published import TABLE_3


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".tsv":
        lines = ["\t".join(records[0]), *("\t".join(map(str, one.values())) for one in records)]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in records))


def test_every_set_of_table_3_is_one_of_glues():
    told = {table.what.split()[1] for table in TABLE_3}
    assert told == GLUE.keys() - {"qnli"}


def test_lengths_are_those_that_transformers_gives():
    tokenizers = pytest.importorskip("tokenizers")
    from nopad.corpus.tokenizer import default_file

    theirs = tokenizers.Tokenizer.from_file(str(default_file()))
    theirs.no_padding()
    theirs.enable_truncation(128)
    pairs = [(f"Is number {n} prime?", "It's " + "unlikely, " * (n % 70)) for n in range(150)]
    histogram, cut = glue_lengths(
        GlueSet(name="rte", records=[{"sentence1": a, "sentence2": b} for a, b in pairs]), load_tokenizer()
    )
    expected = Counter(len(theirs.encode(a, b).ids) for a, b in pairs)
    assert dict(zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True)) == expected
    theirs.no_truncation()
    assert cut == sum(len(theirs.encode(a, b).ids) > 128 for a, b in pairs) > 0
    single, _ = glue_lengths(GlueSet(name="cola", records=[{"sentence": a} for a, _ in pairs]), load_tokenizer())
    assert dict(zip(single.lengths.tolist(), single.counts.tolist(), strict=True)) == Counter(
        len(theirs.encode(a).ids) for a, _ in pairs
    )


def test_a_folder_of_all_kinds(tmp_path):
    datasets = pytest.importorskip("datasets")
    single, pair = [{"sentence": "yes", "label": 1}], [{"sentence1": "1", "sentence2": "02", "label": 0}] * 3
    write(tmp_path / "cola.jsonl", single)
    write(tmp_path / "SST-2" / "train.tsv", single * 2)
    write(tmp_path / "SST-2" / "dev.tsv", single * 9)
    write(tmp_path / "rte" / "train.tsv", pair)
    datasets.Dataset.from_list(pair * 2).save_to_disk(tmp_path / "wnli")
    (tmp_path / "mrpc").mkdir()
    datasets.Dataset.from_list(pair).to_parquet(tmp_path / "mrpc" / "train-00000-of-00002.parquet")
    datasets.Dataset.from_list(pair).to_parquet(tmp_path / "mrpc" / "train-00001-of-00002.parquet")
    datasets.Dataset.from_list(pair).to_parquet(tmp_path / "mrpc" / "test-00000-of-00001.parquet")
    both = datasets.DatasetDict(train=datasets.Dataset.from_list(pair * 3), test=datasets.Dataset.from_list(pair))
    both.save_to_disk(tmp_path / "stsb")
    (tmp_path / "readme").write_text("")
    found = {one.name: one for one in glue_sets(tmp_path)}
    assert list(found) == list(GLUE)
    counted = {name: len(list(one.records)) for name, one in found.items() if one.records is not None}
    assert counted == {"cola": 1, "mrpc": 6, "rte": 3, "sst2": 2, "stsb": 9, "wnli": 6}
    assert next(iter(found["rte"].records))["sentence1"] == "1"  # text, though it looks like a number
    assert all("is not in" in found[name].missing for name in ("mnli", "qnli", "qqp"))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has none of GLUE's sets"),
        ({"cola/dev.tsv": ""}, r"cola has no train\.jsonl"),
        ({"SST-2/train.tsv": "", "sst2.jsonl": ""}, "are both sst2"),
    ],
)
def test_folders_that_are_refused(tmp_path, files, said):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match=said):
        list(glue_sets(tmp_path))
    with pytest.raises(SourceError, match="no such folder"):
        glue_files(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("records", "error", "said"),
    [
        ([{"sentence": "a"}] * 2500 + [{"text": "a"}], RecordError, "record 2500 of cola has no 'sentence'"),
        ([{"sentence": None}], RecordError, "sentence is None"),
        ([], SourceError, "no record"),
    ],
)
def test_records_that_are_refused(records, error, said):
    with pytest.raises(error, match=said):
        glue_lengths(GlueSet(name="cola", records=records), load_tokenizer())


def test_a_set_of_the_papers_size_is_compared_and_another_is_not():
    lengths = Histogram.from_counts({30: 600, 90: 35})
    table, rows = redo_glue("wnli", lengths)
    assert [row.name for row in rows] == ["none", "SPFHP", "nopad auto"]
    assert (rows[0].published["packs"], rows[0].ours["packs"], rows[0].difference["packs"]) == ("635", "635", "=")
    assert rows[0].ours["padding tokens"] == str(635 * 128 - 600 * 30 - 35 * 90)
    assert int(rows[1].difference["packs"]) == int(rows[1].ours["packs"]) - 192
    assert rows[2].published == {}
    assert int(rows[2].ours["packs"]) == 35 + -(-(600 - 35) // 4)  # a 90 with a 30, the other 30s in fours
    _, other = redo_glue("wnli", Histogram.from_counts({30: 600}))
    assert [row.difference for row in other] == [{}, {}, {}]
    assert "600 sequences, and the paper's set has 635: not compared" in other[0].note
    assert table.capacity == 128


def test_what_is_not_here_has_published_figures_only():
    _, rows = redo_glue("mnli", None)
    assert [row.published["packs"] for row in rows] == ["392702", "123980"]
    assert all(row.ours == row.difference == {} for row in rows)
    assert redo_glue("qnli", None)[1] == []
    table, rows = redo_glue("qnli", Histogram.from_counts({30: 600}))
    assert table.name == "not in Table 3 (qnli)"
    assert [(row.published, row.ours["packs"]) for row in rows] == [({}, "600"), ({}, "600"), ({}, "150")]


def test_the_hub_is_asked_once_and_every_set_that_it_lacks_says_so(monkeypatch):
    asked = []

    def reachable(url):
        asked.append(url)
        return False

    def hub(spec, online):
        assert online is False
        if spec == "hf:nyu-mll/glue@cola:train":
            return [{"sentence": "yes"}]
        raise SourceError(f"{spec}: did not answer")

    monkeypatch.setattr("nopad.corpus.network.reachable", reachable)
    monkeypatch.setattr("nopad.study.glue.hub_dataset", hub)
    found = list(glue_sets(None))
    assert len(asked) == 1
    assert [one.name for one in found if one.records is not None] == ["cola"]
    assert [one.missing for one in found if one.name == "rte"] == ["hf:nyu-mll/glue@rte:train: did not answer"]
