from __future__ import annotations

import pytest

from nopad import CorpusOptions, PackOptions, open_packed, pack_corpus
from nopad.corpus import IterableSource, open_source
from nopad.errors import CorruptError
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
