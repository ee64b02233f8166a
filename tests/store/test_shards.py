from __future__ import annotations

import errno
import os

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad.errors import StorageError
from nopad.files import sha256_file
from nopad.sequences import Sequences
from nopad.store.shards import GROUP_TOKENS, ShardLayout, schema_of, write_shards

CAPACITY = 1 << 15


def make_columns(n: int, *, high: int, split: bool = False, **more) -> Sequences:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, high + 1, n).astype(np.int32)
    tokens = rng.integers(0, 50_000, int(lengths.sum()), dtype=np.int32)
    return Sequences(
        seq_lengths=lengths,
        values={"seq_index": np.arange(n) * 2, **({"seq_start": np.arange(n)} if split else {})},
        begin=np.cumsum(lengths, dtype=np.int64) - lengths,
        tokens={"input_ids": tokens, **{name: tokens.astype(dtype) for name, dtype in more.items()}},
    )


@pytest.fixture(scope="module")
def columns() -> Sequences:
    """About 1.3 million tokens: two shards of two row groups and one of one, at the capacity above."""
    return make_columns(160, high=CAPACITY // 2)


@pytest.fixture(scope="module")
def packs(columns):
    return nopad.pack(columns.seq_lengths, CAPACITY)


def check(folder, shards, packs, columns) -> None:
    """Every row of every shard is its pack, and what is said of each shard is true."""
    rows = [(shard, row) for shard in shards for row in pq.read_table(folder / shard.file).to_pylist()]
    assert len(rows) == len(packs)
    for members, (_, row) in zip(packs, rows, strict=True):
        assert row["seq_lengths"] == columns.seq_lengths[members].tolist()
        assert row["seq_index"] == columns.values["seq_index"][members].tolist()
        if "seq_start" in columns.values:
            assert row["seq_start"] == columns.values["seq_start"][members].tolist()
        for name, flat in columns.tokens.items():
            wanted = [flat[columns.begin[i] : columns.begin[i] + columns.seq_lengths[i]] for i in members]
            np.testing.assert_array_equal(row[name], np.concatenate(wanted))
    for shard in shards:
        mine = [row for other, row in rows if other is shard]
        assert shard.packs == len(mine)
        assert shard.sequences == sum(len(row["seq_lengths"]) for row in mine)
        assert shard.tokens == sum(sum(row["seq_lengths"]) for row in mine)
        assert shard.bytes == (folder / shard.file).stat().st_size
        assert shard.sha256 == sha256_file(folder / shard.file)


@given(st.integers(0, 5000), st.integers(1, 70_000), st.integers(1, 1 << 20))
def test_a_layout_holds_every_pack_once(packs, capacity, shard_tokens):
    layout = ShardLayout.of(packs, capacity, shard_tokens)
    assert [p for shard in range(layout.shards) for p in layout.rows(shard)] == list(range(packs))
    assert layout.rows_per_shard % layout.rows_per_group == 0
    assert layout.rows_per_group == 1 or layout.rows_per_group * capacity <= min(GROUP_TOKENS, shard_tokens)
    assert layout.rows_per_shard * capacity <= max(shard_tokens, capacity)
    assert layout.shards >= 1


def test_names_say_which_of_how_many():
    layout = ShardLayout.of(25, 10, 100)
    assert [layout.name(shard) for shard in range(3)] == [f"shards/0000{i}-of-00003.parquet" for i in range(3)]
    assert [len(layout.rows(shard)) for shard in range(3)] == [10, 10, 5]


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_shards_hold_the_packs(tmp_path, columns, packs, threads):
    (tmp_path / "shards").mkdir()
    layout = ShardLayout.of(len(packs), CAPACITY, 2 * GROUP_TOKENS)
    told, tokens = [], []
    shards = write_shards(
        packs, columns, tmp_path, layout, on_shard=told.append, on_tokens=tokens.append, threads=threads
    )
    assert layout.shards >= 3
    assert layout.rows_per_shard == 2 * layout.rows_per_group
    check(tmp_path, shards, packs, columns)
    assert sorted(told, key=lambda shard: shard.file) == list(shards)
    assert sum(tokens) == columns.seq_lengths.sum()
    assert sorted(os.listdir(tmp_path / "shards")) == [os.path.basename(shard.file) for shard in shards]
    for shard in shards:
        metadata = pq.read_metadata(tmp_path / shard.file)
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        assert groups[:-1] == [layout.rows_per_group] * (len(groups) - 1)
        assert 1 <= groups[-1] <= layout.rows_per_group


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [(np.int64, "int64"), (np.uint8, "uint8"), (np.float32, "float")],
)
def test_more_columns(tmp_path, kind, arrow):
    (tmp_path / "shards").mkdir()
    columns = make_columns(200, high=9, split=True, more=kind)
    packs = nopad.pack(columns.seq_lengths, 16)
    shards = write_shards(packs, columns, tmp_path, ShardLayout.of(len(packs), 16, 300))
    check(tmp_path, shards, packs, columns)
    assert [str(field.type) for field in schema_of(columns)] == [
        f"list<element: {name} not null>" for name in ("int32", "int64", "int64", "int32", arrow)
    ]


