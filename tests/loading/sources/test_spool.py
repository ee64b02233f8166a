from __future__ import annotations

import json
import multiprocessing
import os
import stat

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nopad.errors import LengthError, SourceError, StorageError
from nopad.loading.sources import open_tokens, spool


@pytest.fixture
def parquet(tmp_path, records):
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet", row_group_size=100)
    return tmp_path / "a.parquet"


@pytest.fixture(scope="module")
def records(make_records):
    return make_records(500)


def copies(folder):
    return [path for path in folder.iterdir() if path.suffix != ".lock"]


def test_a_copy_is_made_once_and_mapped(tmp_path, parquet, records, holds, caplog):
    first = open_tokens(parquet, spool=tmp_path / "s")
    holds(first, records)
    assert len(first.files) == 2 + len(records[0]) - 1
    [place] = copies(tmp_path / "s")
    before = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    again = open_tokens(parquet, spool=tmp_path / "s")
    holds(again, records)
    assert {path.name: path.stat().st_mtime_ns for path in place.iterdir()} == before
    assert len(caplog.records) == 1
    assert f"copying the tokens of {parquet} once to {place}" in caplog.text


def test_few_tokens_stay_in_memory_and_many_go_to_the_cache(parquet, records, holds, monkeypatch):
    cache = spool._default_root()
    assert not open_tokens(parquet).files
    assert not cache.exists()
    monkeypatch.setattr(spool, "IN_MEMORY", 100)
    source = open_tokens(parquet)
    assert source.files
    assert all(cache in file.path.parents for file in source.files)
    holds(source, records)


def test_a_changed_file_gets_another_copy(tmp_path, parquet, records, holds):
    open_tokens(parquet, spool=tmp_path / "s")
    pq.write_table(pa.Table.from_pylist(records[::-1]), parquet, row_group_size=100)
    holds(open_tokens(parquet, spool=tmp_path / "s"), records[::-1])
    assert len(copies(tmp_path / "s")) == 2


@pytest.mark.parametrize(("top", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_ids_are_widened_when_the_first_does_not_fit(tmp_path, holds, monkeypatch, top, dtype):
    monkeypatch.setattr(spool, "_BLOCK", 7)  # widened in blocks
    rows = [{"input_ids": [i % 50, 65_535]} for i in range(5000)] + [{"input_ids": [top - 1]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    source = open_tokens(tmp_path / "a.parquet", spool=tmp_path / "s")
    holds(source, rows)
    assert source.gather([0]).tokens["input_ids"].dtype == dtype
    [place] = copies(tmp_path / "s")
    assert sorted(path.name for path in place.iterdir()) == ["0.bin", "1.bin", "spool.json"]


def test_empty_records_are_in_the_copy(tmp_path):
    pq.write_table(pa.table({"input_ids": pa.array([[1], [], [2]], pa.list_(pa.int32()))}), tmp_path / "a.parquet")
    for _ in range(2):
        with pytest.raises(LengthError, match="sequence 1 has no token"):
            open_tokens(tmp_path / "a.parquet", spool=tmp_path / "s")
        source = open_tokens(tmp_path / "a.parquet", empty="skip", spool=tmp_path / "s")
        assert source.gather([1]).tokens["input_ids"].tolist() == [2]
    assert len(copies(tmp_path / "s")) == 1


def damage(place, how):
    if how == "shorten":
        os.truncate(place / "0.bin", 10)
    elif how == "remove":
        (place / "0.bin").unlink()
    elif how == "tokens":
        data = bytearray((place / "0.bin").read_bytes())
        data[100] ^= 1
        (place / "0.bin").write_bytes(data)
    elif how == "offsets":
        [column] = [c for c in json.loads((place / "spool.json").read_text())["columns"] if c["per"] == "offsets"]
        offsets = np.fromfile(place / column["file"], np.int64)
        offsets[5] += 1
        offsets.tofile(place / column["file"])
    else:
        (place / "spool.json").write_text((place / "spool.json").read_text().replace("token", "tokem"))


@pytest.mark.parametrize("how", ["shorten", "remove", "tokens", "offsets", "description"])
def test_a_damaged_copy_is_refused(tmp_path, parquet, how):
    open_tokens(parquet, spool=tmp_path / "s")
    [place] = copies(tmp_path / "s")
    damage(place, how)
    with pytest.raises(SourceError, match=r"this copy of .*a\.parquet is damaged .*; delete it, and it is made again"):
        open_tokens(parquet, spool=tmp_path / "s")


def test_a_failure_leaves_no_copy(tmp_path, parquet, records, holds):
    with pq.ParquetWriter(tmp_path / "b.parquet", pa.schema({"input_ids": pa.list_(pa.int32())})) as writer:
        for ids in ([[1, 2]] * 9000, [[-1]]):
            writer.write_table(pa.table({"input_ids": pa.array(ids, pa.list_(pa.int32()))}))
    with pytest.raises(Exception, match=r"input_ids\[0\] is -1"):
        open_tokens(tmp_path / "b.parquet", spool=tmp_path / "s")
    assert copies(tmp_path / "s") == []
    (tmp_path / "s").chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.geteuid():  # the superuser may write anywhere
        with pytest.raises(StorageError):
            open_tokens(parquet, spool=tmp_path / "s")
    (tmp_path / "s").chmod(stat.S_IRWXU)
    holds(open_tokens(parquet, spool=tmp_path / "s"), records)


def test_what_a_killed_process_left_is_made_again(tmp_path, parquet, records, holds):
    open_tokens(parquet, spool=tmp_path / "s")
    [place] = copies(tmp_path / "s")
    os.rename(place, place.with_suffix(".partial"))
    (place.with_suffix(".partial") / "spool.json").unlink()
    holds(open_tokens(parquet, spool=tmp_path / "s"), records)
    assert copies(tmp_path / "s") == [place]


def _open(parquet, folder, queue):
    source = open_tokens(parquet, spool=folder)
    queue.put((source.fingerprint, source.gather([3]).tokens["input_ids"].tolist()))


def test_processes_that_come_together_share_one_copy(tmp_path, parquet, records):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_open, args=(parquet, tmp_path / "s", queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert found == [(open_tokens(records).fingerprint, records[3]["input_ids"])] * 3
    assert len(copies(tmp_path / "s")) == 1
