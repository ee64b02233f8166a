from __future__ import annotations

import dataclasses

import pytest

from nopad.corpus import CorpusOptions, Counts
from nopad.errors import FormatError, OptionError


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"capacity": 0}, "capacity is 0; it must be an integer from 1 to 2147483647"),
        ({"capacity": True}, "capacity is True; it must be an integer from 1 to 2147483647"),
        ({"capacity": 5.0}, "capacity is 5.0; it must be an integer from 1 to 2147483647"),
        ({"capacity": 2**31}, "capacity is 2147483648; it must be an integer from 1 to 2147483647"),
        ({"special_tokens": "yes"}, "special_tokens is 'yes'; it must be True or False"),
        ({"over_long": "cut"}, "over_long is 'cut'; it must be one of 'error', 'truncate', 'split', 'drop'"),
        ({"empty": "drop"}, "empty is 'drop'; it must be one of 'skip', 'error'"),
        ({"on_bad_record": "ignore"}, "on_bad_record is 'ignore'; it must be one of 'error', 'skip'"),
    ],
)
def test_values_that_are_none(options, expected):
    with pytest.raises(OptionError) as caught:
        CorpusOptions(**({"capacity": 8} | options))
    assert str(caught.value) == expected


def test_room(words):
    assert CorpusOptions(capacity=3).room(words) == 1
    assert CorpusOptions(capacity=3, special_tokens=False).room(words) == 3
    assert CorpusOptions(capacity=1).room(None) == 1
    with pytest.raises(OptionError) as caught:
        CorpusOptions(capacity=2).room(words)
    assert str(caught.value) == (
        "capacity is 2, and 2 special tokens leave no room for content; "
        "choose a capacity of at least 3, or --no-special-tokens"
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