def test_the_index_width_of_the_packs_does_not_matter(tmp_path):
    columns = make_columns(100, high=9)
    packs = nopad.pack(columns.seq_lengths, 16)
    wide = type(packs)(packs.capacity, packs.depth, packs.indptr.astype(np.int64), packs.sequence.astype(np.int64))
    made = []
    for name, some in (("narrow", packs), ("wide", wide)):
        (tmp_path / name / "shards").mkdir(parents=True)
        made.append(write_shards(some, columns, tmp_path / name, ShardLayout.of(len(packs), 16, 300)))
    assert made[0] == made[1]


def test_finished_shards_are_left_alone(tmp_path):
    (tmp_path / "shards").mkdir()
    columns = make_columns(200, high=9)
    packs = nopad.pack(columns.seq_lengths, 16)
    layout = ShardLayout.of(len(packs), 16, 300)
    shards = write_shards(packs, columns, tmp_path, layout)
    assert len(shards) > 3
    finished = {shard.file: shard for shard in shards[1:3]}
    for shard in shards:
        (tmp_path / shard.file).unlink()
    told = []
    assert write_shards(packs, columns, tmp_path, layout, finished=finished, on_shard=told.append) == shards
    assert {shard.file for shard in told} == {shard.file for shard in shards} - set(finished)
    assert not any((tmp_path / name).exists() for name in finished)


@pytest.mark.parametrize("match", [".parquet.partial", "/shards"])
def test_a_full_disk_stops_all_writers_and_leaves_no_partial_file(tmp_path, break_at, disk_full, match):
    (tmp_path / "shards").mkdir()
    columns = make_columns(2000, high=9)
    packs = nopad.pack(columns.seq_lengths, 16)
    layout = ShardLayout.of(len(packs), 16, 300)
    told = []
    break_at(disk_full, at=4, match=match)
    with pytest.raises(StorageError) as caught:
        write_shards(packs, columns, tmp_path, layout, on_shard=told.append, threads=2)
    shard = str(caught.value).split("while writing ")[1].split(" (")[0]
    assert str(caught.value) == (
        f"no space left while writing {shard} ({os.strerror(errno.ENOSPC)}); "
        "free some space and run the same command again"
    )
    assert shard in [str(tmp_path / layout.name(i)) for i in range(layout.shards)]
    assert len(told) < layout.shards
    assert not list(tmp_path.rglob("*.partial"))


def test_an_error_in_a_callback_stops_the_writers(tmp_path):
    def stop(shard):
        raise KeyboardInterrupt

    (tmp_path / "shards").mkdir()
    columns = make_columns(2000, high=9)
    packs = nopad.pack(columns.seq_lengths, 16)
    layout = ShardLayout.of(len(packs), 16, 300)
    with pytest.raises(KeyboardInterrupt):
        write_shards(packs, columns, tmp_path, layout, on_shard=stop, threads=1)
    assert 1 <= len(os.listdir(tmp_path / "shards")) < layout.shards
    assert not list(tmp_path.rglob("*.partial"))
