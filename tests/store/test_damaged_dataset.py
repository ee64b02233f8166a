"""Whatever happens to the files of a finished dataset: reading gives what was packed, or an error of ours.

The judge is what was read before the damage, byte by byte. A crash of the process would end the test run.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
from contextlib import ExitStack, suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nopad
from nopad.corpus import IterableSource, open_source
from nopad.errors import CorruptError, StorageError
from nopad.files import sha256_file
from nopad.store import Manifest, shard_files

OPTIONS = {"over_long": "split", "capacity": 16, "shard_tokens": 256}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    ids = [rng.integers(0, 9, size).tolist() for size in rng.integers(1, 30, 120)]
    return {
        "input_ids": ids,
        "flag": [[i % 2 == 0 for i in ids] for ids in ids],
        "name": [f"é{len(ids)}" for ids in ids],
    }


@pytest.fixture(scope="module", params=["packed", "index"])
def built(request, tmp_path_factory, pack, rows):
    folder = tmp_path_factory.mktemp("built")
    pq.write_table(pa.table(rows), folder / "in.parquet")
    pack(open_source(folder / "in.parquet"), folder / "out", index_only=request.param == "index", **OPTIONS)
    return folder / "out"


@pytest.fixture
def out(tmp_path, built):
    return shutil.copytree(built, tmp_path / "out")


def contents(rows) -> list:
    """Everything that rows say, comparable."""
    return [[(name, column.dtype.str, column.tolist()) for name, column in row.items()] for row in rows]


WAYS = {
    "in order": lambda dataset: contents(dataset),
    "by number": lambda dataset: contents(dataset[at] for at in range(len(dataset))),
    "in an order": lambda dataset: contents(dataset.read(dataset.order(1))),
    "lengths": lambda dataset: [part.tolist() for part in dataset.seq_lengths()],
}


def damages(path, each: int):
    """Bytes of a file with one bit flipped, at random and around its ends where the structure is; cut; emptied."""
    whole, rng = path.read_bytes(), random.Random(0)
    n = len(whole)
    places = [
        0,
        n - 1,
        n - 5,
        *(rng.randrange(n) for _ in range(each)),
        *(rng.randrange(n // 2, n) for _ in range(each)),
    ]
    for at in places:
        yield whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]
    yield from (b"", whole[:-1], whole[: n // 2], whole + b"\0", bytes(n), whole[: n // 2] + bytes(n - n // 2))


def check_reads(out, path, each: int) -> None:
    expected = {how: read(nopad.open_packed(out)) for how, read in WAYS.items()}
    errors = 0
    for content in damages(path, each):
        path.write_bytes(content)
        for how, read in WAYS.items():
            try:
                found = read(nopad.open_packed(out))
            except CorruptError:
                errors += 1
            else:
                assert found == expected[how]
    assert errors > 2 * each


def data_file(out, number: int):
    return out / Manifest.load(out).shards[number].file


@pytest.mark.parametrize("number", [0, 1])
def test_damaged_files(out, number):
    check_reads(out, data_file(out, number), 8)


@pytest.mark.soak
@pytest.mark.parametrize("number", [0, 1])
def test_many_bytes_of_a_file(out, number):
    check_reads(out, data_file(out, number), 1500)


@pytest.mark.parametrize("how", WAYS)
def test_a_shard_with_other_row_groups(out, built, how):
    """As another tool writes it: the rows are the same, and where they lie is not. (An index is one record batch.)"""
    path = data_file(out, 0)
    if path.suffix == ".parquet":
        pq.write_table(pq.read_table(path), path, row_group_size=5, write_page_checksum=True)
    else:
        table = pa.ipc.open_file(path).read_all()
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=5)
    with pytest.raises(CorruptError) as caught:
        WAYS[how](nopad.open_packed(out))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("change", ["groups", "rows", "types", "nulls", "columns", "lists", "tokens"])
def test_a_manifest_that_was_made_to_fit_another_file(out, edit_manifest, how, change):
    """Size and checksum are true, and still the file is not what the manifest says."""
    path = data_file(out, 0)
    if path.suffix != ".parquet":
        return  # an index is held against its checksum alone
    table = pq.read_table(path)
    size = Manifest.load(out).rows_per_group
    changed = {
        "groups": lambda: table,
        "rows": lambda: table.slice(1),
        "types": lambda: table.set_column(1, "seq_index", table["seq_index"].cast(pa.list_(pa.int32()))),
        "nulls": lambda: pa.Table.from_pylist([{**row, "name": None} for row in table.to_pylist()]),
        "columns": lambda: table.drop_columns("flag"),
        "lists": lambda: pa.Table.from_pylist(
            [{**row, "flag": row["flag"][1:]} for row in table.to_pylist()], schema=table.schema
        ),
        "tokens": lambda: pa.Table.from_pylist(
            [{**row, "seq_lengths": [0, *row["seq_lengths"][1:]]} for row in table.to_pylist()], schema=table.schema
        ),
    }[change]()
    pq.write_table(changed, path, row_group_size=5 if change == "groups" else size, use_dictionary=False)
    true = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    edit_manifest(out, shards=lambda shards: [{**shards[0], **true}, *shards[1:]])
    if how == "lengths" and change == "lists":
        WAYS[how](nopad.open_packed(out))  # of what it reads, nothing was changed
        return
    with pytest.raises(CorruptError) as caught:
        WAYS[how](nopad.open_packed(out))
    assert str(path if change != "tokens" else out) in str(caught.value)


def test_files_are_opened_when_they_are_needed(out, monkeypatch):
    m = Manifest.load(out)
    if m.kind == "index":
        return
    assert len(m.shards) > 5
    for shard in m.shards[2:]:
        (out / shard.file).unlink()
    dataset = nopad.open_packed(out)
    first = m.shards[0].packs
    assert len([dataset[at] for at in range(first)]) == first
    assert len(list(dataset.read(range(first)))) == first
    with pytest.raises(CorruptError, match=m.shards[2].file):
        dataset[first + m.shards[1].packs]


def test_pages_carry_checksums(built):
    """Judged by pyarrow alone: a flipped bit in the middle of a page is found where nothing else could."""
    path = data_file(built, 0)
    if path.suffix != ".parquet":
        return
    whole = path.read_bytes()
    column = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).names.index("input_ids"))
    end = column.data_page_offset + column.total_compressed_size
    broken = pa.BufferReader(whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:])
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(broken, page_checksum_verification=True).read()


def test_few_footers_are_kept(out, monkeypatch):
    m = Manifest.load(out)
    if m.kind == "index":
        return
    expected = {how: read(nopad.open_packed(out)) for how, read in WAYS.items()}
    monkeypatch.setattr(shard_files, "_FOOTERS", 2)
    monkeypatch.setattr(shard_files, "_OPEN", 2)
    dataset = nopad.open_packed(out)
    assert {how: read(dataset) for how, read in WAYS.items()} == expected
    assert len(dataset._files._fragments) == len(dataset._files._local.readers) == 2


@pytest.fixture
def no_more_files():
    """Open so many files that no other can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    with ExitStack() as held:
        with suppress(OSError):
            while True:
                held.enter_context(open(os.devnull, "rb"))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("index_only", [False, True])
