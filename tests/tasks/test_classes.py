"""The classes that occur in records, for configurations that do not name them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.tiny import tokenizer

from nopad.corpus import open_records
from nopad.errors import LengthError, OptionError, RecordError
from nopad.tasks import Classification, Regression, SeveralLabels, TokenClassification
from nopad.tasks.classes import MOST, classes_found


@given(
    st.lists(st.text(min_size=1).filter(str.strip), min_size=2, max_size=20).filter(lambda labels: len(set(labels)) > 1)
)
def test_names_do_not_depend_on_the_order_of_records(labels):
    records = [{"label": label} for label in labels]
    found = classes_found(Classification, records, {})
    assert sorted(found) == sorted(set(labels))
    assert found == classes_found(Classification, records[::-1], {})
    assert len(Classification(tokenizer(), found).names) == len(found)


def test_a_model_keeps_the_order_of_its_classes():
    records = [{"label": "bad"}, {"label": "good"}]
    assert classes_found(Classification, records, {}, ["good", "bad"]) == ["good", "bad"]
    assert classes_found(Classification, records, {}, ["good", "bad", "both"]) == ["bad", "good"]


def test_numbers_are_counted():
    assert classes_found(Classification, [{"label": 2}, {"label": 0}, {"label": 1}], {}) == 3
    for labels, message in (
        ([1, 2], r"the labels are the numbers 1, 2, and numbers of classes are 0, 1, 2, .*; give labels=3 if"),
        ([0, "1"], r"some labels are names \('1'\) and others numbers \(0\)"),
        ([1, 1], "there is only the label 1, and a task needs at least 2 classes"),
        (range(MOST + 1), "there are more than 1,000 different labels, such as 0, 1, 2, 3, 4, ...; check the column"),
    ):
        with pytest.raises(OptionError, match=message):
            classes_found(Classification, [{"label": label} for label in labels], {})
    for label in (0.5, True, -1, None):
        with pytest.raises(RecordError, match=r'record 1 has the label .*The task "regress" learns other numbers'):
            classes_found(Classification, [{"label": 0}, {"label": label}], {})


def test_what_is_no_label():
    with pytest.raises(RecordError, match="record 0 has no 'label'; its columns are text, y"):
        classes_found(Classification, [{"text": "a", "y": "no"}], {})
    with pytest.raises(LengthError, match="there is no record"):
        classes_found(Classification, [], {})
    with pytest.raises(OptionError, match="there is no label, and a task needs at least 2 classes"):
        classes_found(Regression, [{"label": 0.5}], {})


@pytest.mark.parametrize("label", ["", " ", "\t\n"])
def test_an_empty_label_names_no_class(label):
    with pytest.raises(RecordError, match=r"record 1 has the label .* which names no class; give the record a label"):
        classes_found(Classification, [{"label": "a"}, {"label": label}], {})


def test_a_name_that_no_file_can_hold():
    with pytest.raises(RecordError, match="record 1: its label holds a lone surrogate"):
        classes_found(Classification, [{"label": "a"}, {"label": "b\ud800"}], {})


def test_several_labels_of_a_record():
    records = [{"labels": ["red", "blue"]}, {"labels": []}, {"labels": ["green"]}]
    assert classes_found(SeveralLabels, records, {}) == ["blue", "green", "red"]
    flags = [{"labels": [0, 1, 0]}, {"labels": [1, 0, 0]}]
    assert classes_found(SeveralLabels, flags, {"labels_as": "flags"}) == 3
    with pytest.raises(RecordError, match="record 0: labels is 'red'; it is a list of classes"):
        classes_found(SeveralLabels, [{"labels": "red"}], {})


def test_tags_of_words_and_of_spans():
    tagged = [{"words": ["in", "London"], "tags": ["O", "B-LOC"]}, {"words": ["A"], "tags": ["B-AGE"]}]
    assert classes_found(TokenClassification, tagged, {}) == ["O", "B-AGE", "B-LOC"]
    records = [{"text": "born in London", "spans": [{"start": 8, "end": 14, "label": "LOC"}, (0, 4, "I-X")]}]
    options = {"text": "text"}
    found = classes_found(TokenClassification, records, options)
    assert found == ["O", "B-LOC", "I-LOC", "I-X"]
    made = TokenClassification(tokenizer(), found, **options).encode(records)
    assert made.sequences.tokens["labels"].tolist() == [-100, 3, 0, 1, -100]
    with pytest.raises(RecordError, match="its label is a name"):
        classes_found(TokenClassification, [{"text": "a", "spans": [(0, 1, 3)]}], options)


def test_columns_of_numbers_in_files_without_types(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\none,1\ntwo,0\n")
    assert classes_found(Classification, open_records(path), {}) == 2
    path.write_text("text,label\none,1\ntwo,x\n")
    names = classes_found(Classification, open_records(path), {})
    assert names == ["1", "x"]
    task = Classification(tokenizer(), names)
    assert task.encode(task.read(open_records(path))).sequences.values["labels"].tolist() == [0, 1]
