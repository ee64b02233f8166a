from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest

import nopad
from nopad.corpus import IterableSource, LengthsFile
from nopad.errors import CorruptError, StorageError
from nopad.packs import Packs
from nopad.store import Manifest
from nopad.store.index import read_index


@pytest.fixture
def lengths(tmp_path):
    values = np.random.default_rng(0).integers(1, 17, 500)
    np.save(tmp_path / "lengths.npy", values)
    return values


def columns_of(out) -> dict[str, str]:
    with pa.memory_map(str(out / "sequences.arrow")) as file:
        return {field.name: str(field.type) for field in pa.ipc.open_file(file).schema}


@pytest.mark.parametrize("algorithm", nopad.ALGORITHMS)
@pytest.mark.parametrize("order", ["random", "source"])
def test_the_packs_are_those_of_pack(tmp_path, pack, lengths, algorithm, order):
    how = {"algorithm": algorithm, "order": order, "depth": 4, "seed": 5}
    made = pack(LengthsFile(tmp_path / "lengths.npy"), tmp_path / "out", index_only=True, **how)
    packs = Packs.load(tmp_path / "out" / "packs.arrow")
    assert packs == nopad.pack(lengths, 16, **how)
    assert (made.kind, made.packs, made.sequences, made.tokens) == ("index", len(packs), 500, lengths.sum())
    assert nopad.verify(tmp_path / "out", source=LengthsFile(tmp_path / "lengths.npy")) == []


def test_the_packs_are_those_of_the_packed_dataset(tmp_path, pack, source):
    for name in ("packed", "index"):
        pack(source, tmp_path / name, over_long="split", index_only=name == "index")
    packed, index = (nopad.open_packed(tmp_path / name) for name in ("packed", "index"))
    assert len(packed) == len(index)
    for a, b in zip(packed, index, strict=True):
        for name in ("seq_lengths", "seq_index", "seq_start"):
            np.testing.assert_array_equal(a[name], b[name])
            assert a[name].dtype == b[name].dtype
    for name in ("plan_sha256", "sequence_checksum", "counts", "source"):
        assert getattr(packed.manifest, name) == getattr(index.manifest, name)


def test_no_tokens_are_left_behind(tmp_path, pack, source, tree):
    pack(source, tmp_path, over_long="split", index_only=True)
    assert sorted(tree(tmp_path)) == ["nopad.json", "packs.arrow", "plan.json", "sequences.arrow"]


@pytest.mark.parametrize(("longest", "width"), [(255, "uint8"), (256, "uint16"), (65_536, "uint32")])
def test_lengths_are_stored_narrow(tmp_path, pack, longest, width):
    np.save(tmp_path / "a.npy", [1, longest])
    pack(LengthsFile(tmp_path / "a.npy"), tmp_path / "out", capacity=70_000, index_only=True)
    assert columns_of(tmp_path / "out") == {"seq_lengths": width}
    found = {tuple(row.seq_lengths.tolist()) for row in nopad.open_packed(tmp_path / "out")}
    assert found <= {(longest, 1), (1, longest), (longest,), (1,)}
    assert nopad.open_packed(tmp_path / "out")[0].seq_lengths.dtype == np.int32


@pytest.mark.parametrize(
    ("records", "over_long", "columns"),
    [
        ([[1], [2, 3]], "split", ["seq_lengths", "seq_hash"]),
        ([[1], [], [2, 3]], "split", ["seq_lengths", "seq_index", "seq_hash"]),
        ([[1], [2] * 17], "drop", ["seq_lengths", "seq_hash"]),
        ([[2] * 17, [1]], "drop", ["seq_lengths", "seq_index", "seq_hash"]),
        ([[1], [2] * 17], "truncate", ["seq_lengths", "seq_hash"]),
        ([[1], [2] * 17], "split", ["seq_lengths", "seq_index", "seq_start", "seq_hash"]),
    ],
)
def test_records_and_starts_are_stored_only_when_needed(tmp_path, pack, records, over_long, columns):
    source = IterableSource(records)
    pack(source, tmp_path, over_long=over_long, index_only=True)
    assert list(columns_of(tmp_path)) == columns
    assert nopad.verify(tmp_path, source=source) == []


