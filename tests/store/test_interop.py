"""Other libraries read the shards, which hold nothing that they do not understand."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nopad

COLUMNS = ["seq_lengths", "seq_index", "seq_start", "input_ids"]


@pytest.fixture
def rows(dataset) -> list[dict[str, list[int]]]:
    return [{name: row[name].tolist() for name in COLUMNS} for row in nopad.open_packed(dataset)]


def test_datasets(dataset, rows, tmp_path):
    import datasets

    loaded = datasets.load_dataset(
        "parquet", data_dir=str(dataset / "shards"), cache_dir=str(tmp_path / "cache"), split="train"
    )
    assert loaded.column_names == COLUMNS
    assert loaded.to_list() == rows
    streamed = datasets.load_dataset("parquet", data_dir=str(dataset / "shards"), split="train", streaming=True)
    assert list(streamed) == rows


def test_polars(dataset, rows):
    import polars

    frame = polars.read_parquet(dataset / "shards")
    assert frame.to_dicts() == rows
    lens = polars.scan_parquet(dataset / "shards" / "*.parquet").select(polars.col("seq_lengths").list.sum()).collect()
    assert lens["seq_lengths"].to_list() == [len(row["input_ids"]) for row in rows]


def test_pyarrow(dataset, rows):
    assert pq.read_table(dataset / "shards").to_pylist() == rows


def test_only_parquet_files_are_in_the_shards_folder(dataset):
    names = sorted(path.name for path in (dataset / "shards").iterdir())
    assert len(names) > 3
    assert names == [f"{i:05d}-of-{len(names):05d}.parquet" for i in range(len(names))]


def test_what_is_stored(dataset):
    manifest = nopad.open_packed(dataset).manifest
    for path in (dataset / "shards").iterdir():
        schema = pq.read_schema(path)
        assert schema.names == COLUMNS
        assert {name: str(schema.field(name).type) for name in COLUMNS} == manifest.columns
        for field in schema:
            assert not field.nullable
            assert pa.types.is_list(field.type)
            assert not field.type.value_field.nullable
        assert [schema.field(name).type.value_type for name in COLUMNS] == [
            pa.int32(),
            pa.int64(),
            pa.int64(),
            pa.int32(),
        ]


def test_encodings_and_row_groups(dataset):
    manifest = nopad.open_packed(dataset).manifest
    for shard in manifest.shards:
        metadata = pq.read_metadata(dataset / shard.file)
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        assert sum(sizes) == shard.packs
        assert all(size == manifest.rows_per_group for size in sizes[:-1])
        for i in range(metadata.num_row_groups):
            chunks = [metadata.row_group(i).column(j) for j in range(metadata.num_columns)]
            assert [chunk.path_in_schema for chunk in chunks] == [f"{name}.list.element" for name in COLUMNS]
            tokens = chunks[-1]
            assert "BYTE_STREAM_SPLIT" in tokens.encodings
            assert "PLAIN" not in tokens.encodings
            for chunk in chunks:
                assert chunk.compression == "ZSTD"
                assert not chunk.has_dictionary_page
                assert not chunk.is_stats_set
