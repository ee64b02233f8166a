"""What sources tell progress bars: a total at the start, and each block's part of it."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import nopad
from nopad.corpus import ReaderOptions, json_array, open_source
from nopad.errors import RecordError

WORDS = np.random.default_rng(0).integers(0, 1 << 30, (3000, 40))
ROWS = [{"text": " ".join(map(str, words)), "label": at % 3} for at, words in enumerate(WORDS.tolist())]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def compressed(path):
    with gzip.open(path, "wt") as file:
        file.write(LINES)


def zstd(path):
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(LINES.encode())


def stream(path):
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=500)


def delimited(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt") as file:
        writer = csv.DictWriter(file, ["text", "label"])
        writer.writeheader()
        writer.writerows(ROWS)


MADE = {
    "a.jsonl": lambda path: path.write_text(LINES),
    "a.jsonl.gz": compressed,
    "a.jsonl.zst": zstd,
    "a.txt": lambda path: path.write_text(LINES),
    "a.txt.gz": compressed,
    "a.json": lambda path: path.write_text(json.dumps(ROWS)),
    "a.csv": delimited,
    "a.csv.gz": delimited,
    "a.parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=700),
    "a.feather": lambda path: feather.write_feather(pa.Table.from_pylist(ROWS), path, compression="uncompressed"),
    "a.arrow": stream,
}


@pytest.mark.parametrize("name", MADE)
def test_the_total_is_known_at_the_start_and_blocks_add_up_to_it(name, tmp_path):
    MADE[name](tmp_path / name)
    source = open_source(tmp_path / name, ReaderOptions(text_unit="line"), block_bytes=1 << 17)
    size = (tmp_path / name).stat().st_size
    assert source.total_bytes == size
    parts = [block.progress for block in source.blocks()]
    assert len(parts) >= 3
    assert min(parts) >= 0
    assert 0 <= size - sum(parts) < size / 100  # the end mark of an Arrow stream is not part of a batch
    again = [block.progress for block in source.blocks()]
    assert again == parts


def test_a_mixture_and_a_url_tell_it_too(tmp_path):
    compressed(tmp_path / "a.jsonl.gz")
    stream(tmp_path / "b.arrow")
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    source = open_source({"x": f"file://{tmp_path}/a.jsonl.gz", "y": [tmp_path / "b.arrow"]}, block_bytes=1 << 17)
    assert source.total_bytes == size
    assert 0 <= size - sum(block.progress for block in source.blocks()) < size / 100


def test_a_dataset_counts_by_rows():
    source = nopad.corpus.DatasetSource(datasets.Dataset.from_list(ROWS), rows=700)
    parts = [block.progress for block in source.blocks()]
    assert len(parts) == 5
    assert sum(parts) == source.total_bytes > len(LINES) / 2


def test_pairs_count_what_their_documents_took(tmp_path):
    compressed(tmp_path / "a.jsonl.gz")
    tokenizer = nopad.load_tokenizer()
    source = nopad.corpus.PretrainingSource(open_source(tmp_path / "a.jsonl.gz"), tokenizer)
    assert sum(block.progress for block in source.blocks()) == source.total_bytes > 0


def test_a_json_array_on_a_single_line_is_read_in_parts(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "é" * 1000}] * 30_000, ensure_ascii=False))  # 60 MB
    records = nopad.corpus.open_records(path)
    tracemalloc.start()
    assert sum(1 for _ in records) == 30_000
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 30e6
    monkeypatch.setattr(json_array, "_BYTES", 3)  # so that characters are cut in two
    small = tmp_path / "b.json"
    small.write_text('[{"text": "é€😀"}, {"text": "ü"}]')
    assert [one["text"] for one in nopad.corpus.open_records(small)] == ["é€😀", "ü"]
    small.write_bytes('[{"text": "é"}]'.encode() + b"\xe2\x82")
    with pytest.raises(RecordError, match="byte 0xe2"):
        list(nopad.corpus.open_records(small))