def test_read_index_maps_what_was_written(tmp_path, pack, lengths):
    pack(LengthsFile(tmp_path / "lengths.npy"), tmp_path / "out", index_only=True)
    index = read_index(tmp_path / "out", Manifest.load(tmp_path / "out"))
    np.testing.assert_array_equal(index.seq_lengths, lengths)
    assert not index.seq_lengths.flags.owndata
    assert [index.seq_index, index.seq_start, index.seq_source, index.seq_hash] == [None] * 4
    rows = [nopad.open_packed(tmp_path / "out")[at] for at in range(len(index.packs))]
    for row, sequence in zip(rows, index.packs, strict=True):
        np.testing.assert_array_equal(row.seq_index, sequence)
        np.testing.assert_array_equal(row.seq_lengths, lengths[sequence])
        assert (row.seq_index.dtype, row.seq_lengths.dtype) == (np.int64, np.int32)
    index.packs.check(lengths)


@pytest.mark.parametrize("damage", ["missing", "empty", "other columns"])
def test_damaged_sequences(tmp_path, pack, source, damage):
    pack(source, tmp_path, over_long="split", index_only=True)
    path = tmp_path / "sequences.arrow"
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        table = pa.table({"other": [1, 2]})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(CorruptError) as caught:
        nopad.open_packed(tmp_path)[0]
    assert str(caught.value).startswith(f"{path} is missing or damaged (")


@pytest.mark.parametrize("name", ["packs.arrow", "sequences.arrow"])
def test_a_full_disk_leaves_no_partial_file(tmp_path, pack, source, break_at, disk_full, tree, name):
    how = {"over_long": "split", "index_only": True}
    pack(source, tmp_path / "whole", **how)
    break_at(disk_full, match=name)
    with pytest.raises(StorageError, match=f"^no space left while writing .*{name} "):
        pack(source, tmp_path / "out", **how)
    assert not list((tmp_path / "out").rglob("*.partial"))
    break_at.patch.undo()
    pack(source, tmp_path / "out", **how)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


CUT_SHORT = """
    import os, sys, pathlib
    import nopad
    out = pathlib.Path(sys.argv[1])
    dataset, packs = nopad.open_packed(out), nopad.Packs.load(out / "packs.arrow")
    whole = [row.seq_index.tolist() for row in dataset]
    for name in ("packs.arrow", "sequences.arrow"):
        os.truncate(out / name, 0)
    again = nopad.open_packed(out)
    dataset._cache.clear()
    assert [row.seq_index.tolist() for row in dataset] == whole == [pack.tolist() for pack in packs]
    assert dataset.seq_lengths()[1].sum() == dataset.manifest.tokens
    try:
        again[0]
    except nopad.errors.CorruptError as error:
        print(error)
"""


def test_files_that_are_cut_short_while_open_end_no_process(tmp_path, pack, lengths):
    """The system kills a process that reads a mapped file beyond its new end."""
    out = tmp_path / "out"
    pack(LengthsFile(tmp_path / "lengths.npy"), out, index_only=True)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CUT_SHORT), out], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r"\S+/packs.arrow is missing or damaged \(not the SHA-256 .*\); see `nopad verify`\n", done.stdout
    )


def test_an_index_takes_what_its_files_take(tmp_path, pack):
    """As the format's page says: 5 bytes per sequence where records are simply 0, 1, 2, ..., and 4 per pack."""
    np.save(tmp_path / "lengths.npy", np.full(200_000, 16))
    made = pack(LengthsFile(tmp_path / "lengths.npy"), tmp_path / "out", index_only=True, shard_tokens=2**20)
    before = pa.total_allocated_bytes()
    index = read_index(tmp_path / "out", made)
    assert pa.total_allocated_bytes() - before <= 5 * 200_000 + 4 * made.packs + 10_000
    assert index.seq_lengths.nbytes == 200_000
