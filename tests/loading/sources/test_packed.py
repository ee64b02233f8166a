from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nopad import CorpusOptions, PackOptions, open_packed, pack_corpus
from nopad.corpus import IterableSource, open_source
from nopad.errors import CorruptError, PlanMismatchError, SourceError
from nopad.loading.sources import open_tokens


@pytest.fixture(scope="module")
def records(make_records):
    return make_records(300)


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    def run(rows, *, index=False, **options):
        out = tmp_path_factory.mktemp("packed") / "out"
        source = open_source(rows) if isinstance(rows, list) and isinstance(rows[0], dict) else IterableSource(rows)
        packing = PackOptions(shard_tokens=600)
        return (
            pack_corpus(source, out, CorpusOptions(**{"capacity": 16} | options), packing=packing, index_only=index)
            and out
        )

    return run


@pytest.mark.parametrize("spool", [False, True])
def test_sequences_of_a_packed_dataset_in_stored_order(pack, records, holds, tmp_path, spool):
    out = pack(records)
    stored = [number for row in open_packed(out) for number in row.seq_index.tolist()]
    assert stored != sorted(stored)
    source = open_tokens(out, spool=tmp_path / "s" if spool else None)
    holds(source, [{**records[number], "seq_index": number} for number in stored])


def test_pieces_of_split_records_say_where_they_begin(pack, tmp_path):
    lists = [list(range(30)), [5], list(range(40))]
    source = open_tokens(pack(lists, over_long="split"))
    found = source.gather(range(len(source)))
    for at, ids in enumerate(found.part(k, k + 1).tokens["input_ids"].tolist() for k in range(len(found))):
        start, number = found.values["seq_start"][at], found.values["seq_index"][at]
        assert ids == lists[number][start : start + len(ids)]
    assert sorted(found.values["seq_index"].tolist()) == [0, 0, 1, 2, 2, 2]


def test_a_damaged_shard(pack, records):
    out = pack(records)
    shard = next((out / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(CorruptError, match="missing or damaged"):
        open_tokens(out)


def test_an_index_beside_its_source(pack, records, holds):
    out = pack(records, index=True)
    holds(open_tokens(out, source=records), [{**one, "seq_index": at} for at, one in enumerate(records)])


@pytest.mark.parametrize("kind", ["folder", "parquet", "spool"])
def test_an_index_of_split_and_empty_records(pack, tmp_path, write_arrays, holds, kind):
    lists = [list(range(30)), [], [5], list(range(40)), [], [7, 8]]
    out = pack(lists, index=True, over_long="split")
    rows = [{"input_ids": ids} for ids in lists]
    if kind == "folder":
        source = write_arrays(tmp_path / "a", rows)
    else:
        source = tmp_path / "a.parquet"
        pq.write_table(pa.table({"input_ids": pa.array(lists, pa.list_(pa.int32()))}), source)
    spool = tmp_path / "s" if kind == "spool" else None
    expected = [
        {"input_ids": ids[start : start + 16], "seq_index": at}
        for at, ids in enumerate(lists)
        for start in range(0, len(ids), 16)
    ]
    holds(open_tokens(out, source=source, spool=spool), expected)


def test_the_source_of_an_index_must_be_the_one_it_was_made_for(pack, refuses):
    lists = [[1, 2, 3], [4], [5, 6]]
    out = pack(lists, index=True)
    with refuses(SourceError, f"{out}: an index-only dataset holds no tokens; give those of its source, with source="):
        open_tokens(out)
    with pytest.raises(PlanMismatchError, match="names record 2, and records has 2 from 0 on"):
        open_tokens(out, source=lists[:2])
    with pytest.raises(PlanMismatchError, match="sequence 1 has 1 tokens of record 1, which has 2 in records"):
        open_tokens(out, source=[[1, 2, 3], [4, 4], [5, 6]])
    with pytest.raises(PlanMismatchError, match="sequence 0 has 3 tokens of record 0, which has 2"):
        open_tokens(pack([[1, 2, 3, 4], [4]], index=True, capacity=3, over_long="truncate"), source=[[1, 2], [4]])


def test_an_index_of_padded_records(pack, holds):
    rows = [{"input_ids": [0, 1, 2], "attention_mask": [0, 1, 1]}, {"input_ids": [3, 0], "attention_mask": [1, 0]}]
    out = pack(rows, index=True)
    holds(open_tokens(out, source=rows), [{"input_ids": [1, 2], "seq_index": 0}, {"input_ids": [3], "seq_index": 1}])
