"""Kept columns hold what the input holds: cells of CSV files in any partition, and the types of tables."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import example, given
from hypothesis import strategies as st

from nopad.corpus import open_records
from nopad.errors import RecordError
from nopad.tasks.parts import aligned, array_of_cells, table_of, together

NUMBERS = st.one_of(
    st.integers(-(10**19), 10**19).map(str),
    st.floats().map(repr),
    st.decimals(-1000, 1000, places=2).map(str),
    st.sampled_from(["", "007", "-0", "1e5", "1E5", "1.0", "1", "+1", "nan", "1e999", "0.1", "12345678901234567890"]),
    st.text(max_size=3),
)


@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=4), min_size=1, max_size=4))
@example([["1", "2"], ["1.10", "1.1"]])
@example([["1"], [""], ["2.5"]])
@example([["0.5"], ["x"]])
def test_cells_can_be_had_back_from_any_partition(parts):
    tables = [pa.table({"id": array_of_cells(cells)}) for cells in parts]
    schema = together([table.schema for table in tables], "", ["id"])
    found = [one for table in tables for one in aligned(table, schema, ["id"])["id"].to_pylist()]
    cells = [cell for part in parts for cell in part]
    assert ["" if one is None else str(one) for one in found] == cells
    if {type(one) for one in found} <= {int}:
        assert not pa.types.is_string(schema.field("id").type)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2**64 - 1], pa.uint64()),
        pa.array([0.1, None], pa.float32()),
        pa.array([1234567890123456789, None], pa.timestamp("ns")),
        pa.array([253402300800000, None], pa.timestamp("ms", tz="UTC")),  # the year 10000, which Python does not have
        pa.array([1, None], pa.duration("ns")),
        pa.array([1, None], pa.time64("ns")),
        pa.array(["1.10", None]).cast(pa.decimal128(10, 2)),
        pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
        pa.array([[1], None], pa.list_(pa.timestamp("ns"))),
        pa.nulls(2),
    ],
    ids=lambda values: str(values.type),
)
def test_kept_columns_of_tables_are_the_same_columns(tmp_path, values):
    pq.write_table(pa.table({"text": ["a", "b"], "id": values}), tmp_path / "a.parquet")
    records = open_records(tmp_path / "a.parquet")
    read = list(records)
    made = table_of(0, [{}, {}], {"id": [one["id"] for one in read]}, {}, records.types())
    pq.write_table(made, tmp_path / "made.parquet")
    assert pq.read_table(tmp_path / "made.parquet")["id"].combine_chunks().equals(values)


@pytest.mark.parametrize("values", [[100000000000000000000001], [-(2**63) - 1], [{"a": [10**23 + 1]}]])
def test_integers_beyond_64_bits_are_not_rounded(tmp_path, values):
    import json

    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": one}) + "\n" for one in values))
    found = [one["id"] for one in open_records(tmp_path / "a.jsonl")]
    assert found == values
    with pytest.raises(RecordError, match="'id' of record 0 has values of no common type"):
        table_of(0, [{}], {"id": found}, {})


def test_integers_that_no_float_holds_are_not_rounded_where_parts_meet():
    tables = [table_of(0, [{}], {"id": [2**53 + 1]}, {}), table_of(1, [{}], {"id": [0.5]}, {})]
    schema = together([table.schema for table in tables], "part 1")
    with pytest.raises(RecordError, match=r"id.*make its values alike, or do not keep it"):
        aligned(tables[0], schema)
