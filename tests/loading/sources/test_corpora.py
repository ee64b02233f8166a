from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nopad import ReaderOptions, open_source
from nopad.corpus.encoders import Encoder
from nopad.errors import LengthError, RecordError, SourceError
from nopad.loading.sources import open_tokens


@pytest.fixture(scope="module")
def records(make_records):
    return make_records(600)


def test_lists_and_arrays_in_memory(records, holds, only):
    ids = only(records, "input_ids")
    lists = [one["input_ids"] for one in ids]
    holds(open_tokens(lists), ids)
    holds(open_tokens([np.array(one, np.uint16) for one in lists]), ids)
    holds(open_tokens(tuple(map(tuple, lists))), ids)


def test_dicts(records, holds):
    holds(open_tokens(records), records)
    holds(open_tokens(iter(records)), records)
    holds(open_tokens(lambda: iter(records)), records)


def test_parquet_files(tmp_path, records, holds):
    for at in range(2):
        pq.write_table(
            pa.Table.from_pylist(records[300 * at : 300 * at + 300]), tmp_path / f"{at}.parquet", row_group_size=70
        )
    holds(open_tokens(tmp_path), records)
    holds(open_tokens([tmp_path / "1.parquet", tmp_path / "0.parquet"]), records[300:] + records[:300])
    assert open_tokens(tmp_path).fingerprint == open_tokens(records).fingerprint


def test_json_lines(tmp_path, records, holds, only):
    ids = only(records, "input_ids")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"ids": one["input_ids"]}) + "\n" for one in ids))
    holds(open_tokens(tmp_path / "a.jsonl", ReaderOptions(ids_field="ids")), ids)


def test_padding_is_cut_off(holds):
    rows = [{"input_ids": [1, 2, 0], "attention_mask": [1, 1, 0]}, {"input_ids": [0, 3], "attention_mask": [0, 1]}]
    holds(open_tokens(rows), [{"input_ids": [1, 2]}, {"input_ids": [3]}])


def test_strings_are_left_out(holds):
    source = open_tokens([{"input_ids": [1], "text": "a", "label": 4}])
    assert source.left_out == ("text",)
    holds(source, [{"input_ids": [1], "label": 4}])


def test_empty_records_keep_their_numbers():
    rows = [{"input_ids": ids, "label": i} for i, ids in enumerate([[1], [], [2, 3], []])]
    with pytest.raises(LengthError, match="sequence 1 has no token, as 2 of 4"):
        open_tokens(rows)
    source = open_tokens(rows, empty="skip")
    assert (source.skipped, source.gather([1, 0]).values["label"].tolist()) == (2, [2, 0])
    assert source.stored_lengths().tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 2], [3, -1]], r"row 2: input_ids\[1\] is -1; ids are integers"),
        ([{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [1, 2], "labels": [1]}], "has 1 values beside 2"),
        ([{"input_ids": [1]}, {"input_ids": None}], "null"),
    ],
)
def test_bad_records(rows, message):
    with pytest.raises(RecordError, match=message):
        open_tokens(rows)


@pytest.mark.parametrize("ids", [[1.0, 2.0], [3, 4.5], [float("nan")], [True], ["a"]])
def test_ids_that_are_no_integers(ids):
    with pytest.raises((SourceError, RecordError), match=r"not lists of integers|holds text"):
        open_tokens([ids, ids])


def test_text_is_no_tokens(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(SourceError, match="holds text, and no ids; tokenise it first"):
        open_tokens(tmp_path / "a.txt")


def test_several_sequences_of_one_record_have_no_numbers():
    class Halves(Encoder):
        content, reads, columns = "input_ids", ("text",), {"input_ids": pa.list_(pa.int32())}

        def encode(self, records):
            return [[{"input_ids": [1, 2]}, {"input_ids": [3]}] for _ in records], {}

        def settings(self):
            return {"encoder": "halves"}

    with pytest.raises(SourceError, match=r"several sequences are made of record 0, .*; pack it with"):
        open_tokens(open_source([{"text": "a"}, {"text": "b"}], encoder=Halves()))
