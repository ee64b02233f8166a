from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import nopad
from nopad.corpus import CorpusOptions, Counts, ReaderOptions
from nopad.errors import FormatError, OptionError, SourceError


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"capacity": 0}, "capacity is 0; it must be an integer from 1 to 2147483647"),
        ({"capacity": True}, "capacity is True; it must be an integer from 1 to 2147483647"),
        ({"capacity": 5.0}, "capacity is 5.0; it must be an integer from 1 to 2147483647"),
        ({"capacity": 2**31}, "capacity is 2147483648; it must be an integer from 1 to 2147483647"),
        ({"special_tokens": "yes"}, "special_tokens is 'yes'; it must be True or False"),
        ({"over_long": "cut"}, "over_long is 'cut'; it is 'error', 'truncate', 'split' or 'drop'"),
        ({"empty": "drop"}, "empty is 'drop'; it is 'skip' or 'error'"),
        ({"on_bad_record": "ignore"}, "on_bad_record is 'ignore'; it is 'error' or 'skip'"),
    ],
)
def test_values_that_are_none(options, expected):
    with pytest.raises(OptionError) as caught:
        CorpusOptions(**({"capacity": 8} | options))
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"text_unit": "page"}, "text_unit is 'page'; it is 'file', 'line' or 'paragraph'"),
        (
            {"text_field": "a", "ids_field": "b"},
            "text_field 'a' and ids_field 'b' exclude each other; give one of them",
        ),
        ({"ids_field": ["a"]}, "ids_field is ['a']; it must be the name of a column, or None"),
        ({"carry": "label"}, "carry is 'label'; it must be a list of names of columns, or 'auto'"),
        ({"carry": [1]}, "carry is [1]; it must be a list of names of columns, or 'auto'"),
        ({"pad_id": -1}, "pad_id is -1; it must be an integer from 0 to 2147483647"),
        ({"pad_id": True}, "pad_id is True; it must be an integer from 0 to 2147483647"),
        ({"pad_id": 0, "mask_field": "m"}, "mask_field and pad_id exclude each other; give one of them"),
    ],
)
def test_reader_options_that_are_none(options, expected):
    with pytest.raises(OptionError) as caught:
        ReaderOptions(**options)
    assert str(caught.value).startswith(expected)


def test_reader_options_come_back_from_a_manifest():
    options = ReaderOptions(ids_field="tokens", carry=["label"], mask_field=None, pad_id=0)
    assert options.carry == ("label",)
    assert ReaderOptions.from_settings({**options.settings(), "shard_tokens": 5}) == options
    assert ReaderOptions.from_settings({}) == ReaderOptions()


def test_no_option_is_passed_over_for_lists_from_python():
    source = nopad.open_source(list(np.array([[1, 2, 0], [3, 0, 0]])), ReaderOptions(pad_id=0))
    [found] = [records.ids for block in source.blocks() for records in block.records()]
    assert (found.seq_lengths.tolist(), found.tokens["input_ids"].tolist()) == ([2, 1], [1, 2, 3])
    with pytest.raises(SourceError, match="no column 'tokens'; it has the columns"):
        nopad.open_source([[1, 2]], ReaderOptions(ids_field="tokens"))
    with pytest.raises(SourceError, match="no column 'label'"):
        nopad.open_source([[1, 2]], ReaderOptions(carry=["label"]))


def test_room(words):
    assert CorpusOptions(capacity=3).content_capacity(words) == 1
    assert CorpusOptions(capacity=3, special_tokens=False).content_capacity(words) == 3
    assert CorpusOptions(capacity=1).content_capacity(None) == 1
    with pytest.raises(OptionError) as caught:
        CorpusOptions(capacity=2).content_capacity(words)
    assert str(caught.value) == (
        "capacity is 2, and 2 special tokens leave no room for content; "
        "choose a capacity of at least 3, or special_tokens=False"
    )


def test_counts_add_field_by_field():
    names = [field.name for field in dataclasses.fields(Counts)]
    a = Counts(**{name: i for i, name in enumerate(names)})
    b = Counts(**{name: 100 * i for i, name in enumerate(names)})
    assert (a + b).to_dict() == {name: 101 * i for i, name in enumerate(names)}
    assert Counts() + a == a


def test_counts_survive_a_journal():
    counts = Counts(records=5, tokens=2**40)
    assert Counts.from_dict(counts.to_dict()) == counts


def test_counts_from_something_else():
    with pytest.raises(FormatError, match=r"^counts have the keys \['records'\]; they must be \['bad_skipped', "):
        Counts.from_dict({"records": 1})
    with pytest.raises(FormatError) as caught:
        Counts.from_dict(Counts().to_dict() | {"split": -1})
    assert str(caught.value) == "the count split is -1; it must be an integer of at least 0"


@pytest.mark.parametrize("kind", [list, tuple, iter, dict.fromkeys, np.array])
def test_names_may_come_in_any_iterable(kind):
    options = ReaderOptions(carry=kind(["label", "score"]), suffixes=kind([".py", ".HTML"]))
    assert (options.carry, options.suffixes) == (("label", "score"), (".py", ".html"))
