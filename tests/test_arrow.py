from __future__ import annotations

from collections import UserList

import numpy as np
import pyarrow as pa
import pytest

import nopad
from nopad.arrow import array_of
from nopad.corpus import open_source


def in_lists(depth, value=1):
    for _ in range(depth):
        value = [value]
    return value


def in_dicts(depth):
    value = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def in_itself(kind):
    value = kind()
    if kind is dict:
        value["a"] = value
    else:
        value.append(value)
    return value


def array_in_itself():
    value = np.empty(1, object)
    value[0] = value
    return value


DEEP = {
    "lists": lambda: in_lists(60_000),
    "dicts": lambda: in_dicts(60_000),
    "list": lambda: in_itself(list),
    "dict": lambda: in_itself(dict),
    "UserList": lambda: in_itself(UserList),
    "array": array_in_itself,
    "behind others": lambda: [1, *in_lists(60_000)],
    "doubled": lambda: in_lists(200, in_itself(list)),
}


@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP)
def test_what_would_end_the_process_is_refused(make):
    with pytest.raises(pa.ArrowInvalid, match="nested more than 100 levels deep"):
        array_of([None, make()])


def test_levels_are_counted():
    assert array_of([in_lists(100)]).to_pylist() == [in_lists(100)]
    with pytest.raises(pa.ArrowInvalid, match="more than 100"):
        array_of([in_lists(101)])


def test_lists_that_are_held_twice_do_not_double():
    value = 1
    for _ in range(150):
        value = [value, value]
    with pytest.raises(pa.ArrowInvalid, match="more than 100"):
        array_of([value])


@pytest.mark.parametrize("values", [["ab", ""], [np.arange(3)], [[["a"], None]], [], [{"a": [1]}]])
def test_other_values_are_as_in_arrow(values):
    assert array_of(values).equals(pa.array(values))


@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("carry", ["auto", ["note"]])
def test_records_with_such_values(make, carry):
    """The column is left out, or each such record is a bad one; the process goes on."""
    records = [{"input_ids": [1, 2], "note": 7}, {"input_ids": [3], "note": make()}]
    if carry == "auto":
        records = [{**one, "note": make()} for one in records]
        packed = nopad.pack_dataset(records, 8)
        assert [packed.manifest.tokens, packed.manifest.sequences] == [3, 2]
    else:
        with pytest.raises(nopad.errors.RecordError, match="'note' is"):
            nopad.pack_dataset(records, 8, carry=carry)


def test_a_source_shows_what_it_leaves_out():
    assert "columns left out: meta" in repr(open_source([{"text": "a b", "meta": in_itself(list)}]))
