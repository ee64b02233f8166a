"""A table that is replaced while a job runs is refused: nothing of the new is packed, nothing of the old is lost."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nopad
from nopad.errors import OutputError, SourceError

N = 3000


def write(path, first):
    pq.write_table(pa.table({"input_ids": [[first + i] for i in range(N)]}), path, row_group_size=100)


def pack(source, out):
    return nopad.pack_corpus(source, out, nopad.CorpusOptions(capacity=8), commit_every_s=0)


@pytest.mark.parametrize("moment", ["before", "between passes"])
def test_a_parquet_file_replaced_under_a_job(tmp_path, moment):
    path, out = tmp_path / "a.parquet", tmp_path / "out"
    write(path, 0)
    source = nopad.open_source(path)
    if moment == "between passes":
        assert pack(source, out).sequences == N
    write(tmp_path / "new.parquet", N)
    os.replace(tmp_path / "new.parquet", path)
    with pytest.raises(SourceError, match=r"a.parquet: (written again or replaced|changed) while the job was running"):
        pack(source, out)
    if moment == "before":
        assert not out.exists()
        assert pack(nopad.open_source(path), out).sequences == N
    else:
        with pytest.raises(OutputError, match="another source"):
            pack(nopad.open_source(path), out)
    first = N if moment == "before" else 0
    found = sorted(token for row in nopad.open_packed(out) for token in row.input_ids.tolist())
    assert found == list(range(first, first + N))


def test_an_unfinished_job_over_a_file_that_was_replaced_is_not_gone_on_with(tmp_path, monkeypatch):
    path, out = tmp_path / "a.parquet", tmp_path / "out"
    write(path, 0)
    source = nopad.open_source(path, block_bytes=1 << 10)
    blocks = source.blocks

    def stop():
        for at, block in enumerate(blocks()):
            if at == 20:
                raise OSError("unplugged")
            yield block

    monkeypatch.setattr(source, "blocks", stop)
    monkeypatch.setattr("nopad.store.job.sequences", _small_groups(nopad.store.job.sequences))
    with pytest.raises(OSError, match="unplugged"):
        pack(source, out)
    write(path, N)
    with pytest.raises(OutputError, match="the source changed since"):
        pack(nopad.open_source(path, block_bytes=1 << 10), out)


def _small_groups(sequences):
    return lambda *args, **how: sequences(*args, **how, group_bytes=1)
