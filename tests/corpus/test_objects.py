"""Dicts that Arrow cannot hold: messages name the reason, and no column that has values is called null."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
import torch

from nopad.corpus import CorpusOptions, DictSource, open_source, sequences
from nopad.corpus.objects import schema_of
from nopad.corpus.options import ReaderOptions
from nopad.errors import SourceError

HELD = []
HELD.append(HELD)


def counts(source):
    options = CorpusOptions(capacity=16, on_bad_record="skip")
    return next(group.counts for group in sequences(source.blocks(), None, options))


class Odd:
    def __array__(self, dtype=None, copy=None):
        raise KeyError("no array")


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        (
            {"input_ids": [1], "label": 2**63},
            {},
            r"'label' is of no type that Arrow has \(.*too large.*\); convert it,",
        ),
        ({"input_ids": torch.ones(2, requires_grad=True)}, {}, r"'input_ids' is of no type that Arrow has \(.*tensor"),
        (
            {"input_ids": HELD},
            {},
            r"'input_ids' is of no type that Arrow has \(nested more than 100 levels deep\), not",
        ),
        ({"input_ids": [2**70]}, {}, r"'input_ids' is of no type that Arrow has \(.*too large"),
        ({"input_ids": Odd()}, {}, r"'input_ids' is of no type that Arrow has \(.*Odd"),
        ({"input_ids": [1], "n": 2**63}, {"carry": ("n",)}, "'n' is of no type that Arrow .*, which cannot be carried"),
        ({"input_ids": [1], "n": [2**70]}, {"mask_field": "n"}, "mask column 'n' is of no type that Arrow has"),
        ({"input_ids": [1], "label": None}, {}, "'label' is null in every record that was looked at; fill it"),
    ],
)
def test_a_column_with_values_is_not_null(row, options, message):
    with pytest.raises(SourceError, match=message):
        DictSource([row] * 3, ReaderOptions(find_labels=True, **options))


def test_the_first_type_that_arrow_has_decides():
    assert schema_of([{"n": 2**70}, {"n": 0.5}, {"n": "a"}]).field("n") == pa.field("n", pa.float64())


@pytest.mark.parametrize("key", [5, None, (1, 2), b"a", "\ud800"])
def test_a_key_that_can_name_no_column_is_left_out(key):
    source = DictSource([{"input_ids": [1], key: 1}, {"input_ids": [2]}])
    assert (counts(source).records, counts(source).bad_skipped) == (2, 0)
    [name] = source.left_out
    assert name.isascii()
    later = DictSource([{"input_ids": [1]}, {"input_ids": [2], key: 1}])
    assert counts(later).bad_skipped == 0


def test_a_number_and_its_text_are_two_keys():
    source = DictSource([{"input_ids": [1], 5: 1, "5": 2}])
    [run] = [run for block in source.blocks() for run in block.records()]
    assert run.values["5"].to_pylist() == [2]


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
class TestLoneSurrogates:
    def test_in_a_key(self, tmp_path, suffix):
        path = tmp_path / f"a{suffix}"
        line = json.dumps({"input_ids": [1], "\ud800": 1})
        path.write_text(line if suffix == ".jsonl" else f"[{line}]")
        source = open_source(path)
        assert (counts(source).records, source.left_out) == (1, ('"\\ud800"',))

    def test_in_all_texts_that_were_looked_at(self, tmp_path, suffix):
        path = tmp_path / f"a{suffix}"
        line = json.dumps({"text": "a\ud800", "label": 1})
        path.write_text(line if suffix == ".jsonl" else f"[{line}]")
        source = open_source(path, ReaderOptions(carry=("label",)))
        [bad] = [run for block in source.blocks() for run in block.records()]
        assert bad.reason == "'text' holds a lone surrogate, \\ud800, at character 1"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,n\na\nb\n", "none of its records can be read, .*line 2: 1 cells, and the first line names 2"),
        ("a.tsv", b"text\n\xff\n", "none of its records can be read, .*line 2: not UTF-8: byte 0xff"),
        ("a.json", b"[3]", "none of its records can be read, .*line 1: not a JSON object but 3"),
        ("a.csv", b"text\n", "a.csv: there is no record in it; leave it out"),
        ("a.json", b"[]", "a.json: there is no record in it; leave it out"),
    ],
)
def test_a_file_without_a_good_record_says_why(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        open_source(tmp_path / name)
