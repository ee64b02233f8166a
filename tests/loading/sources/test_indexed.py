"""Index-only datasets beside their source. What every test expects is computed here, from plain lists."""

from __future__ import annotations

import json
import os
import pickle
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nopad import CorpusOptions, PackOptions, ReaderOptions, open_packed, open_source, pack_corpus
from nopad.corpus import IterableSource, LengthsFile
from nopad.errors import OptionError, PlanMismatchError, SourceError
from nopad.loading.sources import open_tokens

CONTENT = [[5, 6, 7], [8, 9], [1, 2, 3, 4, 5], [3]]


@pytest.fixture(scope="module")
def records(make_records):
    return make_records(300)


@pytest.fixture
def index(tmp_path):
    """Pack a source, or what `open_source` opens with these options, into an index-only dataset."""

    def run(given, reader=None, *, name="index", packing=None, **options):
        source = given if hasattr(given, "blocks") else open_source(given, reader)
        corpus = CorpusOptions(**{"capacity": 16} | options)
        pack_corpus(source, tmp_path / name, corpus, packing=packing, index_only=True)
        return tmp_path / name

    return run


def gathered(source) -> list[list[int]]:
    """Each sequence, in order."""
    return [source.gather([number]).tokens["input_ids"].tolist() for number in range(len(source))]


def padded(side: str) -> tuple[list[list[int]], list[list[int]]]:
    """The content with zeros at a side, or at both; and masks of it."""
    ids, masks = [], []
    for number, content in enumerate(CONTENT):
        left = number + 1 if side in ("left", "both") else 0
        right = 4 - number if side in ("right", "both") else 0
        ids.append([0] * left + content + [0] * right)
        masks.append([0] * left + [1] * len(content) + [0] * right)
    return ids, masks


