"""Data in memory of every kind, as `pack_dataset` hands them to `open_source`: what is no data is refused by name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import nopad
from nopad.corpus import ReaderOptions, open_source
from nopad.corpus.held import held_in_memory
from nopad.errors import OptionError, SourceError

IDS = [[1, 2, 3], [4, 5], [6]]
ROWS = [{"input_ids": ids} for ids in IDS]


def read(data):
    """The ids or texts of all records of these data."""
    source = open_source(held_in_memory(data, ReaderOptions())[0])
    runs = [run for block in source.blocks() for run in block.records()]
    found = []
    for run in runs:
        if hasattr(run, "ids") and run.texts is None:
            found += [run.ids.part(n, n + 1).tokens["input_ids"].tolist() for n in range(run.lines.size)]
        else:
            found += run.texts
    return found


def table(column):
    return pa.table({"input_ids": IDS, "note": column})


def of_pandas(name):
    import pandas as pd

    frame = pd.DataFrame({"input_ids": IDS, "n": [1, 1, 2]})
    return {
        "array": lambda: frame["input_ids"].array,
        "categorical": lambda: pd.Categorical(["a", "b"]),
        "texts": lambda: pd.array(["a", "b"], dtype="string"),
        "index": lambda: pd.Index(["a", "b"]),
        "groups": lambda: frame.groupby("n"),
        "moment": lambda: pd.Timestamp("2020"),
        "twice": lambda: frame.assign(**{"5": 1}).rename(columns={"n": 5}),
        "missing": lambda: pd.Series([pd.NA, "a"], dtype="string"),
    }[name]()


@pytest.mark.parametrize(
    ("name", "found"), [("array", IDS), *((n, ["a", "b"]) for n in ("categorical", "texts", "index"))]
)
def test_columns_of_pandas_are_lists(name, found):
    assert read(of_pandas(name)) == found


def of_pyarrow(name):
    plain = pa.table({"input_ids": IDS})
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe"))
    deep = pa.int64()
    for _ in range(300):
        deep = pa.list_(deep)
    return {
        "scalar": lambda: pa.scalar([1, 2]),
        "reader": plain.to_reader,
        "schema": lambda: plain.schema,
        "broken text": lambda: broken,
        "month": lambda: table(pa.nulls(3, pa.month_day_nano_interval())),
        "map": lambda: table(pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int32()))),
        "deep": lambda: table(pa.nulls(3, deep)),
        "twice": lambda: pa.Table.from_arrays([pa.array(IDS), pa.array(IDS)], ["input_ids", "input_ids"]),
        "metadata": lambda: plain.replace_schema_metadata({"huggingface": "not json"}),
    }[name]()


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (of_pandas, "groups", "a DataFrameGroupBy of pandas is no table and no column of one; convert it to a table"),
        (of_pandas, "moment", "a Timestamp of pandas is no table and no column"),
        (of_pandas, "twice", "this table of pandas cannot be read as a dataset .*; leave the column out"),
        (of_pandas, "missing", "record 1 is <NA>, and a record is a dict, a text or a list of ids; convert the"),
        (of_pyarrow, "scalar", "a ListScalar of pyarrow is no table"),
        (of_pyarrow, "reader", "a RecordBatchReader of pyarrow is no table"),
        (of_pyarrow, "schema", "a Schema of pyarrow is no table"),
        (of_pyarrow, "broken text", "this column of pyarrow cannot be read .*invalid start byte.*; convert its values"),
        (of_pyarrow, "month", "this table of pyarrow cannot be read as a dataset .*interval.*; leave the column out"),
        (of_pyarrow, "map", "this table of pyarrow cannot be read as a dataset .*map<string, int32>"),
        (of_pyarrow, "deep", "this table of pyarrow cannot be read as a dataset"),
        (of_pyarrow, "twice", "this table of pyarrow cannot be read as a dataset .*2 times"),
        (of_pyarrow, "metadata", r"cannot be read as a dataset .*, or drop damaged metadata with table.replace_schema"),
    ],
)
def test_what_is_of_these_libraries_and_cannot_be_read(make, name, message):
    with pytest.raises(SourceError, match=message):
        held_in_memory(make(name), ReaderOptions())


def fails(rows):
    yield from rows
    raise KeyError("of the user")


def transformed():
    import datasets

    return datasets.Dataset.from_list(ROWS).with_transform(lambda rows: rows["none"])


def mapped():
    import datasets

    return datasets.Dataset.from_list(ROWS).to_iterable_dataset().map(lambda row: row["none"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fails([]), r"memory: cannot be read from row 1 on \('of the user'\); repair it"),
        (lambda: lambda: fails([]), r"memory: cannot be read from row 1 on \('of the user'\)"),
        (lambda: lambda: 1 / 0, r"memory: cannot be read from row 1 on \(division by zero\)"),
        (lambda: lambda: None, r"from row 1 on \(this function returned a NoneType, not an iterator of dicts\)"),
        (lambda: fails(["a text"]), r"memory: cannot be read from row 2 on \('of the user'\)"),
        (lambda: {"a": ROWS, "b": fails([])}, r"'b': memory: cannot be read from row 1 on \('of the user'\)"),
        (mapped, "dataset: cannot be read from row 1 on .*none"),
        (transformed, r"dataset: has a transform \(set_transform"),
    ],
)
def test_what_fails_at_its_first_record(make, message):
    with pytest.raises(SourceError, match=message):
        held_in_memory(make(), ReaderOptions())


@pytest.mark.parametrize("form", ["table", "dataset"])
def test_a_date_that_python_has_not_is_not_read(form):
    import datasets

    given = table(pa.array([2**62] * 3, pa.timestamp("ms")))
    assert read(given if form == "table" else datasets.Dataset(given)) == IDS


@pytest.mark.parametrize("first", [None, float("nan"), b"a", {1, 2}])
@pytest.mark.parametrize("form", [list, iter])
def test_a_first_record_that_is_none(first, form):
    with pytest.raises(SourceError, match=f"record 1 is {first!r}, and a record is a dict, a text or a list of ids"):
        held_in_memory(form([first, [1]]), ReaderOptions())


def test_a_path_in_a_list_is_no_data(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"input_ids": [7]}\n')
    with pytest.raises(SourceError, match="record 1 is PosixPath"):
        held_in_memory([tmp_path / "a.jsonl"], ReaderOptions())


def named_kinds():
    import pandas as pd

    return {
        "rows": ROWS,
        "ids": IDS,
        "frame": pd.DataFrame({"input_ids": IDS}),
        "series": pd.Series(IDS),
        "column": pa.array(IDS),
        "table": pa.table({"input_ids": IDS}),
        "opened": nopad.open_source(IDS),
    }


class TestNamedInputs:
    def test_each_is_data_as_the_single_argument_is(self):
        assert read(named_kinds()) == IDS * len(named_kinds())

    def test_texts_are_texts_and_no_paths(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a.txt").write_text("content of a file")
        assert read({"one": ["a.txt"], "two": iter(["b"])}) == ["a.txt", "b"]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("a.txt", "'one': 'a.txt' is a path, and pack_dataset takes data in memory; give nopad.open_source"),
            ([], "'one': there is no record"),
            ([None], "'one': record 1 is None"),
        ],
    )
    def test_what_is_refused_is_named(self, given, message):
        with pytest.raises(SourceError, match=message):
            held_in_memory({"two": IDS, "one": given}, ReaderOptions())

    def test_columns_are_none(self):
        with pytest.raises(SourceError, match="'text' is a column"):
            held_in_memory({"text": ["a"], "label": [0]}, ReaderOptions())


@pytest.mark.parametrize("options", [{"pad_id": 0}, {"carry": ("n",)}])
@pytest.mark.parametrize("given", [nopad.open_source(IDS), {"a": nopad.open_source(IDS)}], ids=["alone", "named"])
def test_options_for_a_source_that_is_open_are_refused(given, options):
    with pytest.raises(OptionError, match="is a source already, and is read as it was made"):
        open_source(given, ReaderOptions(**options))
    with pytest.raises(OptionError, match=r"is for nopad\.open_source, which opened these data"):
        nopad.pack_dataset(given, 8, **options)
