"""The same sequences from every kind of source: the same shards, byte for byte, and every column value for value."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import nopad
from nopad import open_packed, pack_corpus, verify
from nopad.corpus import CorpusOptions, open_source, sequences
from nopad.corpus.objects import DatasetSource, DictSource
from nopad.errors import OptionError, OutputExistsError, SourceError
from nopad.store import PackOptions

N = 10_000
CAPACITY = 256


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """Ids with labels beside each, and a class, a weight, a flag and a name for each sequence."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3, 0.8, N).astype(int), 1, CAPACITY)
    return [
        {
            "input_ids": rng.integers(0, 30_000, n).tolist(),
            "labels": rng.integers(-100, 30_000, n).tolist(),
            "label": int(rng.integers(0, 5)),
            "weight": float(rng.random()),
            "keep": bool(rng.integers(0, 2)),
            "name": f"document {i} é",
        }
        for i, n in enumerate(lengths)
    ]


def parquet(rows, folder):
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet", row_group_size=3000)
    return open_source(folder / "rows.parquet")


def parquet_shards(rows, folder):
    (folder / "shards").mkdir()
    for at in range(0, N, N // 4):
        pq.write_table(pa.Table.from_pylist(rows[at : at + N // 4]), folder / "shards" / f"{at:05d}.parquet")
    return open_source(folder / "shards", block_bytes=1 << 16)


def parquet_of_other_types(rows, folder):
    table = pa.Table.from_pylist(rows)
    table = table.set_column(0, "input_ids", table["input_ids"].cast(pa.large_list(pa.uint16())))
    table = table.set_column(5, "name", table["name"].dictionary_encode())
    pq.write_table(table, folder / "other.parquet", compression="zstd", use_dictionary=False)
    return open_source(folder / "other.parquet")


def feather(rows, folder):
    pyarrow.feather.write_feather(pa.Table.from_pylist(rows), str(folder / "rows.feather"), chunksize=700)
    return open_source(folder / "rows.feather")


def arrow_stream(rows, folder):
    import datasets

    datasets.Dataset.from_list(rows).save_to_disk(folder / "saved")
    return open_source(folder / "saved")


def jsonl(rows, folder):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_source(folder / "rows.jsonl")


def jsonl_gz(rows, folder):
    with gzip.open(folder / "rows.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return open_source(folder / "rows.jsonl.gz")


def jsonl_zst(rows, folder):
    with pa.CompressedOutputStream(str(folder / "rows.jsonl.zst"), "zstd") as file:
        for row in rows:
            file.write(json.dumps(row).encode() + b"\n")
    return open_source(folder / "rows.jsonl.zst")


def url(rows, folder):
    return open_source(f"file://{parquet(rows, folder).files()[0].path}")


def fsspec_url(rows, folder):
    import fsspec

    parquet(rows, folder)
    fsspec.filesystem("memory").pipe("/bucket/rows.parquet", (folder / "rows.parquet").read_bytes())
    return open_source("memory://bucket/rows.parquet")


def dataset(rows, folder):
    import datasets

    return DatasetSource(datasets.Dataset.from_list(rows))


def shuffled_back_dataset(rows, folder):
    """A dataset with an indices mapping."""
    import datasets

    order = np.random.default_rng(1).permutation(N)
    mixed = datasets.Dataset.from_list([rows[i] for i in order])
    return DatasetSource(mixed.select(np.argsort(order)))


def iterable_dataset(rows, folder):
    import datasets

    return DatasetSource(datasets.Dataset.from_list(rows).to_iterable_dataset(num_shards=4))


def dicts(rows, folder):
    return DictSource(rows)


def function_of_dicts(rows, folder):
    return DictSource(lambda: iter(rows), rows=333)


def iterator_of_dicts(rows, folder):
    return DictSource(iter(rows))


FORMS = (
    parquet,
    parquet_shards,
    parquet_of_other_types,
    feather,
    arrow_stream,
    jsonl,
    jsonl_gz,
    jsonl_zst,
    url,
    fsspec_url,
    dataset,
    shuffled_back_dataset,
    iterable_dataset,
    dicts,
    function_of_dicts,
    iterator_of_dicts,
)


def pack(source, out: Path):
    return pack_corpus(source, out, CorpusOptions(capacity=CAPACITY), packing=PackOptions(shard_tokens=1 << 16))


@pytest.fixture(scope="module")
def expected(rows, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected")
    return pack(DictSource(rows), out / "packed"), out / "packed"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_gives_the_same_shards(rows, expected, tmp_path, form):
    made = pack(form(rows, tmp_path), tmp_path / "packed")
    wanted, folder = expected
    assert len(made.shards) > 3
    assert made.shards == wanted.shards
    for shard in made.shards:
        assert (tmp_path / "packed" / shard.file).read_bytes() == (folder / shard.file).read_bytes()
    for name in ("columns", "carried", "plan_sha256", "counts", "sequence_checksum"):
        assert getattr(made, name) == getattr(wanted, name)
    (tmp_path / "again").mkdir()
    assert verify(tmp_path / "packed", source=form(rows, tmp_path / "again")) == []


def test_every_value_of_every_column_is_there(rows, expected):
    made, folder = expected
    assert made.carried == {
        "labels": "token",
        "label": "sequence",
        "weight": "sequence",
        "keep": "sequence",
        "name": "sequence",
    }
    seen = 0
    for row in open_packed(folder):
        ends = np.cumsum(row.seq_lengths)
        for at, record in enumerate(row.seq_index.tolist()):
            piece = slice(int(ends[at] - row.seq_lengths[at]), int(ends[at]))
            found = {
                "input_ids": row.input_ids[piece].tolist(),
                "labels": row["labels"][piece].tolist(),
                **{name: row[name][at] for name in ("label", "weight", "keep", "name")},
            }
            assert found == rows[record]
            seen += 1
    assert seen == N
    assert open_packed(folder)[0]["labels"].dtype == np.int64
    assert verify(folder, source=DictSource(rows)) == []


@pytest.mark.parametrize("column", ["input_ids", "labels", "label", "weight", "keep", "name"])
def test_a_changed_value_is_found(rows, expected, column):
    _, folder = expected
    changed = [dict(row) for row in rows]
    value = changed[77][column]
    changed[77][column] = {
        list: lambda: [*value[:-1], value[-1] + 1],
        int: lambda: value + 1,
        float: lambda: value + 1e-9,
        bool: lambda: not value,
        str: lambda: value + "!",
    }[type(value)]()
    [problem] = verify(folder, source=DictSource(changed))
    what = "the tokens" if column == "input_ids" else f"the values of {column!r}"
    assert problem == f"record 77, piece from token 0: not {what} that this source gives"


@pytest.mark.parametrize("at", [1000, 6000, 9900])
def test_a_job_that_broke_off_goes_on_with_every_column(rows, expected, tmp_path, monkeypatch, at):
    monkeypatch.setattr("nopad.store.job.sequences", partial(sequences, group_bytes=1 << 18))
    wanted, _ = expected
    stop = at

    def items():
        for number, row in enumerate(rows):
            if number == stop:
                raise OSError("unplugged")
            yield row

    def run():
        options = CorpusOptions(capacity=CAPACITY)
        packing = PackOptions(shard_tokens=1 << 16)
        return pack_corpus(DictSource(items), tmp_path / "packed", options, packing=packing, commit_every_s=0)

    with pytest.raises(SourceError, match=rf"memory: cannot be read from row {at + 1} on \(unplugged\)"):
        run()
    assert (tmp_path / "packed" / ".work" / "column-4.bin").exists() == (at > 5000)  # strings of what was committed
    stop = N
    made = run()
    assert made.shards == wanted.shards
    assert verify(tmp_path / "packed") == []


def test_pieces_of_split_records_keep_their_columns(rows, tmp_path):
    options = CorpusOptions(capacity=16, over_long="split")
    pack_corpus(DictSource(rows[:500]), tmp_path / "packed", options)
    seen = {at: [] for at in range(500)}
    for row in open_packed(tmp_path / "packed"):
        ends = np.cumsum(row.seq_lengths)
        for at, (record, start) in enumerate(zip(row.seq_index.tolist(), row.seq_start.tolist(), strict=True)):
            piece = slice(int(ends[at] - row.seq_lengths[at]), int(ends[at]))
            seen[record].append((start, row["labels"][piece].tolist(), row["name"][at]))
    for record, pieces in seen.items():
        assert [label for _, labels, _ in sorted(pieces) for label in labels] == rows[record]["labels"]
        assert {name for _, _, name in pieces} == {rows[record]["name"]}
    assert verify(tmp_path / "packed", source=DictSource(rows[:500])) == []


def test_truncated_records_keep_their_columns(rows, tmp_path):
    pack_corpus(DictSource(rows[:500]), tmp_path / "packed", CorpusOptions(capacity=16, over_long="truncate"))
    row = open_packed(tmp_path / "packed")[0]
    first = int(row.seq_lengths[0])
    assert row["labels"][:first].tolist() == rows[row.seq_index[0]]["labels"][:first]
    assert verify(tmp_path / "packed", source=DictSource(rows[:500])) == []


def test_columns_do_not_ride_along_in_an_index(rows, tmp_path):
    made = pack_corpus(DictSource(rows[:100]), tmp_path / "index", CorpusOptions(capacity=CAPACITY), index_only=True)
    assert (made.columns, made.carried) == ({}, {})
    assert verify(tmp_path / "index", source=DictSource(rows[:100])) == []


def test_every_type_is_kept(tmp_path):
    kinds = [
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bool",
    ]
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 200)
    values = {kind: rng.integers(0, 2 if kind == "bool" else 100, lengths.sum()).astype(kind) for kind in kinds}
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    columns = {"input_ids": pa.ListArray.from_arrays(offsets, pa.array(values["int32"]))}
    columns |= {f"token_{kind}": pa.ListArray.from_arrays(offsets, pa.array(values[kind])) for kind in kinds}
    columns |= {f"sequence_{kind}": pa.array(values[kind][:200]) for kind in kinds}
    pq.write_table(pa.table(columns), tmp_path / "all.parquet")
    source = open_source(tmp_path / "all.parquet")
    made = pack_corpus(source, tmp_path / "packed", CorpusOptions(capacity=32))
    assert verify(tmp_path / "packed", source=source) == []
    row = open_packed(tmp_path / "packed")[0]
    for kind in kinds:
        for per in ("token", "sequence"):
            assert row[f"{per}_{kind}"].dtype == np.dtype(kind)
            assert made.carried[f"{per}_{kind}"] == per


def test_padding_that_nobody_marked_is_warned_of(tmp_path):
    padded = [{"input_ids": [i % 7 + 1] * (i % 5 + 1) + [0] * (4 - i % 5)} for i in range(16)]
    with pytest.warns(UserWarning, match=r"all 16 sequences have 5 tokens: if they are padded, name the mask"):
        pack_corpus(DictSource(padded), tmp_path / "a", CorpusOptions(capacity=8))
    made = pack_corpus(open_source(padded, nopad.ReaderOptions(pad_id=0)), tmp_path / "b", CorpusOptions(capacity=8))
    assert (made.counts["stripped"], made.counts["stripped_tokens"]) == (13, sum(4 - i % 5 for i in range(16)))


def test_other_columns_are_another_job(rows, tmp_path):
    pack_corpus(open_source(rows[:50]), tmp_path / "packed", CorpusOptions(capacity=CAPACITY))
    with pytest.raises(OutputExistsError, match=r"carry was auto, now \['label'\]"):
        pack_corpus(
            open_source(rows[:50], nopad.ReaderOptions(carry=["label"])),
            tmp_path / "packed",
            CorpusOptions(capacity=CAPACITY),
        )


def test_more_text_than_a_row_group_holds(rows, tmp_path, monkeypatch):
    """600 kB beside each token were an error of the Arrow library, after all had been tokenised."""
    monkeypatch.setattr("nopad.store.shards.MAX_TEXT", 200)
    options = CorpusOptions(capacity=CAPACITY, over_long="split")
    with pytest.raises(
        OptionError, match=r"the column 'name' has [\d,]+ bytes of text in [\d,]+ packs .* shard_tokens="
    ):
        pack_corpus(DictSource(rows[:500]), tmp_path / "packed", options)
    packing = PackOptions(shard_tokens=CAPACITY, depth=4)
    pack_corpus(DictSource(rows[:500]), tmp_path / "packed", options, packing=packing)
    assert verify(tmp_path / "packed", source=DictSource(rows[:500])) == []