@pytest.mark.parametrize("way", ["open", "number", "iterate", "lengths"])
def test_a_file_that_cannot_be_opened_is_not_damaged(tmp_path, pack, make_records, request, index_only, way):
    pack(IterableSource(make_records(20)), tmp_path / "out", index_only=index_only)
    dataset = nopad.open_packed(tmp_path / "out")
    request.getfixturevalue("no_more_files")
    read = {
        "open": lambda: nopad.open_packed(tmp_path / "out"),
        "number": lambda: dataset[0],
        "iterate": lambda: next(iter(dataset)),
        "lengths": dataset.seq_lengths,
    }[way]
    with pytest.raises(StorageError, match=r"failed while reading .*: .*Too many open files"):
        read()


@pytest.mark.parametrize("name", ["packs", "sequences", "tokens", "shards"])
def test_a_manifest_of_other_shards_is_no_dataset_of_fewer_packs(dataset, edit_manifest, name):
    """A pass over it ended early, and the last pack was an IndexError."""
    edit_manifest(dataset, **{name: lambda value: value[:-1] if name == "shards" else value + 1})
    opened = nopad.open_packed(dataset)
    for read in (
        lambda: list(opened),
        lambda: opened[-1],
        lambda: opened.order(0),
        lambda: opened.row_group(0),
        lambda: opened.gather([0]),
        lambda: list(opened.read([0])),
        opened.to_hf,
    ):
        with pytest.raises(
            CorruptError, match=r"is damaged: its nopad.json states .* and those of its shards add up to"
        ):
            read()