def stored(kind: str, folder, columns: dict[str, list[list[int]]]):
    """Lists in columns as one kind of input."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if kind == "dicts":
        return rows
    if kind == "dataset":
        return pytest.importorskip("datasets").Dataset.from_dict(columns)
    folder.mkdir()
    if kind == "arrays":
        for name, lists in columns.items():
            np.save(folder / f"{'ids' if name == 'input_ids' else name}.npy", np.array(list(chain(*lists)), np.uint16))
        np.save(folder / "offsets.npy", np.cumsum([0, *map(len, columns["input_ids"])]))
        return folder
    if kind == "lines":
        (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder / "a.jsonl"
    table = pa.table(columns)
    if kind == "parquet":
        pq.write_table(table, folder / "a.parquet")
        return folder / "a.parquet"
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return folder / "a.arrow"


KINDS = ("parquet", "arrow", "lines", "arrays", "dataset", "dicts")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("by", ["pad_id", "mask", "own mask"])
def test_padding_that_was_cut_off_stays_off(tmp_path, index, kind, side, by):
    ids, masks = padded(side)
    beside = {"pad_id": {}, "mask": {"attention_mask": masks}, "own mask": {"keep": masks}}[by]
    source = stored(kind, tmp_path / "source", {"input_ids": ids, **beside})
    options = {"pad_id": ReaderOptions(pad_id=0), "mask": None, "own mask": ReaderOptions(mask_field="keep")}[by]
    out = index(source, options)
    for given in (None, options):
        tokens = open_tokens(out, given, source=source)
        assert tokens.seq_lengths.tolist() == list(map(len, CONTENT))
        assert gathered(tokens) == gathered(pickle.loads(pickle.dumps(tokens))) == CONTENT
    assert gathered(open_tokens(out, source=open_source(source, options))) == CONTENT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_the_padded_ids_without_their_mask_are_refused(tmp_path, index, kind, side):
    ids, masks = padded(side)
    out = index([{"input_ids": one, "attention_mask": mask} for one, mask in zip(ids, masks, strict=True)])
    with pytest.raises(PlanMismatchError, match=r"record 0, which had 3 tokens when it was packed, and has \d in"):
        open_tokens(out, source=stored(kind, tmp_path / "source", {"input_ids": ids}))


@pytest.mark.parametrize("kind", KINDS)
def test_the_column_of_ids_is_the_one_that_was_packed(tmp_path, index, kind):
    other = [[10 * id for id in ids] for ids in CONTENT]
    source = stored(kind, tmp_path / "source", {"input_ids": CONTENT, "other": other})
    out = index(source, ReaderOptions(ids_field="other"))
    assert gathered(open_tokens(out, source=source)) == other
    with pytest.raises(OptionError, match=f"ids_field is None, and {out} was made with 'other'; give the same"):
        open_tokens(out, ReaderOptions(), source=source)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["order", "one token", "two tokens change places"])
def test_other_tokens_of_the_same_lengths_are_refused(tmp_path, index, kind, change):
    lists = [*([number, number + 1, 7] for number in range(300)), [1]]
    out = index(lists)
    if change == "order":
        lists = [*lists[:150], lists[151], lists[150], *lists[152:]]
    elif change == "one token":
        lists[150] = [150, 152, 7]
    else:
        lists[150] = [151, 150, 7]
    source = stored(kind, tmp_path / "source", {"input_ids": lists})
    with pytest.raises(PlanMismatchError, match=r"sequence 150, of record 150, has other tokens in .* give the source"):
        open_tokens(out, source=source).gather(range(300))


def test_a_wrong_source_is_refused_when_it_is_opened(index):
    out = index([*([number, 7] for number in range(3000)), [1]])
    with pytest.raises(PlanMismatchError, match="sequence 0, of record 0, has other tokens in records than when"):
        open_tokens(out, source=[*([number + 1, 7] for number in range(3000)), [1]])


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_records_have_the_lengths_that_they_had(tmp_path, index, kind):
    lists = [[1, 2, 3], list(range(30)), [5, 6], list(range(16))]
    out = index(lists, over_long="truncate")

    def opened(changed, name):
        return open_tokens(out, source=stored(kind, tmp_path / name, {"input_ids": changed}))

    assert gathered(opened(lists, "same")) == [ids[:16] for ids in lists]
    with pytest.raises(PlanMismatchError, match="record 0, which had 3 tokens when it was packed, and has 4 in"):
        opened([[1, 2, 3, 4], *lists[1:]], "longer")
    with pytest.raises(PlanMismatchError, match=r"14 tokens of truncated records were left out, and of .* would be 15"):
        opened([lists[0], list(range(31)), *lists[2:]], "truncated longer")
    with pytest.raises(PlanMismatchError, match=r"14 tokens of truncated records were left out, and of .* would be 18"):
        opened([*lists[:3], list(range(20))], "truncated now")
    with pytest.raises(PlanMismatchError, match="record 1, which had 16 tokens when it was packed, and has 15 in"):
        opened([lists[0], list(range(15)), *lists[2:]], "shorter")


def test_split_records_have_the_lengths_that_they_had(index):
    lists = [list(range(40)), [5]]
    out = index(lists, over_long="split")
    assert gathered(open_tokens(out, source=lists)) == [lists[0][:16], lists[0][16:32], lists[0][32:], [5]]
    for size in (33, 39, 41, 50):
        with pytest.raises(PlanMismatchError, match=f"which had 40 tokens when it was packed, and has {size}"):
            open_tokens(out, source=[list(range(size)), [5]])


@pytest.mark.parametrize("reader", [{}, {"pad_id": 0}])
def test_a_held_out_share_of_split_and_truncated_records(index, reader):
    lists = [[0] * 2 + list(range(1, 2 + 3 * number)) for number in range(12)]
    content = [ids[2:] for ids in lists] if reader else lists
    for way in ("split", "truncate"):
        options = ReaderOptions(**reader)
        out = index(lists, options, name=way, over_long=way, packing=PackOptions(validation=0.4))
        for half in ("train", "validation"):
            tokens = open_tokens(out / half, source=lists)
            numbers = sorted({number for row in open_packed(out / half) for number in row.seq_index.tolist()})
            whole = {number: content[number][: 16 if way == "truncate" else None] for number in numbers}
            assert gathered(tokens) == [ids[at : at + 16] for ids in whole.values() for at in range(0, len(ids), 16)]


def test_bad_records_are_left_out_again(tmp_path, index):
    path = tmp_path / "a.jsonl"
    path.write_text('{"input_ids": [1, 2]}\n{"input_ids": ["a"]}\n{"input_ids": [900]}\n{"input_ids": [3]}\n')
    out = index(path, on_bad_record="skip", vocab_size=100)
    for spool in (None, tmp_path / "spool"):
        tokens = open_tokens(out, source=path, spool=spool)
        assert gathered(tokens) == [[1, 2], [3]]
        assert tokens.gather([1, 0]).values["seq_index"].tolist() == [3, 0]


def test_bad_records_of_a_list_are_left_out_again(index):
    lists = [[1, 2], [-1], [3]]
    assert gathered(open_tokens(index(IterableSource(lists), on_bad_record="skip"), source=lists)) == [[1, 2], [3]]


def test_named_sources(tmp_path, index):
    a, b = [[1, 2], [3]], [[4, 4, 4], [5]]
    out = index({"a": a, "b": b})
    assert gathered(open_tokens(out, source={"a": a, "b": b})) == a + b
    assert gathered(open_tokens(out, source=a + b)) == a + b
    with pytest.raises(PlanMismatchError, match=f"{out}: was made of the sources a, b, and these are b, a; give the"):
        open_tokens(out, source={"b": b, "a": a})
    plain = index(a + b, name="plain")
    with pytest.raises(PlanMismatchError, match="was made of a source without names, and these are a, b; give the"):
        open_tokens(plain, source={"a": a, "b": b})


def test_an_open_source_is_refused_where_it_may_have_been_read_otherwise(index):
    rows = [{"input_ids": [0, 1, 2]}, {"input_ids": [0, 3]}]
    out = index(rows, ReaderOptions(pad_id=0))
    with pytest.raises(OptionError, match=r"source is ArrayTokens\('records', 2 sequences\), which is open, so it may"):
        open_tokens(out, source=open_tokens(rows, ReaderOptions(pad_id=0)))
    for reader, name in ((ReaderOptions(), "pad_id is None"), (ReaderOptions(pad_id=7), "pad_id is 7")):
        with pytest.raises(OptionError, match=f"DictSource: {name}, and {out} was made with 0; give the same, or only"):
            open_tokens(out, source=open_source(rows, reader))
    with pytest.raises(OptionError, match=f"IterableSource: pad_id is None, and {out} was made with 0"):
        open_tokens(out, source=IterableSource([[0, 1, 2], [0, 3]]))


def test_columns_are_those_that_were_carried_or_are_asked_for(index):
    rows = [{"input_ids": [0, 1], "a": 1, "b": 2}, {"input_ids": [0, 3], "a": 3, "b": 4}]
    out = index(rows, ReaderOptions(pad_id=0, carry=["a"]))
    assert open_tokens(out, source=rows).gather([0]).values.keys() == {"a", "seq_index"}
    asked = open_tokens(out, ReaderOptions(pad_id=0, carry=["b"]), source=rows)
    assert asked.gather([1, 0]).values["b"].tolist() == [4, 2]


def test_an_index_of_lengths_takes_any_tokens_of_these_lengths(tmp_path, index, write_megatron):
    np.save(tmp_path / "lengths.npy", [3, 2])
    out = index(LengthsFile(tmp_path / "lengths.npy"))
    pair = write_megatron(tmp_path / "pair", [[1], [2, 3], [4, 5]], documents=[0, 2, 3])
    assert gathered(open_tokens(out, source=open_tokens(pair, unit="documents"))) == [[1, 2, 3], [4, 5]]
    assert gathered(open_tokens(out, ReaderOptions(pad_id=0), source=[[0, 7, 8, 9], [6, 5, 0]])) == [[7, 8, 9], [6, 5]]
    with pytest.raises(PlanMismatchError, match="which had 2 tokens when it was packed, and has 3 in"):
        open_tokens(out, source=[[7, 8, 9], [6, 5, 0]])


def test_a_change_that_keeps_size_and_time_is_seen_too(tmp_path, index, write_arrays):
    """Only the hash sees this one."""
    folder = write_arrays(tmp_path / "a", [{"input_ids": [number + 1] * (1 + number % 2)} for number in range(200)])
    tokens = open_tokens(index(folder), source=folder)
    assert tokens.gather([101]).tokens["input_ids"].tolist() == [102, 102]
    path, before = folder / "ids.npy", (folder / "ids.npy").stat()
    ids = np.load(path)
    ids[ids == 102] = [102, 103]
    with open(path, "r+b") as file:
        np.save(file, ids)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert tokens.gather([100]).tokens["input_ids"].tolist() == [101]
    with pytest.raises(PlanMismatchError, match="sequence 101, of record 101, has other tokens"):
        tokens.gather([4, 101])


def test_an_index_beside_its_source(index, records, holds):
    out = index(records)
    holds(open_tokens(out, source=records), [{**one, "seq_index": at} for at, one in enumerate(records)])


@pytest.mark.parametrize("kind", ["folder", "parquet", "spool"])
def test_an_index_of_split_and_empty_records(index, tmp_path, write_arrays, holds, kind):
    lists = [list(range(30)), [], [5], list(range(40)), [], [7, 8]]
    out = index(lists, over_long="split")
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


def test_the_source_of_an_index_must_be_the_one_it_was_made_for(index, refuses):
    lists = [[1, 2, 3], [4], [5, 6]]
    out = index(lists)
    with refuses(SourceError, f"{out}: an index-only dataset holds no tokens; give those of its source, with source="):
        open_tokens(out)
    with pytest.raises(PlanMismatchError, match="was made of 3 records, and records has 2; give the source"):
        open_tokens(out, source=lists[:2])
    with pytest.raises(
        PlanMismatchError,
        match="sequence 1 is of record 1, which had 1 tokens when it was packed",
    ):
        open_tokens(out, source=[[1, 2, 3], [4, 4], [5, 6]])
    with pytest.raises(PlanMismatchError, match="sequence 0 is of record 0, which had 3 tokens when it was packed"):
        open_tokens(index([[1, 2, 3, 4], [4]], name="cut", capacity=3, over_long="truncate"), source=[[1, 2], [4]])


def test_an_index_of_padded_records(index, holds):
    rows = [{"input_ids": [0, 1, 2], "attention_mask": [0, 1, 1]}, {"input_ids": [3, 0], "attention_mask": [1, 0]}]
    out = index(rows)
    holds(open_tokens(out, source=rows), [{"input_ids": [1, 2], "seq_index": 0}, {"input_ids": [3], "seq_index": 1}])
